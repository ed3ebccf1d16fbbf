"""What is kept beside the store is what would be computed now: after any change, beside any damage, and where it cannot be kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from synthetic_results import write_results

from harness.errors import DiskFullError, StoreError
from harness.files import write_atomic
from harness.statistics import MARGIN
from harness.store import kept, table
from harness.store.diagnosis import summary
from harness.store.ingest import ingest
from harness.store.manifest import SuiteFile, read_suite, write_suite
from harness.store.ranking import heading
from harness.store.read import Snapshot
from harness.store.table import show_rows

SUITE = "synthetic-small"


def figures(results: Path, margin: float = MARGIN, shown: SuiteFile | None = None, keep: bool = True) -> list[Any]:
    """All that is kept; `keep`: or computed whatever is there."""
    with Snapshot(results, shown) as snapshot:
        if not keep:
            snapshot.state = ""
        found = show_rows(snapshot, SUITE, margin), heading(snapshot, SUITE, margin), summary(snapshot, SUITE)
    return [msgspec.to_builtins(each) for each in found]


def files(results: Path) -> list[Path]:
    return sorted(results.glob(kept.KEPT))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_results(tmp_path, seeds=range(3), steps=4, questions=5, exchanges=3)
    ingest(tmp_path)
    return tmp_path


def test_what_is_kept_is_read_and_not_computed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = figures(results, keep=False)
    assert not files(results)
    assert figures(results) == computed
    assert len(files(results)) == 3
    monkeypatch.setattr(table, "finished", lambda *_: pytest.fail("computed again"))
    assert figures(results) == computed
    assert figures(results) == computed
    assert len(files(results)) == 3


def by_hand(results: Path) -> None:
    """Of a row in the store, which is none of our ways."""
    with duckdb.connect(str(results / "harness.duckdb")) as connection:
        connection.execute(
            "UPDATE scores SET accuracy = 1 - accuracy WHERE cell = (SELECT min(cell) FROM current_cells)"
        )


def by_hand_in_place(results: Path) -> None:
    """The same size and the same time; the change lies in DuckDB's log beside the file."""
    store = results / "harness.duckdb"
    before = store.stat()
    with duckdb.connect(str(store)) as connection:
        connection.execute("SET checkpoint_threshold = '1 GB'; PRAGMA disable_checkpoint_on_shutdown")
        connection.execute(
            "UPDATE scores SET accuracy = 1 - accuracy WHERE cell = (SELECT min(cell) FROM current_cells)"
        )
    assert (store.stat().st_size, store.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def journals(results: Path) -> None:
    """Two cells change places, and with it what they found."""
    first, *_, last = sorted(file.parent / "journal" for file in results.glob(f"{SUITE}/*/manifest.json"))
    first.rename(results / "aside")
    last.rename(first)
    (results / "aside").rename(last)
    ingest(results)


def a_cell_less(results: Path) -> None:
    next(iter(sorted(results.glob(f"{SUITE}/*/manifest.json")))).unlink()
    os.utime(results / SUITE)
    ingest(results)


def suite_line(results: Path) -> None:
    suite = read_suite(results / SUITE)
    write_suite(results / SUITE, msgspec.structs.replace(suite, baseline="naive"))
    ingest(results)


def code(results: Path) -> None:
    """None of the results': that of the figures."""


@pytest.mark.slow_but("by_hand_in_place", "journals")
@pytest.mark.parametrize("change", [by_hand, by_hand_in_place, journals, a_cell_less, suite_line])
def test_nothing_out_of_date_is_shown(results: Path, change: Callable[[Path], None]) -> None:
    before = figures(results)
    change(results)
    computed = figures(results, keep=False)
    assert computed != before
    assert figures(results) == computed, "the change is seen"
    assert figures(results) == computed, "and kept"


@pytest.mark.slow
def test_other_questions_have_other_answers(results: Path) -> None:
    suite = read_suite(results / SUITE)
    other = msgspec.structs.replace(suite, cells=suite.cells[:-3], altered=("seeds=[1]",))
    asked: list[dict[str, Any]] = [{}, {"margin": 0.3}, {"shown": other}, {"margin": 0.3, "shown": other}]
    computed = [figures(results, **each, keep=False) for each in asked]
    assert all(computed.count(each) == 1 for each in computed)
    for _ in range(2):
        assert [figures(results, **each) for each in asked] == computed
    assert len(files(results)) == 3, "what was asked last takes the place"


def test_other_code_computes_anew(results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures(results)
    before = [file.read_bytes() for file in files(results)]
    monkeypatch.setattr(kept, "_code", lambda: "another")
    figures(results)
    assert not {file.read_bytes() for file in files(results)} & {*before}


def test_the_code_is_that_of_every_module_behind_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {file.name for file in kept.code_files()}
    assert {
        "table.py",
        "ranking.py",
        "diagnosis.py",
        "symptoms.py",
        "bootstrap.py",
        "resampling.py",
        "errors.py",
    } <= names
    before = kept._code()
    kept._code.cache_clear()
    monkeypatch.setattr(kept, "code_files", lambda: [Path(__file__)])
    assert kept._code() != before
    kept._code.cache_clear()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut off": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "a byte": lambda file: file.write_bytes(file.read_bytes()[:-9] + b"\xff" + file.read_bytes()[-8:]),
    "its head": lambda file: file.write_bytes(b"\0" + file.read_bytes()[1:]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "text": lambda file: file.write_text("{}"),
    "another's": lambda file: file.write_bytes(files(file.parent)[files(file.parent).index(file) - 1].read_bytes()),
}


@pytest.mark.slow_but("a byte", "another's")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_ignored_and_written_again(results: Path, damage: str) -> None:
    computed = figures(results)
    good = {file.name: file.read_bytes() for file in files(results)}
    for file in files(results):
        DAMAGES[damage](file)
    assert figures(results) == computed
    assert {file.name: file.read_bytes() for file in files(results)} == good


@pytest.mark.parametrize("there", ["folder", "pipe"])
def test_what_cannot_be_written_is_computed(results: Path, there: str) -> None:
    """As in a folder that may only be read: what hinders here hinders root too."""
    computed = figures(results)
    for file in files(results):
        file.unlink()
        if there == "folder":
            (file / "full").mkdir(parents=True)
        elif there == "pipe":
            os.mkfifo(file)
    assert figures(results) == computed
    assert not [*results.glob(".harness.*.tmp")]


def test_a_write_that_is_refused_is_one_error(tmp_path: Path) -> None:
    """Where a file cannot be made it cannot be removed either, and that is not what is said."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(tmp_path / "file" / "inside", b"")


def test_a_full_disk_does_no_harm(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFullError("no room")

    monkeypatch.setattr(kept, "write_atomic", full)
    assert figures(results) == figures(results, keep=False)
    assert not files(results)


@pytest.mark.slow
def test_readers_at_once_find_the_same(results: Path) -> None:
    computed = figures(results, keep=False)
    with ThreadPoolExecutor(6) as readers:
        assert all(found == computed for found in readers.map(lambda _: figures(results), range(12)))
    assert len(files(results)) == 3
