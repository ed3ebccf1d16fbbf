"""The journal: what a crash, a resume or a full disk leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from damages import OF_COMPACT_JOURNALS, OF_JOURNALS, Damage
from synthetic_results import write_rows

from harness import files
from harness.errors import DiskFullError
from harness.session.single.rescoring import rescore_results
from harness.store import journal
from harness.store.journal import Journal, read_journal
from harness.store.manifest import Manifest, write_manifest
from harness.store.rows import CostRow, CurveRow, SampleRow, StepRow
from harness.suite.schema import FileTask


def step(number: int, **values: float) -> StepRow:
    return StepRow(policy="L", step=number, rollouts=8, **values)  # type: ignore[arg-type]


def sample(checkpoint: int) -> SampleRow:
    return SampleRow(
        policy="L", checkpoint_step=checkpoint, task="micro", metric="greedy", doc_id="1", labels={"skill": "add"}
    )


def steps_in(folder: Path) -> list[int]:
    tables = read_journal(folder).tables
    return sorted(tables["steps"].column("step").to_pylist()) if "steps" in tables else []


def filled(folder: Path, commits: int = 4, per_commit: int = 3) -> Journal:
    writer = Journal(folder)
    for number in range(1, commits * per_commit + 1):
        writer.append(step(number))
        if number % per_commit == 0:
            writer.append(CostRow(attempt=1, policy="L", phase="train", cpu_seconds=1.5))
            writer.commit(number)
    return writer


def test_round_trip_keeps_values_and_turns_nan_into_null(tmp_path: Path) -> None:
    writer = Journal(tmp_path)
    writer.append([step(1, entropy=0.25), CurveRow(policy="L", step=1, metric="greedy", accuracy=0.5, answers=10)])
    writer.append(sample(1))
    assert read_journal(tmp_path).tables == {}
    writer.commit(1)
    for _ in range(2):
        tables = read_journal(tmp_path).tables
        row = tables["steps"].to_pylist()[0]
        assert (row["policy"], row["rollouts"], row["entropy"], row["loss"]) == ("L", 8, 0.25, None)
        assert tables["samples"].to_pylist()[0]["labels"] == [("skill", "add")]
        assert tables["curves"].num_rows == 1
        writer.compact()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["compact-000002"]


@pytest.mark.parametrize("compacted", [False, True])
def test_rewind_drops_later_steps_and_keeps_costs(tmp_path: Path, compacted: bool) -> None:
    writer = filled(tmp_path)
    writer.append(sample(7))
    writer.commit(12)
    if compacted:
        writer.compact()
    Journal(tmp_path).rewind(7)
    assert steps_in(tmp_path) == list(range(1, 8))
    tables = read_journal(tmp_path).tables
    assert tables["costs"].num_rows == 4
    assert "samples" not in tables, "the evaluation of step 7 is made anew after resuming there"
    again = Journal(tmp_path)
    again.append(step(number) for number in range(8, 13))
    again.commit(12)
    assert steps_in(tmp_path) == list(range(1, 13))
    again.rewind(-1)
    assert {name: table.num_rows for name, table in read_journal(tmp_path).tables.items()} == {"costs": 4}


def test_rewind_drops_later_steps_that_no_commit_has_written(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    writer.append(step(number) for number in (13, 14, 15))
    writer.rewind(14)
    writer.commit(14)
    assert steps_in(tmp_path) == list(range(1, 15))


def test_a_crash_inside_compacting_leaves_no_row_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = filled(tmp_path)
    monkeypatch.setattr(Journal, "_remove_leftovers", lambda self: None)  # killed between the rename and the clean-up
    writer.compact()
    assert len(list((tmp_path / "journal").iterdir())) == 5
    assert steps_in(tmp_path) == list(range(1, 13))
    monkeypatch.undo()
    Journal(tmp_path)
    assert len(list((tmp_path / "journal").iterdir())) == 1
    assert steps_in(tmp_path) == list(range(1, 13))


def test_a_full_disk_is_named_and_leaves_nothing_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = filled(tmp_path)
    writer.append(step(13))

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "flush_to_disk", full)
    with pytest.raises(DiskFullError, match="No space left"):
        writer.commit(13)
    monkeypatch.setattr(journal, "flush_to_disk", full)
    with pytest.raises(DiskFullError):
        writer.compact()
    monkeypatch.undo()
    assert steps_in(tmp_path) == list(range(1, 13))
    assert not list((tmp_path / "journal").glob("*.tmp"))
    writer.commit(13)
    assert steps_in(tmp_path) == list(range(1, 14))


@pytest.mark.parametrize("damage", [*OF_JOURNALS, *OF_COMPACT_JOURNALS], ids=str)
def test_what_is_damaged_is_reported_and_the_rest_read(tmp_path: Path, damage: Damage) -> None:
    writer = filled(tmp_path)
    if damage in OF_COMPACT_JOURNALS:
        writer.compact()
    victim = damage.apply(tmp_path)
    assert victim is not None
    contents = read_journal(tmp_path)
    (problem,) = contents.problems
    assert victim.name in problem
    assert contents.tables["costs"].num_rows == (4 if damage in OF_COMPACT_JOURNALS else 3)
    assert damage.refused is not None
    with pytest.raises(damage.refused, match=victim.name):
        writer.rewind(5)


def test_rescore_names_a_journal_that_it_cannot_read(tmp_path: Path) -> None:
    """It was left out without a word."""
    _, folder = (write_rows(tmp_path, [sample(1)], name) for name in ("good", "torn"))
    (part,) = (folder / "journal").iterdir()
    part.write_bytes(part.read_bytes()[:-5])
    said = rescore_results(tmp_path).describe().splitlines()
    assert said[0].startswith("1 samples of 2 cells")
    assert said[-1] == f"not read: {part}: torn or altered (checksum); remove {folder} and run the suite again"


@pytest.mark.parametrize(
    ("evaluation", "words", "task"),
    [([], "micro: 'list' object has no attribute 'get'", "micro"),
     ({"tasks": [{"file": "x.jsonl", "name": "micro", "scorer": "theirs"}]}, "'theirs'", "micro"),
     ({"tasks": ["gone"]}, "unknown task 'gone'", "gone")],
)  # fmt: skip
def test_rescore_leaves_out_what_others_settings_do_not_let_it_judge(
    tmp_path: Path, evaluation: object, words: str, task: str
) -> None:
    theirs, _ = (
        write_rows(tmp_path, [msgspec.structs.replace(sample(1), task=t)], n)
        for n, t in (("theirs", task), ("good", "micro"))
    )
    write_manifest(theirs, Manifest(suite="s", key="theirs", group="g", config={"evaluation": evaluation}))
    report = rescore_results(tmp_path)
    assert [change.cell for change in report.changes] == ["good"]
    (problem,) = report.problems
    assert problem.startswith(f"{theirs}: {task}: ")
    assert words in problem


@pytest.mark.parametrize("file", ["my lines.jsonl", "a.jsonl.d/b.jsonl"])
def test_rescore_judges_a_file_by_the_scorer_it_was_asked_with(file: str, tmp_path: Path) -> None:
    task = str(FileTask(file=file))
    asked = msgspec.structs.replace(sample(1), task=task, gold="11", text="\\boxed{11.0}", verdict="right")
    folder = write_rows(tmp_path, [asked], "eval")
    write_manifest(folder, Manifest(suite="s", key="eval", group="g", config={"tasks": [f"{file}:exact"]}))
    (changed,) = rescore_results(tmp_path).changes
    assert changed.change.after.value == "wrong"


WRITER = """
import sys
from pathlib import Path
from harness.store.journal import Journal
from harness.store.rows import StepRow
journal = Journal(Path(sys.argv[1]))
for number in range(1, 100000):
    journal.append(StepRow(policy="L", step=number))
    if number % 2 == 0:
        journal.commit(number)
    if number % 7 == 0:
        journal.compact()
"""


def test_kill_at_any_moment_loses_no_commit_and_doubles_none(tmp_path: Path) -> None:
    for trial in range(2):
        folder = tmp_path / str(trial)
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
        deadline = time.monotonic() + 20
        while len(steps_in(folder)) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.013 * trial)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        Journal(folder)
        steps = steps_in(folder)
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= 10
