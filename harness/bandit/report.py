"""`harness bandit`: the stability-support plane and the facts, for every bandit and regime of a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.bandit.facts import Fact, facts
from harness.bandit.laboratory import (
    Bandit,
    JointDraw,
    enumerate_outcomes,
    expectation,
    gradient_variance,
    mean_gradient,
)
from harness.errors import PluginError, SuiteError
from harness.files import write_atomic
from harness.learning import registry
from harness.suite import yaml
from harness.suite.load import LABORATORY, find, first_error
from harness.suite.schema import Name, Variant


class BanditCase(BaseModel):
    """One bandit: logits per policy, the learner first."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Name
    logits: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=8)]], Field(min_length=2, max_length=4)
    ]
    rewards: list[Annotated[int, Field(ge=0, le=1)]]
    rollouts: Annotated[int, Field(ge=2, le=6)] = 2


class BanditSuite(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    title: str = ""
    bandits: Annotated[list[BanditCase], Field(min_length=1)]
    regimes: Annotated[list[Variant], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Point:
    """One regime on one bandit.

    scale: length of E[g] along the policy gradient, in its units. bias: what of E[g] is not along it, relative to it.
    noise: sqrt(trace Cov[g]) relative to the policy gradient: the plane's stability axis, small is stable.
    support: probability that the step raises a right answer which the learner itself did not sample: the other axis.
    weight_second_moment: mean of r^2 over peer answers that take part through a ratio; None without any (imitation has no
    ratio). fires: probability of any peer answer among the terms.
    """

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
        lines = [f"{self.suite}: exact expectations of one step, by enumeration\n"]
        head = f"{'bandit':<12} {'regime':<16} {'scale':>7} {'bias':>7} {'noise':>8} {'support':>8} {'fires':>6} {'E[w^2]':>8}"
        lines.append(head)
        for p in self.points:
            moment = "" if p.weight_second_moment is None else f"{p.weight_second_moment:.3f}"
            lines.append(
                f"{p.bandit:<12} {p.regime:<16} {p.scale:>7.3f} {p.bias:>7.3f} {p.noise:>8.2f} {p.support:>8.3f} "
                f"{p.fires:>6.3f} {moment:>8}"
            )
        lines.append(
            "\nscale, bias: E[g] along and beside the policy gradient, in its units; noise: its standard deviation;"
        )
        lines.append("support: probability of raising a right answer that the learner did not sample itself.\n")
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
    raw = yaml.read(source)
    if not isinstance(raw, dict) or ("groups" in raw and "bandits" not in raw):
        what = "a suite, for `harness run`;" if isinstance(raw, dict) else "no mapping;"
        raise SuiteError(str(source), "", f"{what} a bandit suite has `bandits` and `regimes`")
    raw.setdefault("name", source.stem)
    yaml.check_numbers(raw, str(source))
    try:
        suite = BanditSuite.model_validate(raw)
    except ValidationError as error:
        raise first_error(error, str(source)) from None
    points: list[Point] = []
    proven: list[tuple[str, Fact]] = []
    for i, case in enumerate(suite.bandits):
        try:
            bandit = Bandit(np.array(case.logits, dtype=float), np.array(case.rewards, dtype=float), case.rollouts)
        except ValueError as error:
            raise SuiteError(str(source), f"bandits[{i}]", str(error)) from None
        for j, variant in enumerate(suite.regimes):
            try:
                outcomes = enumerate_outcomes(bandit, registry.build(variant.regime, variant.options))
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
        fires=expectation(outcomes, lambda o: float(any(t.source == "peer" and t.answers for t in o.terms))),
        weight_second_moment=sum(w * w * p for w, p in weights) / mass if mass else None,
    )


def _raises_unseen(bandit: Bandit, outcome: JointDraw) -> bool:
    """Whether a right answer outside the learner's own draw is given a positive coefficient."""
    own = set(outcome.draws[0])
    return any(
        int(a.tokens[0]) not in own and bandit.rewards[int(a.tokens[0])] > 0 and a.advantage * a.weight > 0
        for t in outcome.terms
        if t.source == "peer"
        for a in t.answers
    )
