"""CoRe: a failed question is asked again with a peer's right answer as a hint (arXiv 2601.21600 v2, with released code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, own_answers, rewards_of, standardise
from harness.learning.hints import Hint
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term, TermAnswer
from harness.suite.space import Choice, Range

DRAWS = 20  # at most, equally likely: the laboratory enumerates them


@dataclass(frozen=True)
class CoReOptions:
    """probability: that a qualifying question is asked again, in twentieths (.75, paper). bonus: for an answer rescued by the
    hint (.15, paper). tokens: of the longest hint (1,536, paper). train_on: the prompt `hinted`, as sampled, or `plain`,
    without the hint: imitation. template: the hinted prompt."""

    probability: Annotated[float, Choice(0.25, 0.5, 0.75, 1.0), Meta(ge=0, le=1)] = 0.75
    bonus: Annotated[float, Range(0.0, 0.5), Meta(ge=0)] = 0.15
    tokens: Annotated[int, Meta(ge=1, le=1 << 17)] = 1536
    train_on: Annotated[Literal["hinted", "plain"], Choice("hinted", "plain")] = "hinted"
    template: Annotated[str, Meta(max_length=4000)] = "{question} {hint}"

    def __post_init__(self) -> None:
        if abs(self.probability * DRAWS - round(self.probability * DRAWS)) > 1e-9:
            raise ValueError("probability: in twentieths, such as 0.75")
        try:
            self.template.format(question="", hint="")
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(f"template: of {{question}} and {{hint}} only ({error})") from None


class CoRe(Regime):
    """GRPO; prompts on which all own answers fail again, with a hint.

    Paper: gate and probability; the hint is the best right answer without its final answer; R = right + 0.15 [rescued by the
    hint]; advantages normalised over models and rounds. Our reading: best is shortest, then policy order; own answers are learnt,
    of peers' the rewards of round A are pooled; hint behind the question, learnt as sampled. Left out: the diversity terms of R,
    which need an embedding model.
    """

    Options = CoReOptions
    shares = frozenset({TextRollout})
    peer_share = 0.0

    @property
    def hint_tokens(self) -> int:
        tokens: int = self.options.tokens
        return tokens

    def hints(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Hint]:
        """Give hints for questions drawn of those that only peers solved."""
        given = []
        chance = Fraction(self.options.probability).limit_denominator(DRAWS)
        for group in own:
            right = [p for p in inbox.valid(group.prompt.id) if p.reward > 0]
            if not group.valid or group.rewards.any() or not right:
                continue
            if int(context.rng.integers(chance.denominator)) < chance.numerator:
                best = min(right, key=lambda p: p.tokens.size)
                given.append(Hint(group.prompt.id, best, self.options.template))
        return given

    def remarks(self, updates: int) -> Sequence[str]:
        return ("the second round counts as rollouts: put the baseline at `budget: 2x` beside it",)

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn with A = (R - mean) / (std + 1e-6) over both rounds and the peers' first."""
        again = {g.prompt.of: g for g in own if g.prompt.of and g.valid}
        mine = []
        hinted = list[TermAnswer]()
        for group in own:
            if group.prompt.of or not group.valid:
                continue
            first = rewards_of(group.valid)
            second = again.get(group.prompt.id)
            rescued = (1 + self.options.bonus) * rewards_of(second.valid if second else ())
            pool = np.concatenate([first, rewards_of(inbox.valid(group.prompt.id)), rescued])
            mine += own_answers(group, standardise(first, pool))
            hinted += own_answers(second, standardise(rescued, pool)) if second else []
        if self.options.train_on == "plain":
            asked = {g.prompt.id: of for of, g in again.items()}
            hinted = [replace(t, prompt_id=asked[t.prompt_id], denominator=None, sampled=None) for t in hinted]
        return [Term("own", "own", GRPO, tuple(mine)), Term("hinted", "own", GRPO, tuple(hinted))]
