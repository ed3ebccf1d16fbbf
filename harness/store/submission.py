"""How far results of another lab may be believed: `submission.json` beside their `suite.json`, written when they are taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import StoreError
from harness.files import write_atomic
from harness.reading import read_bytes

FILE = "submission.json"
_MAX_BYTES = 1 << 16
Badge = Literal["re-executed", "re-scored", "as reported", "reference"]
"""Trained again here and compared; every answer judged again here; neither; what comes along (`store.reference_results`)."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """badge: what was done here. category: whose settings the regimes have. bundle: the file's name; empty where there was none.
    re_executed: labels of the cells that were trained again."""

    badge: Badge = "as reported"
    category: str = ""
    bundle: str = ""
    re_executed: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line."""
        cells = f" ({', '.join(self.re_executed)})" if self.re_executed else ""
        return f"{self.badge}{cells}; {self.category or 'settings unknown'}"


def write_submission(folder: Path, submission: Submission) -> None:
    """Into results/<suite>@<origin>. Raises DiskFullError, StoreError."""
    write_atomic(folder / FILE, msgspec.json.format(msgspec.json.encode(submission), indent=1) + b"\n")


def read_submission(folder: Path) -> Submission | None:
    """None for our own results. Raises StoreError."""
    path = folder / FILE
    try:
        return msgspec.json.decode(read_bytes(path, _MAX_BYTES), type=Submission)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not a submission: {error}") from error
