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
from synthetic_results import REGIMES, write_results

from harness.errors import UsageError
from harness.store.foreign import import_results
from harness.store.ingest import ingest
from harness.store.journal import Journal, read_journal, write_columns
from harness.store.manifest import Manifest, PolicyEntry, read_manifest, write_manifest
from harness.store.read import Snapshot
from harness.store.rows import SCHEMAS, CostRow, SampleRow, StepRow, to_arrow
from harness.store.table import show_rows, suites


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
    ingest(results)
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
        assert suites(snapshot) == ["synthetic-small", "synthetic-small@lab-b"]
        mine, other = (show_rows(snapshot, name) for name in suites(snapshot))
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
    bad = [{"verdict": "perfect"}, {"metric": "best"}, {"text": long + "x"}]
    bad += [{"task": task} for task in (ESCAPES, "..", "micro\n", "", "t" * 129)]
    own = add_samples(cell, *bad, {"text": long}, {"task": "lm_eval:gsm8k"}, doubled=2)
    report = import_results(theirs, ours, "b")
    assert report.rows_refused == len(bad) + 2
    assert any("occurs twice" in line and "2 rows" in line for line in report.refused)
    assert any("task: not a task's name" in line and "5 rows" in line for line in report.refused)
    assert read_journal(ours / "synthetic-small@b" / cell.name).tables["samples"].num_rows == own + 2


def test_corrupt_truncated_and_foreign_files_are_refused_with_reasons(theirs: Path, ours: Path) -> None:
    found = cells(theirs)
    steps = next(found[0].glob("journal/*/steps-*"))
    steps.write_bytes(steps.read_bytes()[:100])
    (found[1] / "manifest.json").write_bytes(b"\xff\xfe not json")
    next(found[2].glob("journal/*/samples-*")).unlink()
    write_manifest(found[3], msgspec.structs.replace(read_manifest(found[3]), state="running"))
    write_manifest(found[4], msgspec.structs.replace(read_manifest(found[4]), key="../../evil"))
    os.symlink("/etc/passwd", found[5] / "journal" / "compact-000001" / "terms-00000000.arrow")
    (theirs / "holiday-photos").mkdir()
    (theirs / "synthetic-small" / "..evil").mkdir()
    (theirs / "synthetic-small" / "..evil" / "manifest.json").write_text("{}")
    report = import_results(theirs, ours, "b")
    assert report.cells == 12 - 5
    text = "\n".join(report.refused)
    for cause in ("checksum", "not a manifest", "no usable", "only finished", "folder's name", "a link", "..evil"):
        assert cause in text
    assert not (ours / "synthetic-small@b" / found[4].name).exists()
    assert "steps" not in read_journal(ours / "synthetic-small@b" / found[0].name).tables
    assert not problems(ours)


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
}


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


def test_an_evaluated_checkpoint_is_of_the_group_that_its_path_is(theirs: Path, ours: Path) -> None:
    base = next(theirs.glob("*/base-*"))
    path = "/home/someone/my model (2)"
    write_manifest(base, msgspec.structs.replace(read_manifest(base), group=path))
    assert import_results(theirs, ours, "b").refused == []
    assert read_manifest(ours / "synthetic-small@b" / base.name).group == path
