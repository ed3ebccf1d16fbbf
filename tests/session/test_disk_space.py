"""Disk: what the account says a finished cell keeps is what it keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from running import cell, rows, run

from harness.engines import checkpoint as sealed
from harness.engines.embedded.presets import SHIPPED
from harness.errors import CheckpointError, UsageError
from harness.phases import Interrupted
from harness.session.cell import resume_point
from harness.session.single.standalone import evaluate_checkpoint
from harness.session.suite import disk
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_named
from harness.session.suite.resolved import EvaluationLoad, evaluation_load
from harness.store.cell_state import read_state
from harness.suite.schema import Evaluation
from harness.tasks.registry import get_task

pytestmark = pytest.mark.slow

SHORT = ["regimes=[independent, hacpo]"]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def kept(suite_text, tmp_path_factory):
    """The tiny suite's first two regimes, finished, by what is kept."""
    return finished_by_keep(suite_text, tmp_path_factory)


@pytest.fixture(scope="module")
def of_bases(suite_text, folders, tmp_path_factory):
    """The same of the package's bases, whose answers end."""
    for family, folder in folders.items():
        suite_text = suite_text.replace(str(folder), str(next(SHIPPED.glob(f"{family}-*"))))
    return finished_by_keep(suite_text, tmp_path_factory)


def finished_by_keep(suite_text, tmp_path_factory):
    results = {}
    for keep in ("last", "best", "none"):
        place = tmp_path_factory.mktemp(keep)
        file = place / "tiny.yaml"
        file.write_text(suite_text)
        results[keep] = run(file, place / "results", [*SHORT, f"keep={keep}"])
    return results


@pytest.mark.timeout(300)
def test_a_finished_cell_keeps_what_was_predicted_and_gives_the_same_rows(of_bases):
    for prepared in of_bases.values():
        for one, other in zip(prepared.cells, of_bases["last"].cells, strict=True):
            assert disk.cell_disk(one, prepared.resolved).kept == pytest.approx(
                size(prepared.folder / one.key), rel=0.1
            ), one.label
            assert (one.key, read_state(prepared.folder / one.key)[0]) == (other.key, "done")
            for table in ("steps", "samples", "curves"):
                assert rows(prepared, one, table) == rows(of_bases["last"], other, table), table
    for one in of_bases["none"].cells:
        names = sorted(p.name for p in (of_bases["none"].folder / one.key).glob("[!.]*"))
        assert names == ["journal", "manifest.json"]


def test_no_optimiser_is_kept_and_nothing_else_is_lost(kept, tmp_path):
    prepared = kept["last"]
    one = cell(prepared, "hacpo")
    final = prepared.folder / one.key / "checkpoint"
    assert sorted(p.name for p in final.iterdir()) == ["a", "b", "session.json"]
    assert not list(final.rglob(sealed.OPTIMISER))
    assert not (prepared.folder / one.key / "resume").exists()
    assert sealed.check(final / "a", "a").version == 4
    with pytest.raises(CheckpointError, match="not of 'b'"):
        sealed.check(final / "a", "b")
    done = evaluate_checkpoint(final / "a", ["micro"], limit=6, k=2, seed=3, results=tmp_path)
    stored = [r for r in rows(prepared, one, "samples") if r["policy"] == "a" and r["metric"] == "greedy"]
    right = sum(r["verdict"] == "right" for r in stored) / len(stored)
    assert next(m.value for m in done.metrics if m.name == "greedy") == pytest.approx(right)


def test_best_keeps_the_weights_of_the_best_point_of_the_curve(kept):
    prepared = kept["best"]
    for one in prepared.cells:
        folder = prepared.folder / one.key
        assert not (folder / "best").exists()
        state = resume_point.read_resume_point(folder / "checkpoint")
        for policy in ("a", "b"):
            curve = [(r["step"], r["accuracy"]) for r in rows(prepared, one, "curves") if r["policy"] == policy]
            best = max(accuracy for _, accuracy in curve)
            step = next(step for step, accuracy in curve if accuracy == best)
            assert (state.best[policy].step, state.best[policy].accuracy) == (step, best)
            assert sealed.check(folder / "checkpoint" / policy, policy).version == step


def test_of_equal_points_the_first_is_kept_and_what_was_not_measured_is_none(tmp_path):
    class Engine:
        def save(self, place: Path) -> None:
            sealed.write(place, "a", 1, lambda folder: (folder / "config.json").write_text("{}"))

    best: dict[str, resume_point.Best] = {}
    for step, accuracy in ((0, float("nan")), (2, 0.5), (4, 0.5), (6, 0.25)):
        resume_point.offer_best_point(tmp_path, step, SimpleNamespace(name="a", engine=Engine()), accuracy, best)
    assert best == {"a": resume_point.Best(2, 0.5)}
    assert [place.name for place in (tmp_path / "best").iterdir()] == ["a-2"]


def test_best_of_a_damaged_manifest_is_not_evaluated_as_the_last(kept, suite_file, tmp_path):
    before = kept["best"]
    moved = {c.key: any(b.step != 4 for b in resume_point.read_resume_point(before.folder / c.key / "checkpoint").best.values())
             for c in before.cells}  # fmt: skip
    one = next(c for c in before.cells if moved[c.key])
    shutil.copytree(before.folder, tmp_path / "results" / "tiny")
    (tmp_path / "results" / "tiny" / one.key / "manifest.json").write_text("{}")
    again = run(suite_file, tmp_path / "results", [*SHORT, "keep=best"], only=one.label)
    for table in ("steps", "samples", "curves"):
        assert rows(again, one, table) == rows(before, one, table), table
    assert read_state(again.folder / one.key)[0] == "done"


def test_best_survives_being_cut_off(kept, suite_file, tmp_path):
    settings = [*SHORT, "keep=best"]
    with pytest.raises(Interrupted):
        run(suite_file, tmp_path / "results", settings, only="*/hacpo/*", stop_after=3)
    again = run(suite_file, tmp_path / "results", settings, only="*/hacpo/*")
    one, other = again.cells[0], cell(kept["best"], "hacpo")
    before, after = (
        resume_point.read_resume_point(p.folder / one.key / "checkpoint").best for p in (kept["best"], again)
    )
    assert one.key == other.key
    assert before == after


@pytest.mark.timeout(300)
@pytest.mark.parametrize("left", [0, 1])
def test_best_survives_being_cut_off_while_weights_change_places(kept, suite_file, tmp_path, monkeypatch, left):
    """The last ones of a policy are gone, and nothing, or one policy's best, is in their place."""
    settings, moves, rename = [*SHORT, "keep=best"], [left], Path.rename

    def dies(path, target):
        if path.parent.name == "best":
            if not moves[0]:
                raise KeyboardInterrupt
            moves[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        run(suite_file, tmp_path / "results", settings, only="*/hacpo/*")
    monkeypatch.undo()
    again = run(suite_file, tmp_path / "results", settings, only="*/hacpo/*")
    one, other = again.cells[0], cell(kept["best"], "hacpo")
    ours, theirs = again.folder / one.key, kept["best"].folder / other.key
    assert not (ours / "best").exists()
    for policy in ("a", "b"):
        resumed, expected = (sealed.check(f / "checkpoint" / policy, policy) for f in (ours, theirs))
        assert (resumed.version, resumed.files) == (expected.version, expected.files)
    for table in ("curves", "samples"):
        assert rows(again, one, table) == rows(kept["best"], other, table), table


def test_a_cell_cut_off_while_its_optimiser_goes_is_opened_again(kept, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(kept["last"].folder / kept["last"].cells[0].key / "checkpoint" / "a", folder)
    (folder / sealed.OPTIMISER).write_bytes(b"left behind")
    (folder / "engine.json.1.tmp").write_text("{")
    sealed.drop_optimiser(folder)
    assert not (folder / sealed.OPTIMISER).exists()
    (folder / sealed.OPTIMISER).write_bytes(b"left behind")
    assert sealed.OPTIMISER not in sealed.check(folder, "a").files


def test_running_cells_hold_two_whole_checkpoints(suite_file, tmp_path):
    prepared = prepare_named(str(suite_file), tmp_path, overrides=SHORT)
    one = disk.cell_disk(prepared.cells[0], prepared.resolved)
    assert one.running - one.kept > 4 * one.kept  # newest and the one being written, each three times the weights
    assert disk.disk_of(prepared, 2).running == pytest.approx(
        disk.disk_of(prepared, 1).running + one.running - one.kept, rel=0.01
    )
    plan = plan_for(prepared, "2cpu-8G")
    assert plan.disk.kept == pytest.approx(
        sum(disk.cell_disk(c, prepared.resolved).kept for c in prepared.cells), rel=0.1
    )
    assert json.loads(msgspec.json.encode(plan))["disk"]["kept"] == plan.disk.kept


def test_the_guard_knows_real_sizes(tmp_path):
    prepared = prepare_named("cross_family", tmp_path)
    needed = disk.disk_of(prepared, 1)
    assert 0.9e12 < needed.kept < 1.1e12  # 81 cells of two policies, in bf16
    assert needed.caches == pytest.approx(2 * (4.02e9 + 3.21e9 + 3.08e9 + 1.72e9 + 3.21e9), rel=0.01)  # each model once
    none = disk.disk_of(prepare_named("cross_family", tmp_path, overrides=["keep=none"]), 1)
    assert none.kept < 0.1 * needed.kept  # texts of the answers
    curve = ["keep=best", "evaluation.curve_every=10"]
    best = disk.disk_of(prepare_named("cross_family", tmp_path, overrides=curve), 1)
    assert (best.kept >= needed.kept, best.running > needed.running) == (True, True), "no remedy for a full disk"
    with pytest.raises(
        UsageError, match=r"the results.* need about .* GiB are free.*\(`keep: none` in the suite needs less"
    ):
        disk.check_disk(prepared, needed)


def load_of(evaluation: Evaluation) -> EvaluationLoad:
    return evaluation_load(evaluation, [get_task(name) for name in evaluation.tasks])


def test_evaluation_counts_are_those_that_are_asked(kept):
    prepared = kept["last"]
    samples = rows(prepared, prepared.cells[0], "samples")
    assert len(samples) == 2 * prepared.resolved.evaluation_load().answers == 2 * 6 * 3
    assert load_of(Evaluation(tasks=["aime24", "micro"], k=None)).answers == 30 * 33 + 240 * 5
    assert load_of(Evaluation(tasks=["math500"], k=4, limit=None)).answers == 500 * 5
    assert load_of(Evaluation(tasks=["aime24", "math500"], k=2, limit=40, greedy=False)).answers == (30 + 40) * 2
    assert load_of(Evaluation(tasks=["aime24", "amc23"])).tokens == 8192
