"""Cells that train themselves into a hole: they fail with a word, are missing from tables, and `harness doctor` says why."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from harness.errors import Fault, TrainingError
from harness.session.cell.health import Watch, check_loss, check_trained
from harness.store.diagnosis import diagnose, summary
from harness.store.journal import Journal, read_journal
from harness.store.manifest import read_manifest
from harness.store.read import Snapshot
from harness.store.rows import StepRow
from harness.store.symptoms import ADVICE, Sums, Trouble, figures, judge

from .running import harness, run

REGIMES = '''
import dataclasses
from pathlib import Path
import numpy as np
from regimes.independent import Independent


class Hungry(Independent):
    """Wants more memory than there is, once."""

    def learn(self, own, inbox, context):
        tries = Path(__file__).with_name("tries")
        if not tries.exists():
            tries.touch()
            np.ones(1 << 55)
        return super().learn(own, inbox, context)


class Mad(Independent):
    """Its advantages grow beyond bounds."""

    factor = 1e9

    def learn(self, own, inbox, context):
        return [
            dataclasses.replace(
                term, answers=tuple(dataclasses.replace(a, advantage=self.factor * (1 + i)) for i, a in enumerate(term.answers))
            )
            for term in super().learn(own, inbox, context)
        ]


class Undefined(Mad):
    """Its advantages are no numbers."""

    factor = float("nan")
'''
FAST = ["evaluation.curve_every=0", "training.measure_every=0", "regimes=[independent, hacpo]"]


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """The environment in which the bad regimes are installed."""
    folder = tmp_path / "site"
    info = folder / "patients-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "patients.py").write_text(REGIMES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patients\nVersion: 1.0\n")
    names = "".join(f"{name} = patients:{name.title()}\n" for name in ("hungry", "mad", "undefined"))
    (info / "entry_points.txt").write_text(f"[harness.regimes]\n{names}")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


def failed(suite_file: Path, results: Path, *overrides: str) -> tuple[Fault | None, str, Path]:
    """The word and the reason of one cell that must fail, and its folder."""
    with pytest.raises(TrainingError):
        run(suite_file, results, [*FAST, *overrides], only="*/hacpo/*")
    (folder,) = (m.parent for m in results.glob("tiny/*/manifest.json"))
    manifest = read_manifest(folder)
    assert manifest.state == "failed"
    assert "samples" not in read_journal(folder).tables, "there is nothing to measure"
    return manifest.fault, manifest.reason, folder


def doctor(run: object, results: Path) -> dict[tuple[str, str], str]:
    """Findings of `harness doctor RUN` as {(policy, trouble): words}."""
    code, out, err = harness("doctor", run, "--results", results, "--json")
    assert code == 1, err
    found = json.loads(out)["findings"]
    assert all(f["advice"] for f in found)
    return {(f["policy"], f["trouble"]): f["words"] for f in found}


def test_answers_that_are_all_cut_off(suite_file: Path, tmp_path: Path) -> None:
    sizes = ["training.max_new_tokens=1", "training.prompts=8", "training.rollouts=8"]
    fault, reason, folder = failed(suite_file, tmp_path, *sizes)
    assert fault is Fault.TRUNCATED
    assert reason == "a: all 64 answers in steps 4 to 4 were cut off at training.max_new_tokens"
    assert {r["step"] for r in read_journal(folder).tables["steps"].to_pylist()} == {1, 2, 3, 4}
    told = doctor("tiny", tmp_path)
    assert told == doctor(folder, tmp_path / "elsewhere"), "a cell's folder says where its results are"
    with Snapshot(tmp_path) as snapshot:
        assert told == {(f.policy, f.trouble): f.words for f in diagnose(snapshot, "tiny")}
        assert [line for line in summary(snapshot, "tiny") if "cut off" in line]
    assert told["", Trouble.MISSING].startswith("all truncated: a: all 64")
    assert told["a", Trouble.ENDLESS] == "all 64 answers in steps 4 to 4 were cut off, none ended by itself"
    assert told["b", Trouble.ALL_FAIL] == "none of 64 answers in steps 4 to 4 is right"
    assert told["b", Trouble.UNUSED].endswith("peer answers were let in, none gave a gradient")
    code, out, _ = harness("doctor", folder)
    assert code == 1
    assert "pair/hacpo/3\n  missing: all truncated" in out
    assert "a larger training.max_new_tokens" in " ".join(out.split())
    assert harness("doctor", "nothing", "--results", tmp_path)[0] == 2


def test_a_policy_that_forgets_what_it_could(suite_file: Path, tmp_path: Path) -> None:
    sizes = ["training.learning_rate=1.0", "training.prompts=24", "training.rollouts=24", "training.max_new_tokens=8"]
    fault, reason, _ = failed(suite_file, tmp_path, *sizes)
    assert fault is Fault.COLLAPSED, reason
    assert "the reward collapsed: none of 576 answers in steps 4 to 4 is right" in reason
    told = doctor("tiny", tmp_path)
    assert {("a", Trouble.ENTROPY), ("a", Trouble.ALL_FAIL)} <= told.keys()


@pytest.mark.slow
def test_a_loss_that_is_no_number_and_one_that_is_far_out(
    suite_file: Path, tmp_path: Path, site: dict[str, str]
) -> None:
    more = [x for o in ("regimes=[independent, mad, undefined]", *FAST[:2]) for x in ("--set", o)]
    code, _, _ = harness("run", suite_file, "--results", tmp_path, "--jobs", 1, *more, env=site)
    assert code == 1
    manifests = [read_manifest(m.parent) for m in tmp_path.glob("tiny/*/manifest.json")]
    cells = {m.regime: m for m in manifests if m.kind == "cell"}
    assert (cells["independent"].state, cells["independent"].fault) == ("done", None)
    assert cells["undefined"].fault is Fault.NOT_FINITE, cells["undefined"].reason
    assert cells["mad"].fault is Fault.EXPLODED, cells["mad"].reason
    assert {m.attempts for m in cells.values()} == {1}, "the same would come again"
    code, out, _ = harness("show", "tiny", "--results", tmp_path, "--format", "json", env=site)
    shown = json.loads(out)
    assert {r["regime"] for r in shown["rows"]} == {"independent"}
    assert {(m["cell"], m["fault"]) for m in shown["missing"]} == {
        ("pair/mad/3", "exploded"),
        ("pair/undefined/3", "not finite"),
    }
    for form in ("table", "markdown", "latex"):
        assert "pair/mad/3 failed" in harness("show", "tiny", "--results", tmp_path, "--format", form, env=site)[1]


@pytest.mark.slow
def test_want_of_memory_is_tried_once_more_alone(suite_file: Path, tmp_path: Path, site: dict[str, str]) -> None:
    """In a new process; what fails again: tests/session/test_driver.py."""
    more = [x for o in ("regimes=[hungry, independent]", "baseline=hungry", *FAST[:2]) for x in ("--set", o)]
    code, _, err = harness("run", suite_file, "--results", tmp_path / "results", "--jobs", 2, *more, env=site)
    assert code == 0, err
    assert "pair/hungry/3: once more, after the others and alone" in err
    found = {m.regime: m for m in map(read_manifest, tmp_path.glob("results/tiny/[!.a]*/"))}["hungry"]
    assert (found.state, found.fault, found.attempts) == ("done", None, 2)
    logs = tmp_path.glob(f"results/tiny/{found.key}/log*")
    assert len({p.read_text().partition(", process ")[2].split()[0] for p in logs}) == 2


def steps(folder: Path, right: list[int], truncated: int = 0, answers: int = 100) -> Path:
    journal = Journal(folder)
    for i, n in enumerate(right):
        journal.append(
            StepRow(policy="a", step=i + 1, right=n, wrong=answers - n, truncated=truncated, answers=answers)
        )
    journal.commit(len(right))
    return folder


def test_bad_luck_is_no_collapse(tmp_path: Path) -> None:
    check_trained(steps(tmp_path / "luck", [5, 5, 5, 5, 5, 5, 0, 0]))  # (1 - 0.05) ** 200 = 4e-5
    check_trained(steps(tmp_path / "never", [0] * 8))
    check_trained(steps(tmp_path / "few", [9, 9, 9, 0], answers=15, truncated=15))
    check_trained(steps(tmp_path / "most", [5] * 8, truncated=99))
    for name, right in (
        ("at once", [10, 10, 10, 10, 10, 10, 0, 0]),
        ("after a rise", [0, 0, 0, 0, 40, 40, 0, 0]),
        ("all", [100, 0]),
    ):
        with pytest.raises(TrainingError, match="the reward collapsed") as caught:
            check_trained(steps(tmp_path / name, right))
        assert caught.value.fault is Fault.COLLAPSED
    for loss, fault in ((math.nan, Fault.NOT_FINITE), (-math.inf, Fault.NOT_FINITE), (-2e4, Fault.EXPLODED)):
        with pytest.raises(TrainingError) as caught:
            check_loss("a", 3, loss)
        assert caught.value.fault is fault
    check_loss("a", 3, -50.0)


def sums(**counts: int) -> Sums:
    healthy = {"answers": 100, "right": 30, "wrong": 70, "invalid": 0, "truncated": 0}
    return Sums(policy="a", first=1, last=4, **{**healthy, **counts})


@pytest.mark.parametrize(
    ("counts", "troubles"),
    [
        ({}, []),
        ({"own": 100, "active": 40}, []),
        ({"own": 100, "active": 5}, [Trouble.ZERO_VARIANCE]),
        ({"right": 0, "wrong": 100}, [Trouble.ALL_FAIL]),
        ({"right": 0, "wrong": 100, "truncated": 100}, [Trouble.ENDLESS, Trouble.ALL_FAIL]),
        ({"truncated": 60}, [Trouble.TRUNCATION]),
        ({"right": 0, "wrong": 100, "empty": 70}, [Trouble.EMPTY, Trouble.ALL_FAIL]),
        ({"unboxed": 70}, [Trouble.UNBOXED]),
        ({"right": 100, "wrong": 0}, [Trouble.ALL_PASS]),
    ],
)
def test_what_is_wrong_comes_with_its_cause_first_and_with_advice(
    counts: dict[str, int], troubles: list[Trouble]
) -> None:
    found = list(judge(sums(**counts)))
    assert [trouble for trouble, _ in found] == troubles
    assert all(ADVICE[trouble] and "steps 1 to 4" in words for trouble, words in found)


def test_the_line_of_figures() -> None:
    line = figures(sums(own=100, active=30, truncated=5, unboxed=2))
    assert line == "30% right, 30% of own answers gave a gradient, 5% cut off, 0% empty, 2% without a box"


def test_a_watch_says_each_thing_once_and_nothing_of_few_answers() -> None:
    watch = Watch()

    def step(n: int, answers: int, empty: int) -> list[str]:
        found = watch.hear(StepRow(policy="a", step=n, wrong=answers, answers=answers, empty=empty), [])
        return [line for _, line in found]

    assert step(1, 16, 16) == []
    empty, wrong = step(2, 16, 16)
    assert empty.startswith("a: empty answers: 100% of 32 answers in steps 1 to 2 are empty; `chat: true`")
    assert wrong.startswith("a: all fail: none of 32 answers")
    assert step(3, 64, 64) == []


@pytest.mark.slow
def test_a_run_says_during_and_after_it_how_each_policy_does(suite_file: Path, tmp_path: Path) -> None:
    settings = ("regimes=[independent]", "seeds=[3, 4]", *FAST[:2], "training.max_new_tokens=1")
    more = [x for o in settings for x in ("--set", o)]
    code, _, err = harness("run", suite_file, "--results", tmp_path, "--jobs", 1, *more)
    assert code == 0, err
    assert "pair/independent/3: a: no end: all 36 answers in steps 1 to 1 were cut off, none ended by itself" in err
    assert err.count(": a: no end: ") == 1, "not again for the next cell"
    after = " ".join(err.split("Health")[1].split())
    assert "pair/a: 0% right" in after
    assert "100% cut off" in after
    assert "no end (2 cells, e.g. pair/independent/3): all 36 answers in steps 4 to 4 were cut off" in after
    assert ADVICE[Trouble.ENDLESS] in after
