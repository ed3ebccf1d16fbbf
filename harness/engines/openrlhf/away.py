"""Memory that a sleeping process gives back: tensors' contents leave the device and return to the same tensors later.

A GPU's go to pinned memory of the host. Where the device is the host itself they go to an unlinked file in the temporary
folder (`TMPDIR`), which should be a disk. Every tensor keeps its shape, its views and its place in others' structures:
only the storage beneath it is emptied, as torch's FSDP does between its forward passes.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import torch
from torch import Tensor, UntypedStorage

LEAST_BYTES = 1 << 16
"""Smaller storages are not worth the way."""
_PAGE, _MADV_DONTNEED = 4096, 4


class Away:
    """The contents of some tensors, whose own memory is free until `back`. Tensors that share a storage go together."""

    def __init__(self, tensors: Iterable[Tensor], *, free: bool = True, least: int = LEAST_BYTES) -> None:
        """free: False leaves the tensors as they are, to be overwritten and restored. least: bytes of a storage worth the way.

        Not freed is what is not torch's to free: a mapped file, another library's memory.
        """
        self._storages = [s for s in storages(tensors) if s.nbytes() >= least and (s.resizable() or not free)]
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._host: list[Tensor] = []
        self._file: IO[bytes] | None = None
        for storage in self._storages:
            self._put(_bytes(storage))
            if free:
                storage.resize_(0)
        if free:
            release()

    @property
    def nbytes(self) -> int:
        return sum(self._sizes)

    def back(self) -> None:
        """Put the contents back where they were, once."""
        for _ in self.one_by_one():
            pass

    def one_by_one(self) -> Iterator[None]:
        """The same, storage by storage in the order of the tensors."""
        if self._file is not None:
            self._file.seek(0)
        while self._storages:
            storage, size = self._storages.pop(0), self._sizes.pop(0)
            if storage.nbytes() != size:
                storage.resize_(size)
            self._take(_bytes(storage))
            yield
        if self._file is not None:
            self._file.close()

    def _put(self, source: Tensor) -> None:
        if not source.is_cpu:
            self._host.append(torch.empty_like(source, device="cpu", pin_memory=True).copy_(source))
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as this object
        self._file.write(_view(source))

    def _take(self, target: Tensor) -> None:
        if self._file is None:
            target.copy_(self._host.pop(0))
        elif self._file.readinto(_view(target)) != target.numel():  # type: ignore[attr-defined]
            raise OSError("the file of a sleeping process is shorter than what was put away")


def storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Each storage once, empty ones left out."""
    found: dict[int, UntypedStorage] = {}
    for tensor in tensors:
        if (storage := tensor.untyped_storage()).nbytes():
            found.setdefault(storage.data_ptr(), storage)
    return list(found.values())


def all_tensors(device: str) -> list[Tensor]:
    """Every tensor of this process on devices of that type, whatever holds it."""
    kinds = (Tensor, torch.nn.Parameter)
    found = [found for found in gc.get_objects() if type(found) in kinds]
    return [t for t in found if t.layout is torch.strided and t.device.type == device]


def discard(tensors: Iterable[Tensor]) -> None:
    """Give the pages of CPU tensors back to the system; they read as zeros from now on."""
    for storage in storages(tensors):
        first = -(-storage.data_ptr() // _PAGE) * _PAGE
        length = (storage.data_ptr() + storage.nbytes() - first) // _PAGE * _PAGE
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_DONTNEED)


def release() -> None:
    """Hand what the allocators keep for later back to the device and to the system."""
    gc.collect()
    torch.cuda.empty_cache()
    _libc().malloc_trim(0)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _view(tensor: Tensor) -> memoryview:
    # numpy() would do, but torch never frees what it has lent to numpy.
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _libc() -> Any:
    return ctypes.CDLL(None)
