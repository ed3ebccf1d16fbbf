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
    """A file of bandits, and the regimes that are tried on each."""

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
    """What `harness bandit` found. facts: with the name of the bandit that each was found on. folder: where it is stored."""

    suite: str
    points: tuple[Point, ...]
    facts: tuple[tuple[str, Fact], ...]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        """Return what is stored and what `--json` prints."""
        facts = []
        for bandit, fact in self.facts:
            fields = asdict(fact)
            facts.append({"bandit": bandit, **fields, "holds": fact.holds})
        return {"suite": self.suite, "points": list(self.points), "facts": facts}

    def describe(self) -> str:
        """Write the table of the points, what its columns mean, and a line for each fact."""
        lines = [f"{self.suite}: exact expectations of one step, by enumeration\n", _HEAD]
        lines += [_describe_point(point) for point in self.points]
        lines += _MEANINGS
        lines += [_describe_fact(bandit, fact) for bandit, fact in self.facts]
        table = "\n".join(lines)
        return f"{table}\n\nstored in {self.folder}"


_HEAD = f"{'bandit':<12} {'regime':<16} {'scale':>7} {'bias':>7} {'noise':>8} {'support':>8} {'fires':>6} {'E[w^2]':>8}"
_MEANINGS = (
    "\nscale, bias: E[g] along and beside the policy gradient, in its units; noise: its standard deviation;",
    "support: probability of raising a right answer that the learner did not sample itself.\n",
)


def _describe_point(point: Point) -> str:
    """Write one regime on one bandit as a line of the table, in the columns of `_HEAD`."""
    names = f"{point.bandit:<12} {point.regime:<16}"
    gradient = f"{point.scale:>7.3f} {point.bias:>7.3f} {point.noise:>8.2f}"
    probabilities = f"{point.support:>8.3f} {point.fires:>6.3f}"
    moment = "" if point.weight_second_moment is None else f"{point.weight_second_moment:.3f}"
    return f"{names} {gradient} {probabilities} {moment:>8}"


def _describe_fact(bandit: str, fact: Fact) -> str:
    """Write one fact as a line, with a mark that says whether it holds."""
    marks = {True: "ok ", False: "NO ", None: "-- "}
    mark = marks[fact.holds]
    predicted = "" if fact.predicted is None else f"predicted {fact.predicted:.6f}, "
    return f"{mark} {bandit:<12} {fact.statement}: {predicted}measured {fact.measured:.6f}"


def run_bandit(name: str, results: Path) -> BanditReport:
    """Try each regime of a file on each of its bandits, and store the report as results/<suite>/bandit.json.

    name: a path, or a file shipped with the harness. Raises SuiteError, with the place of what is wrong.
    """
    source, suite = _read_suite(name)
    points: list[Point] = []
    proven: list[tuple[str, Fact]] = []
    for i, case in enumerate(suite.bandits):
        try:
            bandit = _make_bandit(case)
        except ValueError as error:
            raise SuiteError(str(source), f"bandits[{i}]", str(error)) from None
        for j, variant in enumerate(suite.regimes):
            try:
                share = variant.replay.share[0] if variant.replay else 1.0
                regime = build(variant.regime, variant.options)
                outcomes = enumerate_outcomes(bandit, regime, share=share)
            except (PluginError, ValueError) as error:
                raise SuiteError(str(source), f"regimes[{j}]", str(error)) from None
            points.append(measure_point(case.name, variant.name, bandit, outcomes))
        proven += [(case.name, fact) for fact in list_facts(bandit)]
    stored = results / suite.name / "bandit.json"
    report = BanditReport(suite.name, tuple(points), tuple(proven), stored)
    encoded = msgspec.json.encode(report.as_json())
    write_atomic(stored, msgspec.json.format(encoded, indent=1))
    return report


def _read_suite(name: str) -> tuple[Path, BanditSuite]:
    """Read a file of bandits; return its path too. Raises SuiteError."""
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
    return source, suite


def _make_bandit(case: BanditCase) -> Bandit:
    """Make the bandit of a file's entry. Raises ValueError where it is none, or where there is nothing to learn."""
    logits = np.array(case.logits, dtype=float)
    rewards = np.array(case.rewards, dtype=float)
    hint = None if case.hint is None else np.array(case.hint)
    bandit = Bandit(logits, rewards, case.rollouts, hint)
    if not bandit.policy_gradient().any():
        raise ValueError("its policy gradient is 0: a right and a wrong answer are needed, each of some probability")
    return bandit


def measure_point(case: str, regime: str, bandit: Bandit, outcomes: list[JointDraw]) -> Point:
    """Place a regime on the plane of a bandit. outcomes: all of them, with their probabilities.

    The gradient's units are the policy gradient's length.
    """
    true = bandit.policy_gradient()  # (K,)
    mean = mean_gradient(outcomes)
    size = float(np.linalg.norm(true))
    scale = float(mean @ true) / size**2
    beside = float(np.linalg.norm(mean - scale * true))
    deviation = float(np.sqrt(gradient_variance(outcomes)))

    def raises_unsampled(outcome: JointDraw) -> float:
        """Return 1 where a right answer is made likelier that the learner did not sample, else 0."""
        unsampled = outcome.raised - {*outcome.draws[0]}
        return float(any(bandit.rewards[answer] > 0 for answer in unsampled))

    def uses_peers(outcome: JointDraw) -> float:
        """Return 1 where anything is learnt from peers, else 0."""
        return float(any(from_peers(term) and term.answers for term in outcome.terms))

    return Point(
        bandit=case,
        regime=regime,
        scale=scale,
        bias=beside / size,
        noise=deviation / size,
        support=expected_value(outcomes, raises_unsampled),
        fires=expected_value(outcomes, uses_peers),
        weight_second_moment=_second_moment_of_weights(outcomes),
    )


def _second_moment_of_weights(outcomes: list[JointDraw]) -> float | None:
    """Return the mean squared ratio of peers' answers, each outcome's together with its probability; None without ratios."""
    weights = []
    for outcome in outcomes:
        for weight in outcome.weights:
            share = outcome.probability / len(outcome.weights)
            weights.append((weight, share))
    mass = sum(share for _, share in weights)
    if not mass:
        return None
    return sum(weight * weight * share for weight, share in weights) / mass
