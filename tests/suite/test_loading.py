"""Suites: what is refused, with which place and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import SuiteError
from harness.learning import registry
from harness.session.suite.prepare import prepare
from harness.suite.cells import keyed
from harness.suite.load import load, parse_yaml, resolve, shipped
from harness.suite.schema import Evaluation, Policy

GOOD = """
name: x
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, sgt]
seeds: [1, 2]
"""

BAD = {
    "unknown key": ("trainig: {steps: 3}\n" + GOOD, "trainig", "did you mean 'training'"),
    "nested unknown key": (GOOD + "training: {stesp: 3}\n", "training.stesp", "did you mean 'steps'"),
    "wrong type": (GOOD + "training: {steps: many}\n", "training.steps", "integer"),
    "float for int": (GOOD + "training: {prompts: 1.5}\n", "training.prompts", "integer"),
    "negative": (GOOD + "training: {steps: -1}\n", "training.steps", "greater than or equal to 0"),
    "zero prompts": (GOOD + "training: {prompts: 0}\n", "training.prompts", "greater than or equal to 1"),
    "nan": (GOOD + "training: {learning_rate: .nan}\n", "line 10, column 27", "must be a finite number"),
    "model missing": (GOOD.replace("model: micro/qwen, ", ""), "groups[0].policies[1].model", "required"),
    "model wrong type": (GOOD.replace("micro/qwen", "[1]"), "groups[0].policies[1].model", "string"),
    "a checkpoint's file": (GOOD.replace("name: a,", "name: session.json,"), "groups[0].policies[0].name", "choose another"),
    "the folder of evaluations": (GOOD.replace("name: x", "name: evaluations"), "name", "choose another"),
    "unknown regime": (GOOD.replace("sgt", "sgtt"), "regimes[1].regime", "did you mean 'sgt'"),
    "unknown option": (GOOD.replace("sgt", "{regime: sgt, lamda: 1}"), "regimes[1].lamda", "did you mean 'lambda'"),
    "option out of range": (GOOD.replace("sgt", "{regime: sgt, lambda: -1}"), "regimes[1].lambda", ">= 0.0"),
    "options of no name": (GOOD.replace("sgt", "{regime: sgt, options: [1]}"), "regimes[1].options", "valid dictionary"),
    "option wrong type": (GOOD.replace("sgt", "{regime: sgt, lambda: x}"), "regimes[1].lambda", "float"),
    "duplicate seeds": (GOOD.replace("[1, 2]", "[1, 1]"), "seeds", "occurs twice"),
    "duplicate tasks": (GOOD + "evaluation: {tasks: [micro, micro]}\n", "evaluation.tasks", "'micro' occurs twice"),
    "duplicate edges": (GOOD + "sharing: {direction: edges, edges: [[a, b], [a, b]]}\n", "sharing", "a -> b occurs twice"),
    "no task file": (GOOD + "training: {task: {file: nothing.jsonl}}\n", "training.task.file", "No such file"),
    "a key in angle brackets": (GOOD + "training: {<script>: 1}\n", "training.<script>", "unknown key"),
    "merge": (GOOD + "training: {<<: {steps: 3}}\n", "training.<<", "unknown key"),
    "a long key": (GOOD + "x" * 1000 + ": 1\n", "x" * 80 + ":", "unknown key"),
    "duplicate names": (GOOD.replace("[independent, sgt]", "[independent, sgt, sgt]"), "regimes", "occurs twice"),
    "no baseline": (GOOD.replace("[independent, sgt]", "[sgt]"), "", "baseline"),
    "alone": (GOOD.replace("      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}\n", ""),
              "groups[0].policies", "one policy"),
    "empty": ("", "", "empty"),
    "comment only": ("# nothing\n", "", "empty"),
    "list": ("- 1\n", "", "mapping"),
    "tag": ("name: !!python/object/apply:os.system ['true']\n", "line 1", "tag"),
    "anchors": ("a: &a [1, 1]\nb: *a\n", "line 1", "anchors"),
    "bomb": ("a: &a [x,x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(30)), "line 1", "anchors"),
    "duplicate key": ("name: a\nname: b\n" + GOOD, "line 2", "twice"),
    "deep": ("a: " + "[" * 5000, "line 1", ""),
    "unclosed": ("name: [1\n", "line", ""),
    "unknown task": (GOOD + "evaluation: {tasks: [micro, nothing]}\n", "evaluation.tasks[1]", "unknown task"),
    "unknown training task": (GOOD + "training: {task: nothing}\n", "training.task", "unknown training task"),
    "bad edge": (GOOD + "sharing: {direction: edges, edges: [[a, z]]}\n", "sharing.edges", "does not join"),
    "edges without direction": (GOOD + "sharing: {edges: [[a, b]]}\n", "sharing", "go together"),
    "engine option": (GOOD + "engine_options: {foo: 1}\n", "engine_options", "unknown field `foo`"),
    "engine option out of range": (GOOD + "engine: openrlhf\nengine_options: {trainers: 0}\n",
                                   "engine_options.trainers", ">= 1"),
    "old log-probabilities": (GOOD.replace("sgt", "{regime: sgt, old_logprobs: peer}"), "regimes[1].old_logprobs",
                              "'sampler' or 'trainer'"),
    "correction below 1": (GOOD.replace("sgt", "{regime: sgt, sampler_correction: 0.5}"), "regimes[1].sampler_correction",
                           "at least 1"),
    "correction of nothing": (GOOD.replace("sgt", "{regime: sgt, sampler_correction: 2, old_logprobs: sampler}"),
                              "regimes[1].sampler_correction", "use one of the two"),
    "sexagesimal": (GOOD + "training: {steps: 1:30}\n", "line", "'1:30' is 90 in YAML 1.1 and something else in YAML 1.2"),
    "octal": (GOOD + "training:\n  steps: 010\n", "line", "'010' is 8 in YAML 1.1 and something else in YAML 1.2"),
    "binary": (GOOD + "training:\n  steps: 0b11\n", "line", "'0b11' is 3 in YAML 1.1"),
    "underscores": (GOOD + "training:\n  kl: 1_0.5\n", "line", "'1_0.5' is 10.5 in YAML 1.1"),
    "path as name": (GOOD.replace("name: x", "name: ../../x"), "name", "pattern"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.steps=abc", "--set training.steps: Input should be a valid integer"),
        ("training.temperature=0.001", "--set training.temperature: Input should be greater than or equal to 0.01"),
        ("training.kl=.nan", "--set training.kl: line 1, column 1: must be a finite number"),
        ("evaluation={tasks: [micro], k: x}", "--set evaluation.k: Input should be a valid integer"),
        ("foo=1", "--set foo: unknown key"),
        ("training.steps=010", "--set training.steps: line 1, column 1: '010' is 8 in YAML 1.1"),
    ],
)
def test_a_setting_of_the_command_line_is_not_the_files_fault(tmp_path: Path, setting: str, said: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(GOOD)
    with pytest.raises(SuiteError) as caught:
        load(str(file), [setting])
    assert str(caught.value).startswith(said)


def test_settings_reach_into_what_a_stored_suite_leaves_null() -> None:
    written = parse_yaml(GOOD.replace(", stage0: {preset: trap, strong: add}", ""), "x")
    settings = ["groups[0].policies[0].stage0.seed=1", "regimes[1].sharing.record=true"]
    stored = resolve(written, (), "x").model_dump(mode="json")
    assert resolve(stored, settings, "x") == resolve(written, settings, "x")


def test_numbers_that_every_yaml_reads_alike(tmp_path: Path) -> None:
    """Item 27: 010 and 1:30 passed as 8 and 90."""
    plain = {
        "0": 0,
        "-3": -3,
        "+5": 5,
        "0x1F": 31,
        "5.": 5.0,
        ".5": 0.5,
        "1.5e+3": 1500.0,
        "1E5": 1e5,
        "2e-4": 2e-4,
        "'010'": "010",
    }
    assert {text: parse_yaml(text, "x") for text in plain} == plain


@pytest.mark.parametrize(
    ("name", "words"),
    [("bandit", "a file of bandits, not a suite; run it with: harness bandit bandit"),
     ("none.yaml", "no such file"), ("/tmp", "is a directory"),
     ("quickstrat", "did you mean 'quickstart'")],
)  # fmt: skip
def test_names_that_are_no_suites(name: str, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        load(name)


def test_a_folder_of_a_suites_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load("quickstart").name == "quickstart"


@pytest.mark.parametrize("case", sorted(BAD))
def test_refused_with_place_and_words(tmp_path: Path, case: str) -> None:
    text, place, words = BAD[case]
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(SuiteError) as caught:
        prepare(str(file), tmp_path / "results")
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert (place in message, words in message, "\n" in message) == (True, True, False), message
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_suite_prepares(name: str, tmp_path: Path) -> None:
    cells = prepare(name, tmp_path).cells
    assert len({c.key for c in cells}) == len(cells) > 0


def test_single_policy_is_allowed_without_sharing(tmp_path: Path) -> None:
    alone = GOOD.replace("      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}\n", "")
    file = tmp_path / "x.yaml"
    file.write_text(alone + "sharing: {direction: none}\n")
    assert len(prepare(str(file), tmp_path).cells) == 4
    file.write_text(alone.replace("[independent, sgt]", "[independent]"))
    assert len(prepare(str(file), tmp_path).cells) == 2


def test_equal_numbers_of_rollouts_are_a_variants_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.load("sgt"), "unequal_rollouts", False)
    file = tmp_path / "x.yaml"
    for suites, variants in ((8, 4), (4, 8)):
        text = GOOD.replace("strong: mul}}", "strong: mul}, rollouts: 8}") + f"training: {{rollouts: {suites}}}\n"
        file.write_text(text.replace("sgt", f"{{regime: sgt, training: {{rollouts: {variants}}}}}"))
        if variants == 8:
            assert prepare(str(file), tmp_path).cells
        else:
            with pytest.raises(SuiteError, match=r"groups\[0\]\.policies: 'sgt' is defined for equal numbers"):
                prepare(str(file), tmp_path)


def test_keys_follow_content_only(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"

    def keys(text: str, *overrides: str) -> dict[str, str]:
        file.write_text(text)
        return {c.label: c.key for c in prepare(str(file), tmp_path, overrides=overrides).cells}

    first = keys(GOOD)
    assert keys("# a comment\n" + GOOD + "title: other words\n") == first
    changed = keys(GOOD, "regimes[1].lambda=0.5")
    assert {label for label in first if first[label] != changed[label]} == {"pair/sgt/1", "pair/sgt/2"}
    assert not {*keys(GOOD, "training.steps=3").values()} & {*first.values()}
    assert [c.label for c in prepare(str(file), tmp_path, only=["*/sgt/2"]).cells] == ["pair/sgt/2"]


def test_old_logprobs_are_in_the_key_as_the_regime_declares_them(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    keys = {}
    for what in ("", ", old_logprobs: trainer", ", old_logprobs: sampler", ", sampler_correction: 2"):
        file.write_text(GOOD.replace("sgt", f"{{regime: sgt{what}}}"))
        cell = prepare(str(file), tmp_path).cells[1]
        keys[what] = cell.key
        assert cell.variant.old_logprobs == ("sampler" if "sampler" in what and "corr" not in what else "trainer")
    assert keys[""] == keys[", old_logprobs: trainer"]
    assert len(set(keys.values())) == 3


def test_a_curve_asks_no_more_than_the_limit() -> None:
    asked = ({}, {"limit": 40}, {"limit": 40, "curve_prompts": 100}, {"limit": 400}, {"limit": 40, "curve_prompts": 7})
    assert [Evaluation(**settings).curve_prompts for settings in asked] == [120, 40, 40, 120, 7]


def test_a_style_that_nobody_chose_is_no_part_of_a_key() -> None:
    """Cells from before there were styles keep their keys; a chosen one is another cell."""
    plain = Policy(name="a", model="micro/llama").model_dump(mode="json")
    assert keyed(plain) == keyed({name: value for name, value in plain.items() if name != "style"})
    assert keyed({**plain, "style": "raw"}) != keyed(plain)
