"""What is damaged is named with what to do by every command alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from damages import flip_bit
from running import Run, here
from synthetic_results import REGIMES, write_results
from typer.testing import CliRunner

from harness.cli.app import app
from harness.errors import CheckpointError, StoreError
from harness.session.cell import resume_point
from harness.session.cell.exchanges import ExchangeState
from harness.session.suite.prepare import prepare_named
from harness.store.manifest import read_manifest, read_suite, suite_files
from harness.store.read import Snapshot
from harness.store.reference_results import read_reference
from harness.store.remarks import missing_cells

from .conftest import SUITE

ROOT = Path(__file__).parents[2]
SHORT = [("[independent, prp, xgrpo, sgt, hacpo, naive, graft, sapo, ftis]", "[independent, naive]"), ("steps: 4", "steps: 1"),
         ("curve_every: 2, ", "curve_every: 0, "), ("measure_every: 2", "measure_every: 0")]  # fmt: skip


def called(*words: object) -> Run:
    done = CliRunner().invoke(app, list(map(str, words)))
    error = done.exception
    said = f"harness: {error}\n" if error is not None and not isinstance(error, SystemExit) else ""
    return done.exit_code, done.stdout, done.stderr + said


def flip(file: Path) -> Path:
    """One bit of it, in the middle; the store is built from the journals again, as after a restored copy."""
    file.write_bytes(flip_bit(file.read_bytes()))
    for results in file.parents:
        (results / "harness.duckdb").unlink(missing_ok=True)
    return file


def table(results: Path, suite: str = "tiny") -> tuple[list[dict[str, Any]], str]:
    """Its rows without times, and what was said beside them."""
    code, out, err = called("show", suite, "--results", results, "--format", "json")
    assert code == 0, err
    return [
        {k: v for k, v in row.items() if "seconds" not in k and k != "cost"} for row in json.loads(out)["rows"]
    ], err


def remedies(text: str) -> set[str]:
    """What is to be done, by these words; folded lines are one."""
    words = " ".join(text.split())
    return {match[0] for match in re.finditer(r"remove \S+ and run the suite again|(?<=; )run the suite again", words)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> tuple[Path, Path]:
    """A file, and the results of its two cells and two base checkpoints."""
    place = tmp_path_factory.mktemp("damage")
    file, text = place / "tiny.yaml", SUITE.format(**folders)
    for long, short in SHORT:
        assert long in text
        text = text.replace(long, short)
    file.write_text(text)
    code, _, err = here("run", file, "--results", place / "results")
    assert code == 0, err
    return file, place / "results"


def everywhere(results: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The remedies of `show`, which are those of `status` and `doctor` too."""
    monkeypatch.setenv("COLUMNS", "1000")
    said = [remedies("".join(called(*words, "tiny", "--results", results)[1:])) for words in (["show"], ["doctor"])]
    assert said[0] == said[1]
    return said[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damaged_base_checkpoints_are_measured_again(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a base and a cell the journal, of others the manifest, then the suite's own file: all are said alike, and made again."""
    file, whole = finished
    results = Path(shutil.copytree(whole, tmp_path / "results"))
    first, second = sorted(results.glob("tiny/base-*/"))
    lost, torn = (results / "tiny" / key for key in sorted(read_suite(results / "tiny").cells))
    for folder, kind in ((first, "samples"), (lost, "steps")):
        flip(next(folder.glob(f"journal/*/{kind}-*.arrow")))
    for folder in (second, torn):
        flip(folder / "manifest.json")
    words = {f"remove {folder} and run the suite again" for folder in (first, lost)}
    assert everywhere(results, monkeypatch) == {*words, "run the suite again"}
    prepared = prepare_named(str(file), results).with_states()
    assert {base.key for base in prepared.missing_bases()} == {first.name, second.name}
    said = {
        cell["key"]: cell for cell in json.loads(called("status", "tiny", "--results", results, "--json")[1])["cells"]
    }
    assert {said[folder.name]["state"] for folder in (lost, torn)} == {"failed"}
    assert said[lost.name]["reason"].endswith(f"remove {lost} and run the suite again")
    assert said[torn.name]["reason"].endswith("; run the suite again")
    with Snapshot(results) as snapshot:
        assert {one.key for one in missing_cells(snapshot, "tiny")} == {lost.name, torn.name}
    code, _, err = here("run", file, "--results", results)
    assert (code, remedies(err)) == (1, words), "`run` alone heals no journal, and loses nothing"
    suite = flip(results / "tiny" / "suite.json")
    for command in ("show", "status"):
        code, _, err = called(command, "tiny", "--results", results)
        assert (code != 0, remedies(err)) == (True, {f"remove {suite} and run the suite again"}), err
    for folder in (first, lost):
        shutil.rmtree(folder)
    suite.unlink()
    code, _, err = here("run", file, "--results", results)
    assert (code, "nothing left to do" in err) == (0, False), err
    again, err = table(results)
    assert (again, remedies(err)) == (table(whole)[0], set())
    assert all(row["base"] is not None for row in again)


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Six cells of another lab's suite, whose origin has a dot in it."""
    results = tmp_path / "results"
    write_results(results, "smoke@lab.v1", regimes=REGIMES[:2], groups={"duo": ("llama", "qwen")}, steps=2, questions=4)
    return results


def test_one_damaged_manifest_is_one_failed_cell(imported: Path) -> None:
    """Item 22: it broke `status` and every `logs`; of two one was named."""
    folder = imported / "smoke@lab.v1"
    cells = [imported / "smoke@lab.v1" / key for key in read_suite(folder).cells]
    (cells[0] / "log").write_text("phase: training\n")
    named = read_manifest(cells[0])
    for damaged in cells[1:3]:
        flip(damaged / "manifest.json")
    out = called("status", "smoke@lab.v1", "--results", imported, "--json")[1]
    states = {cell["key"]: (cell["state"], cell["reason"]) for cell in json.loads(out)["cells"]}
    assert {key for key, (state, _) in states.items() if state == "done"} == {c.name for c in [cells[0], *cells[3:]]}
    for damaged in cells[1:3]:
        assert states[damaged.name][1].endswith(f"; remove {folder} and import it again")
        assert damaged.name in called("status", "smoke@lab.v1", "--results", imported)[1]
    with Snapshot(imported) as snapshot:
        assert {one.key for one in missing_cells(snapshot, "smoke@lab.v1")} == {c.name for c in cells[1:3]}
    label = f"{named.group}/{named.regime}/{named.seed}"
    assert "phase: training" in called("logs", label, "smoke@lab.v1", "--results", imported)[1]


def test_a_suite_is_rescored_by_its_name(imported: Path, tmp_path: Path) -> None:
    """Item 23: a file's own name, and a dot in an origin."""
    assert "8 cells" in called("rescore", "smoke@lab.v1", "--results", imported)[1]
    write_results(
        imported, "other", regimes=REGIMES[:1], groups={"duo": ("llama", "qwen")}, seeds=(1,), steps=2, questions=4
    )
    file = tmp_path / "bar.yaml"
    file.write_text("name: other\n" + (ROOT / "suites" / "smoke.yaml").read_text())
    assert "3 cells" in called("rescore", file, "--results", imported)[1]
    code, _, err = called("rescore", "nothing", "--results", imported)
    assert (code != 0, "no results of a suite 'nothing'" in err) == (True, True)


@pytest.mark.slow
def test_damaged_shipped_results_come_back_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 22: two remedies contradicted each other, and one of them removed the results."""
    monkeypatch.setenv("COLUMNS", "1000")
    results = tmp_path / "its results"
    place = results / "reference" / "quickstart"
    shutil.copytree(ROOT / "results" / "reference" / "quickstart", place)
    whole = table(results, "quickstart")[0]
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-f", str(place)], ["commit", "-qm", "results"]):
        subprocess.run([*git, *words], check=True)
    flip(place / "samples.parquet")
    said = [
        "".join(called(word, "quickstart@reference", "--results", results)[1:]) for word in ("show", "doctor", "status")
    ]
    matches = {re.search(r"; (git -C .* restore \.)$", " ".join(text.split()), re.MULTILINE) for text in said[:1]}
    (command,) = [match[1] for match in matches if match is not None]
    assert all(command in text and "remove" not in text for text in said), said
    assert said[1].count(command) == 1, "once for the suite"
    subprocess.run(command, shell=True, check=True)
    assert table(results, "quickstart")[0] == whole
    assert called("doctor", "quickstart@reference", "--results", results)[0] in {0, 1}
    (place / "suite.json").write_text("{}")
    with pytest.raises(StoreError, match="altered"):
        read_reference(place)
    os.utime(place)
    assert command in called("doctor", "quickstart@reference", "--results", results)[1]


def test_a_damaged_file_of_an_altered_run_leaves_the_table(imported: Path, tmp_path: Path) -> None:
    """Item 22: the others of the folder are shown."""
    folder = imported.joinpath("smoke@lab.v1").rename(imported / "mine")
    shutil.copy(folder / "suite.json", folder / "altered-00.json")
    before = suite_files(folder)
    flip(folder / "altered-00.json")
    code, out, err = called("show", "mine", "--results", imported)
    assert (code, len(before)) == (0, 2)
    assert "independent" in out
    words = remedies(err)
    assert words == {f"remove {folder / 'altered-00.json'} and run the suite again"}
    (folder / "altered-00.json").unlink()
    assert remedies(called("show", "mine", "--results", imported)[2]) == set()


def test_every_altered_byte_of_a_resume_point_is_noticed(tmp_path: Path) -> None:
    """Item 27: weights were sealed, `session.json` was not. Older ones, without a seal, are read."""
    state = ExchangeState(b"x", {"a": b"y"})
    place = resume_point.save_resume_point(tmp_path, "k", 6, [], state)
    file, whole = place / "session.json", resume_point.read_resume_point(place)
    assert (whole.step, whole.key) == (6, "k")
    data, unnoticed = file.read_bytes(), []
    for at in range(0, len(data), 3):
        altered = bytearray(data)
        altered[at] ^= 1 << at % 7
        file.write_bytes(altered)
        with suppress(CheckpointError):
            unnoticed += [] if resume_point.read_resume_point(place) == whole else [at]
    assert unnoticed == []
    plain = json.loads(data)
    del plain["checksum"]
    file.write_text(json.dumps(plain))
    assert resume_point.read_resume_point(place) == whole


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_imported_or_evaluated_alone_says_how_it_comes_back(tmp_path: Path, folders: dict[str, Path]) -> None:
    """Item 22: `run the suite again` would not bring these back."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_results(theirs, "mine", regimes=REGIMES[:2], groups={"duo": ("llama", "qwen")}, steps=2, questions=4)
    take = ["import", theirs, "--origin", "lab", "--results", ours]
    assert called(*take)[0] == 0
    whole, folder = table(ours, "mine@lab")[0], ours / "mine@lab"
    flip(next(folder.glob("[!b]*/journal/*/samples-*.arrow")))
    assert f"; remove {folder} and import it again" in table(ours, "mine@lab")[1]
    shutil.rmtree(folder)
    assert called(*take)[0] == 0
    assert table(ours, "mine@lab") == (whole, "")

    evaluate = ["eval", folders["llama"], "--tasks", "micro", "--limit", 2, "--k", 1, "--results", ours]
    assert called(*evaluate)[0] == 0
    (place,) = ours.glob("evaluations/eval-*")
    flip(next(place.glob("journal/*/samples-*")))
    (cell,) = json.loads(called("status", "evaluations", "--results", ours, "--json")[1])["cells"]
    assert (cell["key"], cell["state"]) == (place.name, "failed")
    assert cell["reason"].endswith(f"; remove {place} and evaluate its checkpoint again")
