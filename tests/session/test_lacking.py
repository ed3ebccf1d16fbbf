"""What a table lacks, or shows of other settings or code, is said by every view as `harness status` says it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest
import streamlit as st

from harness.cli.tables import show_suite
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.suite.prepare import prepare_named
from harness.store.ingest import ingest_journals
from harness.store.journal import Journal
from harness.store.manifest import read_manifest, write_manifest
from harness.store.rows import SampleRow, StepRow
from leaderboard.data import open_store
from leaderboard.report import export_report

SUITE = """
name: lab
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama}
      - {name: b, model: micro/qwen}
regimes: [independent, sgt]
seeds: [1, 2]
training: {steps: 6}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Path]:
    """A suite of four cells that have finished, in tmp_path/results."""
    file = tmp_path / "lab.yaml"
    file.write_text(SUITE)
    prepared = prepare_named(str(file), tmp_path / "results")
    prepared.write_suite_file()
    for cell in prepared.cells:
        folder = prepared.folder / cell.key
        mark_state(folder, manifest_of(cell), "done", attempts=1)
        journal = Journal(folder)
        for policy in ("a", "b"):
            journal.append(StepRow(policy=policy, step=1, rollouts=8))
            journal.append(
                SampleRow(policy=policy, checkpoint_step=1, task="micro", metric="greedy", doc_id="1", verdict="right")
            )
        journal.commit(1)
    ingest_journals(tmp_path / "results")
    yield file
    st.cache_resource.clear()


def shown(suite: object, results: Path, form: str = "json") -> tuple[str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        show_suite(None if suite is None else str(suite), results, form)
    return out.getvalue(), err.getvalue()


def lacks(suite: object, results: Path) -> dict[str, tuple[str, str]]:
    """State and reason of each cell that `show --format json` calls missing."""
    return {m["cell"]: (m["state"], m["reason"]) for m in json.loads(shown(suite, results)[0])["missing"]}


def changed(suite: Path, old: str, new: str) -> Path:
    suite.write_text(suite.read_text().replace(old, new))
    return suite


def test_a_seed_that_was_added_to_the_file_is_missing(suite: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert lacks(suite, results) == {} == lacks("lab", results)
    changed(suite, "seeds: [1, 2]", "seeds: [1, 2, 5]")
    assert lacks(suite, results) == {f"pair/{regime}/5": ("pending", "") for regime in ("independent", "sgt")}
    assert "pair/independent/5, pair/sgt/5 pending" in shown(suite, results, "table")[0]
    assert "2 cells: pair/independent/5, pair/sgt/5 pending" in shown(suite, results, "csv")[1]
    prepare_named(str(suite), results).write_suite_file()  # as a run that was cut off at once
    ingest_journals(results)
    assert lacks("lab", results) == lacks(suite, results) != {}
    store = open_store(results)
    assert (store.describe_states("lab"), len(store.find_missing("lab"))) == ("4 done, 2 pending", 2)
    export_report(results, tmp_path / "r.html")
    assert "<li>pair/independent/5, pair/sgt/5 pending</li>" in (tmp_path / "r.html").read_text()


def test_a_table_of_other_settings_says_so(suite: Path, tmp_path: Path) -> None:
    """`show changed.yaml` printed the table of the old settings without a word."""
    results = tmp_path / "results"
    changed(suite, "steps: 6", "steps: 7")
    missing = lacks(suite, results)
    assert set(missing.values()) == {("stale", "to be run anew: option training.steps 6 -> 7")}
    assert len(missing) == 4
    assert {s.label for s in prepare_named(str(suite), results).statuses()} == set(missing)
    assert "In these numbers, but of other settings or code than now: 4 cells" in shown(suite, results, "table")[0]
    changed(changed(suite, "steps: 7", "steps: 6"), "regimes: [independent, sgt]", "regimes: [independent]")
    assert lacks(suite, results) == {f"pair/sgt/{seed}": ("stale", "no longer in the suite") for seed in (1, 2)}


def test_results_of_older_code_are_called_so_on_every_view(suite: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    file = prepare_named(str(suite), results)
    for cell in file.cells:  # as code before the last raised version made it
        folder = file.folder / cell.key
        manifest = read_manifest(folder)
        versions = {**manifest.identity.versions, "learning": "0"}
        older = f"old-{cell.key}"
        folder.rename(file.folder / older)
        identity = msgspec.structs.replace(manifest.identity, versions=versions)
        write_manifest(file.folder / older, msgspec.structs.replace(manifest, key=older, identity=identity))
    about = json.loads((file.folder / "suite.json").read_text())
    del about["checksum"]
    (file.folder / "suite.json").write_text(json.dumps({**about, "cells": [f"old-{key}" for key in about["cells"]]}))
    ingest_journals(results)
    for missing in (
        lacks("lab", results),
        {m.cell: (m.state, m.reason) for m in open_store(results).find_missing("lab")},
    ):
        assert len(missing) == 4
        assert all(state == "stale" and "results version of learning 0 -> " in why for state, why in missing.values())
    assert open_store(results).describe_states("lab") == "4 stale"


def test_an_interrupted_run_lacks_all_that_it_had_not_begun(suite: Path, tmp_path: Path) -> None:
    """ "1 cell" where 8 of 8 were missing, and "running" for what nobody runs."""
    results = tmp_path / "results"
    changed(suite, "name: lab", "name: cut")
    changed(suite, "seeds: [1, 2]", "seeds: [1, 2, 3, 4]")
    prepared = prepare_named(str(suite), results)
    prepared.write_suite_file()
    first = prepared.cells[0]
    mark_state(prepared.folder / first.key, manifest_of(first), "running", attempts=1)
    ingest_journals(results)
    missing = lacks("cut", results)
    assert len(missing) == 8
    assert missing.pop(first.label) == ("cut off", "")
    assert set(missing.values()) == {("pending", "")}
    for asked in ("cut", None):
        assert "Missing from these numbers: 8 cells" in shown(asked, results, "table")[0]


def test_where_a_suite_cannot_be_prepared_what_is_stored_is_said(suite: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    changed(suite, "seeds: [1, 2]", "seeds: [1, 2, 5]")
    prepare_named(str(suite), results).write_suite_file()
    ingest_journals(results)
    changed(suite, "sgt", "not-installed")
    assert set(lacks(suite, results)) == {"pair/independent/5", "pair/sgt/5"}
    assert "whether its cells are of today's settings and code cannot be told" in shown(suite, results)[1]
