"""Checkpoints of a running cell: all policies, the regimes' state and the step, complete or not there at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import CheckpointError
from harness.session.exchanges import ExchangeState
from harness.session.members import Member
from harness.store.files import disk_errors, replace_atomic, write_atomic

FINAL = "checkpoint"
_RESUME = "resume"
_STEP = re.compile(r"step-(\d{8})")


class SessionState(msgspec.Struct, frozen=True):
    """What a resumed cell needs besides weights."""

    key: str
    step: int
    regimes: dict[str, dict[str, Any]]
    exchange: ExchangeState


def save(folder: Path, key: str, step: int, members: Sequence[Member], exchange: ExchangeState) -> Path:
    """Write a checkpoint of `step` finished steps and drop older ones. Raises DiskFullError, StoreError."""
    target = folder / _RESUME / f"step-{step:08d}"

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        for member in members:
            member.engine.save(temporary / member.name)
        regimes = {m.name: dict(m.regime.state()) for m in members}
        write_atomic(temporary / "session.json", msgspec.json.encode(SessionState(key, step, regimes, exchange)))

    with disk_errors(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_atomic(target, fill)
        for step_before, old in _found(folder):
            if step_before != step:
                shutil.rmtree(old, ignore_errors=True)
    return target


def finish(folder: Path, step: int) -> None:
    """The checkpoint of the last step becomes the cell's `checkpoint/`."""
    last = folder / _RESUME / f"step-{step:08d}"
    if last.is_dir():
        shutil.rmtree(folder / FINAL, ignore_errors=True)
        last.rename(folder / FINAL)
    shutil.rmtree(folder / _RESUME, ignore_errors=True)


def latest(folder: Path) -> tuple[int, Path] | None:
    """The newest checkpoint of an unfinished cell: its step and folder."""
    found = _found(folder)
    return max(found) if found else None


def restore(path: Path, key: str, members: Sequence[Member]) -> ExchangeState:
    """Continue from `path`; the exchange's state is for the caller. Raises CheckpointError."""
    try:
        state = msgspec.json.decode((path / "session.json").read_bytes(), type=SessionState)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path / 'session.json'}: {error}") from None
    if state.key != key:
        raise CheckpointError(f"{path}: belongs to cell {state.key}, not to {key}")
    for member in members:
        member.engine.restore(path / member.name)
        member.regime.restore(state.regimes.get(member.name, {}))
    return state.exchange


def _found(folder: Path) -> list[tuple[int, Path]]:
    resume = folder / _RESUME
    if not resume.is_dir():
        return []
    return [(int(m.group(1)), p) for p in resume.iterdir() if (m := _STEP.fullmatch(p.name))]
