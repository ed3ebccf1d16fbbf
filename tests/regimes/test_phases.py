"""Regimes that switch from peers to own experience once in a run: imitate, or score, then RL."""

from __future__ import annotations

from dataclasses import replace

import formulas
import numpy as np
import pytest
from test_losses import Case, compare
from test_zero_peers import bits
from worlds import make_world

from harness.experience.answers import Inbox
from harness.learning.registry import build
from harness.learning.terms import Phase, with_step_weights

REGIMES = ("imitate-then-rl", "score-then-rl")
WORLD = make_world(3, policies=3)


def learn(name, options, world=WORLD, step=1, steps=10):
    regime = build(name, options)
    return with_step_weights(regime.learn(world.own, world.inbox, world.context(step=step)), step, steps)


@pytest.mark.parametrize(("share", "steps", "first"), [
    (0.0, 45, 0), (0.3, 45, 14), (0.3, 10, 3), (0.55, 100, 55), (0.07, 100, 7), (1.0, 7, 7), (0.01, 10, 1), (0.3, 1, 1),
])  # fmt: skip
def test_phases_share_no_step_and_leave_none_out(share, steps, first):
    """Also where a share times the steps is a whole number but for rounding."""
    early, late = Phase(0.0, share), Phase(share, 1.0)
    values = [(early.at(step, steps), late.at(step, steps)) for step in range(1, steps + 1)]
    assert values == [(1.0, 0.0)] * first + [(0.0, 1.0)] * (steps - first)


@pytest.mark.parametrize(("begin", "end"), [(-0.1, 0.5), (0.6, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
def test_a_phase_outside_the_run_is_refused(begin, end):
    with pytest.raises(ValueError, match="shares of the steps"):
        Phase(begin, end)


@pytest.mark.parametrize("name", REGIMES)
def test_without_a_first_phase_it_is_independent_bit_for_bit_whatever_peers_send(name):
    for seed in range(3, 9):
        world = make_world(seed, policies=3)
        grpo = build("independent", {}).learn(world.own, Inbox(), world.context())
        for step, updates, old in ((1, 1, "sampler"), (7, 3, "trainer")):
            terms = learn(name, {"share": 0.0}, world, step, 20)
            assert bits(world, terms, updates, old) == bits(world, grpo, updates, old)
            assert bits(world, learn(name, {"share": 0.4}, world, 9, 20), updates, old) == bits(
                world, grpo, updates, old
            )
    assert [len(t.answers) > 0 for t in learn(name, {"share": 0.4}, step=8, steps=20)] == [False, True], "it can differ"


@pytest.mark.parametrize(
    "step", [({"policies": 2}, 1, 0, "sampler"), ({"policies": 3, "invalid": 0.4}, 1, 5, "trainer")]
)
def test_the_first_phase_is_the_nll_of_peers_right_answers_alone(step):
    world = make_world(step[2], prompts=8, **step[0])
    imitated = [key for x in world.prompts for key in formulas.successes(world, x)]

    def loss(world, rows, logp, old, update):
        return -sum(t for key in imitated for t in logp[key]) / sum(len(logp[key]) for key in imitated)

    compare(Case("imitate-then-rl", lambda world, _: []), step, build("imitate-then-rl", {}), loss)


def test_the_first_phase_of_scores_is_that_of_copd():
    own, distilled = learn("score-then-rl", {"share": 0.5, "beta": 0.7})
    (copd,) = build("copd", {"ratio": 0.0, "beta": 0.7}).learn(WORLD.own, WORLD.inbox, WORLD.context())
    assert not own.answers
    assert len(distilled.answers) == len(copd.answers) > 0
    for one, other in zip(distilled.answers, copd.answers, strict=True):
        assert one.tokens is other.tokens
        assert np.array_equal(one.advantage, other.advantage)


@pytest.mark.parametrize("name", REGIMES)
def test_peers_are_asked_only_in_the_first_phase(name):
    regime = build(name, {"share": 0.3})
    regime.run_steps = 10
    groups = [replace(group, step=step) for step in range(1, 11) for group in WORLD.own]
    sent = {record.step for record in regime.publish(groups, lambda answer: [len(answer.text.encode())])}
    assert sent == {1, 2, 3}


@pytest.mark.parametrize("name", REGIMES)
def test_a_first_step_at_which_nothing_arrived_is_grpo(name):
    (term,) = build(name, {}).learn(WORLD.own, Inbox(), WORLD.context())
    (grpo,) = build("independent", {}).learn(WORLD.own, Inbox(), WORLD.context())
    assert (term.objective, term.schedule, len(term.answers)) == (grpo.objective, None, len(grpo.answers))
