"""The surrogate against the formulas of docs/formulas.md, written out answer by answer in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from harness.learning.minibatches import MiniBatch, pack_answers
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import Objective, Term, TermAnswer

FORMS, RATIOS = ("ppo", "hard", "truncated", "nll", "kl"), ("token", "sequence", "cross")
AGGREGATIONS = ("token", "answer", "prompt", "constant")
CASES = list(product(FORMS, RATIOS, AGGREGATIONS))
MAX_TOKENS = 12


def objective(form, ratio, aggregation):
    return Objective(ratio, form, 0.8, 1.2, low_step=0.03, exponent=1.5, log_bound=0.9, aggregation=aggregation)


def make_batch(form, ratio, aggregation, seed=0, update=2):
    """Two terms that share the aggregation, and the log-probabilities of each answer's tokens."""
    rng = np.random.default_rng(seed)
    terms, logps = [], {}
    for source, weight in (("own", 1.0), ("peer", 0.7)):
        answers = []
        for index in range(14):
            size = int(rng.integers(1, MAX_TOKENS))
            logp = -rng.gamma(1.0, 1.0, size)
            off = rng.normal(0, 0.5, size) if index % 4 else np.zeros(size)
            denominator = (logp + off).astype(np.float32)
            answers.append(
                TermAnswer(
                    prompt_id=f"p{index // 4}",
                    tokens=np.arange(size, dtype=np.int32),
                    advantage=float(rng.normal()) if index != 5 else 0.0,
                    denominator=float(denominator.mean() + rng.normal(0, 0.2)) if ratio == "cross" else denominator,
                    weight=0.0 if index == 3 else float(rng.uniform(0.2, 2.0)),
                    mask=rng.random(size) < 0.8 if index % 3 == 0 and size > 2 else None,
                    scale=1.0 if index % 2 else 0.6,
                )
            )
            if answers[-1].counted == 0:
                answers[-1] = replace(answers[-1], mask=None)
            logps[id(answers[-1])] = logp
        if form == "ppo" and ratio != "cross":
            answers[1] = replace(answers[1], denominator=None)
            logps[id(answers[1])] = -np.ones(answers[1].tokens.size)
        terms.append(Term(source, source, objective(form, ratio, aggregation), tuple(answers), weight=weight))
    return MiniBatch(update, tuple(terms), MAX_TOKENS), logps


def by_the_book(batch, logps):
    """Loss and the gradient by answer, one Python loop per answer and token, autograd through the plain formulas."""
    total, leaves = torch.zeros((), dtype=torch.float64), {}
    everything = [a for t in batch.terms for a in t.answers]
    divisors = {
        "token": sum(a.counted for a in everything),
        "answer": len(everything),
        "prompt": len({a.prompt_id for a in everything}),
        "constant": len(everything) * MAX_TOKENS,
    }
    for term in batch.terms:
        o = term.objective
        low, high = min(1.0, o.low + batch.update * o.low_step), o.high
        for answer in term.answers:
            taking = range(answer.tokens.size) if answer.mask is None else np.flatnonzero(answer.mask)
            leaf = torch.tensor(logps[id(answer)][list(taking)], dtype=torch.float64, requires_grad=True)
            leaves[id(answer)] = leaf
            if answer.denominator is None:
                old = leaf.detach()
            elif o.ratio == "cross":
                old = torch.full_like(leaf, answer.denominator)
            else:
                old = torch.tensor(np.asarray(answer.denominator, dtype=np.float64)[list(taking)])
            log_ratios = [leaf[t] - old[t] for t in range(len(leaf))]
            if o.ratio != "token" and o.form in ("ppo", "hard", "truncated"):
                log_ratios = [(leaf.mean() - old.mean())] * len(leaf)
            numbers = []
            for t, log_ratio in enumerate(log_ratios):
                bounded = (answer.scale * log_ratio).clamp(-o.log_bound, o.log_bound)
                r, a = bounded.exp(), answer.advantage
                if o.form == "ppo":
                    numbers.append(torch.minimum(r * a, r.clamp(low, high) * a))
                elif o.form == "hard":
                    c = r.clamp(low, high)
                    numbers.append(c * c.detach() ** o.exponent * a)
                elif o.form == "truncated":
                    numbers.append(
                        r * a if r <= high else high * a * (1 + answer.scale * (log_ratio - log_ratio.detach()))
                    )
                elif o.form == "nll":
                    numbers.append(leaf[t])
                else:
                    numbers.append(-((-bounded).exp() - (-bounded) - 1))
            value = sum(numbers)
            if o.aggregation in ("answer", "prompt"):
                value = value / len(numbers)
            total = total - term.weight * answer.weight * value / divisors[o.aggregation]
    total.backward()
    return total.item(), {key: leaf.grad for key, leaf in leaves.items()}


def flat(chosen, logps, dtype=torch.float64):
    parts = [logps[id(a)] if a.mask is None else logps[id(a)][a.mask] for _, a in chosen]
    return torch.tensor(np.concatenate(parts), dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(("form", "ratio", "aggregation"), CASES)
def test_loss_and_gradient_follow_the_formula(form, ratio, aggregation):
    batch, logps = make_batch(form, ratio, aggregation)
    live = list(batch.live())
    logp = flat(live, logps)
    packed = pack_answers(batch, live)
    loss, statistics = surrogate_loss(logp, packed)
    loss.backward()
    expected, gradients = by_the_book(batch, logps)
    silent = [a for t in batch.terms for a in t.answers if id(a) not in {id(a) for _, a in live}]
    assert silent
    assert all(not gradients[id(a)].any() for a in silent)
    # What has no gradient may be left out of the forward pass; only ppo's and hard's zero advantages also add no loss.
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert statistics.loss.sum() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(logp.grad, torch.cat([gradients[id(a)] for _, a in live]), rtol=1e-10, atol=1e-14)
    moved = [int((gradients[id(a)] != 0).sum()) for _, a in live]
    assert statistics.active_tokens.tolist() == moved
    bounded = form in ("ppo", "hard", "truncated")
    assert statistics.clipped_tokens.tolist() == [
        (a.counted - m) * bounded for (_, a), m in zip(live, moved, strict=True)
    ]
    assert loss.item() != 0
    if form in ("ppo", "hard", "truncated"):
        assert (statistics.ratio_count == (packed.counts if ratio == "token" else 1)).all()
        assert (statistics.ratio_square * statistics.ratio_count >= statistics.ratio_sum**2 - 1e-9).all()
    else:  # imitation weighs one an answer, a divergence nothing
        assert (statistics.ratio_sum == statistics.ratio_count).all()
        assert (statistics.ratio_square == statistics.ratio_count).all()
        assert (statistics.ratio_count == (form == "nll")).all()
        assert not statistics.clipped_tokens.any()
    if form in ("ppo", "hard"):
        assert 0 < statistics.clipped_tokens.sum() < packed.counts.sum()


@pytest.mark.parametrize(("form", "ratio", "aggregation"), CASES)
def test_microbatches_add_up(form, ratio, aggregation):
    batch, logps = make_batch(form, ratio, aggregation, seed=1)
    live = list(batch.live())
    whole = flat(live, logps)
    loss, _ = surrogate_loss(whole, pack_answers(batch, live))
    loss.backward()
    order = np.random.default_rng(0).permutation(len(live))
    total, gradient = 0.0, {}
    for piece in np.array_split(order, 5):
        chosen = [live[i] for i in piece]
        logp = flat(chosen, logps)
        packed = pack_answers(batch, chosen)
        part, _ = surrogate_loss(logp, packed)
        part.backward()
        total += part.item()
        gradient |= dict(zip(piece.tolist(), logp.grad.split(packed.counts.tolist()), strict=True))
    assert total == pytest.approx(loss.item(), rel=1e-12)
    assert torch.equal(torch.cat([gradient[i] for i in range(len(live))]), whole.grad)


SHAPES = {
    "one": lambda p: 1.0 + 0 * p,
    "shaped": lambda p: p / (p + 0.3),
    "slope": lambda p: 0.3 * p / (p + 0.3) ** 2,
    "unsure": lambda p: p * (1 - p),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", ["ppo", "hard", "truncated", "nll", "kl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_weight_multiplies_each_token_and_carries_no_gradient(shape, form, dtype):
    """Token weights without gradient in the one loss: each token's gradient is that of weight one times w(p)."""
    plain, logps = make_batch(form, "token", "token")
    terms = (replace(t, objective=replace(t.objective, token_weight=shape, gamma=0.3)) for t in plain.terms)
    runs = []
    for batch in (plain, replace(plain, terms=tuple(terms))):
        live = list(batch.live())
        logp = flat(live, logps, dtype)
        packed = pack_answers(batch, live)
        loss, statistics = surrogate_loss(logp, packed)
        loss.backward()
        runs.append((logp, packed, statistics))
    (leaf, _, one), (logp, packed, weighed) = runs
    weight = SHAPES[shape](leaf.detach().double().exp())
    torch.testing.assert_close(logp.grad.double(), leaf.grad.double() * weight, rtol=2e-6, atol=1e-9)
    assert weighed.active_tokens.tolist() == one.active_tokens.tolist()
    assert weighed.clipped_tokens.tolist() == one.clipped_tokens.tolist()
    if shape != "one" and form != "kl":
        assert (weighed.ratio_count == packed.counts).all()
        each = partial(np.repeat, repeats=packed.counts)
        log_ratio = (logp.detach().double().numpy() - packed.denominator) * each(packed.log_scale)
        ratio = np.exp(np.where(each(packed.on_policy) | (form == "nll"), 0.0, log_ratio.clip(-0.9, 0.9)))
        sums = np.add.reduceat(ratio * weight.numpy(), np.cumsum(packed.counts) - packed.counts)
        assert weighed.ratio_sum == pytest.approx(sums, rel=1e-5)


def test_bounds_tighten_with_further_updates():
    """HACPO's lower bound rises by `low_step` per update, up to 1: fewer answers keep a gradient."""
    active = []
    for update in (0, 3, 10):
        batch, logps = make_batch("hard", "cross", "answer", update=update)
        live = list(batch.live())
        active.append(int((surrogate_loss(flat(live, logps), pack_answers(batch, live))[1].active_tokens > 0).sum()))
    assert active[0] > active[1] > active[2]


def test_refuses_what_does_not_fit():
    short = TermAnswer("p", np.arange(3, dtype=np.int32), 1.0, denominator=np.zeros(2, np.float32))
    batch = MiniBatch(0, (Term("own", "own", Objective(), (short,)),), MAX_TOKENS)
    with pytest.raises(ValueError, match="2 log-probabilities for 3 tokens"):
        pack_answers(batch, [(0, short)])
    bare = replace(short, denominator=None)
    batch = MiniBatch(0, (Term("peer", "peer", Objective("cross", "hard"), (bare,)),), MAX_TOKENS)
    with pytest.raises(ValueError, match="lacks its denominator"):
        pack_answers(batch, [(0, bare)])
    batch = MiniBatch(0, (Term("own", "own", Objective(), (bare,)),), MAX_TOKENS)
    with pytest.raises(ValueError, match="2 log-probabilities for 3 tokens"):
        surrogate_loss(torch.zeros(2), pack_answers(batch, [(0, bare)]))
