"""Checkpoints of a running cell, whole or not there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.checkpoint import drop_optimiser
from harness.errors import CheckpointError, StoreError
from harness.files import change, remove, replace_atomic, write_atomic
from harness.session.cell.exchanges import ExchangeState
from harness.session.cell.learners import Learner
from harness.store.manifest import read_sealed, sealed
from harness.suite.schema import Keep

FINAL, SESSION = "checkpoint", "session.json"
MAX_BYTES = 1 << 30
_RESUME = "resume"
_BEST = "best"
_STEP = re.compile(r"step-(\d{8})")


class Best(msgspec.Struct, frozen=True):
    step: int
    accuracy: float


class SessionState(msgspec.Struct, frozen=True):
    """What a resumed cell needs besides weights. answers, invalid: verdicts of both rounds so far."""

    key: str
    step: int
    regimes: dict[str, dict[str, Any]]
    exchange: ExchangeState
    best: dict[str, Best] = {}
    answers: int = 0
    invalid: int = 0


def save(
    folder: Path,
    key: str,
    step: int,
    learners: Sequence[Learner],
    exchange: ExchangeState,
    best: Mapping[str, Best] = {},
    answers: int = 0,
    invalid: int = 0,
) -> Path:
    """Drops older ones and weights no longer best. Raises DiskFullError, StoreError, FencedError."""
    target = folder / _RESUME / f"step-{step:08d}"

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        for learner in learners:
            learner.engine.save(temporary / learner.name)
        regimes = {m.name: dict(m.regime.state()) for m in learners}
        state = SessionState(key, step, regimes, exchange, dict(best), answers, invalid)
        write_atomic(temporary / SESSION, sealed(state))

    replace_atomic(target, fill)
    with change(folder):
        for old in {*target.parent.iterdir()} - {target}:
            remove(old)
    keep_best(folder, best)
    return target


def offer(folder: Path, step: int, learner: Learner, accuracy: float, best: dict[str, Best]) -> None:
    """Keep a new best point's weights, noted in `best`; the ones before stay until the next checkpoint."""
    if not accuracy > (best[learner.name].accuracy if learner.name in best else -1.0):  # NaN is no better
        return

    def fill(temporary: Path) -> None:
        learner.engine.save(temporary)
        drop_optimiser(temporary)

    best[learner.name] = Best(step, accuracy)
    place = _best(folder, learner.name, best[learner.name])
    with change(folder):
        remove(place)  # of an interrupted start
    replace_atomic(place, fill)


def keep_best(folder: Path, best: Mapping[str, Best]) -> None:
    named = {_best(folder, name, one) for name, one in best.items()}
    with change(folder):
        for path in {*(folder / _BEST).glob("*")} - named:
            remove(path)


def finish(folder: Path, step: int) -> None:
    """The last checkpoint becomes `checkpoint/`, without optimisers' states."""
    newest = folder / _RESUME / f"step-{step:08d}"
    with change(folder):
        if newest.is_dir():
            remove(folder / FINAL)
            newest.rename(folder / FINAL)
        for policy in (folder / FINAL).iterdir():
            if policy.is_dir():
                drop_optimiser(policy)
        remove(folder / _RESUME)


def holds_last(folder: Path, step: int) -> bool:
    """Whether `checkpoint/` has the last weights, not yet the best."""
    return (folder / FINAL).is_dir() and all(
        one.step == step or _best(folder, name, one).is_dir() for name, one in read(folder / FINAL).best.items()
    )


def settle(folder: Path, keep: Keep) -> None:
    """Keep what the suite says, in `checkpoint/`."""
    with change(folder):
        for name, one in read(folder / FINAL).best.items() if keep == "best" else ():
            if (chosen := _best(folder, name, one)).is_dir():
                remove(folder / FINAL / name)
                chosen.rename(folder / FINAL / name)
        for unwanted in (_BEST, FINAL) if keep == "none" else (_BEST,):
            remove(folder / unwanted)


def _best(folder: Path, policy: str, best: Best) -> Path:
    return folder / _BEST / f"{policy}-{best.step}"


def latest(folder: Path) -> tuple[int, Path] | None:
    checkpoints = [(int(m[1]), p) for p in (folder / _RESUME).glob("*") if (m := _STEP.fullmatch(p.name))]
    return max(checkpoints, default=None)


def has_begun(folder: Path) -> bool:
    """Whether a cell goes on from weights of its own."""
    return latest(folder) is not None or (folder / FINAL).is_dir()


def read(path: Path) -> SessionState:
    """What a checkpoint says besides weights. Raises CheckpointError."""
    try:
        return read_sealed(path / SESSION, SessionState, longest=MAX_BYTES)
    except StoreError as error:
        raise CheckpointError(str(error)) from None


def restore(path: Path, key: str, learners: Sequence[Learner]) -> SessionState:
    """Raises CheckpointError."""
    state = read(path)
    if state.key != key:
        raise CheckpointError(f"{path}: belongs to cell {state.key}, not to {key}")
    for learner in learners:
        learner.engine.restore(path / learner.name)
        learner.regime.restore(state.regimes.get(learner.name, {}))
    return state
