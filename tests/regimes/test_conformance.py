"""Every installed regime keeps the contract, and regimes that break a clause of it are told which."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from harness.experience.answers import Answer
from harness.experience.records import Rollout, Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.conformance import check_regime
from harness.learning.regime import Need, Regime
from harness.learning.registry import installed
from harness.learning.terms import Term

SHIPPED = sorted(n for n, e in installed().items() if e.value.startswith("regimes."))
OPTIONS = [
    ("independent", {"objective": "gspo"}),
    ("independent", {"objective": "dr_grpo"}),
    ("prp", {"ratio": "none", "groups": "per_source"}),
    ("prp", {"ratio": "receiver_old", "normalise": "none"}),
    ("xgrpo", {"baseline": "mixed", "normalise": "none"}),
    ("hacpo", {"length_normalisation": "bytes", "guards": False}),
    ("sapo", {"external": 1}),
    ("ftis", {"groups": "union", "beyond": "none", "divergence": "author", "filter_kl": 1.0}),
]


@pytest.mark.parametrize(("name", "options"), [(n, {}) for n in SHIPPED] + OPTIONS, ids=str)
def test_shipped_regimes_keep_the_contract(name, options):
    check_regime(name, options)


class Good(Regime):
    """Own answers by GRPO, and peers' answers as plain imitation."""

    shares = frozenset({Rollout})

    def learn(self, own, inbox, context):
        peers = [peer_answer(p, 1.0, None) for g in own for p in inbox.valid(g.prompt.id)]
        return [own_term(own, grpo_advantages, GRPO), Term("peer", "peer", GRPO, tuple(peers))]


def test_a_good_one_passes():
    check_regime(Good)


class NeedsWhatItDoesNotShare(Good):
    """Bad."""

    shares = frozenset({Success})
    needs = frozenset({Need.ALIGNED})


class NoDocstring(Good):
    pass


class SharesALooseSet(Good):
    """Bad."""

    shares = {Rollout}  # noqa: RUF012


class PublishesSomethingElse(Good):
    """Bad."""

    def publish(self, groups, pieces):
        return [replace_author(r) for r in super().publish(groups, pieces)]


def replace_author(record):
    return msgspec.structs.replace(record, author="someone else")


class PublishesInvalid(Good):
    """Bad."""

    def publish(self, groups, pieces):
        records = super().publish(groups, pieces)
        invalid = [
            replace_index(records[0], g.prompt.id, i)
            for g in groups
            for i, a in enumerate(g.answers)
            if records and not a.verdict.valid
        ]
        return records + invalid


def replace_index(record, prompt_id, index):
    return msgspec.structs.replace(record, prompt_id=prompt_id, index=index)


class LearnsInvalid(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        peers = [peer_answer(p, 1.0, None) for g in own for p in inbox.answers.get(g.prompt.id, ())]
        return [own_term(own, grpo_advantages, GRPO), Term("peer", "peer", GRPO, tuple(peers))]


class NaNAdvantage(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        with np.errstate(all="ignore"):
            return [own_term(own, lambda g: g.rewards.astype(float) / g.rewards.sum(), GRPO)]


class ShortDenominator(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        term = own_term(own, grpo_advantages, GRPO)
        return [replace(term, answers=tuple(replace(a, sampled=a.sampled[:-1]) for a in term.answers))]


class TakesTheSamplers(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        term = own_term(own, grpo_advantages, GRPO)
        return [replace(term, answers=tuple(replace(a, denominator=a.sampled) for a in term.answers))]


class ForgetsWhatItSampled(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        term = own_term(own, grpo_advantages, GRPO)
        return [replace(term, answers=tuple(replace(a, sampled=None) for a in term.answers))]


class BelievesNobody(Good):
    """Bad."""

    old_logprobs = "nobody"


class NegativeWeight(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        term = own_term(own, grpo_advantages, GRPO)
        return [replace(term, answers=tuple(replace(a, weight=-1.0) for a in term.answers))]


class CrashesWithoutPeers(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        best = max(len(answers) for answers in inbox.answers.values())
        return [own_term(own, lambda g: grpo_advantages(g) * best, GRPO)]


class GlobalRandom(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        return [own_term(own, lambda g: grpo_advantages(g) * random.random(), GRPO)]


class WritesIntoItsInputs(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        for group in own:
            for answer in group.answers:
                answer.logprobs[:] = np.minimum(answer.logprobs, 0)
        return super().learn(own, inbox, context)


class ForgetsItsState(Good):
    """Bad."""

    steps = 0

    def learn(self, own, inbox, context):
        self.steps += 1
        return [replace(t, weight=1.0 / self.steps) for t in super().learn(own, inbox, context)]


class StateIsNoJSON(ForgetsItsState):
    """Bad."""

    def state(self):
        return {"answer": Answer}


@dataclass(frozen=True)
class RoundedOptions:
    rate: float = 0.123

    def __post_init__(self):
        object.__setattr__(self, "rate", self.rate / 2)


class OptionsDoNotSurvive(Good):
    """Bad."""

    Options = RoundedOptions


class ReturnsATuple(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        return tuple(super().learn(own, inbox, context))


class InventsTokens(Good):
    """Bad."""

    def learn(self, own, inbox, context):
        term = own_term(own, grpo_advantages, GRPO)
        return [replace(term, answers=tuple(replace(a, tokens=a.tokens + 1) for a in term.answers))]


@pytest.mark.parametrize(
    ("regime", "says"),
    [
        (NeedsWhatItDoesNotShare, "does not share Rollout"),
        (NoDocstring, "no docstring"),
        (SharesALooseSet, "frozenset"),
        (PublishesSomethingElse, "publishes as 'someone else'"),
        (PublishesInvalid, "publishes an answer that is invalid"),
        (LearnsInvalid, "invalid verdict"),
        (NaNAdvantage, "advantage is nan"),
        (ShortDenominator, "log-probabilities for"),
        (TakesTheSamplers, "denominator is OLD"),
        (ForgetsWhatItSampled, "no `sampled`"),
        (BelievesNobody, "one of sampler, trainer"),
        (NegativeWeight, "negative weight"),
        (GlobalRandom, "context.rng"),
        (WritesIntoItsInputs, "writes into the arrays"),
        (ForgetsItsState, "after `restore` the terms differ"),
        (StateIsNoJSON, "not JSON"),
        (OptionsDoNotSurvive, "do not survive"),
        (ReturnsATuple, "list of Term"),
        (InventsTokens, "nobody gave"),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_bad_ones_are_told_what_is_wrong(regime, says):
    with pytest.raises(AssertionError, match=says):
        check_regime(regime)


def test_a_crash_is_the_regimes_own_error():
    with pytest.raises(ValueError, match="empty"):
        check_regime(CrashesWithoutPeers)


@pytest.mark.slow
def test_torch_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "heavy_regime.py").write_text(
        "import torch\nfrom regimes.independent import Independent\n\n\nclass Heavy(Independent):\n    'Heavy.'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import heavy_regime

    with pytest.raises(AssertionError, match="imports torch"):
        check_regime(heavy_regime.Heavy)
