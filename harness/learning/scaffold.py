"""The files of `harness new-regime NAME`: a working regime, its test and a suite."""

from __future__ import annotations

from pathlib import Path

from harness import scaffold
from harness.learning.registry import DOOR


def write_package(name: str, into: Path) -> Path:
    """Write the package `into`/NAME and return its folder. Raises UsageError."""
    return scaffold.write_package(DOOR, FILES, name, into)


PYPROJECT = (
    scaffold.PYPROJECT
    + """
[tool.setuptools]
py-modules = ["$module"]
"""
)

MODULE = '''\
"""$title: a sharing regime. Say here where it comes from: a paper and its equation, or "our reading"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from harness.experience.answers import Group, Inbox
from harness.experience.records import Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Term
from harness.suite.space import Range

IMITATION = Objective(form="nll", aggregation="prompt")


@dataclass(frozen=True)
class ${title}Options:
    """weight: of the imitation term. below: a prompt is rescued when at most this share of own answers is right.

    A range says what tuning may try (docs/tuning.md).
    """

    weight: Annotated[float, Range(0.01, 3.0, "log")] = 0.1
    below: Annotated[float, Range(0.0, 0.5)] = 0.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight: must not be negative, got {self.weight}")
        if not 0 <= self.below <= 1:
            raise ValueError(f"below: must lie in [0, 1], got {self.below}")


class $title(Regime):
    """GRPO on own answers; where they fail, imitate the shortest answer that a peer got right."""

    Options = ${title}Options
    shares = frozenset({Success})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Own answers by GRPO, and the negative log-likelihood of one success per rescued prompt."""
        imitated = []
        for group in own:
            successes = inbox.successes.get(group.prompt.id, ())
            if group.valid and group.rewards.mean() <= self.options.below and successes:
                shortest = min(successes, key=lambda s: s.tokens.size)
                imitated.append(peer_answer(shortest, 1.0, None))
        return [
            own_term(own, grpo_advantages, GRPO),
            Term("imitation", "peer", IMITATION, tuple(imitated), weight=self.options.weight),
        ]
'''

TEST = '''\
"""$name keeps the contract of every regime, and does what it says."""

from __future__ import annotations

import pytest
from $module import $title

from harness.errors import PluginError
from harness.learning.conformance import check_regime
from harness.learning.registry import build, load
from harness.learning.situations import situations


@pytest.mark.parametrize("options", [{}, {"weight": 1.0, "below": 0.5}], ids=str)
def test_keeps_the_contract(options):
    check_regime("$name", options)


def test_is_found_by_name():
    assert load("$name") is $title


def test_rescues_failed_prompts_only():
    for situation in situations($title()):
        _, imitation = $title().learn(situation.own, situation.inbox, situation.context())
        failed = {g.prompt.id for g in situation.own if g.valid and not g.rewards.any()}
        assert {a.prompt_id for a in imitation.answers} == failed & {p for p, s in situation.inbox.successes.items() if s}


def test_bad_options_are_refused():
    with pytest.raises(PluginError, match="weight"):
        build("$name", {"weight": -1.0})
'''

README = """\
# $name

A sharing regime for the experience-sharing harness, in one module: `$module.py`.

    pip install -e .
    pytest
    harness regimes
    harness run suite.yaml

`suite.yaml` trains it beside the independent baseline on two small policies, in seconds. What a regime may use and must
keep is in the harness's `docs/regimes.md`.
"""

SUITE = """\
# $name beside the baseline, on a pair of small policies: a few steps, seconds.
name: $name
groups:
  - name: llama-qwen
    policies:
      - {name: llama, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: qwen, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, $name]
seeds: [1, 2]
training: {steps: 6, prompts: 8, checkpoint_every: 2, measure_every: 3}
evaluation: {k: 2, limit: 48, curve_every: 3, curve_prompts: 24}
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "${module}.py": MODULE,
    "tests/test_${module}.py": TEST,
    "README.md": README,
    "suite.yaml": SUITE,
}
