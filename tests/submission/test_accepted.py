"""A real bundle is accepted, taken over and shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from forging import Forgery, column
from running import harness, ok

from harness.errors import UsageError
from harness.store.manifest import read_suite
from harness.store.read import Snapshot
from harness.store.table import show_rows
from harness.store.tuning import Trial, Tuned, Tuning, read_tuning, write_tuning
from harness.submission.bundle import make_bundle
from harness.submission.check import check_bundle, take_bundle
from harness.submission.rerun import RerunRequest

pytestmark = pytest.mark.timeout(300)  # the first test waits for nine cells


def test_a_bundle_is_the_same_bytes_again_and_holds_no_path_of_this_machine(
    results: Path, bundle: Path, tmp_path: Path
) -> None:
    again = make_bundle("labs", results, tmp_path).path
    assert (again.name, again.read_bytes()) == (bundle.name, bundle.read_bytes())
    assert str(results).encode() not in bundle.read_bytes()


def test_a_real_bundle_is_accepted_and_shown_with_its_badge(results: Path, bundle: Path, tmp_path: Path) -> None:
    code, out, err = harness("submit-check", bundle, "--json", "--results", tmp_path)
    report = json.loads(out)
    assert (code, report["refused"], err) == (0, "", "")
    assert [line["good"] for line in report["lines"]] == [True] * 11
    code, _, err = harness("import", bundle, "--origin", "lab-b", "--results", tmp_path)
    assert (code, err.endswith(f"; next: harness show labs@lab-b --results {tmp_path}\n")) == (0, True)
    out = ok("show", "labs@lab-b", "--results", tmp_path)
    assert out.splitlines()[0] == "labs@lab-b: re-scored; published defaults: sgt"
    with Snapshot(results) as mine, Snapshot(tmp_path) as theirs:
        assert show_rows(mine, "labs") == show_rows(theirs, "labs@lab-b")


@pytest.mark.slow
def test_taking_over_changes_nothing_that_is_here(bundle: Path, tmp_path: Path) -> None:
    ours = tmp_path / "results"
    _, folder = take_bundle(bundle, ours, "b")
    assert folder is not None
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert take_bundle(bundle, ours, "b")[1] == folder
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    forgery = Forgery(bundle, tmp_path / "apart")
    forgery.table(forgery.cell("sgt", 1), "costs", lambda t: column(t, "cpu_seconds", lambda r: 0.0))
    other = forgery.pack(tmp_path)
    with pytest.raises(UsageError, match="give another --origin"):
        take_bundle(other, ours, "b")
    (folder / "submission.json").unlink()
    with pytest.raises(UsageError, match="is here already with other rows"):
        take_bundle(other, ours, "b")
    (folder / "submission.json").write_bytes(before[folder / "submission.json"])
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_an_imported_folder_is_marked_as_reported(results: Path, tmp_path: Path) -> None:
    assert harness("import", results, "--origin", "c", "--results", tmp_path)[0] == 0
    assert harness("show", "labs@c", "--results", tmp_path)[1].startswith(
        "labs@c: as reported; published defaults: sgt\n"
    )


@pytest.mark.slow
def test_a_cell_runs_again_to_its_rows_and_a_tampered_one_does_not(bundle: Path, tmp_path: Path) -> None:
    with check_bundle(bundle, tmp_path, RerunRequest(1, seed=0)) as (_, report):
        pass
    assert report.submission is not None, report.refused
    assert report.submission.badge == "re-executed"
    assert report.lines[-1].words.endswith("every row the same")
    label = report.submission.re_executed[0]
    forgery = Forgery(bundle, tmp_path / "apart")
    _, regime, seed = label.split("/")
    forgery.table(
        forgery.cell(regime, int(seed)), "steps", lambda t: column(t, "entropy", lambda r: r["entropy"] + 1e-9)
    )
    with check_bundle(forgery.pack(tmp_path), tmp_path, RerunRequest(1, seed=0)) as (_, report):
        pass
    assert [line.check for line in report.lines if not line.good] == ["re-execution"]
    assert f"({label}, --seed 0): other rows: steps" in report.refused


def test_one_that_takes_too_long_is_refused(bundle: Path, tmp_path: Path) -> None:
    with check_bundle(bundle, tmp_path, RerunRequest(1, seed=0, minutes=0.0)) as (_, report):
        pass
    assert "not finished in 0 minutes" in report.refused


def test_only_a_finished_suite_becomes_a_bundle(results: Path, tmp_path: Path) -> None:
    code, _, err = harness("bundle", "nothing", "--results", results)
    assert (code, err.count("\n"), "no results of the suite as written" in err) == (2, 1, True)
    shutil.copytree(results, tmp_path / "results")
    shutil.copytree(results / "labs", tmp_path / "results" / "labs@lab")
    code, _, err = harness("bundle", "labs@lab", "--results", tmp_path / "results", "-o", tmp_path)
    assert (code, err) == (2, "harness: labs@lab: a bundle holds results that were made here\n")
    cell = next((tmp_path / "results" / "labs").glob("*/manifest.json")).parent
    shutil.rmtree(cell)
    code, _, err = harness("bundle", "labs", "--results", tmp_path / "results", "-o", tmp_path)
    assert (code, f"{cell}: absent" in err) == (2, True)


@pytest.mark.slow
def test_a_tuned_suite_takes_its_choice_along(results: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(results, tmp_path / "mine")
    trial = Trial(number=0, variant="x.0", settings={"lambda": 1}, steps=2, score=0.5)
    tuned = [Tuned(variant=name, final=name, chosen=0, trials=(trial,)) for name in ("independent", "sgt")]
    tuning = Tuning(
        suite="labs", trials_in="labs-tuning", task="micro", metric="avg@2", steps=2, baseline="independent",
        variants=tuple(tuned),
    )  # fmt: skip
    write_tuning(mine, read_suite(mine / "labs"), tuning)
    bundle = ok("bundle", "labs", "--results", mine, "-o", tmp_path).strip()
    ok("import", bundle, "--origin", "lab-b", "--results", tmp_path / "theirs")
    taken = read_tuning(tmp_path / "theirs", "labs@lab-b")
    assert taken == msgspec.structs.replace(tuning, suite="labs@lab-b")
