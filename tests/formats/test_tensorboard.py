"""`harness track --to tensorboard`, read back by TensorBoard itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from synthetic_results import REGIMES, write_results

from harness.errors import StoreError
from harness.formats import tracking
from harness.formats.trackers import TensorBoard
from harness.store.journal import Journal, read_journal
from harness.store.manifest import read_manifest, write_manifest
from harness.store.rows import StepRow

pytest.importorskip("tensorboard")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_results(
        tmp_path / "results", "s", regimes=REGIMES[:2], seeds=(1,), steps=3, questions=4, groups={"g": ("a", "b")}
    )
    return tmp_path / "results"


def follow(results: Path, suite: str, out: Path) -> int:
    return tracking.follow(results, suite, TensorBoard(out))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_runs_hold_the_journals_once_and_follow_them(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    cell = next(
        f.parent for f in (results / "s").glob("*/manifest.json") if read_manifest(f.parent).regime == "independent"
    )
    assert follow(results, "s", out) > 100
    assert follow(results, "s", out) == 0
    folder = TensorBoard(out).run_folder(read_manifest(cell)) / "a"
    assert folder.parent.name.endswith(cell.name)
    stored = [r for r in read_journal(cell).tables["steps"].to_pylist() if r["policy"] == "a"]
    assert scalars(folder)["steps/reward_mean"] == [
        (r["step"], pytest.approx(r["reward_mean"], abs=1e-6)) for r in stored
    ]
    rows = [
        r for r in read_journal(cell).tables["samples"].to_pylist() if (r["policy"], r["metric"]) == ("a", "greedy")
    ]
    right = sum(r["verdict"] == "right" for r in rows) / len(rows)
    assert scalars(folder)["evaluation/micro/greedy"] == [(3, pytest.approx(right))]

    journal = Journal(cell)
    journal.append(StepRow(policy="a", step=4, reward_mean=0.25))
    journal.commit(4)
    assert follow(results, "s", out) > 0
    steps = [step for step, _ in scalars(folder)["steps/reward_mean"]]
    assert steps == [1, 2, 3, 4]  # no point twice, though the last evaluation moved behind them

    journal.rewind(2)
    assert follow(results, "s", out) > 0
    assert [step for step, _ in scalars(folder)["steps/reward_mean"]] == [1, 2]
    assert follow(results, "s", out) == 0


def test_no_run_lies_outside(results: Path, tmp_path: Path) -> None:
    cell = next(f.parent for f in (results / "s").glob("*/manifest.json") if read_manifest(f.parent).kind == "cell")
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), group="../../../escaped"))
    with pytest.raises(StoreError, match="is no name for a file"):
        follow(results, "s", tmp_path / "a" / "runs")
    assert not list(tmp_path.glob("**/escaped"))
