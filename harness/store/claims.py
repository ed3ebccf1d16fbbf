"""What a suite's file claimed before it ran, and the answers that its finished cells give (docs/statistics.md, "Claims")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan, log
from typing import NamedTuple

import msgspec
import numpy as np

from harness.statistics import mean_interval
from harness.statistics.acceleration import Acceleration, jackknife_error, student_quantile
from harness.statistics.claims import (
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    UNIDENTIFIED,
    Bounds,
    MeasuredClaim,
    Relation,
    TestedClaim,
    answer_claims,
    bounds_of,
    level_of_look,
)
from harness.store.finished import BySeed, FinishedScores, Key, read_finished
from harness.store.read import Snapshot
from harness.store.statistic import CLOCK, POINTS, Pair
from harness.store.table import MEAN


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """The same statistic of another group or regime; None: of the claim's own."""

    group: str | None = None
    regime: str | None = None


class StoredClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a suite's file (`harness.suite.schema.Claim`). bound: in points, for kappa a ratio; with `against` of the
    difference. seeds: how many of the suite's first seeds answer it; None: all."""

    name: str
    group: str
    regime: str
    statistic: str
    relation: Relation
    bound: float
    over: str | None = None
    against: Elsewhere | None = None
    seeds: int | None = None


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. value, interval: of the claim's number, points as fractions, with its 95 % interval. p: corrected among the
    suite's claims. done, planned: seeds. reason: why the number is not identified."""

    claim: StoredClaim
    answer: str
    value: float | None
    interval: Pair | None
    p: float | None
    done: int
    planned: int
    reason: str = ""

    @property
    def words(self) -> str:
        """The claim, e.g. `kappa of hacpo over independent on matched is above 1`."""
        claim = self.claim
        over = f" over {claim.over}" if claim.over else ""
        what = f"{claim.statistic} of {claim.regime}{over} on {claim.group}"
        if claim.against:
            where = [f"of {claim.against.regime}"] if claim.against.regime else []
            where += [f"on {claim.against.group}"] if claim.against.group else []
            what += f", less that {' '.join(where)},"
        unit = "" if claim.statistic == "kappa" else " points"
        if claim.relation == "within":
            centre = "1" if claim.statistic == "kappa" and not claim.against else "0"
            return f"{what} is within {claim.bound:g}{unit} of {centre}"
        return f"{what} is {claim.relation} {claim.bound:g}{unit}"

    @property
    def number(self) -> str:
        """The number with its interval, in the claim's unit."""
        return (CLOCK if self.claim.statistic == "kappa" else POINTS).with_interval(self.value, self.interval)


def write_claims(answers: Sequence[ClaimAnswer]) -> str:
    """Write what became of a suite's claims in sentences, those that are answered first; empty before one is answered.

    E.g. `Supported: kappa of hacpo on matched is above 1 (1.27 [1.19, 1.35]). Undecided: 2 more.`
    """
    sentences = []
    for answer in (SUPPORTED, REFUTED):
        told = [f"{one.words} ({one.number})" for one in answers if one.answer == answer]
        if told:
            sentences.append(f"{answer.capitalize()}: {'; '.join(told)}.")
    if not sentences:
        return ""
    for answer in (UNDECIDED, UNIDENTIFIED):
        count = sum(one.answer == answer for one in answers)
        if count:
            sentences.append(f"{answer.capitalize()}: {count} more.")
    return " ".join(sentences)


def read_claims(snapshot: Snapshot, suite: str) -> list[StoredClaim]:
    """Read the claims of a suite's file; none for an unknown suite."""
    configs = snapshot.query("SELECT config FROM suites WHERE suite = ?", [suite])["config"].to_pylist()
    stated = json.loads(configs[0] or "{}").get("claims", []) if configs else []
    return msgspec.convert(stated, list[StoredClaim])


def answer_suite_claims(snapshot: Snapshot, suite: str, margin: float) -> list[ClaimAnswer]:
    """Answer the claims of a suite from its first seeds, in order, as far as all cells that a claim needs have finished.

    margin: as for `statistics.acceleration.fit_acceleration`.
    """
    claims = read_claims(snapshot, suite)
    if not claims:
        return []
    finished = read_finished(snapshot, suite)
    order = snapshot.query("SELECT seeds FROM suites WHERE suite = ?", [suite])["seeds"].to_pylist()[0]
    looks = [_look_at_claim(claim, order, finished, margin) for claim in claims]
    measured = [look.measured for look in looks]
    bounds = [_bounds_of_claim(claim) for claim in claims]
    levels = [level_of_look(look.done, look.planned) for look in looks]
    # all at once, as p-values are corrected among the suite's claims
    told = answer_claims(measured, bounds, levels)
    return [_make_answer(look, answer) for look, answer in zip(looks, told, strict=True)]


class _Look(NamedTuple):
    """What the finished cells say of one claim so far. done, planned: numbers of seeds."""

    claim: StoredClaim
    measured: MeasuredClaim
    done: int
    planned: int


def _look_at_claim(claim: StoredClaim, order: Sequence[int], finished: FinishedScores, margin: float) -> _Look:
    """Measure a claim from those of its seeds that have finished. order: all seeds of the suite."""
    planned = order[: claim.seeds] if claim.seeds else order
    done = _first_finished(claim, planned, finished)
    measured = _measure_claim(claim, done, finished, margin)
    return _Look(claim, measured, len(done), len(planned))


def _make_answer(look: _Look, answer: TestedClaim) -> ClaimAnswer:
    """Join what was measured of a claim with the answer that follows; an error that is not known leaves the number out."""
    claim = look.claim
    measured = look.measured
    known = not measured.problem and not isnan(measured.error)
    return ClaimAnswer(
        claim=claim,
        answer=answer.answer,
        value=_to_unit(claim, measured.value) if known else None,
        interval=_interval_of(claim, measured) if known else None,
        p=answer.p if known else None,
        done=look.done,
        planned=look.planned,
        reason=measured.problem,
    )


def _places_of(claim: StoredClaim) -> list[tuple[str, str]]:
    """Return group and regime of the claim, and of what it is compared with."""
    places = [(claim.group, claim.regime)]
    if claim.against:
        places.append((claim.against.group or claim.group, claim.against.regime or claim.regime))
    return places


def _line_compared_with(claim: StoredClaim, regime: str, finished: FinishedScores) -> str:
    """Return the line that a regime is compared with: the claim's, or the suite's baseline."""
    return claim.over or finished.lines[regime].baseline


def _find_key(group: str, finished: FinishedScores) -> Key | None:
    """Return the key of a group's accuracies: avg@k of its policies' mean, or of its only policy; None where there are none."""
    for key in finished.by_key:
        alone = len(finished.policies[key.group]) == 1
        if key.group == group and key.metric.startswith("avg@") and (key.policy == MEAN or alone):
            return key
    return None


def _first_finished(claim: StoredClaim, planned: Sequence[int], finished: FinishedScores) -> list[int]:
    """Return the planned seeds, in order, up to the first whose cells have not all finished."""
    done: list[int] = []
    for seed in planned:
        for group, regime in _places_of(claim):
            if not {regime, _line_or_empty(regime, claim, finished)} <= _lines_with(group, seed, finished):
                return done
        done.append(seed)
    return done


def _line_or_empty(regime: str, claim: StoredClaim, finished: FinishedScores) -> str:
    return _line_compared_with(claim, regime, finished) if regime in finished.lines else ""


def _lines_with(group: str, seed: int, finished: FinishedScores) -> set[str]:
    """Return the lines that have finished on a group with a seed."""
    key = _find_key(group, finished)
    if key:
        return {line for line, by_seed in finished.by_key[key].items() if seed in by_seed}
    return set()


def _measure_claim(claim: StoredClaim, seeds: Sequence[int], finished: FinishedScores, margin: float) -> MeasuredClaim:
    """Measure the number of a claim from these seeds."""
    if len(seeds) < 2:
        return MeasuredClaim(np.nan, np.nan, 0, f"{len(seeds)} seeds have finished")
    if claim.statistic == "gain":
        return _measure_gain(claim, seeds, finished)
    fits = []
    for group, regime in _places_of(claim):
        policies = finished.policies[group]
        policy = MEAN if len(policies) > 1 else policies[0]
        fit = finished.paces.compare_lines(
            group, policy, regime, _line_compared_with(claim, regime, finished), margin, seeds
        )
        if fit.problem:
            return MeasuredClaim(np.nan, np.nan, 0, f"{regime} on {group}: {fit.problem}")
        if claim.statistic == "reach" and fit.rising:
            return MeasuredClaim(np.nan, np.nan, 0, f"{regime} on {group}: the baseline's own curve still rises")
        fits.append(fit)
    return _measure_fits(claim, fits)


def _measure_gain(claim: StoredClaim, seeds: Sequence[int], finished: FinishedScores) -> MeasuredClaim:
    """Measure a gain, or the difference of two, paired by seed."""
    gains = np.zeros(len(seeds))
    noise = np.zeros(len(seeds))
    for sign, (group, regime) in zip((1, -1), _places_of(claim), strict=False):
        key = _find_key(group, finished)
        if key is None:
            return MeasuredClaim(np.nan, np.nan, 0, f"{group} has no avg@k")
        ours: BySeed = finished.by_key[key][regime]
        theirs: BySeed = finished.by_key[key][_line_compared_with(claim, regime, finished)]
        gains += sign * np.array([ours[seed].accuracy - theirs[seed].accuracy for seed in seeds])
        noise += np.array([ours[seed].noise + theirs[seed].noise for seed in seeds])
    estimate = mean_interval(gains, noise=noise)
    return MeasuredClaim(float(estimate.mean), float(estimate.error), len(seeds) - 1)


def _measure_fits(claim: StoredClaim, fits: Sequence[Acceleration]) -> MeasuredClaim:
    """Measure a pace (its logarithm), a reach, or the difference of two; the error is by the jackknife of seeds, and
    never below that of least squares."""
    first = fits[0]
    freedom = first.n - 1
    if not claim.against:
        if claim.statistic == "reach":
            return MeasuredClaim(first.delta, first.delta_error, freedom)
        return MeasuredClaim(log(first.kappa), first.kappa_error, freedom)
    second = fits[1]
    if claim.statistic == "reach":
        apart = np.array(first.ends) - np.array(second.ends)
        least = np.hypot(first.least_delta_error, second.least_delta_error)
        return MeasuredClaim(first.delta - second.delta, max(jackknife_error(apart), float(least)), freedom)
    apart = np.array(first.paces) - np.array(second.paces)
    least = np.hypot(first.kappa * first.least_kappa_error, second.kappa * second.least_kappa_error)
    return MeasuredClaim(first.kappa - second.kappa, max(jackknife_error(apart), float(least)), freedom)


def _bounds_of_claim(claim: StoredClaim) -> Bounds:
    """Return the claim's bounds in the unit of `_measure_claim`: fractions, and logarithms of a pace without `against`."""
    if claim.statistic != "kappa":
        bound = claim.bound / 100
        return bounds_of(claim.relation, -bound if claim.relation == "within" else bound, bound)
    if claim.against:
        return bounds_of(claim.relation, -claim.bound if claim.relation == "within" else claim.bound, claim.bound)
    if claim.relation == "within":
        return bounds_of("within", log(max(1 - claim.bound, 1e-6)), log(1 + claim.bound))
    return bounds_of(claim.relation, log(max(claim.bound, 1e-6)), log(max(claim.bound, 1e-6)))


def _to_unit(claim: StoredClaim, value: float) -> float:
    """Return a pace that was measured as a logarithm."""
    if claim.statistic == "kappa" and not claim.against:
        return float(np.exp(value))
    return value


def _interval_of(claim: StoredClaim, measured: MeasuredClaim) -> Pair:
    half = student_quantile(0.95, measured.freedom) * measured.error
    return _to_unit(claim, measured.value - half), _to_unit(claim, measured.value + half)
