"""Cells that fail: hung, with an exception, or trained into a hole."""

from __future__ import annotations

import io
import json
import math
import queue
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from running import harness, installed, ok, run

from harness.engines.embedded.presets import SHIPPED
from harness.errors import Fault, TrainingError, VerificationError
from harness.experience.answers import Answer, Group, Prompt
from harness.session.cell import cell as training
from harness.session.cell import log as logs
from harness.session.cell import resume_point
from harness.session.cell.cell import Run
from harness.session.cell.exchanges import ExchangeState
from harness.session.cell.health import Watch, check_loss, check_trained
from harness.session.cell.learners import Clock
from harness.session.cell.resume_point import Best
from harness.session.driver.jobs import Worker, failure_reason, from_worker, job_of
from harness.session.suite.prepare import prepare_named
from harness.store.diagnosis import diagnose_suite, summarise_training
from harness.store.journal import Journal, read_journal
from harness.store.manifest import read_manifest
from harness.store.read import Snapshot
from harness.store.rows import StepRow
from harness.store.symptoms import ADVICE, Sums, Trouble, find_troubles
from harness.verification.verdict import Verdict

MISFITS = '''
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
'''
LONE = """
name: lone
baseline: {baseline}
groups:
  - name: one
    policies: [{{name: a, model: {llama}}}]
regimes: [{regimes}]
seeds: [3]
training: {{steps: 400, prompts: 4, rollouts: 4, max_new_tokens: 8, measure_every: 0}}
evaluation: {{k: {k}, limit: 200, curve_every: 0}}
"""
SILENCE = 6


@pytest.fixture(scope="module")
def misfits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a package with two bad regimes is installed."""
    regimes = {"clumsy": "Clumsy", "sleepy": "Sleepy"}
    return installed(tmp_path_factory.mktemp("misfits"), "misfits", MISFITS, regimes)


def lone(tmp_path: Path, folders: dict[str, Path], *regimes: str, k: int = 0) -> tuple[Path, Path]:
    file = tmp_path / "lone.yaml"
    file.write_text(LONE.format(llama=folders["llama"], baseline=regimes[0], regimes=", ".join(regimes), k=k))
    return file, tmp_path / "results"


def failed_cell(results: Path) -> Path:
    (folder,) = (m.parent for m in results.glob("lone/*/manifest.json") if read_manifest(m.parent).kind == "cell")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plugins_error_names_its_own_line_and_leaves_its_traceback(tmp_path, folders, misfits):
    file, results = lone(tmp_path, folders, "clumsy")
    code, _, err = harness("run", file, "--results", results, "-v", env=misfits)
    assert (code, "one/clumsy/3: training" in err) == (1, True), "-v streams the phases"
    line = MISFITS[: MISFITS.index("own_term(own")].count("\n") + 1
    cell = failed_cell(results)
    reason = read_manifest(cell).reason
    assert reason.startswith("TypeError: ")
    assert reason.endswith(f"/misfits.py:{line}, in learn)"), "his line, not the one of ours that it ran into"
    narrow = harness("status", "lone", "--results", results, env={**misfits, "COLUMNS": "80"})[1]
    assert reason in " ".join(narrow.split())
    text = (cell / "log").read_text()
    for words in (f"log: {cell / 'log'}", "one/clumsy/3"):
        assert words in narrow
    for words in ("Traceback (most recent call last)", "return [own_term(own, self.nothing, GRPO)]", "in own_answers"):
        assert words in text
    for name in ("one/clumsy/3", cell.name, cell.name[:6]):
        code, out, err = harness("logs", name, "--results", results, "--lines", 12)
        assert (code, out.splitlines()) == (0, text.splitlines()[-12:]), err
    assert harness("run", file, "--results", results, env=misfits)[0] == 1
    assert read_manifest(cell).attempts == 2
    assert (cell / "log.1").read_text() == text
    assert harness("logs", "one/clumsy/3", "lone", "--earlier", 1, "--results", results)[0] == 0
    assert harness("logs", "nothing", "--results", results)[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_main_thread_that_waits_for_ever_is_found(tmp_path, folders, misfits):
    file, results = lone(tmp_path, folders, "sleepy")
    assert harness("run", file, "--results", results, "--silence", SILENCE, env=misfits)[0] == 1
    reason, log = read_manifest(failed_cell(results)).reason, (failed_cell(results) / "log").read_text()
    assert reason.startswith(f"no progress for {SILENCE} s while training 0/400")
    assert reason in log
    assert re.search(r'misfits\.py", line \d+ in learn', log), "where it hung"


def test_a_reason_is_one_line():
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("boom\nand more")
    assert failure_reason(caught.value, SimpleNamespace(cell=None)).startswith("RuntimeError: boom and more (")


def test_a_plugin_that_exits_fails_its_own_cell(tmp_path, monkeypatch):
    def exits(*_):
        raise SystemExit("goodbye")

    monkeypatch.setattr("harness.session.cell.evaluate.evaluate_base", exits)
    base = prepare_named("smoke", tmp_path).bases[0]
    worker, sink = Worker.__new__(Worker), io.BytesIO()
    vars(worker).update(_stopped=threading.Event(), _jobs=queue.Queue(), _sink=sink, _writing=threading.Lock())
    for job in (job_of(base, tmp_path / base.key), None):
        worker._jobs.put(job)
    worker.serve()
    assert from_worker.decode(sink.getvalue().splitlines()[-1]).reason.startswith("SystemExit: goodbye (")
    assert read_manifest(tmp_path / base.key).reason.startswith("SystemExit: goodbye (")


def test_a_log_is_bounded_and_keeps_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 40_000)
    monkeypatch.setattr(logs, "_HEAD", 1_000)
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(20_000)))
    with log.open("a") as writer:
        logs.trim_log(log)
        writer.write("afterwards\n")
    lines = log.read_text().splitlines()
    assert log.stat().st_size < 40_000
    assert (lines[0], lines[-2], lines[-1]) == ("line 0", "line 19999", "afterwards")
    assert any("cut" in line for line in lines)
    for i in range(6):
        logs.append_note(tmp_path, f"attempt {i}")
        with logs.log_output(tmp_path):
            pass
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]


PATIENTS = '''
import dataclasses
from regimes.independent import Independent


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
def patients(tmp_path: Path) -> dict[str, str]:
    regimes = {name: name.title() for name in ("mad", "undefined")}
    return installed(tmp_path / "site", "patients", PATIENTS, regimes)


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
    code, out, err = harness("doctor", run, "--results", results, "--json")
    assert code == 1, err
    findings = json.loads(out)["findings"]
    assert all(f["advice"] for f in findings)
    return {(f["policy"], f["trouble"]): f["words"] for f in findings}


def test_answers_that_are_all_cut_off(suite_file: Path, tmp_path: Path) -> None:
    sizes = ["training.max_new_tokens=1", "training.prompts=8", "training.rollouts=8"]
    fault, reason, folder = failed(suite_file, tmp_path, *sizes)
    assert fault is Fault.TRUNCATED
    assert reason == "a: all 64 answers in steps 4 to 4 were cut off at training.max_new_tokens"
    assert {r["step"] for r in read_journal(folder).tables["steps"].to_pylist()} == {1, 2, 3, 4}
    told = doctor("tiny", tmp_path)
    assert told == doctor(folder, tmp_path / "elsewhere"), "a cell's folder says where its results are"
    with Snapshot(tmp_path) as snapshot:
        assert told == {(f.policy, f.trouble): f.words for f in diagnose_suite(snapshot, "tiny")}
        assert [line for line in summarise_training(snapshot, "tiny") if "cut off" in line]
    assert told["", Trouble.MISSING].startswith("all truncated: a: all 64")
    assert told["a", Trouble.ENDLESS] == "all 64 answers in steps 4 to 4 were cut off, none ended by itself"
    assert told["b", Trouble.ALL_FAIL] == "none of 64 answers in steps 4 to 4 is right"
    assert told["b", Trouble.UNUSED].endswith("peer answers were accepted, none gave a gradient")
    assert "pair/hacpo/3\n  missing: all truncated" in harness("doctor", folder)[1]
    assert harness("doctor", "nothing", "--results", tmp_path)[0] == 2


@pytest.mark.slow
def test_a_loss_that_is_no_number_and_one_that_is_far_out(
    suite_file: Path, tmp_path: Path, patients: dict[str, str]
) -> None:
    more = [x for o in ("regimes=[independent, mad, undefined]", *FAST[:2]) for x in ("--set", o)]
    code, _, _ = harness("run", suite_file, "--results", tmp_path, "--jobs", 1, *more, env=patients)
    assert code == 1
    manifests = [read_manifest(m.parent) for m in tmp_path.glob("tiny/*/manifest.json")]
    cells = {m.regime: m for m in manifests if m.kind == "cell"}
    assert (cells["independent"].state, cells["independent"].fault) == ("done", None)
    assert cells["undefined"].fault is Fault.NOT_FINITE, cells["undefined"].reason
    assert cells["mad"].fault is Fault.EXPLODED, cells["mad"].reason
    assert {m.attempts for m in cells.values()} == {1}, "the same would come again"
    shown = json.loads(ok("show", "tiny", "--results", tmp_path, "--format", "json"))
    assert {r["regime"] for r in shown["rows"]} == {"independent"}
    assert {(m["cell"], m["fault"]) for m in shown["missing"]} == {
        ("pair/mad/3", "exploded"),
        ("pair/undefined/3", "not finite"),
    }


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


def resumed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: dict[str, Best],
    *changes: str,
    answers: int = 0,
    invalid: int = 0,
) -> Run:
    """A cell without policies that has gone on from the checkpoint of its last step."""
    state = SimpleNamespace(exchange=None, best=best, answers=answers, invalid=invalid)
    monkeypatch.setattr(resume_point, "latest_resume_point", lambda _: (2, folder))
    monkeypatch.setattr(resume_point, "restore_resume_point", lambda *_: state)
    nothing = SimpleNamespace(restore=lambda _: None, close=lambda: None, state=lambda: ExchangeState(b"", {}))
    monkeypatch.setattr(training, "CellExchange", lambda *_: nothing)
    one = prepare_named("quickstart", folder, overrides=["training.steps=2", *changes]).cells[0]
    backend = SimpleNamespace(side_by_side=False)
    run = Run(one, folder, backend, [], Journal(folder), None, None, 2, lambda *_: None, lambda: False)  # type: ignore[arg-type]  # nobody learns here
    run._train_steps(SimpleNamespace(count=lambda _: None))  # type: ignore[arg-type]  # nobody looks at its progress
    return run


def test_invalid_verdicts_before_a_checkpoint_count_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a second round too, which no row counts."""
    run = resumed(tmp_path, monkeypatch, {}, "training.max_invalid=0.05", answers=98, invalid=3)
    nobody = SimpleNamespace(save=lambda _: None, state=dict)
    run.learners = [SimpleNamespace(name="a", clock=Clock(), engine=nobody, regime=nobody)]  # type: ignore[list-item]  # no weights
    said = [Answer(np.zeros(1, np.int32), np.zeros(1), "", True, Verdict(value)) for value in ("invalid", "wrong")]
    run._count_invalid([Group(Prompt("x/hinted", "", ""), "a", 1, 1, tuple(said))])
    run._save_checkpoint(2)
    kept = resume_point.read_resume_point(tmp_path / "resume" / "step-00000002")
    counted = {"answers": kept.answers, "invalid": kept.invalid}
    resumed(tmp_path, monkeypatch, {}, "training.max_invalid=0.05", **counted)._count_invalid([])
    with pytest.raises(VerificationError, match="4 of 100 verdicts are invalid"):
        resumed(tmp_path, monkeypatch, {}, "training.max_invalid=0.03", **counted)._count_invalid([])
    resumed(tmp_path, monkeypatch, {}, "training.max_invalid=0.001", answers=2, invalid=1)._count_invalid([])
    with pytest.raises(VerificationError, match=r"1 of 2 verdicts are invalid, more than 0\.0%"):
        resumed(tmp_path, monkeypatch, {}, "training.max_invalid=0", answers=2, invalid=1)._count_invalid([])
    crashed = Group(Prompt("x", "", ""), "a", 1, 1, (replace(said[0], verdict=Verdict("invalid", "crash: KeyError")),))
    with pytest.raises(VerificationError, match=r"max_invalid\), the last ones by crash: KeyError"):
        run._count_invalid([crashed] * 9)


def test_policies_threads_count_every_verdict_and_share_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count was lost where two added at once, and a prompt where one dropped what the other had just seen."""
    run, both = resumed(tmp_path, monkeypatch, {}), threading.Barrier(2)

    class Groups(list[Group]):
        def __iter__(self) -> Iterator[Group]:
            both.wait(5)
            return super().__iter__()

    answer = Answer(np.zeros(1, np.int32), np.zeros(1), "", True, Verdict("wrong"))
    groups = Groups([Group(Prompt("x", "", ""), "a", 1, 1, (answer,) * 3)])
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run._count_invalid, [groups, groups]))
    assert run._answers == 6

    class Dropped(dict[int, list[Prompt]]):
        def __getitem__(self, step: int) -> list[Prompt]:
            raise KeyError(step)  # as if another thread had popped it

    run._drawn = Dropped({1: [Prompt("x", "1", "2")]})
    (prompt,) = run._draw_prompts(1, SimpleNamespace(name="llama", policy=run.cell.group.policies[0]))  # type: ignore[arg-type]  # no engine
    assert prompt.id == "x"


def test_a_cell_that_did_not_keep_its_best_weights_so_far_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resumed(tmp_path, monkeypatch, {}, "keep=last")
    resumed(tmp_path, monkeypatch, {"a": Best(2, 0.5)}, "keep=best")
    assert not caplog.records
    resumed(tmp_path, monkeypatch, {}, "keep=best")
    assert [r.message for r in caplog.records] == [
        "keep: best counts from step 2 on: until then this cell had another `keep`"
    ]


def sums(**counts: int) -> Sums:
    healthy = {"answers": 100, "right": 30, "wrong": 70, "invalid": 0, "truncated": 0}
    return Sums(policy="a", first=1, last=4, **{**healthy, **counts})


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
    judged = list(find_troubles(sums(**counts)))
    assert [trouble for trouble, _ in judged] == troubles
    assert all(ADVICE[trouble] and "steps 1 to 4" in words for trouble, words in judged)
    assert all("the task offers" in words for words in ADVICE.values() if "style:" in words)  # the ladder has no styles


def test_a_watch_says_each_thing_once_and_nothing_of_few_answers() -> None:
    watch = Watch()

    def step(n: int, answers: int, empty: int) -> list[str]:
        told = watch.hear(StepRow(policy="a", step=n, wrong=answers, answers=answers, empty=empty), [])
        return [line for _, line in told]

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
