"""Faults one by one; docs/recovery.md names the test of each. Many of them at random moments: benchmarks/torture.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from harness.errors import StoreError
from harness.session.cell import resume_point
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, PolicyEntry, read_manifest, read_suite, write_manifest

from .command import harness, said, start, wait_until
from .running import rows, run
from .test_failures import worker_of

ROOT = Path(__file__).parents[2]
SHORT = ["--set", "regimes=[independent]", "--set", "training.checkpoint_every=1", "--jobs", 1]


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches SIGKILL."""


@pytest.mark.slow_but("before")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_a_checkpoint(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    straight = run(suite_file, tmp_path / "straight", ["regimes=[independent]"])
    save = resume_point.save

    def killed(*arguments: object) -> None:
        if moment == "after":
            save(*arguments)  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(resume_point, "save", killed)
    with pytest.raises(Killed):
        run(suite_file, tmp_path / "killed", ["regimes=[independent]"])
    monkeypatch.undo()
    resumed = run(suite_file, tmp_path / "killed", ["regimes=[independent]"])
    (cell,) = resumed.cells
    assert not list(resumed.folder.rglob("*.tmp"))
    for table in ("steps", "terms", "curves", "samples"):
        assert rows(resumed, cell, table) == rows(straight, straight.cells[0], table), table
    journal = read_journal(resumed.folder / cell.key).tables
    spent = journal["costs"].to_pylist()
    for phase in ("generate", "train"):  # what was lost with the checkpoint was spent, too
        survived = sum(row[f"{phase}_seconds"] for row in journal["steps"].to_pylist())
        assert sum(row["cpu_seconds"] for row in spent if row["phase"] == phase) >= survived - 1e-9
    assert {row["attempt"] for row in rows(resumed, cell, "costs")} == {1, 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> tuple[Path, Path, str]:
    """A suite whose one worker was killed in the middle: its file, its results, and what was said."""
    from .conftest import SUITE

    place = tmp_path_factory.mktemp("killed")
    file, results = place / "tiny.yaml", place / "results"
    file.write_text(SUITE.format(**folders))
    process = start("run", file, "--results", results, *SHORT)
    wait_until(lambda: bool(said(results, "step 2/4")), process, 300)
    os.kill(worker_of(*said(results, "step 2/4")), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return file, results, err


def table(results: Path) -> tuple[object, list[object], str]:
    code, out, err = harness("show", "tiny", "--results", results, "--format", "json")
    assert code == 0, err
    found = json.loads(out)
    return [{k: v for k, v in r.items() if "seconds" not in k} for r in found["rows"]], found["missing"], err


@pytest.mark.timeout(600)
def test_a_killed_worker_is_tried_once_more(finished: tuple[Path, Path, str]) -> None:
    _, results, err = finished
    assert "pair/independent/3: once more, after the others and alone, the worker process was killed by signal 9" in err
    states = [read_manifest(m.parent) for m in results.glob("tiny/*/manifest.json")]
    assert {(m.kind, m.state, m.fault, m.attempts) for m in states} == {
        ("base", "done", None, 1),
        ("cell", "done", None, 2),
    }


@pytest.mark.timeout(600)
def test_a_done_suite_whose_store_is_gone(finished: tuple[Path, Path, str], tmp_path: Path) -> None:
    file, results, _ = finished
    again = Path(shutil.copytree(results, tmp_path / "again"))
    (again / "harness.duckdb").unlink()
    code, out, err = harness("run", file, "--results", again, "--json", *SHORT)
    assert (code, "nothing left to do" in err) == (0, True), err
    assert [{k: v for k, v in r.items() if "seconds" not in k} for r in json.loads(out)["rows"]] == table(results)[0]


def test_every_altered_byte_of_a_manifest_is_noticed(tmp_path: Path, finished: tuple[Path, Path, str]) -> None:
    policies = (PolicyEntry("a", "micro/llama"), PolicyEntry("b", "micro/qwen"))
    manifest = Manifest(suite="s", key="k", group="pair", regime="hacpo", seed=13, policies=policies, config={"x": 1.5})
    write_manifest(tmp_path, manifest)
    file = tmp_path / "manifest.json"
    data = file.read_bytes()
    unnoticed = []
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 + at % 127
        file.write_bytes(altered)
        with suppress(StoreError):
            unnoticed += [at] if read_manifest(tmp_path) != manifest else []
    assert unnoticed == []
    suite = tmp_path / "suite.json"
    suite.write_bytes(next(finished[1].glob("tiny/altered-*.json")).read_bytes().replace(b'"tiny"', b'"tinx"'))
    with pytest.raises(StoreError, match="altered"):
        read_suite(tmp_path)


def test_the_table_of_faults_names_tests_that_there_are() -> None:
    section = (ROOT / "docs" / "recovery.md").read_text().partition("| moment |")[2].partition("\n\n")[0]
    lines = section.splitlines()[2:]
    assert len(lines) >= 20
    for line in lines:
        found = re.search(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", line)
        assert found is not None, f"no test: {line}"
        assert f"\ndef {found[2]}(" in (ROOT / found[1]).read_text(), found[0]
