"""Checkpoints of a running cell: all policies, the regimes' state and the step, complete or not there at all."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from harness.engines.checkpoint import drop_optimiser
from harness.errors import CheckpointError, StoreError
from harness.files import disk_errors, replace_atomic, write_atomic
from harness.session.cell.exchanges import ExchangeState
from harness.session.cell.learners import Learner
from harness.store.fence import Guard
from harness.store.manifest import read_sealed, sealed
from harness.suite.schema import Keep

FINAL, SESSION = "checkpoint", "session.json"
MAX_BYTES = 64 << 20
"""Of what a checkpoint holds besides weights."""
_RESUME = "resume"
_BEST = "best"
_STEP = re.compile(r"step-(\d{8})")


class Best(msgspec.Struct, frozen=True):
    """The best point of a policy's learning curve so far."""

    step: int
    accuracy: float


class SessionState(msgspec.Struct, frozen=True):
    """What a resumed cell needs besides weights."""

    key: str
    step: int
    regimes: dict[str, dict[str, Any]]
    exchange: ExchangeState
    best: dict[str, Best] = {}


def save(
    folder: Path,
    key: str,
    step: int,
    learners: Sequence[Learner],
    exchange: ExchangeState,
    best: Mapping[str, Best] = MappingProxyType({}),
    guard: Guard = nullcontext,
) -> Path:
    """Write a checkpoint of `step` finished steps and drop older ones, weights that are no longer the best among them.

    guard: the context of each change (`store.fence`). Raises DiskFullError, StoreError, FencedError.
    """
    target = folder / _RESUME / f"step-{step:08d}"

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        for learner in learners:
            learner.engine.save(temporary / learner.name)
        regimes = {m.name: dict(m.regime.state()) for m in learners}
        state = SessionState(key, step, regimes, exchange, dict(best))
        write_atomic(temporary / SESSION, sealed(state))

    with disk_errors(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_atomic(target, fill, guard)
        with guard():
            for old in target.parent.iterdir():
                if old != target:
                    shutil.rmtree(old, ignore_errors=True)
        _only(folder, best, guard)
    return target


def offer(
    folder: Path, step: int, learner: Learner, accuracy: float, best: dict[str, Best], guard: Guard = nullcontext
) -> None:
    """Keep the weights of a point of the learning curve that is better than all before; the best so far are noted in `best`.

    What it supersedes stays until the next checkpoint, for a cell that is cut off goes back to the last one.
    """
    known = best.get(learner.name)
    if math.isnan(accuracy) or (known is not None and accuracy <= known.accuracy):
        return

    def fill(temporary: Path) -> None:
        learner.engine.save(temporary)
        drop_optimiser(temporary)

    place = folder / _BEST / f"{learner.name}-{step}"
    with guard():
        shutil.rmtree(place, ignore_errors=True)  # of a start that was cut off
    replace_atomic(place, fill, guard)
    best[learner.name] = Best(step, accuracy)


def resumed_best(folder: Path, path: Path, guard: Guard = nullcontext) -> dict[str, Best]:
    """The best of a checkpoint that is gone on from; later ones are removed."""
    best = read(path).best
    _only(folder, best, guard)
    return best


def choose_best(folder: Path, guard: Guard = nullcontext) -> None:
    """Put the best weights in the place of the last, which stay aside until the cell is done: `finish` takes this back."""
    with guard():
        for kept, last, chosen in _choices(folder):
            if chosen.is_dir() and not last.exists():
                kept.rename(last)
                chosen.rename(kept)


def tidy(folder: Path, keep: Keep, guard: Guard = nullcontext) -> None:
    """Of a done cell keep what the suite says, in `checkpoint/`."""
    with guard():
        for unwanted in (_BEST, FINAL) if keep == "none" else (_BEST,):
            shutil.rmtree(folder / unwanted, ignore_errors=True)


def _choices(folder: Path) -> list[tuple[Path, Path, Path]]:
    """Of each policy with a best point: its place in `checkpoint/`, and where its last and its best weights wait."""
    final = folder / FINAL
    return [
        (final / name, folder / _BEST / f"{name}-last", folder / _BEST / f"{name}-{best.step}")
        for name, best in read(final).best.items()
    ]


def _only(folder: Path, best: Mapping[str, Best], guard: Guard) -> None:
    named = {f"{name}-{one.step}" for name, one in best.items()}
    with guard():
        for path in (folder / _BEST).glob("*"):
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)


def finish(folder: Path, step: int, guard: Guard = nullcontext) -> None:
    """The checkpoint of the last step becomes the cell's `checkpoint/`, without the optimisers' states."""
    newest = folder / _RESUME / f"step-{step:08d}"
    with guard():
        if newest.is_dir():
            shutil.rmtree(folder / FINAL, ignore_errors=True)
            newest.rename(folder / FINAL)
        for kept, last, chosen in _choices(folder):
            if last.is_dir():  # cut off between `choose_best` and the end
                if kept.is_dir():
                    kept.rename(chosen)
                last.rename(kept)
        for policy in (folder / FINAL).iterdir():
            if policy.is_dir():
                drop_optimiser(policy)
        shutil.rmtree(folder / _RESUME, ignore_errors=True)


def holds_last(folder: Path, step: int) -> bool:
    """Whether `checkpoint/` is there with the weights of the last step, or can get them back: not where `keep: best` is over."""
    final = folder / FINAL
    return final.is_dir() and all(
        last.is_dir() or chosen.is_dir() or chosen.name.endswith(f"-{step}") for _, last, chosen in _choices(folder)
    )


def latest(folder: Path) -> tuple[int, Path] | None:
    """The newest checkpoint of an unfinished cell: its step and folder."""
    found = _found(folder)
    return max(found) if found else None


def read(path: Path) -> SessionState:
    """What a checkpoint says besides weights. Raises CheckpointError."""
    try:
        return read_sealed(path / SESSION, SessionState, longest=MAX_BYTES)
    except StoreError as error:
        raise CheckpointError(str(error)) from None


def restore(path: Path, key: str, learners: Sequence[Learner]) -> ExchangeState:
    """Continue from `path`; the exchange's state is for the caller. Raises CheckpointError."""
    state = read(path)
    if state.key != key:
        raise CheckpointError(f"{path}: belongs to cell {state.key}, not to {key}")
    for learner in learners:
        learner.engine.restore(path / learner.name)
        learner.regime.restore(state.regimes.get(learner.name, {}))
    return state.exchange


def _found(folder: Path) -> list[tuple[int, Path]]:
    resume = folder / _RESUME
    if not resume.is_dir():
        return []
    return [(int(m.group(1)), p) for p in resume.iterdir() if (m := _STEP.fullmatch(p.name))]
