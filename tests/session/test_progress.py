"""What a run says of itself while nothing has ended yet: which phase, how far in it, and how fast."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from harness import phases
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sampling
from harness.session.cell.cell import run_cell
from harness.session.cell.learners import Clock
from harness.session.driver.progress import Meter, Reporter, watched
from harness.session.suite.prepare import prepare
from harness.tasks.micro import evaluation_prompts
from harness.verification.verifier import Verifier

from .running import run


def test_a_phase_says_how_far_it_is_between_its_counts() -> None:
    with phases.phase("evaluating a", 10) as evaluation:
        phases.inside("token 3/44")
        assert phases.words() == "evaluating a 0/10 (token 3/44)"
        evaluation.count(4)
        assert phases.words() == "evaluating a 4/10"
        with Clock(policy="b").phase("generate"):
            phases.inside("token 1/2")
            assert phases.words() == "evaluating a 4/10: b sampling (token 1/2)"
    phases.inside("nobody listens")
    assert phases.words() == ""


def test_sampling_counts_tokens_and_learning_counts_answers(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    engine = EmbeddedEngine("a", folders["llama"], device="cpu")
    for module in ("sampling", "engine"):
        monkeypatch.setattr(f"harness.engines.embedded.{module}.inside", heard.append)
    prompts = evaluation_prompts(1)[:2]
    samples = engine.sample(prompts, np.zeros((2, 1), np.uint64), Sampling(1.0, 5))
    assert heard[0] == "token 1/5"
    engine.score(prompts, [group[0].tokens for group in samples])
    assert heard[-1] == "answer 2/2"


def test_the_phases_of_a_cell_have_names(suite_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has them in order; the driver shows the same words."""
    caplog.set_level("INFO", "harness")
    run(suite_file, tmp_path / "results", ["training.steps=1", "evaluation.limit=3"], only="*/independent/*")
    said = [record.message for record in caplog.records]
    named = [
        "opening a",
        "training",
        "curve at step 0: 3 questions",
        "step 1/1",
        "final evaluation of a",
        "final evaluation of b",
    ]
    at = [next(i for i, line in enumerate(said) if line.startswith(words)) for words in named]
    assert at == sorted(at)


def test_the_words_of_a_slow_run_are_no_zeros() -> None:
    meter = Meter(0, 2, 10)
    assert meter.words() == "0/2 cells"
    for label in "ab":
        meter.begin(label)
        meter.set(label, 0.0)
    meter._began = time.monotonic() - 60.0
    meter.set("a", 0.2)
    assert meter.words() == "0/2 cells, 30 s a step, about 9 min left"
    meter.set("a", 1.0)
    meter.set("b", 1.0)
    assert meter.words() == "0/2 cells, 3 s a step", "evaluations follow, of which no time is known"


def test_what_a_base_takes_is_no_step_of_a_cell() -> None:
    """A pretrained base needs minutes of other work; taken for steps, a quarter of an hour was announced as two minutes."""
    meter = Meter(1, 1, 10)
    meter.begin("base a")
    meter.set("base a", 1.0)
    meter.begin("a")
    meter.set("a", 0.0)
    assert meter.words() == "0/1 cells"
    meter._began = time.monotonic() - 60.0
    meter.set("a", 0.2)
    assert meter.words() == "0/1 cells, 30 s a step, about 4 min left"


def test_rate_and_time_left_are_those_of_the_steps_that_this_run_makes() -> None:
    """Issue 24, line 20: steps of the run that was cut off took none of this one's time."""
    meter = Meter(0, 3, 400)
    for label, share in (("trained", 1.0), ("half", 0.5), ("fresh", 0.0)):
        meter.begin(label)
        meter.set(label, share)
    meter._began = time.monotonic() - 60.0
    assert (meter.words(), meter.done) == ("0/3 cells", 600)
    meter.end("trained", "done")
    meter.set("half", 205 / 400)
    meter.set("fresh", 5 / 400)
    assert meter.words() == "1/3 cells, 6 s a step, about 59 min left"
    meter.end("half", "once more, after the others and alone")
    meter.begin("half")
    meter.set("half", 0.5)
    assert meter.words() == "1/3 cells, 6 s a step, about 60 min left", "to be made again, and made"
    meter.end("fresh", "failed")
    assert meter.words() == "1/3 cells, 6 s a step, about 20 min left", "its other steps are not made, nor will be"


def test_a_start_tells_where_it_begins(suite_file: Path, tmp_path: Path) -> None:
    """Issue 24, line 20: whether it trains from the beginning, from a checkpoint, or only evaluates."""
    prepared = prepare(
        str(suite_file), tmp_path, overrides=["regimes=[independent]", "training.steps=2", "evaluation.limit=3"]
    )
    (cell,), heard = prepared.cells, list[tuple[int, int, bool]]()
    folder = prepared.folder / cell.key

    def start(stop: bool) -> list[tuple[int, int, bool]]:
        heard.clear()
        with Verifier(workers=1) as verifier, suppress(phases.Interrupted):
            run_cell(cell, folder, verifier, lambda *at: heard.append((at[0], at[1], bool(at[2]))), lambda: stop)
        return heard

    assert start(stop=True) == [(0, 2, False), (1, 2, True)]
    assert start(stop=False) == [(1, 2, False), (2, 2, True)]
    assert start(stop=False) == [(2, 2, False)]


def test_plain_lines_name_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Reporter()
    plain.start(1, 1, 2)
    plain.begin("base pair/a")
    plain.phase("base pair/a", "baseline evaluation of a: generating micro 12/60")
    plain._said -= 60
    plain.tick()
    plain.end(
        "base pair/a", "failed", "a reason [in brackets] that is longer than any terminal is wide" + " x" * 100, 0.0
    )
    start, line, end = capsys.readouterr().err.splitlines()
    assert start == "1 cell and 1 base checkpoint to do"
    assert line == "0/1 cells; base pair/a: baseline evaluation of a: generating micro 12/60"
    assert end.startswith("base pair/a: failed, a reason [in brackets]")
    assert end.endswith("x  [0/1 cells]")


def test_a_command_that_takes_long_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.session.driver.progress.LINE_SECONDS", 0.05)
    with watched("importing"):
        time.sleep(0.15)
        with phases.phase("generating micro", 3) as generating:
            generating.count(2)
            time.sleep(0.15)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "importing"
    assert "generating micro 2/3" in lines
