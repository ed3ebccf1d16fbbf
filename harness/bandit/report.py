"""`harness bandit`: a file of bandits in, the stability-support plane and the facts out, stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.bandit.enumeration import (
    Bandit,
    JointDraw,
    enumerate_outcomes,
    expected_value,
    from_peers,
    gradient_variance,
    mean_gradient,
)
from harness.bandit.facts import Fact, list_facts
from harness.errors import PluginError, SuiteError
from harness.files import write_atomic
from harness.learning.registry import build
from harness.suite.load import LABORATORY, find_suite, first_error, read_yaml
from harness.suite.schema import Name, Variant


class BanditCase(BaseModel):
    """Logits per policy, the learner first. hint: added to the learner's."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Name
    logits: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=8)]], Field(min_length=2, max_length=4)
    ]
    rewards: list[Annotated[int, Field(ge=0, le=1)]]
    rollouts: Annotated[int, Field(ge=2, le=6)] = 2
    hint: list[float] | None = None


class BanditSuite(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    title: str = ""
    bandits: Annotated[list[BanditCase], Field(min_length=1)]
    regimes: Annotated[list[Variant], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Point:
    """One regime on one bandit. scale, bias: E[g] along and beside the policy gradient. noise: sqrt(trace Cov[g]). All three in
    the gradient's units. support: probability of raising a right answer that was not sampled. fires: of any peer answer.
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
    """Stores the report as results/<suite>/bandit.json. Raises SuiteError."""
    try:
        source = find_suite(name)
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
            if not bandit.policy_gradient().any():
                raise ValueError(
                    "its policy gradient is 0: a right and a wrong answer are needed, each of some probability"
                )
        except ValueError as error:
            raise SuiteError(str(source), f"bandits[{i}]", str(error)) from None
        for j, variant in enumerate(suite.regimes):
            try:
                share = variant.replay.share[0] if variant.replay else 1.0
                outcomes = enumerate_outcomes(bandit, build(variant.regime, variant.options), share=share)
            except (PluginError, ValueError) as error:
                raise SuiteError(str(source), f"regimes[{j}]", str(error)) from None
            points.append(measure_point(case.name, variant.name, bandit, outcomes))
        proven += [(case.name, fact) for fact in list_facts(bandit)]
    folder = results / suite.name
    report = BanditReport(suite.name, tuple(points), tuple(proven), folder / "bandit.json")
    write_atomic(folder / "bandit.json", msgspec.json.format(msgspec.json.encode(report.as_json()), indent=1))
    return report


def measure_point(case: str, regime: str, bandit: Bandit, outcomes: list[JointDraw]) -> Point:
    true = bandit.policy_gradient()
    mean = mean_gradient(outcomes)
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
        support=expected_value(outcomes, lambda o: float(any(bandit.rewards[a] > 0 for a in o.raised - {*o.draws[0]}))),
        fires=expected_value(outcomes, lambda o: float(any(from_peers(t) and t.answers for t in o.terms))),
        weight_second_moment=sum(w * w * p for w, p in weights) / mass if mass else None,
    )
