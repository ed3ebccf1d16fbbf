"""Without peers every regime is the independent baseline of its own objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_losses import CASES
from worlds import MAX_TOKENS, make_world

from harness.experience.answers import Inbox
from harness.learning.minibatches import cut_into_minibatches, fill_old_logprobs, pack_answers
from harness.learning.registry import build, installed
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import OLD, with_step_weights

# xgrpo with one's own answers alone is GRPO only where its deviation is
VARIANTS = [(c.regime, c.options) for c in CASES.values() if c.options.get("normalise") != "none"]
VARIANTS = [(name, options) for name, options in VARIANTS if name != "independent"] + [
    ("sgt", {"lambda": 1.0}), ("rlccf", {}), ("rlccf", {"vote": "peer"}),
    *(("grafted", {"update": update}) for update in ("luffy", "sgt", "hacpo"))
]  # fmt: skip
VARIANTS += [("imitate-then-rl", {}), ("score-then-rl", {})]
VARIANTS += [("copd", {"ratio": 0.0}), ("core", {}), ("core", {"train_on": "plain"})]
WORLDS = {
    "plain": make_world(3),
    "invalid": make_world(4, rollouts=3, invalid=0.5, prompts=9),
    "single": make_world(5, rollouts=1),
}


def bits(world, terms, updates, old_logprobs):
    """Loss and gradient of every mini-batch in float32, as bytes."""
    rng = np.random.default_rng(5)
    drift = {k: rng.normal(0, 0.2, a.tokens.size) for k, a in world.answers.items()}
    batches = []

    def score(prompts, answers):
        return [world.answers[k].logprobs + np.float32(0.01) for k in map(world.key_of, answers)]

    prompts = [g.prompt for g in world.own]
    for batch in fill_old_logprobs(
        cut_into_minibatches(terms, updates, MAX_TOKENS), prompts, score, old_logprobs, correction=2.0
    ):
        if live := list(batch.live()):
            now = [a.sampled + drift[world.key_of(a.tokens)] for _, a in live]
            logp = torch.tensor(np.concatenate(now), dtype=torch.float32, requires_grad=True)
            loss, _ = surrogate_loss(logp, pack_answers(batch, live))
            loss.backward()
            batches.append((batch.update, loss.detach().numpy().tobytes(), logp.grad.numpy().tobytes()))
    return batches


def baseline_of(name, options):
    """The objective that a regime has on own answers."""
    if "hacpo" in (name, options.get("update")):
        return "gspo"
    return "grpo_answer" if name == "ftis" and options.get("aggregation") != "token" else "grpo"


def test_every_shared_regime_is_here():
    assert {name for name, _ in VARIANTS} | {"independent"} >= {
        n for n, e in installed().items() if e.value.startswith("regimes.")
    }


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_bit_for_bit(world, name, options):
    baseline = build("independent", {"objective": baseline_of(name, options)})
    expected = baseline.learn(world.own, Inbox(), world.context())
    learnt = build(name, options).learn(world.own, Inbox(), world.context())
    assert learnt[0].objective == expected[0].objective
    for mine, theirs in zip(learnt[0].answers, expected[0].answers, strict=True):
        assert mine.tokens is theirs.tokens
        assert mine.denominator is theirs.denominator is OLD
        assert mine.sampled is theirs.sampled
        assert (mine.advantage, mine.weight, mine.mask, mine.scale) == (theirs.advantage, 1.0, None, 1.0)
    assert not [a for t in learnt[1:] for a in t.answers]
    for updates, old in ((1, "sampler"), (3, "trainer")):
        assert bits(world, learnt, updates, old) == bits(world, expected, updates, old)
    if world is WORLDS["plain"]:  # the comparison can fail: with peers the same regime differs
        shared = with_step_weights(build(name, options).learn(world.own, world.inbox, world.context()), 1, 2)
        one, other = ([(id(a.tokens), a.advantage) for t in terms for a in t.answers] for terms in (shared, expected))
        assert one != other
