"""What may happen to the files of a cell between two runs, and what the next run makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import CheckpointError, HarnessError, StoreError


def flip_bit(content: bytes) -> bytes:
    """One bit is another, in the middle."""
    altered = bytearray(content)
    altered[len(altered) // 2] ^= 1
    return bytes(altered)


def tear(content: bytes) -> bytes:
    """The end is missing."""
    return content[: len(content) * 2 // 3]


def empty(content: bytes) -> bytes:
    return b""


def rename_format(content: bytes) -> bytes:
    """The first bytes name a format that nobody writes."""
    return b"XSJ1" + content[8:]


def remove(content: bytes) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Damage:
    """files: where in a cell's folder, as a glob. change: of a file's content; None removes it. refused: the kind of error with
    which the next run names the file; None where it makes good what is lost."""

    files: str
    change: Callable[[bytes], bytes | None]
    refused: type[HarnessError] | None

    def __str__(self) -> str:
        return f"{self.change.__name__} {self.files}"

    def apply(self, folder: Path) -> Path | None:
        """Damage the last of these files; returns it, or None where there is none."""
        found = sorted(folder.glob(self.files))
        if not found:
            return None
        content = self.change(found[-1].read_bytes())
        if content is None:
            found[-1].unlink()
        else:
            found[-1].write_bytes(content)
        return found[-1]


# A manifest is made anew: what decides a cell's rows is in its suite.
OF_MANIFESTS = tuple(Damage("manifest.json", change, None) for change in (flip_bit, tear, empty, remove))
OF_CHECKPOINTS = (
    Damage("resume/*/session.json", flip_bit, CheckpointError),
    Damage("resume/*/session.json", remove, CheckpointError),
    Damage("resume/*/*/model.safetensors", flip_bit, CheckpointError),
    Damage("resume/*/*/model.safetensors", tear, CheckpointError),
    Damage("resume/*/*/model.safetensors", remove, CheckpointError),
    Damage("resume/*/*/optimiser.safetensors", flip_bit, CheckpointError),
)
OF_JOURNALS = tuple(Damage("journal/part-*", change, StoreError) for change in (flip_bit, tear, empty, rename_format))
OF_COMPACT_JOURNALS = tuple(
    Damage("journal/compact-*/steps-*", change, StoreError) for change in (flip_bit, tear, empty, rename_format)
)
DAMAGES = (*OF_MANIFESTS, *OF_CHECKPOINTS, *OF_JOURNALS, *OF_COMPACT_JOURNALS)
