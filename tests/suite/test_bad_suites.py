"""What a suite may not say: each input is refused with an error of its kind that names its place; and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError, SuiteError
from harness.session.suite.prepare import prepare_named

SUITE = """
name: x
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, sgt]
seeds: [1, 2]
"""
CLAIMED = """
name: x
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
  - name: other
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add, seed: 1}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul, seed: 1}}
regimes:
  - independent
  - {regime: sgt, only_in: [pair]}
  - hacpo
seeds: [1, 2]
claims:
  - {name: faster, group: pair, regime: hacpo, statistic: kappa, relation: above, bound: 1.0}
"""
TUNED = """
name: x
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, sgt]
seeds: [1, 2]
training: {steps: 3}
evaluation: {tasks: [micro]}
tune:
  trials: 4
  groups:
    - name: trials
      policies:
        - {name: a, model: micro/llama, stage0: {preset: trap, strong: add, seed: 5}}
        - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul, seed: 5}}
  seeds: [30]
  check: [31]
  rungs: [1]
  evaluation: {tasks: [ladder.add2]}
"""


def change(suite: str, old: str, new: str) -> str:
    """The suite with these words in the place of others, which it must have."""
    assert old in suite
    return suite.replace(old, new, 1)


SECOND = "      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}\n"
MANY_ALIASES = "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(30))
BAD: dict[str, tuple[str, str, type[HarnessError]]] = {
    # input, place, kind
    "unknown key": ("trainig: {steps: 3}\n" + SUITE, "trainig", SuiteError),
    "nested unknown key": (SUITE + "training: {stesp: 3}\n", "training.stesp", SuiteError),
    "wrong type": (SUITE + "training: {steps: many}\n", "training.steps", SuiteError),
    "float for int": (SUITE + "training: {prompts: 1.5}\n", "training.prompts", SuiteError),
    "negative": (SUITE + "training: {steps: -1}\n", "training.steps", SuiteError),
    "zero prompts": (SUITE + "training: {prompts: 0}\n", "training.prompts", SuiteError),
    "nan": (SUITE + "training: {learning_rate: .nan}\n", "line 10, column 27", SuiteError),
    "model missing": (change(SUITE, "model: micro/qwen, ", ""), "groups[0].policies[1].model", SuiteError),
    "model wrong type": (change(SUITE, "micro/qwen", "[1]"), "groups[0].policies[1].model", SuiteError),
    "a checkpoint's file": (change(SUITE, "name: a,", "name: session.json,"), "groups[0].policies[0].name", SuiteError),
    "the folder of evaluations": (change(SUITE, "name: x", "name: evaluations"), "name", SuiteError),
    "path as name": (change(SUITE, "name: x", "name: ../../x"), "name", SuiteError),
    "unknown regime": (change(SUITE, "sgt", "sgtt"), "regimes[1].regime", SuiteError),
    "unknown option": (change(SUITE, "sgt", "{regime: sgt, lamda: 1}"), "regimes[1].lamda", SuiteError),
    "option out of range": (change(SUITE, "sgt", "{regime: sgt, lambda: -1}"), "regimes[1].lambda", SuiteError),
    "options of no name": (change(SUITE, "sgt", "{regime: sgt, options: [1]}"), "regimes[1].options", SuiteError),
    "option wrong type": (change(SUITE, "sgt", "{regime: sgt, lambda: x}"), "regimes[1].lambda", SuiteError),
    "duplicate seeds": (change(SUITE, "[1, 2]", "[1, 1]"), "seeds", SuiteError),
    "duplicate tasks": (SUITE + "evaluation: {tasks: [micro, micro]}\n", "evaluation.tasks", SuiteError),
    "duplicate edges": (SUITE + "sharing: {direction: edges, edges: [[a, b], [a, b]]}\n", "sharing", SuiteError),
    "duplicate names": (change(SUITE, "[independent, sgt]", "[independent, sgt, sgt]"), "regimes", SuiteError),
    "no task file": (SUITE + "training: {task: {file: nothing.jsonl}}\n", "training.task.file", SuiteError),
    "a key in angle brackets": (SUITE + "training: {<script>: 1}\n", "training.<script>", SuiteError),
    "merge": (SUITE + "training: {<<: {steps: 3}}\n", "training.<<", SuiteError),
    "a long key": (SUITE + "x" * 1000 + ": 1\n", "x" * 80, SuiteError),
    "no baseline": (change(SUITE, "[independent, sgt]", "[sgt]"), "baseline", SuiteError),
    "alone": (change(SUITE, SECOND, ""), "groups[0].policies", SuiteError),
    "empty": ("", "", SuiteError),
    "comment only": ("# nothing\n", "", SuiteError),
    "list": ("- 1\n", "", SuiteError),
    "tag": ("name: !!python/object/apply:os.system ['true']\n", "line 1, column 7", SuiteError),
    "anchors": ("a: &a [1, 1]\nb: *a\n", "line 1, column 4", SuiteError),
    "bomb": ("a: &a [x,x]\n" + MANY_ALIASES, "line 1, column 4", SuiteError),
    "duplicate key": ("name: a\nname: b\n" + SUITE, "line 2, column 1", SuiteError),
    "deep": ("a: " + "[" * 5000, "line 1, column 35", SuiteError),
    "unclosed": ("name: [1\n", "line 2, column 1", SuiteError),
    "unknown task": (SUITE + "evaluation: {tasks: [micro, nothing]}\n", "evaluation.tasks[1]", SuiteError),
    "unknown training task": (SUITE + "training: {task: nothing}\n", "training.task", SuiteError),
    "bad edge": (SUITE + "sharing: {direction: edges, edges: [[a, z]]}\n", "regimes[0].sharing.edges", SuiteError),
    "edges without direction": (SUITE + "sharing: {edges: [[a, b]]}\n", "sharing", SuiteError),
    "engine option": (SUITE + "engine_options: {foo: 1}\n", "engine_options", SuiteError),
    "engine option out of range": (
        SUITE + "engine: openrlhf\nengine_options: {trainers: 0}\n",
        "engine_options.trainers",
        SuiteError,
    ),
    "old log-probabilities": (
        change(SUITE, "sgt", "{regime: sgt, old_logprobs: peer}"),
        "regimes[1].old_logprobs",
        SuiteError,
    ),
    "correction below 1": (
        change(SUITE, "sgt", "{regime: sgt, sampler_correction: 0.5}"),
        "regimes[1].sampler_correction",
        SuiteError,
    ),
    "correction of nothing": (
        change(SUITE, "sgt", "{regime: sgt, sampler_correction: 2, old_logprobs: sampler}"),
        "regimes[1].sampler_correction",
        SuiteError,
    ),
    "sexagesimal": (SUITE + "training: {steps: 1:30}\n", "line 10, column 19", SuiteError),
    "octal": (SUITE + "training:\n  steps: 010\n", "line 11, column 10", SuiteError),
    "binary": (SUITE + "training:\n  steps: 0b11\n", "line 11, column 10", SuiteError),
    "underscores": (SUITE + "training:\n  kl: 1_0.5\n", "line 11, column 7", SuiteError),
    "own prompts of those that share": (
        change(SUITE, "sgt", "{regime: sgt, dynamic_sampling: {decided_by: own}}"),
        "regimes[1].dynamic_sampling",
        SuiteError,
    ),
    "new prompts and stale answers": (
        change(SUITE, "sgt", "{regime: sgt, dynamic_sampling: true, sharing: {max_staleness: 1}}"),
        "regimes[1].dynamic_sampling",
        SuiteError,
    ),
    "new prompts and a recording": (
        change(SUITE, "sgt", "{regime: sgt, dynamic_sampling: true, replay: {suite: tiny, regime: sgt}}"),
        "regimes[1].dynamic_sampling",
        SuiteError,
    ),
    "no rounds": (
        change(SUITE, "sgt", "{regime: sgt, dynamic_sampling: {rounds: 0}}"),
        "regimes[1].dynamic_sampling.rounds",
        SuiteError,
    ),
    "transfer between one": (
        change(TUNED, "  trials: 4", "  trials: 4\n  transfer: true"),
        "tune.transfer",
        SuiteError,
    ),
    "tuned on a seed of the table": (change(TUNED, "seeds: [30]", "seeds: [1]"), "tune.seeds", SuiteError),
    "tuned on a task of the table": (change(TUNED, "ladder.add2", "micro"), "tune.evaluation.tasks", SuiteError),
    "tuned on a base of the table": (change(TUNED, "add, seed: 5}", "add}"), "tune.groups", SuiteError),
    "tuned on a group of the table": (change(TUNED, "name: trials", "name: pair"), "tune.groups", SuiteError),
    "checked on a seed of the trials": (change(TUNED, "check: [31]", "check: [30]"), "tune.check", SuiteError),
    "a table on tuning's part": (change(TUNED, "steps: 3}", "steps: 3, part: all}"), "training.part", SuiteError),
    "a rung that is not shorter": (change(TUNED, "rungs: [1]", "rungs: [3]"), "tune.rungs", SuiteError),
    "tuned in some groups": (
        change(TUNED, "[independent, sgt]", "[independent, {regime: sgt, only_in: [pair]}]"),
        "regimes[1].only_in",
        SuiteError,
    ),
    "limited to no group": (change(CLAIMED, "[pair]", "[unlike]"), "regimes[1].only_in", SuiteError),
    "a limited baseline": (change(CLAIMED, "  - hacpo", "  - hacpo\nbaseline: sgt"), "regimes[1].only_in", SuiteError),
    "claimed of no group": (
        change(CLAIMED, "group: pair, regime", "group: apart, regime"),
        "claims[0].group",
        SuiteError,
    ),
    "claimed of no variant": (change(CLAIMED, "regime: hacpo, s", "regime: prp, s"), "claims[0].group", SuiteError),
    "claimed where it does not run": (
        change(CLAIMED, "group: pair, regime: hacpo", "group: other, regime: sgt"),
        "claims[0].group",
        SuiteError,
    ),
    "claimed over itself": (change(CLAIMED, "bound: 1.0", "bound: 1.0, over: hacpo"), "claims[0].over", SuiteError),
    "claimed of too many seeds": (change(CLAIMED, "bound: 1.0", "bound: 1.0, seeds: 3"), "claims[0].seeds", SuiteError),
    "claimed against nothing": (
        change(CLAIMED, "bound: 1.0", "bound: 1.0, against: {}"),
        "claims[0].against",
        SuiteError,
    ),
    "claimed against no group": (
        change(CLAIMED, "bound: 1.0", "bound: 1.0, against: {group: apart}"),
        "claims[0].against",
        SuiteError,
    ),
    "an unknown statistic": (change(CLAIMED, "statistic: kappa", "statistic: luck"), "claims[0].statistic", SuiteError),
}
SENTENCES = {
    "unknown key": "did you mean 'training'",
    "unknown regime": "did you mean 'sgt'",
    "unknown option": "did you mean 'lambda'",
    "octal": "'010' is 8 in YAML 1.1 and something else in YAML 1.2",
    "tag": "is not allowed",
    "tuned on a base of the table": "tuning must not see it",
}
"""What some of them say beside the place."""


@pytest.mark.parametrize("suite", [SUITE, CLAIMED, TUNED], ids=["suite", "claimed", "tuned"])
def test_what_is_altered_is_good_as_it_stands(tmp_path: Path, suite: str) -> None:
    (tmp_path / "x.yaml").write_text(suite)
    assert prepare_named(str(tmp_path / "x.yaml"), tmp_path / "results").cells


@pytest.mark.parametrize("case", BAD)
def test_a_bad_suite_is_refused_at_its_place(tmp_path: Path, case: str) -> None:
    text, place, kind = BAD[case]
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(kind) as caught:
        prepare_named(str(file), tmp_path / "results")
    message = str(caught.value)
    assert type(caught.value) is kind
    assert message.startswith(f"{file}: {place}: " if place else f"{file}: ")
    assert "\n" not in message
    assert SENTENCES.get(case, "") in message
    assert not (tmp_path / "results").exists()
