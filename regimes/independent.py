"""Independent training: the baseline of every comparison. Nothing is shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.experience.answers import Group, Inbox
from harness.learning.advantages import GRPO, GSPO, grpo_advantages, own_term, rewards_of
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Term

DR_GRPO = Objective(ratio="token", form="ppo", low=0.8, high=1.28, aggregation="constant")
GRPO_ANSWER = replace(GRPO, aggregation="answer")


@dataclass(frozen=True)
class IndependentOptions:
    """objective: `grpo` (arXiv 2402.03300, one mean over all tokens), `grpo_answer` (its first form: the token mean of an answer,
    then the mean over answers), `gspo` (2507.18071) or `dr_grpo` (2503.20783)."""

    objective: Literal["grpo", "gspo", "dr_grpo", "grpo_answer"] = "grpo"


class Independent(Regime):
    """Each policy learns from its own answers only.

    GRPO, GSPO or Dr. GRPO; the ratio is to the trainer's pi_old (code)."""

    Options = IndependentOptions

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn with A = (R - mean) / (std + 1e-6); Dr. GRPO: R - mean."""
        if self.options.objective == "dr_grpo":
            return [own_term(own, lambda g: rewards_of(g.valid) - rewards_of(g.valid).mean(), DR_GRPO)]
        objective = {"grpo": GRPO, "grpo_answer": GRPO_ANSWER, "gspo": GSPO}[self.options.objective]
        return [own_term(own, grpo_advantages, objective)]
