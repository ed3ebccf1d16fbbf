"""`harness bandit`: the stability-support plane and the facts, for every bandit of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.bandit.laboratory import (
    Bandit,
    Delivery,
    JointDraw,
    Vector,
    enumerate_outcomes,
    expectation,
    gradient_variance,
    mean_gradient,
)
from harness.errors import PluginError, SuiteError
from harness.files import write_atomic
from harness.learning.advantages import rewards_of, standardise
from harness.learning.regime import Regime
from harness.learning.registry import build, load
from harness.learning.terms import Term
from harness.suite.load import LABORATORY, find, first_error, read_yaml
from harness.suite.schema import Name, Variant


@dataclass(frozen=True, slots=True)
class Fact:
    """One equation: `predicted` by theory (None for an observation), `measured` by enumeration; distances should be 0."""

    statement: str
    predicted: float | None
    measured: float

    @property
    def holds(self) -> bool | None:
        """None for an observation."""
        if self.predicted is None:
            return None
        return bool(abs(self.predicted - self.measured) <= 1e-6 * max(1.0, abs(self.predicted)))


def facts(bandit: Bandit) -> list[Fact]:
    """All facts of ALGORITHMS.md that concern expectations."""
    pi, success, g = bandit.policies, bandit.success, bandit.rollouts
    policies, gradient = len(pi), bandit.policy_gradient()

    def run(name: str, **options: object) -> list[JointDraw]:
        return enumerate_outcomes(bandit, build(name, options))

    def far(a: Vector, b: Vector) -> float:
        return float(np.abs(a - b).max())

    alone = mean_gradient(run("independent", objective="dr_grpo"))
    found = [Fact("independent: E[g] = (1 - 1/G) policy gradient", 0.0, far(alone, (1 - 1 / g) * gradient))]

    direct = np.zeros(pi.shape[1])  # A as the union's statistics make it
    for probability, draws in bandit.outcomes:
        pool = np.array([bandit.rewards[a] for drawn in draws for a in drawn])
        advantage = (pool - pool.mean()) / (pool.std(ddof=1) + 1e-6)
        for a, each in zip((a for drawn in draws for a in drawn), advantage, strict=True):
            direct += probability * each / pool.size * (np.eye(pi.shape[1])[a] - pi[0])
    toward = mean_gradient(run("naive"))
    beside = [far(v, (v @ gradient) / (gradient @ gradient) * gradient) for v in (direct, toward)]
    found += [
        Fact("naive: E[g] = (1/n) sum_j E_j[A grad log pi_k]", 0.0, far(toward, direct)),
        Fact("naive: distance of E[g] from the policy gradient's direction", *beside),
    ]

    for beta in (0.25, 1.0):
        mixed = mean_gradient(run("xgrpo", baseline="mixed", normalise="none", beta=beta))
        found.append(Fact(f"xgrpo: unbiased with leave-one-out baselines, beta {beta}", 0.0, far(mixed, gradient)))

    outcomes = run("prp", normalise="none", clip_low=1.0, clip_high=1e8)
    distance = far(mean_gradient(outcomes), (1 - 1 / (policies * g)) * gradient)
    found.append(Fact("prp: E[g] = (1 - 1/|U|) policy gradient, unclipped", 0.0, distance))
    if policies == 2:

        def squared_weight(o: JointDraw) -> float:
            """Of the peer's first answer, from the denominator in PRP's own term."""
            answer = o.terms[1].answers[0]
            assert isinstance(answer.denominator, np.ndarray)
            return float(np.exp(2 * (np.log(pi[0])[answer.tokens[0]] - answer.denominator[0])))

        moment = expectation(outcomes, squared_weight)
        found.append(Fact("prp: second moment of the weight = 1 + chi^2", 1 + bandit.chi_squared(), moment))

    def shaped(weight: Callable[[float], float]) -> Vector:
        """LUFFY's E[g] with peers' right answers weighed by `weight` of their probability."""
        total = np.zeros(pi.shape[1])
        for probability, (own, *theirs) in bandit.outcomes:
            right = [a for drawn in theirs for a in drawn if bandit.rewards[a]]
            pool = np.array([bandit.rewards[a] for a in (*own, *right)])
            weights = [*[1.0] * g, *(weight(pi[0][a]) for a in right)]
            for a, w, each in zip((*own, *right), weights, standardise(pool, pool), strict=True):
                total += probability * w * each / pool.size * (np.eye(pi.shape[1])[a] - pi[0])
        return total

    slope = far(mean_gradient(run("luffy")), shaped(lambda p: 0.1 * p / (p + 0.1) ** 2))
    small, large = (mean_gradient(run("luffy", gamma=gamma, gradient="weight")) for gamma in (1e-9, 1e6))
    own_part = shaped(lambda p: 0.0)
    proportional = far((large - own_part) * 1e6, shaped(lambda p: p) - own_part)
    apart = far(mean_gradient(run("chord", mu_first=0.0)), mean_gradient(run("independent")))
    found += [
        Fact("luffy: E[g] is the gradient of p / (p + gamma) A on peers' right answers", 0.0, slope),
        Fact("luffy, as a weight: gamma -> 0 is the score function", 0.0, far(small, shaped(lambda p: 1.0))),
        Fact("luffy, as a weight: gamma -> infinity is proportional to p", 0.0, proportional),
        Fact("chord: mu = 0 is GRPO", 0.0, apart),
    ]

    predicted = (1 - success[0]) ** g * (1 - np.prod((1 - success[1:]) ** g))
    outcomes = run("sgt")
    fires = expectation(outcomes, lambda o: float(bool(o.terms[1].answers)))
    outside = max((len(o.terms[1].answers) for o in outcomes if any(bandit.rewards[a] for a in o.draws[0])), default=0)
    return [
        *found,
        Fact("sgt: fires with (1-p_k)^G (1 - prod_j (1-p_j)^G)", float(predicted), fires),
        Fact("sgt: imitated answers outside the rescue set", 0.0, float(outside)),
        *_hacpo(bandit),
        *_scored_and_hinted(bandit, run, float(predicted)),
    ]


def _scored_and_hinted(bandit: Bandit, run: Callable[..., list[JointDraw]], rescued: float) -> list[Fact]:
    """rescued: probability that only peers have a right answer."""
    pi, beta = bandit.policies, 0.5
    peers = np.log(pi[1:]).mean(axis=0)
    toward = beta * pi[0] * (peers - np.log(pi[0]) - pi[0] @ (peers - np.log(pi[0])))
    itself = replace(bandit, logits=np.tile(bandit.logits[0], (len(pi), 1)))
    alone = mean_gradient(enumerate_outcomes(itself, build("copd", {"ratio": 0.0})))
    far = float(np.abs(mean_gradient(run("copd", ratio=0.0, beta=beta)) - toward).max())
    never = mean_gradient(run("core", probability=0.0)) - mean_gradient(run("xgrpo"))
    fires = expectation(run("core"), lambda o: float(bool(o.terms[1].answers)))
    return [
        Fact("copd: E[g] = beta E_k[(mean log pi_j - log pi_k) grad log pi_k]", 0.0, far),
        Fact("copd: peers like the learner give no gradient", 0.0, float(np.abs(alone).max())),
        Fact("core: without a second round GRPO with joint statistics", 0.0, float(np.abs(never).max())),
        Fact("core: asks again with 3/4 (1-p_k)^G (1 - prod_j (1-p_j)^G)", 0.75 * rescued, fires),
    ]


def _hacpo(bandit: Bandit) -> list[Fact]:
    """E[mu] = p_k where omega is the true capability ratio and guards and clamps are off."""
    true = {f"p{j}": float(p) for j, p in enumerate(bandit.success)}
    base: type[Regime] = load("hacpo")

    class TrueCapability(base):  # type: ignore[misc, valid-type]
        def capability(self, policy: str) -> float:
            return true[policy]

    if min(true.values()) <= 0:
        return []
    options = replace(base.Options(), guards=False, omega_min=1e-12, omega_max=1e12)
    regime, guarded = TrueCapability(options), TrueCapability(replace(options, guards=True))
    delivery = Delivery(bandit, regime)
    off = on = 0.0
    for probability, draws in bandit.outcomes:
        own, inbox, _ = delivery.experience(draws)
        peers = inbox.valid("x")
        rewards = rewards_of([*own.valid, *peers])
        omega = np.array([1.0] * len(own.valid) + [regime.omega("p0", p.author) for p in peers])
        off += probability * regime.baseline(rewards, omega, len(own.valid))
        on += probability * guarded.baseline(rewards, omega, len(own.valid))
    bias = Fact("hacpo: bias of E[mu] by the code's two guards", None, on - true["p0"])
    return [Fact("hacpo: E[mu] = p_k under true capability ratios", true["p0"], off), bias]


class BanditCase(BaseModel):
    """One bandit: logits per policy, the learner first. hint: what a hint adds to the learner's."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Name
    logits: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=8)]], Field(min_length=2, max_length=4)
    ]
    rewards: list[Annotated[int, Field(ge=0, le=1)]]
    rollouts: Annotated[int, Field(ge=2, le=6)] = 2
    hint: list[float] | None = None


class BanditSuite(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    title: str = ""
    bandits: Annotated[list[BanditCase], Field(min_length=1)]
    regimes: Annotated[list[Variant], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Point:
    """One regime on one bandit. scale, bias: E[g] along and beside the policy gradient, in its units. noise: sqrt(trace Cov[g])
    in its units. support: probability of raising a right answer that was not sampled. fires: of any peer answer.
    weight_second_moment: mean r^2 of peer answers with a ratio."""

    bandit: str
    regime: str
    scale: float
    bias: float
    noise: float
    support: float
    fires: float
    weight_second_moment: float | None


@dataclass(frozen=True, slots=True)
class BanditReport:
    """Everything that `harness bandit` says."""

    suite: str
    points: tuple[Point, ...]
    facts: tuple[tuple[str, Fact], ...]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "points": list(self.points),
            "facts": [{"bandit": b, **asdict(f), "holds": f.holds} for b, f in self.facts],
        }

    def describe(self) -> str:
        """The plane and the facts as text."""
        lines = [
            f"{self.suite}: exact expectations of one step, by enumeration\n",
            f"{'bandit':<12} {'regime':<16} {'scale':>7} {'bias':>7} {'noise':>8} {'support':>8} {'fires':>6} {'E[w^2]':>8}",
        ]
        for p in self.points:
            moment = "" if p.weight_second_moment is None else f"{p.weight_second_moment:.3f}"
            lines.append(
                f"{p.bandit:<12} {p.regime:<16} {p.scale:>7.3f} {p.bias:>7.3f} {p.noise:>8.2f} {p.support:>8.3f} "
                f"{p.fires:>6.3f} {moment:>8}"
            )
        lines += [
            "\nscale, bias: E[g] along and beside the policy gradient, in its units; noise: its standard deviation;",
            "support: probability of raising a right answer that the learner did not sample itself.\n",
        ]
        for bandit, fact in self.facts:
            mark = {True: "ok ", False: "NO ", None: "-- "}[fact.holds]
            predicted = "" if fact.predicted is None else f"predicted {fact.predicted:.6f}, "
            lines.append(f"{mark} {bandit:<12} {fact.statement}: {predicted}measured {fact.measured:.6f}")
        return "\n".join(lines) + f"\n\nstored in {self.folder}"


def run_bandit(name: str, results: Path) -> BanditReport:
    """Enumerate every case and store the report as results/<suite>/bandit.json. Raises SuiteError."""
    try:
        source = find(name)
    except SuiteError:
        raise SuiteError(name, "", f"no such file of bandits (shipped: {Path(LABORATORY).stem})") from None
    raw = read_yaml(source)
    if not isinstance(raw, dict) or ("groups" in raw and "bandits" not in raw):
        what = "a suite, for `harness run`;" if isinstance(raw, dict) else "no mapping;"
        raise SuiteError(str(source), "", f"{what} a bandit suite has `bandits` and `regimes`")
    raw.setdefault("name", source.stem)
    try:
        suite = BanditSuite.model_validate(raw)
    except ValidationError as error:
        raise first_error(error, str(source)) from None
    points: list[Point] = []
    proven: list[tuple[str, Fact]] = []
    for i, case in enumerate(suite.bandits):
        try:
            hint = None if case.hint is None else np.array(case.hint)
            bandit = Bandit(
                np.array(case.logits, dtype=float), np.array(case.rewards, dtype=float), case.rollouts, hint
            )
        except ValueError as error:
            raise SuiteError(str(source), f"bandits[{i}]", str(error)) from None
        for j, variant in enumerate(suite.regimes):
            try:
                share = variant.replay.share[0] if variant.replay else 1.0
                outcomes = enumerate_outcomes(bandit, build(variant.regime, variant.options), share=share)
            except (PluginError, ValueError) as error:
                raise SuiteError(str(source), f"regimes[{j}]", str(error)) from None
            points.append(_point(case.name, variant.name, bandit, outcomes))
        proven += [(case.name, fact) for fact in facts(bandit)]
    folder = results / suite.name
    report = BanditReport(suite.name, tuple(points), tuple(proven), folder / "bandit.json")
    write_atomic(folder / "bandit.json", msgspec.json.format(msgspec.json.encode(report.as_json()), indent=1))
    return report


def _point(case: str, regime: str, bandit: Bandit, outcomes: list[JointDraw]) -> Point:
    true, mean = bandit.policy_gradient(), mean_gradient(outcomes)
    size = float(np.linalg.norm(true))
    scale = float(mean @ true) / size**2
    weights = [(w, o.probability / len(o.weights)) for o in outcomes for w in o.weights]
    mass = sum(p for _, p in weights)
    return Point(
        bandit=case,
        regime=regime,
        scale=scale,
        bias=float(np.linalg.norm(mean - scale * true)) / size,
        noise=float(np.sqrt(gradient_variance(outcomes))) / size,
        support=expectation(outcomes, lambda o: float(_raises_unseen(bandit, o))),
        fires=expectation(outcomes, lambda o: float(any(_from_peers(t) and t.answers for t in o.terms))),
        weight_second_moment=sum(w * w * p for w, p in weights) / mass if mass else None,
    )


def _from_peers(term: Term) -> bool:
    """Of peers' answers, or of own ones that learn from a peer's scores or hint."""
    return term.name != "own"


def _raises_unseen(bandit: Bandit, outcome: JointDraw) -> bool:
    own = set(outcome.draws[0])
    return any(
        int(a.tokens[0]) not in own and bandit.rewards[int(a.tokens[0])] > 0 and a.advantage * a.weight > 0
        for t in outcome.terms
        if _from_peers(t)
        for a in t.answers
    )
