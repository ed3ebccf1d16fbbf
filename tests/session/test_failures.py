"""Cells that fail: hung, with an exception, or trained into a hole."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from running import harness, installed, ok, run

from harness.engines.embedded.warmup import SHIPPED
from harness.errors import Fault, TrainingError
from harness.session.cell import log as logs
from harness.session.cell.health import Watch, check_trained
from harness.store.diagnosis import diagnose, summary
from harness.store.journal import Journal, read_journal
from harness.store.manifest import Manifest, read_manifest
from harness.store.read import Snapshot
from harness.store.rows import StepRow
from harness.store.symptoms import ADVICE, Sums, Trouble, judge

MISFITS = '''
import dataclasses
import time
from harness.learning.advantages import GRPO, own_term
from regimes.independent import Independent


class Clumsy(Independent):
    """Gives the house's own function what it cannot take."""

    def learn(self, own, inbox, context):
        return [own_term(own, self.nothing, GRPO)]

    def nothing(self, group):
        return [None for _ in group.valid]


class Sleepy(Independent):
    """Waits for what never comes."""

    def learn(self, own, inbox, context):
        while True:
            time.sleep(1000)


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
LONE = """
name: lone
baseline: {regime}
groups:
  - name: one
    policies: [{{name: a, model: {llama}}}]
regimes: [{regime}]
seeds: [3]
training: {{steps: 400, prompts: 4, rollouts: 4, max_new_tokens: 8, measure_every: 0}}
evaluation: {{k: 0, limit: 6, curve_every: 0}}
"""


@pytest.fixture
def misfits(tmp_path: Path) -> dict[str, str]:
    """The environment in which a package with bad regimes is installed."""
    regimes = {name: name.title() for name in ("clumsy", "sleepy", "mad", "undefined")}
    return installed(tmp_path / "site", "misfits", MISFITS, regimes)


def lone(tmp_path: Path, folders: dict[str, Path], regime: str) -> tuple[Path, Path]:
    file = tmp_path / "lone.yaml"
    file.write_text(LONE.format(llama=folders["llama"], regime=regime))
    return file, tmp_path / "results"


def of_cells(results: Path) -> dict[str, tuple[Manifest, Path]]:
    """Of each regime's one cell the manifest and the folder."""
    folders = [file.parent for file in results.glob("*/*/manifest.json")]
    return {m.regime: (m, f) for m, f in ((read_manifest(f), f) for f in folders) if m.kind == "cell"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plugins_error_names_its_own_line_and_leaves_its_traceback(tmp_path, folders, misfits):
    file, results = lone(tmp_path, folders, "clumsy")
    code, _, err = harness("run", file, "--results", results, "-v", env=misfits)
    assert (code, "one/clumsy/3: training" in err) == (1, True), "-v streams the phases"
    line = MISFITS[: MISFITS.index("own_term(own")].count("\n") + 1
    found, cell = of_cells(results)["clumsy"]
    assert found.reason.startswith("TypeError: ")
    assert found.reason.endswith(f"/misfits.py:{line}, in learn)"), "his line, not the one of ours that it ran into"
    narrow = harness("status", "lone", "--results", results, env={**misfits, "COLUMNS": "80"})[1]
    for words in (found.reason, f"log: {cell / 'log'}", "one/clumsy/3"):
        assert words in " ".join(narrow.split())
    text = (cell / "log").read_text()
    for words in ("Traceback (most recent call last)", "return [own_term(own, self.nothing, GRPO)]", "in own_answers"):
        assert words in text
    for name in ("one/clumsy/3", cell.name, cell.name[:6]):
        assert ok("logs", name, "--results", results, "--lines", 12).splitlines() == text.splitlines()[-12:]
    assert harness("run", file, "--results", results, env=misfits)[0] == 1
    assert of_cells(results)["clumsy"][0].attempts == 2
    assert (cell / "log.1").read_text() == text
    ok("logs", "one/clumsy/3", "lone", "--earlier", 1, "--results", results)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_main_thread_that_waits_for_ever_is_found(tmp_path, folders, misfits):
    file, results = lone(tmp_path, folders, "sleepy")
    assert harness("run", file, "--results", results, "--silence", 6, env=misfits)[0] == 1
    found, cell = of_cells(results)["sleepy"]
    log = (cell / "log").read_text()
    assert found.reason.startswith("no progress for 6 s while training 0/400")
    assert found.reason in log
    assert re.search(r'misfits\.py", line \d+ in learn', log), "where it hung"


def test_a_log_is_bounded_and_keeps_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 40_000)
    monkeypatch.setattr(logs, "_HEAD", 1_000)
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(20_000)))
    with log.open("a") as writer:
        logs.trim(log)
        writer.write("afterwards\n")
    lines = log.read_text().splitlines()
    assert log.stat().st_size < 40_000
    assert (lines[0], lines[-2], lines[-1]) == ("line 0", "line 19999", "afterwards")
    assert any("cut" in line for line in lines)
    for i in range(6):
        logs.note(tmp_path, f"attempt {i}")
        with logs.logged(tmp_path):
            pass
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]


FAST = ["evaluation.curve_every=0", "training.measure_every=0", "regimes=[independent, hacpo]"]


def test_answers_that_are_all_cut_off(suite_file: Path, tmp_path: Path) -> None:
    sizes = ["training.max_new_tokens=1", "training.prompts=8", "training.rollouts=8"]
    with pytest.raises(TrainingError):
        run(suite_file, tmp_path, [*FAST, *sizes], only="*/hacpo/*")
    found, folder = of_cells(tmp_path)["hacpo"]
    assert (found.state, found.fault) == ("failed", Fault.TRUNCATED)
    assert found.reason == "a: all 64 answers in steps 4 to 4 were cut off at training.max_new_tokens"
    tables = read_journal(folder).tables
    assert "samples" not in tables, "there is nothing to measure"
    assert {r["step"] for r in tables["steps"].to_pylist()} == {1, 2, 3, 4}
    said = harness("doctor", "tiny", "--results", tmp_path, "--json")
    assert said == harness("doctor", folder, "--results", tmp_path / "elsewhere", "--json"), (
        "its folder says where it is"
    )
    findings = json.loads(said[1])["findings"]
    assert (said[0], all(f["advice"] for f in findings)) == (1, True)
    told = {(f["policy"], f["trouble"]): f["words"] for f in findings}
    with Snapshot(tmp_path) as snapshot:
        assert told == {(f.policy, f.trouble): f.words for f in diagnose(snapshot, "tiny")}
        assert [line for line in summary(snapshot, "tiny") if "cut off" in line]
    assert told["", Trouble.MISSING].startswith("all truncated: a: all 64")
    assert told["a", Trouble.ENDLESS] == "all 64 answers in steps 4 to 4 were cut off, none ended by itself"
    assert told["b", Trouble.ALL_FAIL] == "none of 64 answers in steps 4 to 4 is right"
    assert told["b", Trouble.UNUSED].endswith("peer answers were let in, none gave a gradient")
    assert "pair/hacpo/3\n  missing: all truncated" in harness("doctor", folder)[1]
    assert harness("doctor", "nothing", "--results", tmp_path)[0] == 2


@pytest.mark.slow
def test_a_loss_that_is_no_number_and_one_that_is_far_out(
    suite_file: Path, tmp_path: Path, misfits: dict[str, str]
) -> None:
    more = [x for o in ("regimes=[independent, mad, undefined]", *FAST[:2]) for x in ("--set", o)]
    code, _, _ = harness("run", suite_file, "--results", tmp_path, "--jobs", 1, *more, env=misfits)
    assert code == 1
    cells = of_cells(tmp_path)
    assert {regime: m.fault for regime, (m, _) in cells.items()} == {
        "independent": None,
        "undefined": Fault.NOT_FINITE,
        "mad": Fault.EXPLODED,
    }
    assert {m.attempts for m, _ in cells.values()} == {1}, "the same would come again"
    shown = json.loads(ok("show", "tiny", "--results", tmp_path, "--format", "json"))
    assert {r["regime"] for r in shown["rows"]} == {"independent"}
    assert {(m["cell"], m["fault"]) for m in shown["missing"]} == {
        ("pair/mad/3", "exploded"),
        ("pair/undefined/3", "not finite"),
    }


@pytest.mark.parametrize(
    ("collapsed", "right", "counts"),
    [
        (False, [5, 5, 5, 5, 5, 5, 0, 0], {}),  # (1 - 0.05) ** 200 = 4e-5
        (False, [0] * 8, {}),
        (False, [9, 9, 9, 0], {"answers": 15, "truncated": 15}),
        (False, [5] * 8, {"truncated": 99}),
        (True, [10, 10, 10, 10, 10, 10, 0, 0], {}),
        (True, [0, 0, 0, 0, 40, 40, 0, 0], {}),
        (True, [100, 0], {}),
    ],
)
def test_bad_luck_is_no_collapse(tmp_path: Path, collapsed: bool, right: list[int], counts: dict[str, int]) -> None:
    journal, counts = Journal(tmp_path), {"answers": 100, **counts}
    for i, n in enumerate(right):
        journal.append(StepRow(policy="a", step=i + 1, right=n, wrong=counts["answers"] - n, **counts))
    journal.commit(len(right))
    with pytest.raises(TrainingError, match="the reward collapsed") if collapsed else nullcontext() as caught:
        check_trained(tmp_path)
    assert not collapsed or caught.value.fault is Fault.COLLAPSED


@pytest.mark.parametrize(
    ("counts", "troubles"),
    [
        ({}, []),
        ({"own": 100, "active": 5}, [Trouble.ZERO_VARIANCE]),
        ({"right": 0, "wrong": 100}, [Trouble.ALL_FAIL]),
        ({"right": 0, "wrong": 100, "truncated": 100}, [Trouble.ENDLESS, Trouble.ALL_FAIL]),
        ({"truncated": 60}, [Trouble.TRUNCATION]),
        ({"unboxed": 70}, [Trouble.UNBOXED]),
        ({"right": 100, "wrong": 0}, [Trouble.ALL_PASS]),
    ],
)
def test_what_is_wrong_comes_with_its_cause_first_and_with_advice(
    counts: dict[str, int], troubles: list[Trouble]
) -> None:
    healthy = {"answers": 100, "right": 30, "wrong": 70, "invalid": 0, "truncated": 0}
    found = list(judge(Sums(policy="a", first=1, last=4, **{**healthy, **counts})))
    assert [trouble for trouble, _ in found] == troubles
    assert all(ADVICE[trouble] and "steps 1 to 4" in words for trouble, words in found)


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
def test_a_run_says_during_and_after_it_how_each_policy_does(
    suite_file: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    """The policies are the package's bases, whose first token ends no answer."""
    text = suite_file.read_text()
    for family, folder in folders.items():
        text = text.replace(str(folder), str(next(SHIPPED.glob(f"{family}-*"))))
    suite_file.write_text(text)
    settings = ("regimes=[independent]", "seeds=[3, 4]", *FAST[:2], "training.max_new_tokens=1")
    more = [x for o in settings for x in ("--set", o)]
    code, _, err = harness("run", suite_file, "--results", tmp_path, "--jobs", 1, *more)
    assert code == 0, err
    assert "pair/independent/3: a: no end: all 36 answers in steps 1 to 1 were cut off, none ended by itself" in err
    assert err.count(": a: no end: ") == 1, "not again for the next cell"
    after = " ".join(err.split("Health")[1].split())
    for words in ("pair/a: 0% right", "no end (2 cells, e.g. pair/independent/3)", ADVICE[Trouble.ENDLESS]):
        assert words in after
