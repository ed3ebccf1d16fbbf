"""Reference results: made of a real run, shown where nothing of one's own is, marked beside it, trained again to their rows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
from forging import column
from running import harness, ingested, ok

from harness.errors import StoreError, UsageError
from harness.formats.exports import finished_cells
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, read_suite
from harness.store.read import Snapshot
from harness.store.reference_results import list_references, read_reference
from harness.store.results_folder import write_results_folder
from harness.store.table import list_suites, show_rows
from harness.store.validation import find_manifest_fault
from harness.submission.rerun import check_repeatable, train_cell
from harness.suite.schema import Variant
from harness.versions import recorded_versions
from leaderboard.report import export_report

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)  # the first test waits for nine cells


@pytest.fixture(scope="module")
def clone(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with nothing but the reference results of `labs`."""
    folder = tmp_path_factory.mktemp("clone") / "results"
    reference.make(results, ["labs"], folder)
    return folder


@pytest.fixture
def copy(clone: Path, tmp_path: Path) -> Path:
    shutil.copytree(clone / "reference", tmp_path / "results" / "reference")
    return tmp_path / "results"


def altered(folder: Path, change: Callable[[Manifest, dict[str, pa.Table]], Manifest]) -> None:
    stored = read_reference(folder)
    manifests, tables = {}, {}
    for key, manifest in stored.manifests.items():
        tables[key] = dict(stored.cells[key].tables)
        manifests[key] = change(msgspec.structs.replace(manifest, suite=folder.name, origin=""), tables[key])
    write_results_folder(folder, read_suite(folder), "test", manifests, tables)


def test_they_give_the_table_of_the_run_in_little_room(results: Path, clone: Path, tmp_path: Path) -> None:
    ingest_journals(clone)
    with Snapshot(results) as ours, Snapshot(clone) as kept:
        assert show_rows(kept, "labs@reference") == show_rows(ours, "labs")
        counts = "SELECT count(*) AS n FROM {} WHERE suite = ?"
        for table in ("steps", "samples", "curves", "costs"):
            assert kept.query(counts.format(table), ["labs@reference"]) == ours.query(counts.format(table), ["labs"])
        assert kept.query("SELECT DISTINCT origin FROM cells").to_pylist() == [{"origin": "reference"}]
        cells = list(finished_cells(kept, clone, "labs@reference"))
        assert (len(cells), cells[0].manifest.origin) == (18, "reference")
    files = list((clone / "reference" / "labs").iterdir())
    assert not any(str(results).encode() in f.read_bytes() for f in files)
    reference.make(results, ["labs"], tmp_path)
    for file in files:
        assert (tmp_path / "reference" / "labs" / file.name).read_bytes() == file.read_bytes()


def test_of_each_cell_ten_answers_can_be_read_to_the_same_questions(results: Path, clone: Path, tmp_path: Path) -> None:
    words = "SELECT policy, metric, repeat, doc_id, prompt, text FROM samples JOIN cells USING (suite, cell) WHERE {} ORDER BY ALL"
    of_cell = "regime = 'sgt' AND seed = 1 AND kind = 'cell'"
    with Snapshot(results) as ours, Snapshot(clone) as kept:
        every = ours.query(words.format(of_cell)).to_pylist()
        shown = kept.query(words.format(f"{of_cell} AND text <> ''")).to_pylist()
        asked = "SELECT DISTINCT doc_id FROM samples JOIN cells USING (suite, cell) WHERE {} AND prompt <> ''"
        questions = {row["doc_id"] for row in kept.query(asked.format("kind = 'cell'")).to_pylist()}
        counts = "SELECT count(*) AS n FROM samples WHERE prompt <> '' GROUP BY suite, cell"
        assert {row["n"] for row in kept.query(counts).to_pylist()} == {reference.READABLE}
    assert 0 < len(shown) <= reference.READABLE
    assert [row for row in shown if row not in every] == []
    assert {row["repeat"] for row in shown} == {0}
    assert {row["policy"] for row in shown} == {row["policy"] for row in every}
    assert len(questions) in (reference.READABLE, reference.READABLE // 2)
    # a folder of an older version has none: they are added from a run with the same rows, and from no other
    older = tmp_path / "results"
    shutil.copytree(clone / "reference", older / "reference")
    altered(older / "reference" / "labs", _without_words)
    reference.texts(results, ["labs"], older)
    assert _samples_of(older) == _samples_of(clone)
    altered(older / "reference" / "labs", _all_wrong)
    with pytest.raises(UsageError, match=r"other rows than .*samples: .*differing columns: .*verdict"):
        reference.texts(results, ["labs"], older)


def _samples_of(results: Path) -> dict[str, list[dict[str, object]]]:
    cells = read_reference(results / "reference" / "labs").cells
    return {key: contents.tables["samples"].to_pylist() for key, contents in cells.items()}


def _without_words(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
    for name in ("prompt", "text"):
        tables["samples"] = column(tables["samples"], name, lambda row: "")
    return manifest


def _all_wrong(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
    tables["samples"] = column(tables["samples"], "verdict", lambda row: "wrong")
    return manifest


def test_unpacked_they_are_results_again(clone: Path, tmp_path: Path) -> None:
    reference.unpack("labs", tmp_path / "unpacked", clone)
    with pytest.raises(UsageError, match="unpacked/labs: exists already"):
        reference.unpack("labs", tmp_path / "unpacked", clone)
    reference.make(tmp_path / "unpacked", ["labs"], tmp_path)
    for file in (clone / "reference" / "labs").iterdir():
        assert (tmp_path / "reference" / "labs" / file.name).read_bytes() == file.read_bytes()


def test_a_suite_that_is_not_finished_is_refused(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    shutil.rmtree(next((tmp_path / "results" / "labs").glob("base-*")))
    with pytest.raises(UsageError, match="absent; run the suite to its end first"):
        reference.make(tmp_path / "results", ["labs"], tmp_path)
    with pytest.raises(UsageError, match="no results of the suite as written"):
        reference.make(tmp_path / "results", ["nothing"], tmp_path)
    assert not list_references(tmp_path)


def test_any_budget_that_a_suite_can_have_is_accepted(clone: Path) -> None:
    key, manifest = next(iter(read_reference(clone / "reference" / "labs").manifests.items()))
    for budget in ("0.5x", "1x", "2x", "4x"):
        for sampling in ("all", "split"):
            variant = Variant(name="line", regime="independent", budget=budget, sampling=sampling)
            for policies in range(1, 257):
                entry = msgspec.structs.replace(manifest, budget=variant.spent(policies))
                assert not find_manifest_fault(entry, key), entry.budget
    for wrong in ("", "x", "0x", "0.0x", "-1x", "1", "1e3x", "nanx", "1x; DROP", "1.x", "100x"):
        assert find_manifest_fault(msgspec.structs.replace(manifest, budget=wrong), key) == "budget: not like 1x", wrong


def test_a_suite_made_in_pieces_is_kept_piece_by_piece(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    absent = next(key for key in read_suite(results / "labs").cells)
    shutil.rmtree(tmp_path / "results" / "labs" / absent)
    reference.make(tmp_path / "results", ["labs"], tmp_path / "kept", partly=True)
    kept = read_reference(tmp_path / "kept" / "reference" / "labs")
    assert absent not in kept.manifests
    assert len(kept.manifests) == len(read_suite(results / "labs").cells) + len(read_suite(results / "labs").bases) - 1
    shown = ok("show", "labs", "--results", tmp_path / "kept")
    assert "Missing from these numbers: 1 cell" in shown
    # who takes it up trains the missing cell alone
    reference.unpack("labs", tmp_path / "unpacked", tmp_path / "kept")
    assert [
        key for key in read_suite(results / "labs").cells if not (tmp_path / "unpacked" / "labs" / key).exists()
    ] == [absent]
    for folder in (tmp_path / "results" / "labs").glob("*/manifest.json"):
        folder.unlink()
    with pytest.raises(UsageError, match="no cell of the suite is finished"):
        reference.make(tmp_path / "results", ["labs"], tmp_path / "kept", partly=True)


SPOILT = {
    "gives another table than what would be kept": ("samples", "verdict", "right"),
    "column policy: not a policy": ("steps", "policy", "nobody"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_what_gives_another_table_or_would_be_refused_is_not_kept(
    results: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """And what was kept before stays."""
    table, name, value = SPOILT[fault]
    folder = copy / "reference" / "labs"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def spoilt(tables: dict[str, pa.Table], *choice: object) -> dict[str, pa.Table]:
        return tables | {t: column(rows, name, lambda row: value) for t, rows in tables.items() if t == table}

    monkeypatch.setattr(reference, "select_tables", spoilt)
    with pytest.raises((UsageError, StoreError), match=fault):
        reference.make(results, ["labs"], copy)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
def test_everything_opens_on_them_where_there_is_nothing_else(clone: Path, tmp_path: Path) -> None:
    code, out, err = harness("show", "labs", "--results", clone)
    assert (code, out.splitlines()[0]) == (0, "labs@reference: reference; published defaults: sgt")
    more = f"harness show 'labs@reference' --full --results {clone}: policies, other metrics, how the numbers are made"
    assert err == f"reference results; your own: harness run labs\n{more}\n"
    code, everything, err = harness("show", "--results", clone)
    assert (code, everything, "nothing was run here yet (harness run labs)" in err) == (0, out, True)
    assert json.loads(ok("show", "labs", "--format", "json", "--results", clone))["suite"] == "labs@reference"
    cells = json.loads(ok("status", "--results", clone, "--json"))["cells"]
    assert {(c["suite"], c["state"]) for c in cells} == {("labs@reference", "done")}
    for form in ("html", "parquet", "cards"):
        ok("export", "labs", "--format", form, "--results", clone, "--out", tmp_path / form)
    assert "labs@reference" in (tmp_path / "html").read_text()
    assert sorted(p.name for p in clone.iterdir() if p.is_dir()) == ["reference"]  # nothing is copied


@pytest.mark.slow
def test_own_results_come_first_and_these_are_marked(results: Path, copy: Path, tmp_path: Path) -> None:
    assert harness("doctor", "labs", "--results", copy)[1].startswith("labs@reference")
    shutil.copytree(results / "labs", copy / "labs")
    code, out, err = harness("show", "labs", "--results", copy)
    beside = f"reference results beside these: harness show labs@reference --results {copy}"
    assert (code, "@reference" in out, beside in err) == (0, False, True)
    assert harness("show", "--results", copy)[1] == out
    assert not harness("doctor", "labs", "--results", copy)[1].startswith("labs@reference")
    assert harness("show", "labs@reference", "--results", copy)[1].startswith("labs@reference: reference;")
    assert {c["suite"] for c in json.loads(harness("status", "--results", copy, "--json")[1])["cells"]} == {"labs"}
    with Snapshot(copy) as snapshot:
        assert list_suites(snapshot) == ["labs", "labs@reference"]
    assert export_report(copy, tmp_path / "report.html") == 2


def test_a_suite_of_the_name_reference_has_cells_beside_them(results: Path, copy: Path) -> None:
    for entry in (results / "labs").iterdir():
        (shutil.copytree if entry.is_dir() else shutil.copy)(entry, copy / "reference" / entry.name)
    with ingested(copy) as snapshot:
        assert list_suites(snapshot) == ["reference", "labs@reference"]
        assert show_rows(snapshot, "reference")


def test_their_label_is_nobody_elses(bundle: Path, results: Path, tmp_path: Path) -> None:
    for source in (bundle, results):
        code, _, err = harness("import", source, "--origin", "reference", "--results", tmp_path)
        assert (code, "choose another" in err) == (2, True)


def test_a_damaged_file_is_no_result(copy: Path) -> None:
    with ingested(copy) as snapshot:
        assert show_rows(snapshot, "labs@reference")
    file = copy / "reference" / "labs" / "samples.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="altered"):
        read_reference(file.parent)
    os.utime(file.parent / "reference.json")
    with ingested(copy) as snapshot:
        assert show_rows(snapshot, "labs@reference") == []
        assert snapshot.query("SELECT DISTINCT remedy FROM problems")["remedy"].to_pylist() == [
            f"git -C {file.parent} restore ."
        ]
    (file.parent / "reference.json").write_text("{}")
    with ingested(copy) as snapshot:
        assert list_suites(snapshot) == []
        problem = snapshot.query("SELECT problem FROM problems WHERE suite = 'labs@reference'")["problem"].to_pylist()
        assert "reference.json: not a results index" in problem[0]


@pytest.mark.slow
def test_a_random_cell_comes_out_again(
    clone: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "_base_differs", lambda name, minutes: False)
    assert reference.check(clone, 1, 0, 10.0) == 0
    assert re.fullmatch("ok +labs: llama-qwen/.*every row the same\n", capfd.readouterr().out)

    def spoil(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
        if "steps" in tables:
            tables["steps"] = column(tables["steps"], "entropy", lambda row: row["entropy"] + 1e-9)
        return made_on(manifest, "another")

    altered(copy / "reference" / "labs", spoil)
    assert reference.check(copy, 1, 0, 10.0) == 1
    assert "other rows: steps: 4 rows stored, 4 now; differing columns: entropy" in capfd.readouterr().out, (
        "portable: on another kind of CPU too"
    )


def made_on(manifest: Manifest, processor: str) -> Manifest:
    machine = manifest.provenance.machine | {"processor": processor}
    return msgspec.structs.replace(manifest, provenance=msgspec.structs.replace(manifest.provenance, machine=machine))


def test_cells_whose_rows_repeat_here_are_drawn(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """sgt is portable, independent-aa fast on this kind of CPU, independent fast on another."""
    drawn: list[str] = []

    def instead(manifest: Manifest, *rest: object, **more: object) -> str:
        drawn.append(manifest.regime)
        return "not trained"

    def elsewhere(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
        numerics = "portable" if manifest.regime == "sgt" else "fast"
        config = manifest.config | {"engine_options": {"numerics": numerics}}
        changed = msgspec.structs.replace(manifest, config=config)
        return changed if manifest.regime == "independent-aa" else made_on(changed, "another")

    monkeypatch.setattr(reference, "train_and_compare", instead)
    monkeypatch.setattr(reference, "_base_differs", lambda name, minutes: True)
    altered(copy / "reference" / "labs", elsewhere)
    assert reference.check(copy, 9, 0, 10.0) == 1, "the base checkpoint came out as another one"
    assert set(drawn) == {"sgt", "independent-aa"}
    assert "3 of 9 cells need models, engines or another kind of CPU" in capfd.readouterr().err
    kept = read_reference(copy / "reference" / "labs").manifests.values()
    fast = next(manifest for manifest in kept if manifest.regime == "independent")
    with pytest.raises(
        UsageError, match="x: computed with numerics: fast on another, and comes out the same there alone"
    ):
        check_repeatable(fast, "x")
    portable = next(manifest for manifest in kept if manifest.regime == "sgt")
    check_repeatable(portable, "x")
    by_two = msgspec.structs.replace(
        portable,
        provenance=msgspec.structs.replace(portable.provenance, machine={"threads": "2"}),
    )
    with pytest.raises(UsageError, match="x: computed by 2 threads, which round otherwise in every run"):
        check_repeatable(by_two, "x")


def test_results_of_other_results_versions_are_not_drawn(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their rows may differ by right; where there are no others, that is said, and no fault."""
    drawn: list[str] = []
    monkeypatch.setattr(
        reference, "train_and_compare", lambda manifest, *rest, **more: drawn.append(manifest.regime) or ""
    )
    monkeypatch.setattr(reference, "_base_differs", lambda name, minutes: False)

    def older(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
        versions = manifest.identity.versions | {"session": "0"}
        return msgspec.structs.replace(manifest, identity=msgspec.structs.replace(manifest.identity, versions=versions))

    assert "session" in recorded_versions()

    def older_but_one(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
        return manifest if manifest.regime == "sgt" else older(manifest, tables)

    altered(copy / "reference" / "labs", older_but_one)
    assert reference.check(copy, 9, 0, 10.0) == 0
    assert set(drawn) == {"sgt"}
    assert re.search(r"\d of 9 cells have older results versions", capfd.readouterr().err)
    drawn.clear()
    altered(copy / "reference" / "labs", older)
    assert reference.check(copy, 2, 0, 10.0) == 0
    assert not drawn
    assert "all 9 cells have older results versions" in capfd.readouterr().err


@pytest.mark.slow
def test_the_first_steps_of_a_cell_of_real_models_are_compared(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On cells of micro models, which are treated as real ones; they have two steps."""
    assert not reference._real_cell_differs(reference._list_cells(copy), 0, 10.0)
    assert "cells of pretrained models are not checked (no fault): of 0" in capfd.readouterr().err
    monkeypatch.setattr(reference, "_is_micro", lambda manifest: False)
    monkeypatch.setattr(reference, "REAL_STEPS", 1)
    assert not reference._real_cell_differs(reference._list_cells(copy), 0, 10.0)
    assert "every row the same" in capfd.readouterr().out

    def other_reward(manifest: Manifest, tables: dict[str, pa.Table]) -> Manifest:
        if "steps" in tables:
            tables["steps"] = column(tables["steps"], "reward_mean", lambda row: row["reward_mean"] / 2 + 0.25)
        return manifest

    altered(copy / "reference" / "labs", other_reward)
    assert reference._real_cell_differs(reference._list_cells(copy), 0, 10.0)
    assert "differing columns: reward_mean" in capfd.readouterr().out


def test_a_cell_is_stopped_after_the_steps_that_are_compared(copy: Path, tmp_path: Path) -> None:
    """Of 40 steps it takes a few, as it is stopped between two, and it is not evaluated."""
    manifest = reference._list_cells(copy)[0][1]
    longer = {**manifest.config, "training": {**manifest.config["training"], "steps": 40}}
    train_cell(msgspec.structs.replace(manifest, config=longer), tmp_path / "again", steps=2)
    tables = read_journal(tmp_path / "again").tables
    assert 2 <= max(tables["steps"]["step"].to_pylist()) < 40
    assert "samples" not in tables or not tables["samples"].num_rows


def test_where_there_is_none_the_check_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reference.py", "check", "--results", str(tmp_path)]
    for more, code in (([], 2), (["--unless-empty"], 0)):
        monkeypatch.setattr(sys, "argv", [*command, *more])
        with pytest.raises(SystemExit) as ended:
            reference.main()
        assert ended.value.code == code
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_what_is_committed_is_whole_and_small() -> None:
    folders = list_references(ROOT / "results")
    for folder in folders.values():
        assert all(manifest.state == "done" for manifest in read_reference(folder).manifests.values())
    assert sum(f.stat().st_size for folder in folders.values() for f in folder.iterdir()) <= reference.MOST


def forged(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """A table of reference results with other rows, its digest written again."""
    file = folder / f"{name}.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    about = json.loads((folder / "reference.json").read_bytes())
    about["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "reference.json").write_text(json.dumps(about))


def with_first(table: pa.Table, name: str, value: object) -> pa.Table:
    values = iter([value, *table[name].to_pylist()[1:]])
    return column(table, name, lambda row: next(values))


FORGERIES: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "column policy: not a policy": ("steps", lambda t: with_first(t, "policy", "stranger")),
    "is no cell of": ("steps", lambda t: with_first(t, "cell", "x" * 16)),
    "rows of one cell are not together": ("steps", lambda t: pa.concat_tables([t.slice(1), t.slice(0, 1)])),
    "column accuracy": ("curves", lambda t: with_first(t, "accuracy", 2.0)),
    "column verdict: not one of": (
        "samples",
        lambda t: t.set_column(t.schema.get_field_index("verdict"), "verdict", pa.array([0] * t.num_rows)),
    ),
    "column policy: absent": ("steps", lambda t: t.drop_columns(["policy"])),
    "column policy: not a policy of the cell": (
        "samples",
        # the last rows are those of a base checkpoint, which has one policy
        lambda t: column(t, "policy", lambda row: "llama" if row["cell"].startswith("base-") else row["policy"]),
    ),
    "not a manifest": ("manifests", lambda t: with_first(t, "manifest", "{}")),
    "other cells than those": ("manifests", lambda t: t.slice(1)),
}


@pytest.mark.slow_but("rows of one cell", "verdict", "other cells")
@pytest.mark.parametrize("message", FORGERIES)
def test_rows_that_no_run_writes_are_refused_with_their_place(copy: Path, message: str) -> None:
    folder = copy / "reference" / "labs"
    name, change = FORGERIES[message]
    forged(folder, name, change)
    with pytest.raises(StoreError, match=message) as error:
        read_reference(folder)
    assert f"{name}.parquet" in str(error.value)
    code, out, err = harness("show", "labs", "--results", copy)
    assert (code, out, f"{name}.parquet" in err, "Traceback" in err) == (1, "", True, False)


def test_a_torn_suite_file_does_not_hide_the_other_suites(results: Path, copy: Path) -> None:
    shutil.copytree(results / "labs", copy / "labs")
    shutil.copytree(results / "labs", copy / "torn")
    for file in (copy / "torn").glob("suite*.json"):
        file.write_bytes(file.read_bytes()[:40])
    code, out, err = harness("show", "--results", copy)
    assert (code, "labs" in out, "torn" in err) == (0, True, True)
    assert harness("show", "torn", "--results", copy)[0] == 1
