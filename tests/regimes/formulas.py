"""docs/formulas.md's advantages, weights and losses as plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from worlds import Key, World

EPS = 1e-6


@dataclass
class Row:
    key: Key
    advantage: float
    weight: float = 1.0
    late: bool = False

    @property
    def own(self) -> bool:
        return self.key[0] == "p0"


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def std(numbers: Sequence[float]) -> float:
    if len(numbers) < 2:
        return 0.0
    centre = mean(numbers)
    return math.sqrt(math.fsum((r - centre) ** 2 for r in numbers) / (len(numbers) - 1))


def rewards(world: World, keys: Sequence[Key]) -> list[float]:
    return [world.reward(k) for k in keys]


def z(r: float, pool: Sequence[float], scale: bool = True) -> float:
    return (r - mean(pool)) / (std(pool) + EPS) if scale else r - mean(pool)


def grpo(world: World, keys: Sequence[Key]) -> list[Row]:
    pool = rewards(world, keys)
    return [Row(k, z(world.reward(k), pool)) for k in keys]


def independent(world: World, dr: bool = False) -> list[Row]:
    rows = []
    for x in world.prompts:
        keys = world.group("p0", x)
        pool = rewards(world, keys)
        rows += [Row(k, z(world.reward(k), pool, scale=not dr)) for k in keys]
    return rows


def pooled(world: World, union: bool = True, scale: bool = True) -> list[Row]:
    rows = []
    for x in world.prompts:
        everyone = [k for p in world.policies for k in world.group(p, x)]
        for p in world.policies:
            keys = world.group(p, x)
            pool = rewards(world, everyone if union else keys)
            rows += [Row(k, z(world.reward(k), pool, scale)) for k in keys]
    return rows


def xgrpo(world: World, baseline: str, beta: float, scale: bool) -> list[Row]:
    rows = []
    for x in world.prompts:
        own = world.group("p0", x)
        peers = [world.reward(k) for p in world.policies[1:] for k in world.group(p, x)]
        mine = rewards(world, own)
        union = [*mine, *peers]
        for i, k in enumerate(own):
            if baseline == "pooled" or not peers:
                b = mean(union)
            else:
                others = [r for n, r in enumerate(mine) if n != i]
                b = (1 - beta) * mean(others or peers) + beta * mean(peers)
            a = world.reward(k) - b
            rows.append(Row(k, a / (std(union) + EPS) if scale else a))
    return rows


def rescues(world: World) -> dict[str, list[Key]]:
    """Prompts on which all own answers fail, with every verified success of a peer."""
    rescued = {}
    for x in world.prompts:
        own = world.group("p0", x)
        right = [k for p in world.policies[1:] for k in world.group(p, x) if world.reward(k) == 1]
        if own and not any(rewards(world, own)) and right:
            rescued[x] = right
    return rescued


def capability(history: Sequence[World], policy: str, window: int) -> float:
    """Share of right answers per step, averaged over the last `window` steps."""
    shares = []
    for world in history[-window:]:
        valid = [k for x in world.prompts for k in world.group(policy, x)]
        if valid:
            shares.append(mean(rewards(world, valid)))
    return max(mean(shares) if shares else 0.0, 1e-8)


def hacpo(
    history: Sequence[World], *, window: int = 5, clamp: tuple[float, float] = (0.1, 10.0), guards: bool = True,
    in_advantage: bool = True, in_gradient: bool = True,
) -> list[Row]:  # fmt: skip
    world, rows = history[-1], []

    def omega(a: str, b: str) -> float:
        ratio = capability(history, a, window) / capability(history, b, window)
        return min(max(ratio, clamp[0]), clamp[1]) if a != b else 1.0

    for x in world.prompts:
        keys = [k for p in world.policies for k in world.group(p, x)]
        if not keys:
            continue
        raw = rewards(world, keys)
        own = rewards(world, world.group("p0", x))
        mu = mean([(omega("p0", k[0]) if in_advantage else 1.0) * world.reward(k) for k in keys])
        if guards and len(set(raw)) == 1:
            mu = mean(raw)
        elif guards and mu > 1 and own:
            mu = mean(own)
        for k in keys:
            peer = k[0] != "p0"
            weight = omega(k[0], "p0") if peer and in_gradient else 1.0
            rows.append(Row(k, (world.reward(k) - mu) / (std(raw) + EPS), weight, late=peer))
    return rows


def own_length_log_ratio(world: World, key: Key) -> float:
    """log s of HACPO at pi_old: the means over each side's own tokens, final EOS left out."""
    a = world.answers[key]
    mine = [float(v) for v in a.receiver_old][: -1 if a.finished else None]
    return mean(mine) - a.source_logprob / a.source_tokens


def graft(
    world: World, threshold: float = 0.8, *, gate: bool = True, balance: bool = True, pooled: bool = False,
    right_only: bool = False,
) -> list[Row]:  # fmt: skip
    """Algorithm 1 and its switches; answers at or below the floor have no row."""

    def candidates(sender: str, receiver: str) -> dict[str, int]:
        sums = {}
        for x in world.prompts:
            theirs, mine = rewards(world, world.group(sender, x)), rewards(world, world.group(receiver, x))
            if mine and sum(mine) == 0 and 1 <= sum(theirs) < len(theirs):
                sums[x] = int(sum(theirs))
        return sums

    best: dict[str, tuple[int, str]] = {}
    for j in world.policies[1:]:
        here, back = candidates(j, "p0"), candidates("p0", j)
        q = min(len(here), len(back))
        kept = [x for x in here if sum(n > here[x] for n in here.values()) < q or not balance]
        for x in kept:
            if x not in best or here[x] > best[x][0]:
                best[x] = (here[x], j)
    rows = [r for x in world.prompts if x not in best for r in grpo(world, world.group("p0", x))]
    for x in (x for x in world.prompts if x in best):
        own, theirs = world.group("p0", x), world.group(best[x][1], x)
        pool = rewards(world, [*own, *theirs] if pooled else theirs)
        if pooled:
            rows += [Row(k, z(world.reward(k), pool)) for k in own]
        for key in theirs:
            s = math.exp(own_length_log_ratio(world, key))
            if (s <= threshold and gate) or (right_only and not world.reward(key)):
                continue
            rows.append(Row(key, z(world.reward(key), pool), min(s, 1.0) if gate else 1.0, late=True))
    return rows


def graft_chosen(world: World) -> set[tuple[str, str]]:
    """(peer, prompt) of every group that replaces an own one."""
    return {row.key[:2] for row in graft(world, gate=False) if row.late}


def grafted_luffy(world: World) -> list[Row]:
    """Chosen peer groups whole, with their authors' advantages, in place of the own groups."""
    return graft(world, gate=False)


def grafted_hacpo(world: World) -> list[Row]:
    """HACPO's rows; a peer's advantage is 0 outside the chosen groups, and its row stays in the mean."""
    chosen = graft_chosen(world)
    rows = hacpo([world])
    for row in rows:
        if not row.own and row.key[:2] not in chosen:
            row.advantage = 0.0
    return rows


def k3(log_ratio: float) -> float:
    return math.exp(log_ratio) - 1 - log_ratio


def far(world: World, key: Key, of_author: bool = False) -> float:
    """Estimated KL(learner || author), or KL(author || learner), at pi_old, summed over one peer answer's tokens."""
    a = world.answers[key]
    pairs = [(float(src), float(own)) for src, own in zip(a.aligned, a.receiver_old, strict=True)]
    return math.fsum(k3(own - src if of_author else src - own) for src, own in pairs)


def ftis(
    world: World, gamma: float = 50.0, union: bool = False, of_author: bool = False, stay: bool = True
) -> list[Row]:
    """Peer answers of positive advantage, and others where the policies are near; the rest has advantage 0, or leaves."""
    rows = []
    for row in pooled(world, union):
        if not row.own and row.advantage <= 0 and far(world, row.key, of_author) >= gamma:
            if not stay:
                continue
            row.advantage = 0.0
        rows.append(row)
    return rows


def successes(world: World, prompt: str) -> list[Key]:
    """Peers' answers that are right, whatever their authors claim."""
    return [k for p in world.policies[1:] for k in world.group(p, prompt) if world.reward(k) == 1]


def luffy(world: World) -> list[Row]:
    """Own answers and peers' right ones as one group, where there are own ones."""
    rows = []
    for x in world.prompts:
        keys = [*world.group("p0", x), *successes(world, x)] if world.group("p0", x) else []
        pool = rewards(world, keys)
        rows += [Row(k, z(world.reward(k), pool)) for k in keys]
    return rows


# --- losses of one mini-batch: `logp` holds the current log-probabilities of each answer's tokens ---

LogProbs = dict[Key, Tensor]
Denominator = Callable[[Key], Tensor | None]


def ppo(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def answer_loss(rows: Sequence[Row], logp: LogProbs, denominator: Denominator) -> Tensor:
    """GRPO's as first published: the token mean of an answer, then the mean over answers."""
    losses = [token_loss([row], logp, denominator) for row in rows]
    return torch.stack(losses).sum() / len(rows)


def token_loss(rows: Sequence[Row], logp: LogProbs, denominator: Denominator, divisor: int | None = None) -> Tensor:
    """GRPO's: summed over tokens, divided by the mini-batch's tokens (or by Dr. GRPO's constant)."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        old = denominator(row.key)
        lp = logp[row.key]
        ratio = torch.exp(lp - (lp.detach() if old is None else old))
        total = total + row.weight * ppo(ratio, row.advantage, 0.8, 1.28).sum()
    return -total / (divisor or sum(len(logp[r.key]) for r in rows))


def sequence_loss(rows: Sequence[Row], logp: LogProbs, denominator: Denominator) -> Tensor:
    """GRPO's, where every token of a peer's answer has the ratio of its answer: exp of the mean log-ratio."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        lp, old = logp[row.key], denominator(row.key)
        log_ratio = lp - (lp.detach() if old is None else old)
        ratio = torch.exp(log_ratio if row.own else log_ratio.mean().repeat(len(lp)))
        total = total + row.weight * ppo(ratio, row.advantage, 0.8, 1.28).sum()
    return -total / sum(len(logp[r.key]) for r in rows)


def hacpo_loss(
    world: World,
    rows: Sequence[Row],
    logp: LogProbs,
    denominator: Denominator,
    low: float,
    alpha: float,
    by_bytes: bool,
) -> Tensor:
    """Own: GSPO. Peers: s clamped to [low, 1], its own power without gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        answer, lp = world.answers[row.key], logp[row.key]
        if row.own:
            old = denominator(row.key)
            s = torch.exp(lp.mean() - (lp.detach() if old is None else old).mean())
            total = total + ppo(s, row.advantage, 1 - 3e-4, 1 + 4e-4)
            continue
        lp = lp[:-1] if answer.finished else lp
        if by_bytes:
            log_s = (lp.sum() - answer.source_logprob) / len(answer.text.encode())
        else:
            log_s = lp.mean() - answer.source_logprob / answer.source_tokens
        c = torch.exp(log_s.clamp(-10, 10)).clamp(low, 1.0)
        total = total + row.weight * c * c.detach() ** alpha * row.advantage
    return -total / len(rows)


def ftis_loss(
    world: World, rows: Sequence[Row], logp: LogProbs, denominator: Denominator, cap: float, weighs: bool,
    by_answer: bool = True, inner: bool = False,
) -> Tensor:  # fmt: skip
    """Own: GRPO. Peers, token by token: r A up to r = cap; beyond, cap A, with the gradient of cap A log pi or without one. With
    an inner clip: GRPO's to old_k times the truncated old_k / pi_j. By answer: every answer's token mean counts alike."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        lp, old, answer = logp[row.key], denominator(row.key), world.answers[row.key]
        share = 1 / (len(rows) * len(lp)) if by_answer else 1 / sum(len(logp[r.key]) for r in rows)
        if row.own:
            ratio = torch.exp(lp - (lp.detach() if old is None else old))
            total = total + share * ppo(ratio, row.advantage, 0.8, 1.28).sum()
            continue
        for t in range(len(lp)):
            if inner:
                src, before = float(answer.aligned[t]), float(answer.receiver_old[t])
                weight = min(math.exp(before - src), cap)
                total = total + share * weight * ppo(torch.exp(lp[t] - before), row.advantage, 0.8, 1.28)
                continue
            r = torch.exp(lp[t] - old[t])
            if r > cap:
                r = cap * (1 + (lp[t] - lp[t].detach()) * weighs)
            total = total + share * r * row.advantage
    return -total


def luffy_loss(
    rows: Sequence[Row], logp: LogProbs, denominator: Denominator, weight: Callable[[float], float]
) -> Tensor:
    """Own: GRPO. Peers, token by token: the score function times a weight of the token's probability. One divisor."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        lp = logp[row.key]
        if row.own:
            old = denominator(row.key)
            total = total + ppo(torch.exp(lp - (lp.detach() if old is None else old)), row.advantage, 0.8, 1.28).sum()
            continue
        for t in lp:
            total = total + weight(math.exp(t.item())) * torch.exp(t - t.item()) * row.advantage
    return -total / sum(len(logp[r.key]) for r in rows)


def chord_loss(
    own: Sequence[Row], imitated: Sequence[Key], logp: LogProbs, denominator: Denominator, mu: float, phi: bool
) -> Tensor:
    """(1 - mu) GRPO + mu mean_t phi(p_t) (-log p_t); without imitated answers GRPO."""
    tokens = [t for k in imitated for t in logp[k]]
    if not tokens:
        return token_loss(own, logp, denominator)
    nll = sum((math.exp(t.item()) * (1 - math.exp(t.item())) if phi else 1.0) * -t for t in tokens) / len(tokens)
    return (1 - mu) * token_loss(own, logp, denominator) + mu * nll
