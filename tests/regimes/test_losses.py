"""Every regime in whole steps (learn, mini-batches, packing, surrogate) against autograd through the written-out formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import formulas
import numpy as np
import pytest
import torch
from worlds import MAX_TOKENS, World, make_world

from harness.learning.minibatches import cut_into_minibatches, fill_old_logprobs, pack_answers
from harness.learning.registry import build
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import with_step_weights

STEPS = [
    ({"policies": 2}, 1, 0, "sampler"),
    ({"policies": 3}, 2, 1, "trainer"),
    ({"policies": 3}, 2, 0, "sampler"),
    ({"policies": 2}, 4, 1, "trainer"),
    ({"policies": 3, "invalid": 0.4, "rollouts": 3}, 1, 0, "trainer"),
    ({"policies": 3, "rollouts": (2, 5, 4)}, 1, 1, "sampler"),
    ({"policies": 2, "rollouts": 1}, 1, 0, "trainer"),
]


def current(world: World, seed: int) -> formulas.LogProbs:
    """Log-probabilities under weights that moved: near the old ones, far enough that some ratios are clipped."""
    rng = np.random.default_rng([9, seed])
    leaves = {}
    for key, a in world.answers.items():
        old = a.logprobs if key[0] == "p0" else a.receiver_old
        shift = rng.normal(0, 0.25, old.size) if key[0] != "p0" or rng.random() < 0.7 else rng.normal(0, 1e-3, old.size)
        leaves[key] = torch.tensor(np.minimum(old.astype(np.float64) + shift, -1e-4), requires_grad=True)
    return leaves


def at_start(world, key):
    """What the trainer says of an own answer before the step's first update; the sampler said something else."""
    a = world.answers[key]
    return (a.logprobs * np.linspace(0.9, 1.05, a.tokens.size)).astype(np.float32)


def harness_step(world, terms, logp, updates, old_logprobs):
    losses, gradients = [], {}

    def score(asked, answers):
        assert [p.id for p in asked] == [world.key_of(a)[1] for a in answers]
        return [at_start(world, world.key_of(a)) for a in answers]

    prompts = [g.prompt for g in world.own]
    for batch in fill_old_logprobs(cut_into_minibatches(terms, updates, MAX_TOKENS), prompts, score, old_logprobs):
        live = list(batch.live())
        if not live:
            losses.append(0.0)
            continue
        keys = [world.key_of(a.tokens) for _, a in live]
        masks = [torch.as_tensor(np.ones(a.tokens.size, bool) if a.mask is None else a.mask) for _, a in live]
        takes = [logp[k].detach()[mask] for k, mask in zip(keys, masks, strict=True)]
        flat = torch.cat(takes).requires_grad_()
        loss, _ = surrogate_loss(flat, pack_answers(batch, live))
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
    batches = [[ordered[i] for i in batch] for batch in np.array_split(np.arange(len(ordered)), updates)]
    units = [{(row.late, row.key[1]) for row in batch} for batch in batches]
    assert all(not a & b for a, b in itertools.pairwise(units))
    return batches


def token(world, rows, logp, old, update):
    return formulas.token_loss(rows, logp, old)


def gspo(world, rows, logp, old, update):
    return formulas.hacpo_loss(world, rows, logp, old, 0.0, 0.0, False)


@dataclass
class Case:
    """A regime, which rows its formulas give for a world (and the keys that it drew), and the loss of a mini-batch of them."""

    regime: str
    rows: Callable[[World, list[formulas.Key]], list[formulas.Row]]
    options: dict[str, Any] = field(default_factory=dict)
    loss: Callable[..., torch.Tensor] = token
    peers: str | None = "receiver_old"
    updates: int = 4


def pooled(**settings):
    return lambda world, drawn: formulas.pooled(world, **settings)


def sapo(world, drawn):
    groups = sorted({key[:2] for key in drawn})
    return formulas.independent(world) + [r for p, x in groups for r in formulas.grpo(world, world.group(p, x))]


def hacpo(alpha: float, stepwise: bool, by_bytes: bool) -> Case:
    def loss(world, rows, logp, old, update):
        low = min(1.0, 1 - 0.2 + update * 0.07) if stepwise else 0.8
        return formulas.hacpo_loss(world, rows, logp, old, low, alpha, by_bytes)

    length = "bytes" if by_bytes else "own_tokens"
    options = {"length_normalisation": length, "stepwise_clip": stepwise, "alpha": alpha, "delta_step": 0.07}
    return Case("hacpo", lambda world, _: formulas.hacpo([world]), options, loss)


def ftis(
    cap: float, weighs: bool, gamma: float, union: bool = False, of_author: bool = False, stay: bool = True,
    by_answer: bool = True, inner: bool = False,
) -> Case:  # fmt: skip
    options = {
        "truncation": cap, "beyond": "weight" if weighs else "none", "filter_kl": gamma,
        "groups": "union" if union else "vertical", "divergence": "author" if of_author else "learner",
        "filtered": "stay" if stay else "leave", "aggregation": "answer" if by_answer else "token",
        "clip": "inner" if inner else "none",
    }  # fmt: skip

    def loss(world, rows, logp, old, update):
        return formulas.ftis_loss(world, rows, logp, old, cap, weighs, by_answer, inner)

    return Case(
        "ftis", lambda world, _: formulas.ftis(world, gamma, union, of_author, stay), options, loss,
        "receiver_old" if inner else "aligned",
        4 if stay or gamma > 10 else 1,  # a group that the filter thins is no equal part
    )  # fmt: skip


def graft(loss: Callable[..., torch.Tensor] = token, options: dict[str, Any] | None = None, **switches: Any) -> Case:
    """One update: groups that the floor thins are no equal parts (tests/regimes/test_graft.py has their order)."""
    return Case("graft", lambda world, _: formulas.graft(world, **switches), options or {}, loss, updates=1)


def sequence(world, rows, logp, old, update):
    return formulas.sequence_loss(rows, logp, old)


def shaped(world, rows, logp, old, update):
    return formulas.luffy_loss(rows, logp, old, lambda p: 0.1 * p / (p + 0.1) ** 2)


def stepped(world, rows, logp, old, update):
    return formulas.hacpo_loss(world, rows, logp, old, min(1.0, 0.8 + update * 0.025), 1.0, False)


def xgrpo(baseline: str, beta: float, normalise: str) -> Case:
    options = {"baseline": baseline, "beta": beta, "normalise": normalise}
    return Case("xgrpo", lambda world, _: formulas.xgrpo(world, baseline, beta, normalise == "std"), options)


def luffy(weight: Callable[[float], float], **options: Any) -> Case:
    def loss(world, rows, logp, old, update):
        return formulas.luffy_loss(rows, logp, old, weight)

    return Case("luffy", lambda world, _: formulas.luffy(world), options, loss, updates=1)


def chord(mu: float, **options: Any) -> Case:
    def loss(world, rows, logp, old, update):
        imitated = [k for x in world.prompts for k in formulas.successes(world, x)]
        return formulas.chord_loss(rows, imitated, logp, old, mu, options.get("phi", True))

    return Case("chord", lambda world, _: formulas.independent(world), options, loss, updates=1)


CASES = {
    "grpo": Case("independent", lambda world, _: formulas.independent(world)),
    "dr_grpo": Case(
        "independent", lambda world, _: formulas.independent(world, dr=True), {"objective": "dr_grpo"},
        lambda world, rows, logp, old, m: formulas.token_loss(rows, logp, old, len(rows) * MAX_TOKENS),
    ),
    "grpo_answer": Case(
        "independent", lambda world, _: formulas.independent(world), {"objective": "grpo_answer"},
        lambda world, rows, logp, old, m: formulas.answer_loss(rows, logp, old),
    ),
    "gspo": Case("independent", lambda world, _: formulas.independent(world), {"objective": "gspo"}, gspo),
    "naive": Case("naive", pooled()),
    "prp": Case("prp", pooled(), peers="aligned"),
    "prp receiver_old": Case("prp", pooled(union=False), {"ratio": "receiver_old", "groups": "per_source"}),
    "prp none": Case("prp", pooled(scale=False), {"ratio": "none", "normalise": "none"}, peers=None),
    "xgrpo": xgrpo("pooled", 0.5, "std"),
    "xgrpo mixed": xgrpo("mixed", 0.3, "none"),
    "xgrpo peers": xgrpo("mixed", 1.0, "std"),
    "sapo": Case("sapo", sapo, updates=1),
    "sapo two": Case("sapo", sapo, {"external": 2}, updates=1),
    "graft": graft(),
    "graft no floor": graft(options={"threshold": 0.0}, threshold=0.0),
    "graft no gate": graft(options={"admission": "none"}, gate=False),
    "graft no balancing": graft(options={"selection": "all"}, balance=False),
    "graft sequence": graft(sequence, {"ratio": "sequence"}),
    "graft pooled": graft(options={"groups": "pooled"}, pooled=True),
    "graft right": graft(options={"answers": "right"}, right_only=True),
    "grafted luffy": Case("grafted", lambda world, _: formulas.grafted_luffy(world), {}, shaped, updates=1),
    "grafted hacpo": Case("grafted", lambda world, _: formulas.grafted_hacpo(world), {"update": "hacpo"}, stepped),
    "ftis": ftis(2.0, True, 50.0),
    "ftis narrow": ftis(0.5, True, 3.0, of_author=True),
    "ftis cut": ftis(0.5, False, 3.0, union=True, stay=False, by_answer=False),
    "ftis inner": ftis(1.1, True, 3.0, inner=True),
    "ftis leave": ftis(2.0, True, 3.0, stay=False),
    "luffy": luffy(lambda p: 0.1 * p / (p + 0.1) ** 2),
    "luffy weight": luffy(lambda p: p / (p + 0.5), gamma=0.5, gradient="weight"),
    "chord": chord(0.9),
    "chord mu": chord(0.3, phi=False, mu_first=0.3, mu_last=0.3),
    "hacpo": hacpo(1.0, True, False),
    "hacpo fixed bytes": hacpo(3.0, False, True),
    "hacpo flat": hacpo(0.0, True, False),
}  # fmt: skip


def compare(case: Case, step: tuple[Any, ...], regime: Any, loss_of: Callable[..., torch.Tensor]) -> None:
    sizes, updates, seed, old_logprobs = step
    world, updates = make_world(seed, prompts=8, **sizes), min(updates, case.updates)
    logp = current(world, seed)
    terms = with_step_weights(regime.learn(world.own, world.inbox, world.context(updates=updates)), 1, 10)
    drawn = [world.key_of(a.tokens) for t in terms if t.source == "peer" for a in t.answers]

    def denominator(update):
        def of(key):
            a = world.answers[key]
            if key[0] != "p0":
                values = getattr(a, case.peers) if case.peers else None
            elif old_logprobs == "sampler":
                values = a.logprobs
            else:  # the current log-probability without gradient is the trainer's in the first update
                values = at_start(world, key) if update else None
            return None if values is None else torch.tensor(values.astype(np.float64))

        return of

    losses, gradients = harness_step(world, terms, logp, updates, old_logprobs)
    batches = cut(case.rows(world, drawn), updates)
    expected = [loss_of(world, rows, logp, denominator(m), m) for m, rows in enumerate(batches)]
    sum(expected).backward()
    assert losses == pytest.approx([e.item() for e in expected], rel=1e-9, abs=1e-12)
    for key, leaf in logp.items():
        slope = torch.zeros(len(leaf), dtype=torch.float64) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(
            torch.as_tensor(gradients.get(key, torch.zeros_like(slope))), slope, rtol=1e-6, atol=1e-9
        )
    assert (
        sizes.get("rollouts") == 1
        or sum(leaf.grad is not None and bool(leaf.grad.any()) for leaf in logp.values()) >= 2
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_step_is_the_formula(step, name):
    case = CASES[name]
    compare(case, step, build(case.regime, case.options), case.loss)


@pytest.mark.parametrize("step", [s for s in STEPS if s[1] < 4], ids=str)
def test_sgt(step):
    world = make_world(step[2], prompts=8, **step[0])
    regime = build("sgt", {"lambda": 0.3})
    terms = regime.learn(world.own, world.inbox, world.context())
    imitated, rescues = [world.key_of(a.tokens) for a in terms[1].answers], formulas.rescues(world)
    assert [key[1] for key in imitated] == list(rescues)
    assert all(key in rescues[key[1]] for key in imitated)

    def loss(world, rows, logp, old, update):
        here = {r.key[1] for r in rows}
        nll = sum((-logp[k].mean() for k in imitated if k[1] in here), torch.zeros((), dtype=torch.float64))
        return formulas.token_loss(rows, logp, old) + 0.3 * nll / len(here)

    compare(Case("sgt", lambda world, _: formulas.independent(world)), step, regime, loss)


def test_these_worlds_exercise_replacement_thresholds_and_filters():
    every, kept = ([r for s in range(60) for r in formulas.graft(make_world(s, policies=3), gate=gate) if r.late]
                   for gate in (False, True))  # fmt: skip
    assert {1.0} < {r.weight for r in kept}
    assert 0 < len(kept) < len(every)
    worlds = [make_world(seed, policies=3) for seed in range(30)]
    rows = [(w, r) for w in worlds for r in formulas.pooled(w, union=False) if not r.own]
    near = [(formulas.far(w, r.key) < 3, formulas.far(w, r.key, True) < 3, r.advantage > 0) for w, r in rows]
    for of_learner, of_author, better in itertools.product((True, False), repeat=3):
        assert (of_learner, of_author, better) in near


@pytest.mark.parametrize(
    "seeds", [range(2, 12), pytest.param(range(12, 40), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("graft")])
def test_grafts_step_is_the_formula_in_many_worlds(name, seeds):
    case = CASES[name]
    for seed in seeds:
        compare(case, ({"policies": 3}, 1, seed, "trainer"), build(case.regime, case.options), case.loss)


def test_draws_are_uniform_and_without_repeats():
    world = next(w for w in (make_world(s, policies=3, prompts=1) for s in range(99)) if any(
        len(k) == 4 and len({a for a, _, _ in k}) == 2 for k in formulas.rescues(w).values()))  # fmt: skip
    (keys,) = formulas.rescues(world).values()
    wide = make_world(4, policies=3, prompts=8)
    mixed = [
        (p, x) for x in wide.prompts for p in wide.policies[1:] if len({wide.reward(k) for k in wide.group(p, x)}) == 2
    ]
    drawn, groups = dict.fromkeys(keys, 0), dict.fromkeys(mixed, 0)
    for seed in range(1000):
        (success,) = build("sgt", {}).learn(world.own, world.inbox, world.context(seed=seed))[1].answers
        drawn[world.key_of(success.tokens)] += 1
        peer = build("sapo", {"external": 2}).learn(wide.own, wide.inbox, wide.context(seed=seed))[1]
        chosen = {wide.key_of(a.tokens)[:2] for a in peer.answers}
        assert len(chosen) == 2
        for group in chosen:
            groups[group] += 1
    for counts, share in ((drawn, 1 / 4), (groups, 2 / len(mixed))):
        assert all(abs(n / 1000 - share) < 5 * (share * (1 - share) / 1000) ** 0.5 for n in counts.values())
    for external, due in ((None, 8), (0, 0), (99, len(mixed))):
        peer = build("sapo", {"external": external}).learn(wide.own, wide.inbox, wide.context())[1]
        assert len({wide.key_of(a.tokens)[:2] for a in peer.answers}) == min(due, len(mixed))
    earlier = [replace(group, answers=()) for group in wide.own[2:]]
    peer = build("sapo", {}).learn([*wide.own[:2], *earlier], wide.inbox, wide.context())[1]
    assert len({wide.key_of(a.tokens)[:2] for a in peer.answers}) == 2 < len(mixed)
