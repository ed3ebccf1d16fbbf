"""A whole step of each regime (learn, mini-batches, packing, surrogate) against autograd through the written-out loss."""

from __future__ import annotations

import itertools

import formulas
import numpy as np
import pytest
import torch
from worlds import MAX_TOKENS, World, make_world

from harness.learning.minibatches import minibatches, pack, settle
from harness.learning.registry import build
from harness.learning.surrogate import surrogate

PROMPTS = 8


def current(world: World, seed: int) -> formulas.LogProbs:
    """Log-probabilities under weights that moved: near the old ones, far enough that some ratios are clipped."""
    rng = np.random.default_rng([9, seed])
    found = {}
    for key, a in world.answers.items():
        old = a.logprobs if key[0] == "p0" else a.receiver_old
        shift = rng.normal(0, 0.25, old.size) if key[0] != "p0" or rng.random() < 0.7 else rng.normal(0, 1e-3, old.size)
        found[key] = torch.tensor(np.minimum(old.astype(np.float64) + shift, -1e-4), requires_grad=True)
    return found


def harness_step(world, regime, logp, updates, old_logprobs):
    """Loss of each mini-batch and the gradient by (answer's key, update)."""
    terms = regime.learn(world.own, world.inbox, world.context(updates=updates))
    losses, gradients = [], {}
    batches = minibatches(terms, updates, MAX_TOKENS)
    prompts = [g.prompt for g in world.own]

    def score(asked, answers):
        assert [p.id for p in asked] == [world.key_of(a)[1] for a in answers]
        return [at_start(world, world.key_of(a)) for a in answers]

    for batch in settle(batches, prompts, score, old_logprobs):
        live = list(batch.live())
        if not live:
            losses.append(0.0)
            continue
        keys = [world.key_of(a.tokens) for _, a in live]
        masks = [torch.as_tensor(np.ones(a.tokens.size, bool) if a.mask is None else a.mask) for _, a in live]
        takes = [logp[k].detach()[mask] for k, mask in zip(keys, masks, strict=True)]
        flat = torch.cat(takes).requires_grad_()
        loss, _ = surrogate(flat, pack(batch, live))
        loss.backward()
        losses.append(loss.item())
        for key, mask, part in zip(keys, masks, flat.grad.split([t.numel() for t in takes]), strict=True):
            full = torch.zeros(mask.numel(), dtype=torch.float64)
            full[mask] = part
            gradients[key] = gradients.get(key, 0) + full
    return losses, gradients


def cut(rows, updates):
    """Rows in contiguous mini-batches of equally many answers, whole prompts, own prompts first where peers come late."""
    place = {x: i for i, x in enumerate(dict.fromkeys(r.key[1] for r in sorted(rows, key=lambda r: r.late)))}
    ordered = sorted(rows, key=lambda r: (r.late, place[r.key[1]]))
    batches = np.array_split(np.arange(len(ordered)), updates)
    units = [[(ordered[i].late, ordered[i].key[1]) for i in batch] for batch in batches]
    assert all(not set(a) & set(b) for a, b in itertools.pairwise(units))
    return [[ordered[i] for i in batch] for batch in batches]


def compare(world, regime, logp, updates, old_logprobs, batches, loss_of):
    losses, gradients = harness_step(world, regime, logp, updates, old_logprobs)
    expected = [loss_of(rows, m) for m, rows in enumerate(batches)]
    sum(expected).backward()
    assert losses == pytest.approx([e.item() for e in expected], rel=1e-9, abs=1e-12)
    moved = 0
    for key, leaf in logp.items():
        slope = torch.zeros(len(leaf), dtype=torch.float64) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(
            torch.as_tensor(gradients.get(key, torch.zeros_like(slope))), slope, rtol=1e-6, atol=1e-9
        )
        moved += bool(slope.any())
    assert moved >= 2


def at_start(world, key):
    """What the trainer says of an own answer before the step's first update; the sampler said something else."""
    a = world.answers[key]
    return (a.logprobs * np.linspace(0.9, 1.05, a.tokens.size)).astype(np.float32)


def denominators(world, old_logprobs, peers="receiver_old"):
    """By update and answer. None: the current log-probability without gradient, which is the trainer's in the first update."""

    def old(update):
        def of(key):
            a = world.answers[key]
            if key[0] != "p0":
                values = getattr(a, peers) if peers else None
            elif old_logprobs == "sampler":
                values = a.logprobs
            else:
                values = at_start(world, key) if update else None
            return None if values is None else torch.tensor(values.astype(np.float64))

        return of

    return old


STEPS = [
    (policies, updates, seed, old)
    for policies, updates in ((2, 1), (3, 2), (2, 4))
    for seed, old in ((0, "sampler"), (1, "sampler"), (0, "trainer"), (1, "trainer"))
]


@pytest.fixture(params=STEPS, ids=str)
def step(request):
    policies, updates, seed, old_logprobs = request.param
    world = make_world(seed, policies=policies, prompts=PROMPTS)
    return world, current(world, seed), updates, old_logprobs


def test_independent(step):
    world, logp, updates, old_logprobs = step
    rows = formulas.independent(world)
    old = denominators(world, old_logprobs)
    compare(world, build("independent", {}), logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.token_loss(r, logp, old(m)))  # fmt: skip


def test_dr_grpo(step):
    world, logp, updates, old_logprobs = step
    rows, old = formulas.independent(world, dr=True), denominators(world, old_logprobs)
    compare(world, build("independent", {"objective": "dr_grpo"}), logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.token_loss(r, logp, old(m), len(r) * MAX_TOKENS))  # fmt: skip


def test_gspo(step):
    world, logp, updates, old_logprobs = step
    rows, old = formulas.independent(world), denominators(world, old_logprobs)
    compare(world, build("independent", {"objective": "gspo"}), logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.hacpo_loss(world, r, logp, old(m), 0.0, 0.0, False))  # fmt: skip


@pytest.mark.parametrize("ratio", ["behaviour", "receiver_old", "none"])
@pytest.mark.parametrize("groups", ["union", "per_source"])
def test_prp(step, ratio, groups):
    world, logp, updates, old_logprobs = step
    rows = formulas.pooled(world, groups == "union")
    old = denominators(
        world, old_logprobs, {"behaviour": "aligned", "receiver_old": "receiver_old", "none": None}[ratio]
    )
    compare(world, build("prp", {"ratio": ratio, "groups": groups}), logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.token_loss(r, logp, old(m)))  # fmt: skip


def test_naive(step):
    world, logp, updates, old_logprobs = step
    old = denominators(world, old_logprobs)
    compare(world, build("naive", {}), logp, updates, old_logprobs, cut(formulas.pooled(world), updates),
            lambda r, m: formulas.token_loss(r, logp, old(m)))  # fmt: skip


@pytest.mark.parametrize(("baseline", "normalise"), [("pooled", "std"), ("mixed", "none")])
def test_xgrpo(step, baseline, normalise):
    world, logp, updates, old_logprobs = step
    rows, old = formulas.xgrpo(world, baseline, 0.5, normalise == "std"), denominators(world, old_logprobs)
    compare(world, build("xgrpo", {"baseline": baseline, "normalise": normalise}), logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.token_loss(r, logp, old(m)))  # fmt: skip


def test_graft(step):
    world, logp, _, old_logprobs = step
    rows, old = formulas.graft(world), denominators(world, old_logprobs)
    for updates in (1, 2, 4):
        for leaf in logp.values():
            leaf.grad = None
        compare(world, build("graft", {}), logp, updates, old_logprobs, cut(rows, updates),
                lambda r, m: formulas.token_loss(r, logp, old(m)))  # fmt: skip


@pytest.mark.parametrize("beyond", ["weight", "none"])
@pytest.mark.parametrize("cap", [0.5, 2.0])
def test_ftis(step, beyond, cap):
    world, logp, updates, old_logprobs = step
    rows, old = formulas.ftis(world, 20.0), denominators(world, old_logprobs, "aligned")
    ratios = torch.cat([torch.exp(logp[r.key] - old(0)(r.key)) for r in rows if not r.own]).detach()
    assert 0.02 < (ratios > cap).double().mean() < 0.98
    regime = build("ftis", {"beyond": beyond, "truncation": cap, "filter_kl": 20.0})
    compare(world, regime, logp, updates, old_logprobs, cut(rows, updates),
            lambda r, m: formulas.ftis_loss(world, r, logp, old(m), cap, beyond == "weight"))  # fmt: skip


def test_sapo(step):
    world, logp, _, old_logprobs = step
    regime, old = build("sapo", {}), denominators(world, old_logprobs)
    drawn = {world.key_of(a.tokens)[:2] for a in regime.learn(world.own, world.inbox, world.context())[1].answers}
    rows = formulas.independent(world)
    rows += [r for p, x in sorted(drawn) for r in formulas.grpo(world, world.group(p, x))]
    compare(world, regime, logp, 1, old_logprobs, [rows], lambda r, m: formulas.token_loss(r, logp, old(m)))


def test_sgt(step):
    """L_GRPO + lambda NLL, the NLL averaged over all prompts of the mini-batch."""
    world, logp, updates, old_logprobs = step
    updates = min(updates, 2)
    regime, old = build("sgt", {"lambda": 0.3}), denominators(world, old_logprobs)
    imitated = [world.key_of(a.tokens) for a in regime.learn(world.own, world.inbox, world.context())[1].answers]

    def loss(rows, m):
        here = {r.key[1] for r in rows}
        nll = sum((-logp[k].mean() for k in imitated if k[1] in here), torch.zeros((), dtype=torch.float64))
        return formulas.token_loss(rows, logp, old(m)) + 0.3 * nll / len(here)

    compare(world, regime, logp, updates, old_logprobs, cut(formulas.independent(world), updates), loss)


@pytest.mark.parametrize("length", ["own_tokens", "bytes"])
@pytest.mark.parametrize(("stepwise", "alpha"), [(True, 1.0), (False, 1.0), (True, 3.0), (True, 0.0)])
def test_hacpo(step, length, stepwise, alpha):
    """Own before peers, so that with several updates the peers' lower bound has risen by m delta_step."""
    world, logp, updates, old_logprobs = step
    regime = build(
        "hacpo", {"length_normalisation": length, "stepwise_clip": stepwise, "alpha": alpha, "delta_step": 0.07}
    )
    rows, old = formulas.hacpo([world]), denominators(world, old_logprobs)

    def loss(rows, m):
        low = min(1.0, 1 - 0.2 + m * 0.07) if stepwise else 0.8
        return formulas.hacpo_loss(world, rows, logp, old(m), low, alpha, length == "bytes")

    compare(world, regime, logp, updates, old_logprobs, cut(rows, updates), loss)


def test_hacpo_peers_share_the_only_mini_batch_and_its_bound():
    world = make_world(0)
    terms = build("hacpo", {}).learn(world.own, world.inbox, world.context())
    (batch,) = minibatches(terms, 1, MAX_TOKENS)
    assert all(t.answers for t in batch.terms)
    assert batch.terms[1].objective.bounds(batch.update) == (0.8, 1.0)
    first, second, third, fourth = minibatches(terms, 4, MAX_TOKENS)
    assert not first.terms[1].answers
    assert not second.terms[1].answers
    assert [b.terms[1].objective.bounds(b.update)[0] for b in (third, fourth)] == pytest.approx([0.85, 0.875])
    assert terms[1].objective.bounds(50) == (1.0, 1.0)
