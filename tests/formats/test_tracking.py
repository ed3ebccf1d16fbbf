"""`harness track`: what every tracker is told, and what each then holds, read back from its own files."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from synthetic_results import REGIMES, write_results

from harness.errors import StoreError
from harness.formats.tracking import NewPoints, TensorBoard, Tracker, follow
from harness.store.journal import Journal, read_journal
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
    count = follow(results, "s", kept)
    assert count == sum(len(news.points) for news in kept.told) > 100
    assert [(news.since, news.renewed) for news in kept.told] == [(0, 0)] * CELLS
    assert follow(results, "s", kept) == 0
    before = next(news for news in kept.told if news.manifest.key == cell.name)

    rows = list(before.rows())
    assert sum(len(values) for _, _, values in rows) == len(before.points)
    found = [(step, values["b/steps/loss"]) for step, _, values in rows if "b/steps/loss" in values]
    assert found == losses(cell, "b")
    assert {at for _, at, _ in rows} == {1767225600.0}  # the cell's start

    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="running"))  # its evaluation is to come
    follow(results, "s", kept)
    running = kept.told[-1]
    assert (running.since, running.renewed) == (0, 1)
    journal = Journal(cell)
    journal.append(StepRow(policy="a", step=4, reward_mean=0.25))
    journal.commit(4)
    assert follow(results, "s", kept) == len(kept.told[-1].points)
    assert kept.told[-1].since == len(running.points)
    assert {p.step for p in kept.told[-1].points} == {4}

    journal.rewind(2)
    assert follow(results, "s", kept) > 0
    assert (kept.told[-1].since, kept.told[-1].renewed) == (0, 2)
    assert max(p.step for p in kept.told[-1].points) == 2


def track(results: Path, to: str) -> subprocess.CompletedProcess[str]:
    """The command itself: no login, no network, and none of this process's environment for trackers."""
    away = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("WANDB", "TRACKIO", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "harness", "track", "s", "--to", to, "--results", str(results)],
        cwd=results.parent, env=kept | away | {"HOME": str(results.parent)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("to", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(results: Path, to: str) -> None:
    if find_spec(to) is not None:
        pytest.skip(f"{to} is installed here")
    done = track(results, to)
    extra = "track" if to == "tensorboard" else to
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"pip install 'experience-sharing-harness[{extra}]'\n")


Points = list[tuple[int, float]]


def losses(cell: Path, policy: str) -> Points:
    return [(r["step"], r["loss"]) for r in read_journal(cell).tables["steps"].to_pylist() if r["policy"] == policy]


def in_tensorboard(runs: Path, cell: Path) -> dict[str, Points]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for policy in "ab":
        read = EventAccumulator(str(TensorBoard(runs).run_folder(read_manifest(cell)) / policy))
        read.Reload()
        found[policy] = [(e.step, pytest.approx(e.value, abs=1e-6)) for e in read.Scalars("steps/loss")]
    return found


def in_wandb(runs: Path, cell: Path) -> dict[str, Points]:
    """Of the run's newest name: one that was resumed from earlier begins another. A log in LevelDB's format behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Points] = {"a": [], "b": []}
    names = {re.fullmatch(rf"run-({cell.name}(-\d)?)", f.stem)[1] for f in runs.glob(f"*/run-{cell.name}*")}  # type: ignore[index]
    for file in sorted(runs.glob(f"offline-run-*/run-{max(names)}.wandb")):
        data, at, held = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if (left := 32_768 - at % 32_768) < 7:
                at += left
                continue
            _, length, kind = struct.unpack("<IHB", data[at : at + 7])
            part, at = data[at + 7 : at + 7 + length], at + 7 + length
            held = part if kind in (1, 2) else held + part
            record = Record.FromString(held) if kind in (1, 4) else Record()
            row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
            for policy in found:
                found[policy] += [(row["step"], row[f"{policy}/steps/loss"])] if f"{policy}/steps/loss" in row else []
    return found


def in_trackio(runs: Path, cell: Path) -> dict[str, Points]:
    with sqlite3.connect(runs / "s.db") as database:
        rows = database.execute(
            "SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id", [cell.name]
        ).fetchall()
    of = {policy: f"{policy}/steps/loss" for policy in "ab"}
    return {p: [(step, json.loads(m)[tag]) for step, m in rows if tag in json.loads(m)] for p, tag in of.items()}


HELD = {"tensorboard": in_tensorboard, "wandb": in_wandb, "trackio": in_trackio}
"""The losses that a tracker's own files hold of a cell, by policy."""


@pytest.mark.parametrize("to", HELD)
def test_a_trackers_files_hold_the_journals_once(results: Path, to: str) -> None:
    pytest.importorskip(to, reason=f"{to} is not installed here")
    cell, runs = a_cell(results), results.parent / ("runs" if to == "tensorboard" else f"runs/{to}")
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="running"))
    done = track(results, to)
    assert done.returncode == 0, done.stderr
    assert HELD[to](runs, cell) == {policy: losses(cell, policy) for policy in "ab"}
    assert track(results, to).stderr == f"0 new points in {runs.relative_to(results.parent)}\n"

    before = {file: file.read_bytes() for file in runs.glob("harness/s/*.json")}
    journal = Journal(cell)
    journal.append(StepRow(policy="a", step=4, loss=0.25, reward_mean=0.25))
    journal.commit(4)
    track(results, to)
    if to == "trackio":  # as if that look had been cut off before it could say what it did
        for file, content in before.items():
            file.write_bytes(content)
        track(results, to)
    assert [step for step, _ in HELD[to](runs, cell)["a"]] == [1, 2, 3, 4]
    Journal(cell).rewind(2)
    track(results, to)
    assert [step for step, _ in HELD[to](runs, cell)["a"]] == [1, 2]
    assert not any(str(results).encode() in file.read_bytes() for file in runs.glob("offline-run-*/*.wandb"))


def test_no_run_lies_outside(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    cell = a_cell(results)
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), group="../../../escaped"))
    with pytest.raises(StoreError, match="is no name for a file"):
        follow(results, "s", TensorBoard(tmp_path / "a" / "runs"))
    assert not list(tmp_path.glob("**/escaped"))
