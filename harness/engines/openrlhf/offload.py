"""Release of sleeping processes' memory, and their turns on the device. A GPU's tensors go to pinned memory, a
host's to an unlinked file in `TMPDIR`. Only the storage beneath a tensor is emptied, as torch's FSDP does."""

from __future__ import annotations

import ctypes
import gc
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import EngineError

LEAST_BYTES = 1 << 16  # smaller storages are not worth the way
_PAGE, _MADV_DONTNEED = 4096, 4


class OffloadedTensors:
    """Contents of tensors whose memory is free until `restore`. free: False leaves them, to be overwritten; else only what
    torch cannot free (a mapped file) stays."""

    def __init__(self, tensors: Iterable[Tensor], *, free: bool = True, least: int = LEAST_BYTES) -> None:
        self._storages = [s for s in storages_of(tensors) if s.nbytes() >= least and (s.resizable() or not free)]
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._host: list[Tensor] = []
        self._file: IO[bytes] | None = None
        for storage in self._storages:
            source = _bytes_of_storage(storage)
            if source.is_cpu:
                self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as this object
                self._file.write(_view_memory(source))
            else:
                self._host.append(torch.empty_like(source, device="cpu", pin_memory=True).copy_(source))
            if free:
                storage.resize_(0)
        if free:
            release_cache()

    def restore(self) -> None:
        for _ in self.one_by_one():
            pass

    def one_by_one(self) -> Iterator[None]:
        """Bring the tensors back one after another; each is there when the next is asked for."""
        if self._file is not None:
            self._file.seek(0)
        while self._storages:
            storage = self._storages.pop(0)
            size = self._sizes.pop(0)
            if storage.nbytes() != size:
                storage.resize_(size)
            target = _bytes_of_storage(storage)
            if self._file is None:
                target.copy_(self._host.pop(0))
            elif self._file.readinto(_view_memory(target)) != size:  # type: ignore[attr-defined]
                raise OSError("the file of a sleeping process is shorter than what was put away")
            yield
        if self._file is not None:
            self._file.close()


def storages_of(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    by_address: dict[int, UntypedStorage] = {}
    for tensor in tensors:
        if (storage := tensor.untyped_storage()).nbytes():
            by_address.setdefault(storage.data_ptr(), storage)
    return list(by_address.values())


def all_tensors(device: str) -> list[Tensor]:
    kinds = (Tensor, torch.nn.Parameter)
    tensors = [thing for thing in gc.get_objects() if type(thing) in kinds]
    return [t for t in tensors if t.layout is torch.strided and t.device.type == device]


def discard_pages(tensors: Iterable[Tensor]) -> None:
    """Give the pages of CPU tensors back to the system; they then read as zeros."""
    for storage in storages_of(tensors):
        first = -(-storage.data_ptr() // _PAGE) * _PAGE
        length = (storage.data_ptr() + storage.nbytes() - first) // _PAGE * _PAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_DONTNEED)


def release_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)


def _bytes_of_storage(storage: UntypedStorage) -> Tensor:
    """Return the bytes of a storage as a tensor over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _view_memory(tensor: Tensor) -> memoryview:
    # torch never frees what it has lent to numpy
    """Return the memory of a tensor on the CPU, for reading and writing without a copy."""
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


class MemoryState(IntEnum):
    """WEIGHTS: to score or to be synced; ALL: optimiser or KV cache too."""

    NOTHING = 0
    WEIGHTS = 1
    ALL = 2


class Devices:
    """A policy keeps its memory there until another one's turn comes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder: DeviceLease | None = None


class DeviceLease:
    """With `settings.sleep` trainers and rollout engines take turns too, else they go together. trainers, rollouts: make these
    hold so much."""

    def __init__(
        self,
        name: str,
        devices: Devices,
        settings: OpenRLHFSettings,
        trainers: Callable[[MemoryState], None],
        rollouts: Callable[[MemoryState], None],
    ) -> None:
        self.name = name
        self._devices = devices
        self._settings = settings
        self._make = (trainers, rollouts)
        self._held = (MemoryState.ALL, MemoryState.ALL)

    @contextmanager
    def turn(self, trainer: MemoryState, rollout: MemoryState) -> Iterator[None]:
        """Inside, both have so much on the devices. Raises as `whole_turn`."""
        with self.whole_turn():
            if self._settings.sleep:
                self.hold(trainer, rollout)
            else:
                self.hold(MemoryState.ALL, MemoryState.ALL)
            yield

    @contextmanager
    def whole_turn(self) -> Iterator[None]:
        """Inside, no other policy's turn comes; calls may nest. Raises EngineError where the turn does not come in time."""
        deadline = self._settings.call_seconds
        if not self._devices.lock.acquire(timeout=deadline):
            raise EngineError(
                f"policy {self.name!r}: its turn on the shared devices did not come within {deadline:g} s"
            )
        try:
            if self._devices.holder is not self:
                if self._devices.holder is not None:
                    self._devices.holder.hold(MemoryState.NOTHING, MemoryState.NOTHING)
                self._devices.holder = self
            yield
        finally:
            self._devices.lock.release()

    def leave(self) -> None:
        if self._devices.holder is self:
            self._devices.holder = None

    def hold(self, *wanted: MemoryState) -> None:
        """Let the two sides keep this much in a GPU's memory: the one that gives up most goes first, so that there is room for
        the other."""
        if wanted[0] and wanted[1] < self._held[1] < MemoryState.ALL:
            # vLLM wakes up whole before it sleeps again
            self.hold(MemoryState.NOTHING, self._held[1])
        for index in sorted((0, 1), key=lambda i: wanted[i] - self._held[i]):
            if wanted[index] != self._held[index]:
                self._make[index](wanted[index])
        self._held = (wanted[0], wanted[1])
