"""OLD denominators, the truncated correction of the sampler's drift and its measurement, against their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.engines.learner import Tally
from harness.experience.answers import Prompt
from harness.learning.minibatches import cut_into_minibatches, fill_old_logprobs, from_sampler, pack_answers
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import OLD, Objective, Term, TermAnswer

GSPO = Objective("sequence", "ppo", 1 - 3e-4, 1 + 4e-4, aggregation="answer")
TOKEN = Objective("token", "ppo", 0.8, 1.28)
PROMPTS = [Prompt(f"x{i}", "?", "1") for i in range(4)]


def answer(prompt, sampled, advantage=1.0):
    sampled = np.array(sampled, np.float32)
    return TermAnswer(f"x{prompt}", np.full(sampled.size, prompt, np.int32), advantage, OLD, sampled=sampled)


def own(objective=TOKEN, answers=None):
    answers = answers or [answer(p, [-1.0, -2.0 - i], (1.0, 0.0, -1.0)[i]) for p in range(4) for i in range(3)]
    return Term("own", "own", objective, tuple(answers))


def test_the_first_mini_batch_needs_no_score_and_the_others_only_what_can_move():
    asked = []

    def score(prompts, answers):
        asked.append([(p.id, a.tolist()) for p, a in zip(prompts, answers, strict=True)])
        return [np.full(a.size, -7.0, np.float32) for a in answers]

    (batch,) = fill_old_logprobs(cut_into_minibatches([own()], 1, 9), PROMPTS, score)
    assert asked == []
    assert {a.denominator for a in batch.terms[0].answers} == {None}
    first, *later = fill_old_logprobs(cut_into_minibatches([own()], 4, 9), PROMPTS, score)
    assert asked == [[(f"x{p}", [p, p]) for p in (1, 1, 2, 2, 3, 3)]]
    assert {a.denominator for _, a in first.live()} == {None}
    assert all((a.denominator == -7.0).all() for b in later for _, a in b.live())


@pytest.mark.parametrize("objective", [Objective(form="kl"), Objective("cross")])
def test_what_cannot_do_without_a_denominator_gets_the_trainers_in_the_first_mini_batch_too(objective):
    batches = cut_into_minibatches([own(objective)], 1, 9)
    (batch,) = fill_old_logprobs(
        batches, PROMPTS, lambda prompts, answers: [np.full(a.size, -7.0, np.float32) for a in answers]
    )
    assert (pack_answers(batch, list(batch.live())).denominator == -7.0).all()


def test_the_samplers_are_taken_as_they_are():
    for batch in from_sampler(cut_into_minibatches([own()], 2, 9)):
        assert all(a.denominator is a.sampled for a in batch.terms[0].answers)


def test_what_is_not_settled_is_refused():
    (batch,) = cut_into_minibatches([own()], 1, 9)
    with pytest.raises(ValueError, match="not settled"):
        pack_answers(batch, list(batch.live()))
    with pytest.raises(ValueError, match="no `sampled`"):
        from_sampler(cut_into_minibatches([own(answers=[replace(answer(0, [-1.0]), sampled=None)])], 1, 9))


def test_only_own_denominators_are_filled_in():
    given = np.array([-3.0], np.float32)
    kept = [TermAnswer("x0", np.zeros(1, np.int32), 1.0, d, origin=("b", i)) for i, d in enumerate((given, -3.0, None))]
    (batch,) = fill_old_logprobs(
        cut_into_minibatches([Term("peer", "peer", TOKEN, tuple(kept))], 1, 9), PROMPTS, lambda p, a: []
    )
    assert [a.denominator for a in batch.terms[0].answers] == [given, -3.0, None]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("objective", [TOKEN, replace(GSPO, low=0.5, high=2.0)], ids=["token", "sequence"])
def test_correction_by_the_formula(objective, updates):
    rng, truncation = np.random.default_rng(4), 1.5
    sampled = [-rng.gamma(2.0, 0.5, n) for n in (1, 4, 6, 3)]
    start = [s + rng.normal(0, 0.6, s.size) for s in sampled]
    terms = [
        own(objective, [answer(p, s, a) for p, (s, a) in enumerate(zip(sampled, (1.0, -2.0, 0.5, 1.5), strict=True))]),
        Term(
            "peer", "peer", objective, (TermAnswer("x3", np.full(2, 9, np.int32), 1.0, np.full(2, -1.0, np.float32)),)
        ),
    ]
    cut = cut_into_minibatches(terms, updates, 9)
    batches = fill_old_logprobs(
        cut, PROMPTS, lambda p, a: [start[t[0]].astype(np.float32) for t in a], "trainer", truncation
    )
    seen = []
    for batch in batches:
        live = list(batch.live())
        at = [start[a.tokens[0]] if a.tokens[0] != 9 else np.full(2, -0.9) for _, a in live]
        if batch.update:
            at = [v + 0.03 for v in at]
        logp = torch.tensor(np.concatenate(at), requires_grad=True)
        surrogate_loss(logp, pack_answers(batch, live))[0].backward()
        divisor = len(live) if objective is not TOKEN else sum(v.size for v in at)
        for (_, a), values, slope in zip(
            live, at, np.split(-logp.grad.numpy(), np.cumsum([v.size for v in at])), strict=False
        ):
            p = int(a.tokens[0])
            if p == 9:
                old, weights = -1.0, np.ones(2)
            else:
                old = start[p] if batch.update else values
                weights = np.array(
                    [min(math.exp(o - s), truncation) for o, s in zip(start[p], sampled[p], strict=True)]
                )
            ratio = np.exp(values - old)
            if objective is TOKEN:
                expected = a.advantage * weights * ratio / divisor
            else:
                expected = np.full(
                    values.size, a.advantage * math.exp((values - old).mean()) * weights.mean() / values.size / divisor
                )
            np.testing.assert_allclose(slope, expected, rtol=2e-6)
            seen += weights.tolist()
    assert min(seen) < 0.9
    assert max(seen) == truncation


SAMPLED = ([-1.0, -1.0], [-2.0, -2.0], [-3.0])
TRAINER = ([-1.1, -0.9], [-2.0, -1.6], [-3.0004])
"""Off by 0.1 both ways (0 on average), by 0.4 on one token, by 0.0004."""


def drift_of(*terms, trainer=TRAINER, updates=1):
    tally = Tally(terms, updates)
    for batch in fill_old_logprobs(cut_into_minibatches(terms, updates, 9), PROMPTS, lambda p, a: [t * 0.0 for t in a]):
        live = list(batch.live())
        if live:
            packed = pack_answers(batch, live)
            values = np.concatenate([np.array(trainer[a.tokens[0]]) for _, a in live])
            tally.add(live, packed, surrogate_loss(torch.tensor(values), packed)[1])
    return tally.drift


@pytest.mark.parametrize(
    ("objective", "outside"),
    # By token the second answer has one above 1.28; by sequence its mean is 0.2 above, and the third is below 1 - 3e-4.
    [(TOKEN, 1 / 3), (GSPO, 2 / 3), (replace(GSPO, low=0.9, high=1.3), 0.0)],
    ids=["token", "sequence", "wide"],
)
def test_drift_of_known_answers(objective, outside):
    drift = drift_of(own(objective, [answer(p, s) for p, s in enumerate(SAMPLED)]))
    assert drift.mean == pytest.approx((0.1 + 0.1 + 0.0 + 0.4 + 0.0004) / 5, rel=1e-4)
    assert drift.p99 == pytest.approx(0.4 - 0.04 * 0.3, rel=1e-4)
    assert drift.outside == pytest.approx(outside)


def test_drift_is_of_the_first_update_and_of_own_answers():
    answers = [answer(0, SAMPLED[0]), answer(1, SAMPLED[1]), answer(2, SAMPLED[2], 0.0)]
    drift = drift_of(own(GSPO, answers), updates=2)
    assert (drift.mean, drift.outside) == (pytest.approx(0.1, rel=1e-4), 0.0)
    assert drift_of(own(TOKEN, answers)).mean == pytest.approx(0.15, rel=1e-4)
    peer = Term("peer", "peer", TOKEN, (TermAnswer("x0", np.zeros(2, np.int32), 1.0, np.zeros(2, np.float32)),))
    assert math.isnan(drift_of(peer).mean)
    assert drift_of(own(TOKEN, answers), peer) == drift_of(own(TOKEN, answers))
