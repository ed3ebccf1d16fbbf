"""Calibration: what is counted, both ways, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.engines.protocol import Sample, cut_at
from harness.errors import PluginError, UsageError
from harness.experience.answers import Prompt
from harness.session.cell.judge import Judge
from harness.session.single.calibrate import NEXT_QUESTION, calibrate_models, count_rescues
from harness.session.single.levels import measure_level, questions_of
from harness.tasks import ladder
from harness.tasks.ladder import evaluation_prompts
from harness.tasks.registry import names_of_levels
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


def sample(text: str, finished: bool = True) -> Sample:
    return Sample(np.zeros(3, np.int32), np.zeros(3, np.float32), text, finished)


def test_by_hand() -> None:
    prompts = [Prompt("a", "", "5"), Prompt("b", "", "6"), Prompt("c", "", "7")]
    drawn = [
        [sample(r"\boxed{5}"), sample("it is 5")],
        [sample(r"\boxed{6}", finished=False), sample(r"\boxed{7}")],
        [sample("8"), sample(r"\boxed{7}")],
    ]
    with Verifier(workers=1) as verifier:
        standing, solved = measure_level("p", "add1", prompts, drawn, Judge(verifier))
    assert solved.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert (standing.pass1, standing.pass_any, standing.prompts, standing.answers) == (0.5, pytest.approx(2 / 3), 3, 2)
    assert standing.error == pytest.approx(np.std([1, 0, 0.5], ddof=1) / 3**0.5)
    assert (standing.boxed, standing.finished) == (pytest.approx(4 / 6), pytest.approx(5 / 6))
    assert standing.fits


def test_an_answer_without_a_verdict_is_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt(name, "", "5") for name in "abc"]
    right, wrong, unknown = Verdict("right"), Verdict("wrong"), Verdict("invalid", "timeout")
    said = [right, unknown, wrong, unknown, unknown, unknown]
    monkeypatch.setattr("harness.session.single.levels.verdicts_of_answers", lambda *_: said)
    with Verifier(workers=1) as verifier:
        standing, solved = measure_level("p", "add1", prompts, [[sample("5")] * 2] * 3, Judge(verifier))
        assert (standing.pass1, standing.pass_any, standing.prompts) == (0.5, 0.5, 2)
        one, other = count_rescues({"a": {"add1": solved}, "b": {"add1": np.ones((3, 2))}}, 2)
        assert (one.failed, one.rescued, other.failed) == (0, 0, 0)
        said[:] = [unknown] * 6
        with pytest.raises(UsageError, match="add1: the verifier decided on no answer of p: timeout"):
            measure_level("p", "add1", prompts, [[sample("5")] * 2] * 3, Judge(verifier))


def test_rescues_both_ways() -> None:
    a = np.array([[1, 0], [0, 0], [0, 0], [0, 0]], dtype=float)
    b = np.array([[0, 0], [0, 1], [1, 1], [0, 0]], dtype=float)
    one, other = count_rescues({"a": {"add1": a}, "b": {"add1": b}}, 2)
    assert (one.learner, one.peer, one.failed, one.rescued) == ("a", "b", 0.75, 0.5)
    assert (other.learner, other.peer, other.failed, other.rescued) == ("b", "a", 0.5, 0.25)


def test_a_base_model_ends_where_it_asks_itself_the_next_question() -> None:
    cut = cut_at(sample("4 + 7 = 11. \\boxed{11}\n\nQ: What", finished=False), NEXT_QUESTION)
    assert (cut.text, cut.finished) == ("4 + 7 = 11. \\boxed{11}", True)


def test_questions_are_of_the_training_side_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = {p.id for p in evaluation_prompts()}
    small = questions_of("ladder", "mul1x1", 64)
    assert 40 < len(small) < 64
    assert small == questions_of("ladder", "mul1x1", 64)
    assert not {p.id for p in small} & held_out
    assert len(questions_of("micro", "word", 30)) == 30
    tried, drawn = list[int](), ladder.training_prompts
    monkeypatch.setattr(ladder, "training_prompts", lambda seed, n, levels: tried.append(n) or drawn(seed, n, levels))
    assert len(questions_of("ladder", "mul1x1", 1_000)) == len(small)
    assert len(tried) < 12


def test_no_question_is_asked_whose_solution_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def sampled(engine: object, level: str, prompts: list[Prompt], *_: object) -> list[list[Sample]]:
        asked.extend(p.text for p in prompts)
        return [[sample("")] for _ in prompts]

    place = "harness.session.single.calibrate"
    monkeypatch.setattr(f"{place}.base_folder", lambda policy, seed: Path())
    monkeypatch.setattr(f"{place}.EmbeddedEngine", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(f"{place}.sample_answers", sampled)
    how: dict[str, Any] = {"task": "ladder", "levels": ["add1", "mul1x1"], "answers": 1, "plain": True}
    calibrate_models(["any"], prompts=50, few_shot=4, **how)
    assert 85 < len(asked) < 100
    assert {text.count(text[text.rindex("Q:") :]) for text in asked} == {1}
    most = len(questions_of("ladder", "mul1x1", 64))
    with pytest.raises(UsageError, match="shows the solution of every question of mul1x1"):
        calibrate_models(["any"], prompts=4, few_shot=most, **how | {"levels": ["mul1x1"]})


@pytest.mark.parametrize(
    ("models", "settings", "words"),
    [
        (["micro/llama"], {"task": "gsm8k"}, "gsm8k: has no levels; ladder, micro"),
        (["micro/llama"], {"levels": ["add9"]}, "unknown level 'add9'"),
        (["./nowhere"], {}, "no such folder"),
        (["pretrained/nothing"], {}, "make pretrained"),
        ([""], {}, "--calibrate: model: String should have at least 1 character"),
        (["x" * 257], {}, "--calibrate: model: String should have at most 256 characters"),
        (["micro/zzz"], {}, "unknown micro family"),
    ],
)
def test_faults_are_one_line(models: list[str], settings: dict[str, object], words: str, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=words) as caught:
        calibrate_models(models, **{"task": "ladder", "prompts": 2, "answers": 2, **settings})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_command(folders: dict[str, Path]) -> None:
    models = [str(folders["llama"]), str(folders["qwen"])]
    settings = ["--task", "micro", "--levels", "add,mul", "--prompts", "3", "--answers", "4"]
    report = json.loads(CliRunner().invoke(app, ["tasks", "--calibrate", *models, *settings, "--json"]).stdout)
    assert [(s["level"], s["policy"], s["prompts"], s["answers"]) for s in report["standings"]] == [
        (level, policy, 3, 4) for policy in (folders["llama"].name, folders["qwen"].name) for level in ("add", "mul")
    ]
    assert len(report["rescues"]) == 4
    assert "no chat template" in CliRunner().invoke(app, ["tasks", "--calibrate", models[0], *settings]).stdout
    for arguments in (["tasks", models[0]], ["tasks", "--calibrate"]):
        assert isinstance(CliRunner().invoke(app, arguments).exception, UsageError)


def test_a_puzzles_levels_are_measured_by_its_own_scorer(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model answers nothing right; so one answer is made right, which only the puzzle's scorer can tell."""
    place = "harness.session.single.calibrate"

    def solved(engine: object, level: str, prompts: list[Prompt], *_: object) -> list[list[Sample]]:
        assert all("Using the numbers" in prompt.text for prompt in prompts)
        return [[sample(f"\\boxed{{({prompt.gold})}}"), sample(f"\\boxed{{{prompt.gold} + 1}}")] for prompt in prompts]

    how: dict[str, Any] = {"task": "countdown:numbers=2..3", "prompts": 3, "answers": 2, "max_new_tokens": 4}
    report = calibrate_models([str(folders["llama"])], **how)
    assert [(one.level, one.pass1, one.prompts) for one in report.standings] == [
        ("countdown.2", 0, 3),
        ("countdown.3", 0, 3),
    ]
    monkeypatch.setattr(f"{place}.sample_answers", solved)
    report = calibrate_models([str(folders["llama"])], **how)
    assert [one.pass1 for one in report.standings] == [0.5, 0.5]
    assert all(one.fits for one in report.standings)
    with pytest.raises(UsageError, match="works only with the ladder"):
        calibrate_models([str(folders["llama"])], few_shot=2, **how)


def test_a_pattern_names_every_puzzle_that_it_fits() -> None:
    assert len(names_of_levels("gym.*")) >= 30
    assert names_of_levels("gym.c*_arithmetic") == ["gym.calendar_arithmetic"]
    assert names_of_levels("gym.knights_knaves:n_people=2..3") == [
        "gym.knights_knaves:n_people=2",
        "gym.knights_knaves:n_people=3",
    ]
    assert names_of_levels("countdown") == ["countdown.3", "countdown.4"]
    with pytest.raises(PluginError, match="fits no puzzle"):
        names_of_levels("gsm*")
