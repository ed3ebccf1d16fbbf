"""How a step's terms are cut into mini-batches, and what each of them divides by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.learner import Gradients
from harness.learning.minibatches import cut_into_minibatches
from harness.learning.terms import Objective, Schedule, Term, TermAnswer


def answers(prompt, count, size=3, advantage=1.0, weight=1.0):
    tokens = np.arange(size, dtype=np.int32)
    return tuple(TermAnswer(prompt, tokens, advantage, weight=weight) for _ in range(count))


def own_and_peer(order, prompts=8, group=4):
    ids = [f"p{i}" for i in range(prompts)]
    own = Term("own", "own", Objective(), sum((answers(i, group) for i in ids), ()))
    peer = Term("peer", "peer", Objective(), sum((answers(i, group) for i in ids), ()), order=order)
    return own, peer


def test_own_comes_before_peer_where_ordered():
    batches = cut_into_minibatches(own_and_peer(order=1), 4, 48)
    assert [[len(t.answers) for t in b.terms] for b in batches] == [[16, 0], [16, 0], [0, 16], [0, 16]]
    assert [b.update for b in batches] == [0, 1, 2, 3]


def test_own_and_peer_of_a_prompt_share_a_minibatch_where_not_ordered():
    batches = cut_into_minibatches(own_and_peer(order=0), 4, 48)
    for index, batch in enumerate(batches):
        prompts = [{a.prompt_id for a in t.answers} for t in batch.terms]
        assert prompts[0] == prompts[1] == {f"p{2 * index}", f"p{2 * index + 1}"}


@given(sizes=st.lists(st.integers(1, 20), max_size=30), updates=st.integers(1, 8))
def test_every_answer_once_units_whole_and_nothing_empty_without_need(sizes, updates):
    term = Term("own", "own", Objective(), sum((answers(f"p{i}", n) for i, n in enumerate(sizes)), ()))
    batches = cut_into_minibatches([term], updates, 48)
    held = [[a.prompt_id for a in b.terms[0].answers] for b in batches]
    assert len(batches) == updates
    assert [p for part in held for p in part] == [a.prompt_id for a in term.answers]
    assert all(not set(a) & set(b) for i, a in enumerate(held) for b in held[:i])
    assert sum(bool(part) for part in held) == min(updates, len(sizes))
    if sizes and updates == 2:
        assert abs(len(held[0]) - len(held[1])) <= max(sizes)


def test_normalisers_count_own_and_peer_together_and_the_silent_ones_too():
    token, answer = Objective(), Objective(ratio="sequence", aggregation="answer")
    constant, prompt = Objective(aggregation="constant"), Objective(form="nll", aggregation="prompt")
    kl, nll = Objective(form="kl"), Objective(form="nll", token_weight="unsure")
    terms = (
        Term("own", "own", token, answers("a", 4, size=5) + answers("b", 4, size=5, advantage=0.0)),
        Term("peer", "peer", token, answers("a", 2, size=7, weight=0.0)),
        Term("sequence", "own", answer, answers("a", 3)),
        Term("drgrpo", "own", constant, answers("b", 6)),
        Term("rescue", "peer", prompt, answers("c", 1)),
        Term("kl", "own", kl, answers("a", 4, size=5)),
        Term("imitation", "peer", nll, answers("a", 3, size=6)),
    )
    (batch,) = cut_into_minibatches(terms, 1, max_tokens=48)
    assert batch.normaliser(token) == 8 * 5 + 2 * 7
    assert batch.normaliser(answer) == 3
    assert batch.normaliser(constant) == 6 * 48
    assert batch.normaliser(prompt) == 3
    assert batch.normaliser(kl) == 4 * 5
    assert batch.normaliser(nll) == 3 * 6, "what has no ratio is counted apart"
    assert [index for index, _ in batch.live()] == [0] * 4 + [2] * 3 + [3] * 6 + [4] + [5] * 4 + [6] * 3


def test_zero_updates_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        cut_into_minibatches([], 0, 48)
    with pytest.raises(ValueError, match="'own': its schedule is not settled"):
        cut_into_minibatches([Term("own", "own", Objective(), (), schedule=Schedule(1.0, 0.0))], 1, 48)


@pytest.mark.parametrize(("norm", "left"), [(1.0, 1.0), (10.0, 5.0)])
def test_a_gradient_beyond_the_norm_is_scaled_to_it_and_told_as_it_was(norm: float, left: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    gradients = Gradients([parameter], measure=False)
    assert gradients.clip(norm) == gradients.totals[0] == 5.0
    assert float(parameter.grad.norm()) == pytest.approx(left, rel=1e-5)
