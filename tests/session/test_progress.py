"""What a run says of itself while nothing has ended yet: which phase, how far in it, and how fast."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from harness import phases
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sampling
from harness.session.cell.clock import Clock
from harness.session.driver.progress import Meter, Plain, watched
from harness.tasks.micro import evaluation_prompts

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
    meter = Meter(0, ["a", "b"], 10)
    assert meter.words() == "0/2 cells"
    meter.begin("a")
    meter._began = time.monotonic() - 60.0
    meter.set("a", 0.2)
    assert meter.words() == "0/2 cells, 30 s a step, about 9 min left"
    meter.set("a", 1.0)
    meter.set("b", 1.0)
    assert meter.words() == "0/2 cells, 3 s a step", "evaluations follow, of which no time is known"


def test_what_a_base_takes_is_no_step_of_a_cell() -> None:
    """A pretrained base needs minutes of other work; taken for steps, a quarter of an hour was announced as two minutes."""
    meter = Meter(1, ["a"], 10)
    meter.begin("base a")
    meter.set("base a", 1.0)
    meter.begin("a")
    assert meter.words() == "0/1 cells"
    meter._began = time.monotonic() - 60.0
    meter.set("a", 0.2)
    assert meter.words() == "0/1 cells, 30 s a step, about 4 min left"


def test_plain_lines_name_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Plain()
    plain.start(1, ["pair/sgt/1"], 2)
    plain.begin("base pair/a")
    plain.phase("base pair/a", "baseline evaluation of a: generating micro 12/60")
    plain._last -= 60
    plain.tick()
    assert "0/1 cells; base pair/a: baseline evaluation of a: generating micro 12/60" in capsys.readouterr().err


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
