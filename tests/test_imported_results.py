"""`harness import`: the good part is taken, the bad is refused with reasons, nothing existing changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from running import ingested
from synthetic_results import REGIMES, write_cell, write_results, write_trials

from harness.cli.tables import show_suite
from harness.errors import StoreError, UsageError
from harness.store.imported_results import import_results
from harness.store.ingest import ingest_journals
from harness.store.journal import Journal, read_journal, write_columns
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    Provenance,
    Submission,
    SuiteFile,
    read_manifest,
    read_suite,
    write_manifest,
    write_submission,
    write_suite,
)
from harness.store.read import Snapshot
from harness.store.remarks import missing_cells
from harness.store.results_folder import write_results_folder
from harness.store.rows import SCHEMAS, CostRow, ExchangeRow, SampleRow, StepRow, TraceRow, to_arrow
from harness.store.standing import make_board
from harness.store.table import list_suites, show_rows
from harness.store.tuning import Tuning, read_tuning, tuning_path, without_trials, write_tuning


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    write_results(folder, steps=4, questions=8, regimes=REGIMES[:2], seeds=(1, 2))
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    folder.mkdir()
    return folder


def cells(results: Path) -> list[Path]:
    return sorted(p.parent for p in results.glob("*/[!b]*/manifest.json"))


def replace_table(cell: Path, name: str, data: pa.Table) -> None:
    (old,) = cell.glob(f"journal/compact-*/{name}-*")
    old.unlink()
    write_columns(old.parent, name, data)


def add_samples(cell: Path, *rows: dict[str, str], doubled: int = 0) -> int:
    """Behind its own; gives their number."""
    data = read_journal(cell).tables["samples"]
    at = {"policy": data["policy"][0].as_py(), "checkpoint_step": 4, "metric": "greedy", "verdict": "right"}
    new = [SampleRow(**{"task": "t", "doc_id": str(i), **at, **row}) for i, row in enumerate(rows)]
    replace_table(cell, "samples", pa.concat_tables([data, data.slice(0, doubled), to_arrow("samples", new)]))
    return data.num_rows


def problems(results: Path) -> list[dict[str, object]]:
    ingest_journals(results)
    with Snapshot(results) as snapshot:
        return snapshot.query("FROM problems").to_pylist()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_import_takes_everything_good_and_marks_its_origin(theirs: Path, ours: Path) -> None:
    write_results(ours, steps=4, questions=8, regimes=REGIMES[:2], seeds=(1, 2))
    before = contents(ours)
    report = import_results(theirs, ours, "lab-b")
    assert (report.cells, report.present, report.rows_refused, report.refused) == (2 * 2 * 2 + 4, 0, 0, [])
    assert before.items() <= contents(ours).items()
    with ingested(ours) as snapshot:
        assert list_suites(snapshot) == ["synthetic-small", "synthetic-small@lab-b"]
        mine, other = (show_rows(snapshot, name) for name in list_suites(snapshot))
        for row, copy in zip(mine, other, strict=True):
            assert row == msgspec.structs.replace(copy, cpu_seconds=row.cpu_seconds)
        origins = snapshot.query("SELECT DISTINCT suite, origin FROM cells ORDER BY 1").to_pylist()
        assert [row["origin"] for row in origins] == ["", "lab-b"]
    after = contents(ours)
    again = import_results(theirs, ours, "lab-b")
    assert (again.cells, again.present) == (0, 12)
    assert {k: v for k, v in contents(ours).items() if "@" in k} == {k: v for k, v in after.items() if "@" in k}


ESCAPES = "x/../../../escaped"
BAD = {
    "reward_mean": 1.5, "accuracy": -0.1, "rollouts": -1, "step": None, "policy": "stranger", "kl_base": float("inf"),
    "prompts": 1 << 60,
}  # fmt: skip


@pytest.mark.parametrize("column", BAD)
def test_a_bad_row_is_refused_and_its_neighbours_taken(theirs: Path, ours: Path, column: str) -> None:
    cell = cells(theirs)[0]
    table = "curves" if column == "accuracy" else "steps"
    data = read_journal(cell).tables[table]
    values, place = data[column].to_pylist(), data.schema.get_field_index(column)
    values[1] = BAD[column]
    field = data.schema.field(column)
    replace_table(cell, table, data.set_column(place, field, pa.array(values, field.type)))
    report = import_results(theirs, ours, "b")
    (said,) = report.refused
    assert column in said
    assert cell.name in said
    taken = read_journal(ours / "synthetic-small@b" / cell.name).tables[table]
    assert taken.num_rows == data.num_rows - 1 == data.num_rows - report.rows_refused


def test_doubled_samples_foreign_words_and_giant_texts_are_refused(theirs: Path, ours: Path) -> None:
    cell, long = cells(theirs)[0], "x" * (1 << 20)
    bad = [{"verdict": "perfect"}, {"verdict": ""}, {"metric": "best"}, {"text": long + "x"}]
    bad += [{"task": task} for task in (ESCAPES, "..", "micro\n", "", "t" * 129)]
    own = add_samples(cell, *bad, {"text": long}, {"task": "lm_eval:gsm8k"}, doubled=2)
    report = import_results(theirs, ours, "b")
    assert report.rows_refused == len(bad) + 2
    assert any("occurs twice" in line and "2 rows" in line for line in report.refused)
    assert any("task: not a task's name" in line and "5 rows" in line for line in report.refused)
    assert read_journal(ours / "synthetic-small@b" / cell.name).tables["samples"].num_rows == own + 2


@pytest.mark.parametrize("labels", [[("k", "1"), ("k", "2")], [("k", None)]], ids=["twice", "absent"])
def test_labels_that_no_store_can_hold_are_refused(theirs: Path, ours: Path, labels: list[tuple[str, str]]) -> None:
    cell = cells(theirs)[0]
    data = read_journal(cell).tables["samples"]
    place, field = data.schema.get_field_index("labels"), data.schema.field("labels")
    given = [[("a", "1"), ("b", "1")], labels, None, *[[("a", "1")]] * (data.num_rows - 3)]
    replace_table(cell, "samples", data.set_column(place, field, pa.array(given, field.type)))
    (said,) = import_results(theirs, ours, "b").refused
    assert said.endswith("samples: 1 row: labels: a key twice or without a value")
    kept = read_journal(ours / "synthetic-small@b" / cell.name).tables["samples"]["labels"].to_pylist()
    assert kept == [given[0], *given[2:]]
    assert not problems(ours)


def test_corrupt_truncated_and_foreign_files_are_refused_with_reasons(theirs: Path, ours: Path) -> None:
    folders = cells(theirs)
    steps = next(folders[0].glob("journal/*/steps-*"))
    steps.write_bytes(steps.read_bytes()[:100])
    (folders[1] / "manifest.json").write_bytes(b"\xff\xfe not json")
    next(folders[2].glob("journal/*/samples-*")).unlink()
    write_manifest(folders[3], msgspec.structs.replace(read_manifest(folders[3]), state="running"))
    write_manifest(folders[4], msgspec.structs.replace(read_manifest(folders[4]), key="../../evil"))
    os.symlink("/etc/passwd", folders[5] / "journal" / "compact-000001" / "terms-00000000.arrow")
    (theirs / "holiday-photos").mkdir()
    (theirs / "synthetic-small" / "..evil").mkdir()
    (theirs / "synthetic-small" / "..evil" / "manifest.json").write_text("{}")
    report = import_results(theirs, ours, "b")
    assert report.cells == 12 - 5
    text = "\n".join(report.refused)
    for cause in ("checksum", "not a manifest", "no usable", "only finished", "folder's name", "a link", "..evil"):
        assert cause in text
    assert not (ours / "synthetic-small@b" / folders[4].name).exists()
    assert "steps" not in read_journal(ours / "synthetic-small@b" / folders[0].name).tables
    assert not problems(ours)


def test_a_linked_journal_is_refused(theirs: Path, ours: Path, tmp_path: Path) -> None:
    journal = cells(theirs)[0] / "journal"
    journal.symlink_to(journal.rename(tmp_path / "elsewhere"))
    report = import_results(theirs, ours, "b")
    assert (report.cells, report.refused) == (11, [f"{journal}: a link"])


def test_a_valid_checksum_over_nonsense_is_no_way_in(theirs: Path, ours: Path) -> None:
    import zlib

    for cell in cells(theirs):
        for file in cell.rglob("*.arrow"):
            data = bytearray(file.read_bytes())
            rng = np.random.default_rng(zlib.crc32(file.name.encode()))
            for place in rng.integers(0, len(data), 12):
                data[place] ^= int(rng.integers(1, 256))
            file.unlink()
            table = file.name.rsplit("-", 1)[0]
            (file.parent / f"{table}-{zlib.crc32(bytes(data)):08x}.arrow").write_bytes(bytes(data))
    import_results(theirs, ours, "b")
    assert not problems(ours)


@pytest.mark.parametrize("origin", ["", "../up", "a b", "x" * 200, "a@b"])
def test_bad_origins(theirs: Path, ours: Path, origin: str) -> None:
    with pytest.raises(UsageError, match="origin"):
        import_results(theirs, ours, origin)


@pytest.mark.parametrize(("folder", "problem"), [("absent", "no such folder"), ("ours", "holds no results")])
def test_folders_without_results(tmp_path: Path, ours: Path, folder: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        import_results(tmp_path / folder, ours, "b")


def test_costs_without_a_policy_and_parts_are_taken(theirs: Path, ours: Path) -> None:
    cell = cells(theirs)[0]
    journal = Journal(cell)
    journal.append(
        [
            CostRow(attempt=2, policy="", phase="save", cpu_seconds=1.0),
            StepRow(policy=read_manifest(cell).policies[0].name, step=77),
        ]
    )
    journal.commit(77)
    assert import_results(theirs, ours, "b").refused == []
    taken = read_journal(ours / "synthetic-small@b" / cell.name).tables
    assert 77 in taken["steps"]["step"].to_pylist()
    assert "" in taken["costs"]["policy"].to_pylist()
    assert taken["steps"].schema.equals(SCHEMAS["steps"])


BAD_NAMES: dict[str, Callable[[Manifest], Manifest]] = {
    "group": lambda m: msgspec.structs.replace(m, group=ESCAPES),
    "regime": lambda m: msgspec.structs.replace(m, regime="bell\x07"),
    "policies": lambda m: msgspec.structs.replace(m, policies=(*m.policies, PolicyEntry("..", "micro/llama"))),
    "attempts": lambda m: msgspec.structs.replace(m, attempts=1 << 64),
    "seed": lambda m: msgspec.structs.replace(m, seed=1 << 70),
    "started": lambda m: msgspec.structs.replace(m, provenance=Provenance(started="noon", finished="2026-01-01")),
    "finished": lambda m: msgspec.structs.replace(m, provenance=Provenance(started="2026-01-01T00:00Z")),
    "provenance.started": lambda m: msgspec.structs.replace(m, provenance=Provenance(started="2026-01-01T00:00")),
}


@pytest.mark.slow_but("group", "seed", "started", "provenance.started")
@pytest.mark.parametrize("field", BAD_NAMES)
def test_names_that_are_no_names_and_numbers_that_nothing_holds_are_refused(
    theirs: Path, ours: Path, field: str
) -> None:
    bad = cells(theirs)[0]
    write_manifest(bad, BAD_NAMES[field](read_manifest(bad)))
    report = import_results(theirs, ours, "b")
    (said,) = report.refused
    assert str(bad / "manifest.json") in said
    assert field in said
    assert report.cells == 12 - 1
    assert not problems(ours)


@pytest.mark.slow
def test_the_cells_that_count_are_those_that_count_for_their_lab(theirs: Path, ours: Path) -> None:
    write_cell(theirs, "synthetic-small", "llama-qwen", ("old", "older"), REGIMES[0], 9, 4, 8, 2, ("micro",), 0)
    assert import_results(theirs, ours, "b").cells == 12 + 1
    target = ours / "synthetic-small@b"

    def shown(results: Path, suite: str) -> list[tuple[object, ...]]:
        with ingested(results) as snapshot:
            return [(row.group, row.policy, row.regime, row.seeds, row.accuracy) for row in show_rows(snapshot, suite)]

    assert shown(ours, target.name) == shown(theirs, "synthetic-small")
    file = read_suite(theirs / "synthetic-small")
    write_suite(theirs / "synthetic-small", msgspec.structs.replace(file, cells=(*file.cells[1:], "late")))
    import_results(theirs, ours, "b")
    assert read_suite(target).cells == (*file.cells, "late")
    write_suite(target, msgspec.structs.replace(file, name=target.name, cells=()))  # as older imports have it
    assert {"older", "qwen"} <= {policy for _, policy, *_ in shown(ours, target.name)}


PAIR = {"name": "g", "policies": [{"name": "a", "model": "micro/llama"}, {"name": "b", "model": "micro/qwen"}]}
CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "empty parts": ({"config": {"regimes": [{}], "groups": [{}]}}, "suite.json: config: "),
    "short parts": ({"config": {"name": "s", "groups": [PAIR], "regimes": ["independent"], "seeds": [1]}}, ""),
    "many cells": ({"groups": ("g",) * 400, "seeds": (1,) * 300}, "suite.json: of more than 100,000 cells"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_suite_file_that_no_suite_gives_is_not_taken(theirs: Path, ours: Path, kind: str) -> None:
    changed, words = CONFIGS[kind]
    folder = theirs / "synthetic-small"
    write_suite(folder, msgspec.structs.replace(read_suite(folder), **changed))
    report = import_results(theirs, ours, "b")
    assert (report.cells, [words in line for line in report.refused]) == (12, [True] * bool(words))
    with ingested(ours) as snapshot:
        assert make_board(snapshot).settings == ()
        assert len(missing_cells(snapshot, "synthetic-small@b")) < 100


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    write_results(tmp_path / "searched", steps=4, questions=8, regimes=REGIMES[:3], seeds=(1, 2))
    return tmp_path / "searched"


@pytest.mark.slow_but("altered")
@pytest.mark.parametrize("altered", [(), ("seeds=[1, 2]",)], ids=["written", "altered"])
def test_what_a_tuned_regime_is_compared_with_comes_along(
    searched: Path, ours: Path, capsys: pytest.CaptureFixture[str], altered: tuple[str, ...]
) -> None:
    folder = searched / "synthetic-small"
    suite = read_suite(folder)
    (folder / "suite.json").unlink()
    write_suite(folder, msgspec.structs.replace(suite, altered=altered))
    write_trials(searched, "synthetic-small")

    def shown(results: Path, suite: str) -> list[tuple[object, ...]]:
        with ingested(results) as snapshot:
            return [(row.regime, row.policy, row.gain, row.verdict) for row in show_rows(snapshot, suite)]

    import_results(searched, ours, "b")
    tuning = read_tuning(ours, "synthetic-small@b")
    assert tuning is not None
    assert msgspec.structs.replace(tuning, suite="synthetic-small") == read_tuning(searched, "synthetic-small")
    assert shown(ours, "synthetic-small@b") == shown(searched, "synthetic-small")
    tuned = [regime for regime, *_ in shown(ours, "synthetic-small@b") if regime.endswith(", tuned")]
    assert tuned
    for results, suite in ((searched, "synthetic-small"), (ours, "synthetic-small@b")):
        show_suite(suite, results, "table", full=True)
        told = capsys.readouterr().out
        assert ("trials are cells" in " ".join(told.split())) == (results == searched), "trials do not come along"


def _trial(n: int, **changed: object) -> Callable[[Tuning], Tuning]:
    """Of the second variant, where the last but one is chosen."""

    def change(tuning: Tuning) -> Tuning:
        first, second = tuning.variants
        trials = [msgspec.structs.replace(t, **changed) if t.number == n else t for t in second.trials]
        return msgspec.structs.replace(tuning, variants=(first, msgspec.structs.replace(second, trials=tuple(trials))))

    return change


TUNINGS: dict[str, tuple[Callable[[Tuning], Tuning], str]] = {
    "nothing": (lambda t: msgspec.structs.replace(t, variants=()), "the baseline is absent"),
    "no baseline": (lambda t: msgspec.structs.replace(t, variants=t.variants[1:]), "the baseline is absent"),
    "another suite's": (lambda t: msgspec.structs.replace(t, baseline="x"), "the baseline is absent"),
    "doubled": (lambda t: msgspec.structs.replace(t, variants=t.variants * 2), "variants: doubled"),
    "no trials": (
        lambda t: msgspec.structs.replace(t, variants=tuple(msgspec.structs.replace(v, trials=()) for v in t.variants)),
        "trials: the variant with its defaults is absent",
    ),
    "other settings": (_trial(0, settings={"x": 1}), "trials: unlike settings"),
    "a share": (_trial(0, score=1.5), "out of range"),
    "hidden text": (_trial(0, fault="a\u202eb"), "not text as a suite has it"),
    "a failed choice": (_trial(1, score=None), "the chosen one did not run to its end"),
    "no variant": (
        lambda t: msgspec.structs.replace(
            t, variants=(t.variants[0], msgspec.structs.replace(t.variants[1], final="x"))
        ),
        "variants: not of the suite",
    ),
    "a direction mark": (lambda t: msgspec.structs.replace(t, task="a\u202eb"), "not text as a suite has it"),
    "doubled trials": (_trial(0, number=1), "trials: doubled"),
}


@pytest.mark.slow_but("hidden", "a failed", "doubled")
@pytest.mark.parametrize("kind", TUNINGS)
def test_a_choice_that_no_search_made_is_not_taken(searched: Path, ours: Path, kind: str) -> None:
    change, words = TUNINGS[kind]
    tuning = change(write_trials(searched, "synthetic-small"))
    write_tuning(searched, read_suite(searched / "synthetic-small"), tuning)
    refused = [line for line in import_results(searched, ours, "b").refused if "tuning.json" in line]
    assert [words in line for line in refused] == [True], refused
    assert not tuning_path(ours, read_suite(ours / "synthetic-small@b")).exists()


def test_a_checked_bundle_stays_alone(theirs: Path, ours: Path) -> None:
    (ours / "synthetic-small@b").mkdir()
    write_submission(ours / "synthetic-small@b", Submission(badge="re-scored", bundle="x.zip"))
    with pytest.raises(UsageError, match=r"holds the checked bundle x\.zip; give another --origin"):
        import_results(theirs, ours, "b")
    assert import_results(theirs, ours, "b", "x.zip").cells == 12


@pytest.mark.parametrize(("options", "taken"), [({"replay": {"file": "x"}}, 1), ({}, 0)])
def test_authors_of_a_recording_are_no_policies_of_its_cell(
    theirs: Path, ours: Path, options: dict[str, object], taken: int
) -> None:
    cell = cells(theirs)[0]
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), options=options))
    receiver = read_manifest(cell).policies[0].name
    rows = [ExchangeRow(step=1, author=author, receiver=receiver) for author in ("recorded", "../recorded")]
    write_columns(cell / "journal" / "compact-000001", "exchanges", to_arrow("exchanges", rows))
    assert import_results(theirs, ours, "b").rows_refused == 2 - taken
    exchanges = read_journal(ours / "synthetic-small@b" / cell.name).tables.get("exchanges", pa.table({"author": []}))
    assert exchanges["author"].to_pylist() == ["recorded"][:taken]


def test_a_trace_whose_tokens_are_absent_is_refused(theirs: Path, ours: Path) -> None:
    cell = cells(theirs)[0]
    named = dict.fromkeys(("author", "receiver"), read_manifest(cell).policies[0].name)
    words = dict.fromkeys(("prompt_id", "prompt", "gold", "own_text", "peer_text"), "x")
    row = TraceRow(step=1, **named, **words, own_verdict="", peer_verdict="")
    data = to_arrow("traces", [row] * 4)
    place = data.schema.get_field_index("source_pieces")
    lists = pa.array([[1], None, [2, None], []], data.schema.field(place).type)
    write_columns(
        cell / "journal" / "compact-000001", "traces", data.set_column(place, data.schema.field(place), lists)
    )
    report = import_results(theirs, ours, "b")
    assert (len(report.refused), report.rows_refused) == (2, 2)
    taken = read_journal(ours / "synthetic-small@b" / cell.name).tables["traces"]
    assert taken["source_pieces"].to_pylist() == [[1], []]


def test_an_evaluated_checkpoint_is_of_the_group_that_its_path_is(theirs: Path, ours: Path) -> None:
    base = next(theirs.glob("*/base-*"))
    path = "/home/someone/my model (2)"
    write_manifest(base, msgspec.structs.replace(read_manifest(base), group=path))
    assert import_results(theirs, ours, "b").refused == []
    assert read_manifest(ours / "synthetic-small@b" / base.name).group == path


def test_trials_of_an_import_are_shown_with_its_suite() -> None:
    suites = ["s@lab", "s-tuning@lab", "s-check@lab", "s-tuning@other", "a", "a-tuning"]
    assert without_trials(suites) == ["s@lab", "s-tuning@other", "a"]


def as_folder(theirs: Path, place: Path) -> Path:
    """The suite's results folder, in the format to give and take."""
    root = theirs / "synthetic-small"
    manifests = {file.parent.name: read_manifest(file.parent) for file in sorted(root.glob("*/manifest.json"))}
    tables = {key: read_journal(root / key).tables for key in manifests}
    write_results_folder(place, read_suite(root), "test", manifests, tables)
    return place


def test_a_results_folder_gives_the_table_that_its_journals_give(theirs: Path, ours: Path, tmp_path: Path) -> None:
    folder = as_folder(theirs, tmp_path / "given")
    report = import_results(folder, ours, "b")
    assert (report.cells, report.present, report.refused) == (12, 0, [])
    import_results(theirs, ours, "c")
    with ingested(ours) as snapshot:
        folders, journals = (show_rows(snapshot, f"synthetic-small@{label}") for label in "bc")
        assert folders == journals
    again = import_results(folder, ours, "b")
    assert (again.cells, again.present) == (0, 12)


def test_a_file_that_the_index_does_not_name_is_not_taken(searched: Path, ours: Path, tmp_path: Path) -> None:
    tuning = write_trials(searched, "synthetic-small")
    folder = as_folder(searched, tmp_path / "given")
    file = SuiteFile(name="given")
    write_tuning(tmp_path, file, tuning)
    assert (folder / "tuning.json").is_file()
    import_results(folder, ours, "b")
    assert read_tuning(ours, "synthetic-small@b") is None


def test_a_results_folder_is_taken_completely_or_not_at_all(theirs: Path, ours: Path, tmp_path: Path) -> None:
    cell = cells(theirs)[0]
    data = read_journal(cell).tables["steps"]
    place, field = data.schema.get_field_index("reward_mean"), data.schema.field("reward_mean")
    replace_table(cell, "steps", data.set_column(place, field, pa.array([1.5] * data.num_rows, field.type)))
    with pytest.raises(StoreError, match=r"steps\.parquet: column reward_mean: not in \[0, 1\]"):
        import_results(as_folder(theirs, tmp_path / "given"), ours, "b")
    assert not list(ours.iterdir())
