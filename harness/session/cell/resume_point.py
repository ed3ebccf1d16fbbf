"""Checkpoints of a running cell, whole or not there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.checkpoint import drop_optimiser
from harness.errors import CheckpointError, StoreError
from harness.files import about_to_change, remove_path, replace_atomic, write_atomic
from harness.session.cell.exchanges import ExchangeState
from harness.session.cell.learners import Learner
from harness.store.manifest import read_sealed, seal_as_json
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


def save_resume_point(
    folder: Path,
    key: str,
    step: int,
    learners: Sequence[Learner],
    exchange: ExchangeState,
    best: Mapping[str, Best] = {},
    answers: int = 0,
    invalid: int = 0,
) -> Path:
    """Save a resume point, and drop older ones and weights no longer best. Raises DiskFullError, StoreError, FencedError."""
    target = folder / _RESUME / f"step-{step:08d}"

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        for learner in learners:
            learner.engine.save(temporary / learner.name)
        regimes = {m.name: dict(m.regime.state()) for m in learners}
        state = SessionState(key, step, regimes, exchange, dict(best), answers, invalid)
        write_atomic(temporary / SESSION, seal_as_json(state))

    replace_atomic(target, fill)
    with about_to_change(folder):
        for old in {*target.parent.iterdir()} - {target}:
            remove_path(old)
    keep_best(folder, best)
    return target


def offer_best_point(folder: Path, step: int, learner: Learner, accuracy: float, best: dict[str, Best]) -> None:
    """Keep a new best point's weights, noted in `best`; the ones before stay until the next checkpoint."""
    if not accuracy > (best[learner.name].accuracy if learner.name in best else -1.0):  # NaN is no better
        return

    def fill(temporary: Path) -> None:
        learner.engine.save(temporary)
        drop_optimiser(temporary)

    best[learner.name] = Best(step, accuracy)
    place = _folder_of_best(folder, learner.name, best[learner.name])
    with about_to_change(folder):
        remove_path(place)  # of an interrupted start
    replace_atomic(place, fill)


def keep_best(folder: Path, best: Mapping[str, Best]) -> None:
    named = {_folder_of_best(folder, name, one) for name, one in best.items()}
    with about_to_change(folder):
        for path in {*(folder / _BEST).glob("*")} - named:
            remove_path(path)


def finish_checkpoint(folder: Path, step: int) -> None:
    """Move the last checkpoint to `checkpoint/`, without optimisers' states."""
    newest = folder / _RESUME / f"step-{step:08d}"
    with about_to_change(folder):
        if newest.is_dir():
            remove_path(folder / FINAL)
            newest.rename(folder / FINAL)
        for policy in (folder / FINAL).iterdir():
            if policy.is_dir():
                drop_optimiser(policy)
        remove_path(folder / _RESUME)


def holds_last(folder: Path, step: int) -> bool:
    """Whether `checkpoint/` has the last weights, not yet the best."""
    return (folder / FINAL).is_dir() and all(
        one.step == step or _folder_of_best(folder, name, one).is_dir()
        for name, one in read_resume_point(folder / FINAL).best.items()
    )


def settle_checkpoint(folder: Path, keep: Keep) -> None:
    """Keep what the suite says, in `checkpoint/`."""
    with about_to_change(folder):
        for name, one in read_resume_point(folder / FINAL).best.items() if keep == "best" else ():
            if (chosen := _folder_of_best(folder, name, one)).is_dir():
                remove_path(folder / FINAL / name)
                chosen.rename(folder / FINAL / name)
        for unwanted in (_BEST, FINAL) if keep == "none" else (_BEST,):
            remove_path(folder / unwanted)


def _folder_of_best(folder: Path, policy: str, best: Best) -> Path:
    return folder / _BEST / f"{policy}-{best.step}"


def latest_resume_point(folder: Path) -> tuple[int, Path] | None:
    checkpoints = [(int(m[1]), p) for p in (folder / _RESUME).glob("*") if (m := _STEP.fullmatch(p.name))]
    return max(checkpoints, default=None)


def has_begun(folder: Path) -> bool:
    """Whether a cell goes on from weights of its own."""
    return latest_resume_point(folder) is not None or (folder / FINAL).is_dir()


def read_resume_point(path: Path) -> SessionState:
    """Read what a checkpoint says besides weights. Raises CheckpointError."""
    try:
        return read_sealed(path / SESSION, SessionState, longest=MAX_BYTES)
    except StoreError as error:
        raise CheckpointError(str(error)) from None


def restore_resume_point(path: Path, key: str, learners: Sequence[Learner]) -> SessionState:
    """Restore engines and regimes from a resume point, and return the rest of it. Raises CheckpointError."""
    state = read_resume_point(path)
    if state.key != key:
        raise CheckpointError(f"{path}: belongs to cell {state.key}, not to {key}")
    for learner in learners:
        learner.engine.restore(path / learner.name)
        learner.regime.restore(state.regimes.get(learner.name, {}))
    return state
