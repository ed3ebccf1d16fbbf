"""`harness track`: what every tracker is told, and what each then holds, read back from its own files."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from synthetic_results import REGIMES, write_results

from harness.errors import StoreError
from harness.formats.tracking import NewPoints, TensorBoard, Tracker, follow_suite
from harness.store.journal import Journal, read_columns, read_journal, write_columns
from harness.store.manifest import Manifest, read_manifest, write_manifest
from harness.store.rows import StepRow

CELLS = 2


@pytest.fixture
def results(tmp_path: Path) -> Path:
    groups = {"g": ("a", "b")}
    write_results(tmp_path / "results", "s", regimes=REGIMES[:CELLS], seeds=(1,), steps=3, questions=4, groups=groups)
    return tmp_path / "results"


def a_cell(results: Path) -> Path:
    files = (results / "s").glob("*/manifest.json")
    return next(f.parent for f in files if read_manifest(f.parent).regime == "independent")


class Kept(Tracker):
    """A tracker that keeps what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, []

    def memory(self, manifest: Manifest) -> Path:
        return self.folder / f"{manifest.key}.json"

    def write(self, news: NewPoints) -> None:
        self.told.append(news)


def test_a_tracker_is_told_once_what_is_new(results: Path, tmp_path: Path) -> None:
    kept, cell = Kept(tmp_path / "runs"), a_cell(results)
    count = follow_suite(results, "s", kept)
    assert count == sum(len(news.points) for news in kept.told) > 100
    assert [(news.since, news.renewed) for news in kept.told] == [(0, 0)] * CELLS
    assert follow_suite(results, "s", kept) == 0
    before = next(news for news in kept.told if news.manifest.key == cell.name)

    rows = list(before.rows())
    assert sum(len(values) for _, _, values in rows) == len(before.points)
    tracked = [(step, values["b/steps/loss"]) for step, _, values in rows if "b/steps/loss" in values]
    assert tracked == losses(cell, "b")
    assert {at for _, at, _ in rows} == {1767225600.0}  # the cell's start

    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="running"))  # its evaluation is to come
    follow_suite(results, "s", kept)
    running = kept.told[-1]
    assert (running.since, running.renewed) == (0, 1)
    journal = Journal(cell)
    journal.append(StepRow(policy="a", step=4, reward_mean=0.25))
    journal.commit(4)
    assert follow_suite(results, "s", kept) == len(kept.told[-1].points)
    assert kept.told[-1].since == len(running.points)
    assert {p.step for p in kept.told[-1].points} == {4}

    journal.rewind(2)
    assert follow_suite(results, "s", kept) > 0
    assert (kept.told[-1].since, kept.told[-1].renewed) == (0, 2)
    assert max(p.step for p in kept.told[-1].points) == 2


def test_an_accuracy_is_the_mean_over_questions(results: Path, tmp_path: Path) -> None:
    kept, cell = Kept(tmp_path / "runs"), a_cell(results)
    (file,) = cell.glob("journal/*/samples-*")
    data = read_columns(file)[1]
    verdicts = {("micro-0", 0): "invalid", ("micro-0", 1): "right"}
    said = [verdicts.get((row["doc_id"], row["repeat"]), "wrong") for row in data.to_pylist()]
    place = data.schema.get_field_index("verdict")
    file.unlink()
    write_columns(file.parent, "samples", data.set_column(place, data.schema.field(place), pa.array(said)))
    follow_suite(results, "s", kept)
    points = next(news for news in kept.told if news.manifest.key == cell.name).points
    accuracies = [point.value for point in points if (point.policy, point.tag) == ("a", "evaluation/micro/sampled")]
    assert accuracies == [0.25]  # one of four questions, though one of seven answers


def track(results: Path, to: str) -> subprocess.CompletedProcess[str]:
    """The command itself: no login, no network, and none of this process's environment for trackers."""
    away = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("WANDB", "TRACKIO", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "harness", "track", "s", "--to", to, "--results", str(results)],
        cwd=results.parent, env=kept | away | {"HOME": str(results.parent)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow_but("trackio")
@pytest.mark.parametrize("to", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(results: Path, to: str) -> None:
    if find_spec(to) is not None:
        pytest.skip(f"{to} is installed here")
    done = track(results, to)
    extra = "track" if to == "tensorboard" else to
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"pip install 'experience-sharing-harness[{extra}]'\n")


def history(file: Path) -> Iterator[dict[str, Any]]:
    """The rows that a W&B run's file holds: a log in LevelDB's format behind 7 bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, held = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        held = part if kind in (1, 2) else held + part
        at += 7 + length
        if kind in (1, 4):
            record = Record.FromString(held)
            if record.HasField("history"):
                yield {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}


def losses(cell: Path, policy: str) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_journal(cell).tables["steps"].to_pylist() if r["policy"] == policy]


def extend(cell: Path) -> None:
    journal = Journal(cell)
    journal.append(StepRow(policy="a", step=4, loss=0.25, reward_mean=0.25))
    journal.commit(4)


def test_wandb_holds_the_journals_once(results: Path) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed here")
    cell, runs = a_cell(results), results.parent / "runs/wandb"
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="running"))

    def held(run: str) -> list[tuple[int, float]]:
        files = sorted(runs.glob(f"offline-run-*/run-{run}.wandb"))
        rows = [row for file in files for row in history(file)]
        return [(row["step"], row["a/steps/loss"]) for row in rows if "a/steps/loss" in row]

    done = track(results, "wandb")
    assert done.returncode == 0, done.stderr
    assert held(cell.name) == losses(cell, "a")
    assert track(results, "wandb").stderr == "0 new points in runs/wandb\n"
    assert len(list(runs.glob("offline-run-*"))) == CELLS

    extend(cell)
    track(results, "wandb")
    assert [step for step, _ in held(cell.name)] == [1, 2, 3, 4]

    Journal(cell).rewind(2)
    track(results, "wandb")
    assert held(cell.name) == []
    assert [step for step, _ in held(f"{cell.name}-2")] == [1, 2]
    secret = str(results).encode()
    assert not any(secret in file.read_bytes() for file in runs.glob("offline-run-*/*.wandb"))


def test_trackio_holds_the_journals_once(results: Path) -> None:
    pytest.importorskip("trackio", reason="Trackio is not installed here")
    cell, runs = a_cell(results), results.parent / "runs/trackio"
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="running"))

    def held(policy: str = "a") -> list[tuple[int, float]]:
        with sqlite3.connect(runs / "s.db") as database:
            rows = database.execute("SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id", [cell.name])
            tracked = [(step, json.loads(metrics)) for step, metrics in rows]
        return [(step, m[f"{policy}/steps/loss"]) for step, m in tracked if f"{policy}/steps/loss" in m]

    done = track(results, "trackio")
    assert done.returncode == 0, done.stderr
    assert (held(), held("b")) == (losses(cell, "a"), losses(cell, "b"))

    memory = runs / f"harness/s/{cell.name}.json"
    before = memory.read_bytes()
    extend(cell)
    track(results, "trackio")
    memory.write_bytes(before)  # as if that look had been cut off before it could say what it did
    track(results, "trackio")
    assert [step for step, _ in held()] == [1, 2, 3, 4]

    Journal(cell).rewind(2)
    track(results, "trackio")
    assert [step for step, _ in held()] == [1, 2]
    with sqlite3.connect(runs / "s.db") as database:
        assert database.execute("SELECT count(DISTINCT run_id) FROM metrics").fetchone() == (CELLS,)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_holds_the_journals_once(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    cell, board = a_cell(results), TensorBoard(tmp_path / "runs")
    assert follow_suite(results, "s", board) > 100
    folder = board.run_folder(read_manifest(cell)) / "a"
    assert scalars(folder)["steps/loss"] == [(step, pytest.approx(loss, abs=1e-6)) for step, loss in losses(cell, "a")]
    samples = read_journal(cell).tables["samples"].to_pylist()
    right = [r["verdict"] == "right" for r in samples if (r["policy"], r["metric"]) == ("a", "greedy")]
    assert scalars(folder)["evaluation/micro/greedy"] == [(3, pytest.approx(sum(right) / len(right)))]

    extend(cell)
    follow_suite(results, "s", board)  # no point twice, though the last evaluation moved behind them
    assert [step for step, _ in scalars(folder)["steps/loss"]] == [1, 2, 3, 4]
    Journal(cell).rewind(2)
    follow_suite(results, "s", board)
    assert [step for step, _ in scalars(folder)["steps/loss"]] == [1, 2]


def test_no_run_lies_outside(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    cell = a_cell(results)
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), group="../../../escaped"))
    with pytest.raises(StoreError, match="is no name for a file"):
        follow_suite(results, "s", TensorBoard(tmp_path / "a" / "runs"))
    assert not list(tmp_path.glob("**/escaped"))
