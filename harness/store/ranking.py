"""Regimes over several groups and benchmarks at once, and the sentences above a suite's rows.

A panel is one group and one benchmark. `rank_regimes` makes the ranking over panels, `compare_pair` compares two regimes,
`aggregate_panels` describes the runs by rliable's statistics, `make_heading` puts sentences to all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Float

from harness.statistics import MARGIN, Comparison, improvement_interval, iqm_interval, judge_gain
from harness.statistics.comparison import ALONE, BASELINE, DIFFERS_POLICIES, WITHHELD
from harness.statistics.intervals import BootstrapInterval
from harness.store.by_task import TaskHelp, TaskReward, read_task_help, read_task_rewards
from harness.store.checkpoint_choice import CheckpointRow, read_checkpoint_choices
from harness.store.claims import ClaimAnswer, answer_suite_claims
from harness.store.finished import FinishedScores, Place, SeedRow, is_independent_training, read_finished
from harness.store.read import Snapshot
from harness.store.remarks import Missing, TrainingMoment, mixed_in, read_moments
from harness.store.retention import RetentionRow, read_retention
from harness.store.roles import RoleRow, role_rows
from harness.store.sentences import joined, write_doubt, write_rate, write_sentence, write_summary
from harness.store.statistic import STATISTICS, Pair, TableRow, to_bounds, to_number
from harness.store.table import MEAN, compare_rows

# Of which choices of policy, benchmark and metric a heading speaks:
# everything: of each policy and metric, on all benchmarks together and, where there are several, on each
# opening: of the first policy on all benchmarks together, by each metric
# first: of the same by the first metric alone, in its sentence, without the tables beside it
# nothing: of none
Said = Literal["everything", "opening", "first", "nothing"]
# Of fewer seeds a bootstrap interval comes out far too narrow
MIN_RUNS = 5
End = tuple[str, float]


_RANKED = (
    "seeds", "paired_seeds", "accuracy", "interval", "gain", "gain_interval", "gain_corrected_interval", "baseline", "gain_p",
    "tie_group", "detectable", "seeds_needed", "verdict",
)  # fmt: skip
# The fields are statistics of the table: each is declared once, in `STATISTICS`. A type checker cannot read `defstruct`, so for
# it there is a class of the same name.
if TYPE_CHECKING:

    class Rank(msgspec.Struct, frozen=True, kw_only=True):
        """A regime over all chosen panels: statistics of `ShowRow`. ends: name and gain of the panels with the smallest and
        the largest gain, where their mean would mislead."""

        regime: str
        ends: tuple[End, End] | None

        def __getattr__(self, name: str) -> Any: ...
else:
    Rank = msgspec.defstruct(
        "Rank",
        [("regime", str), *((name, STATISTICS[name].kind) for name in _RANKED), ("ends", tuple[End, End] | None)],
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class Ranking(msgspec.Struct, frozen=True):
    """The regimes over some panels, best mean first.

    groups, tasks, seeds, panels: how many are in the mean. baseline: that of most rows. left_out: panels and regimes that are
    not in the mean, with the reason. unlike: regimes whose baseline had other rollouts.
    """

    ranks: list[Rank]
    groups: int
    tasks: int
    seeds: int
    baseline: str
    margin: float = MARGIN
    left_out: list[str] = []
    panels: int = 0
    unlike: frozenset[str] = frozenset()


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Two regimes on the same seeds of one group, policy and task. difference: ours less theirs, a fraction; p: corrected."""

    group: str
    policy: str
    task: str
    seeds: int
    difference: float
    interval: Pair | None
    p: float | None
    verdict: str


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A regime over all groups and benchmarks. tasks: how many panels; the name is that of stored JSON. iqm: the interquartile
    mean of its runs. better: probability that a run beats one of the baseline. Intervals are None for fewer than MIN_RUNS seeds
    and where all resamples agree."""

    regime: str
    seeds: int
    tasks: int
    iqm: float
    iqm_interval: Pair | None
    baseline: str | None
    better: float | None
    better_interval: Pair | None


class Headline(msgspec.Struct, frozen=True):
    """What is said of one choice; `*` is the mean of policies, and all tasks. summary: at most three short sentences; sentence: of
    every regime; doubt: seeds that would settle it."""

    policy: str
    metric: str
    task: str
    sentence: str
    doubt: str = ""
    summary: str = ""


class Heading(msgspec.Struct, frozen=True):
    """The lines above a suite's rows. sentences: the opening one first. across: by metric. roles: by the first metric. claims:
    what was claimed before the suite ran. checkpoints: what the choice of a checkpoint would change. task_rewards, task_help: of
    mixed training, by task. retention: of tasks that were not trained. missing, submission: filled in by the command."""

    margin: float = MARGIN
    sentences: list[Headline] = []
    across: dict[str, list[Aggregate]] = {}
    roles: list[RoleRow] = []
    retention: list[RetentionRow] = []
    claims: list[ClaimAnswer] = []
    checkpoints: list[CheckpointRow] = []
    task_rewards: list[TaskReward] = []
    task_help: list[TaskHelp] = []
    missing: list[Missing] = []
    starts: list[TrainingMoment] = []
    submission: str = ""
    processors: str = ""


NOTHING_PAIRED = "no seed of two regimes"
ONE_SEED = "one seed"
# For any interval
FEWEST_SEEDS = 2


def rank_regimes(rows: Sequence[SeedRow], margin: float = MARGIN, among: Sequence[SeedRow] | None = None) -> Ranking:
    """Rank regimes by their mean over the panels of `rows` (of one policy and metric) that have a verdict, seed by seed.

    margin: of the verdicts. among: all rows of that policy and metric, for which the choice is corrected too. A group that
    holds another one (a pair with a third) is left out of the mean, which would count the pair's policies twice and narrow
    an interval by repeating them.
    """
    panels = list(dict.fromkeys((row.group, row.task) for row in rows))
    if not panels:
        return Ranking([], 0, 0, 0, "", margin)
    family = rows if among is None else among
    several = len(panels) > 1
    names, comparisons = compare_rows(family, margin, panels if several else None)
    used, excluded = _choose_panels(rows, panels, comparisons)
    whole = comparisons[None if several else panels[0]]
    if len(used) < len(panels):  # the mean is that of the panels used, which only a second comparison has
        _, of_used = compare_rows(family, margin, used)
        whole = of_used[None]

    titles = _title_panels(panels)
    reasons = [(titles[panel], why) for panel, why in excluded.items()]
    references = {row.regime: row.baseline for row in rows}
    ranked_panels = _RankedPanels(rows, used, titles, comparisons, whole)
    ranks, absences = ranked_panels.make_ranks(names, references)
    reasons += absences

    groups = {group for group, _ in used}
    tasks = {task for _, task in used}
    return Ranking(
        ranks=sorted(ranks, key=lambda rank: -rank.accuracy),
        groups=len(groups),
        tasks=len(tasks),
        seeds=max((rank.seeds for rank in ranks), default=0),
        baseline=_find_usual_baseline(rows),
        margin=margin,
        left_out=_join_by_reason(reasons),
        panels=len(used),
        unlike=frozenset(row.regime for row in rows if row.unlike),
    )


class _RankedPanels(NamedTuple):
    """The panels that a ranking is over. rows: of these and of the panels left out. used: those of the mean. whole: the comparison
    on their mean."""

    rows: Sequence[SeedRow]
    used: Sequence[Place]
    titles: Mapping[Place, str]
    comparisons: Mapping[Place | None, Comparison]
    whole: Comparison

    def make_ranks(
        self, names: Sequence[str], references: Mapping[str, str | None]
    ) -> tuple[list[Rank], list[tuple[str, str]]]:
        """Make the ranks of the regimes that the ranking is of, in the order of `names`; one without a mean has none.

        names: of the comparisons. references: of the ranking. Returns also each regime that is absent somewhere, and why.
        """
        ranks = []
        absences = []
        for place, name in enumerate(names):
            if name not in references:
                continue
            row = TableRow(comparison=self.whole, place=place, reference=references[name])
            absence = _explain_left_out(row, *self.divide_titles(name))
            if absence:
                absences.append((name, absence))
            if self.whole.own.n[place]:
                fields = {statistic: STATISTICS[statistic].of(row) for statistic in _RANKED}
                ranks.append(Rank(regime=name, ends=self.find_misleading_ends(name, place), **fields))
        return ranks, absences

    def divide_titles(self, name: str) -> tuple[list[str], list[str]]:
        """Return the titles of the panels with and of those without a row of a regime."""
        there = {(row.group, row.task) for row in self.rows if row.regime == name}
        having = [self.titles[panel] for panel in self.used if panel in there]
        lacking = [self.titles[panel] for panel in self.used if panel not in there]
        return having, lacking

    def find_misleading_ends(self, name: str, place: int) -> tuple[End, End] | None:
        """Return between which panels, or policies, the gains of a regime lie, where their mean would mislead; else None."""
        if self.whole.uneven[place]:
            return _find_panel_ends(self.comparisons, self.used, self.titles, place)
        if self.whole.verdicts[place] == DIFFERS_POLICIES:
            in_mean = [row for row in self.rows if (row.group, row.task) in self.used]
            return _find_policy_ends(in_mean, name)
        return None


def _find_usual_baseline(rows: Sequence[SeedRow]) -> str:
    """Return the baseline that most rows have, or the first regime where nothing is compared."""
    counts = Counter(row.baseline for row in rows if row.baseline is not None)
    if not counts:
        return rows[0].regime
    [(baseline, _)] = counts.most_common(1)
    return baseline


def _explain_left_out(row: TableRow, having: Sequence[str], lacking: Sequence[str]) -> str:
    """Say why a regime, or its gain, is not in the mean; empty where it is. having, lacking: titles of the panels with and without
    a row of it; the shorter list is told."""
    has_mean = row.comparison.own.n[row.place] > 0
    if not has_mean and not lacking:
        return "no seed is everywhere"
    if not has_mean and 0 < len(having) < len(lacking):
        return f"only on {joined(having)}"
    if not has_mean:
        return f"nothing on {joined(lacking)}"
    if row.reference and not row.comparison.gains.n[row.place]:
        return f"no seed in common with {row.reference}"
    return ""


def _join_by_reason(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Write names with why each is left out, those with the same reason together. reasons: a name and why."""
    names: dict[str, list[str]] = {}
    for name, why in reasons:
        names.setdefault(why, []).append(name)
    return [f"{joined(together)} ({why})" for why, together in names.items()]


def _find_panel_ends(
    comparisons: Mapping[Place | None, Comparison], panels: Sequence[Place], titles: Mapping[Place, str], place: int
) -> tuple[End, End]:
    """Return the panels with the smallest and the largest gain of the regime at `place`, by title and gain."""
    gains = []
    for panel in panels:
        gain = float(comparisons[panel].gains.mean[place])
        gains.append((gain, titles[panel]))
    gains.sort()
    least, low = gains[0]
    most, high = gains[-1]
    return (low, least), (high, most)


def _find_policy_ends(rows: Sequence[SeedRow], name: str) -> tuple[End, End]:
    """Return the policies with the smallest and the largest gain of a regime, by name and gain, over the seeds that both have.

    rows: of one panel, of the regime and of its baseline.
    """
    baseline = next(row.baseline for row in rows if row.regime == name)
    theirs = {}
    for row in rows:
        if row.regime == baseline:
            for one in row.members:
                theirs[row.seed, one.policy] = one.accuracy
    gains: dict[str, list[float]] = {}
    for row in rows:
        if row.regime != name:
            continue
        for one in row.members:
            place = row.seed, one.policy
            if place in theirs:
                of_policy = gains.setdefault(one.policy, [])
                of_policy.append(one.accuracy - theirs[place])
    means = sorted((float(np.mean(own)), policy) for policy, own in gains.items())
    least, low = means[0]
    most, high = means[-1]
    return (low, least), (high, most)


def _choose_panels(
    rows: Sequence[SeedRow], panels: Sequence[Place], comparisons: Mapping[Place | None, Comparison]
) -> tuple[list[Place], dict[Place, str]]:
    """Choose the panels that are in the mean: those with a verdict, or all where none has one, without groups that hold another.
    Where some of these have FEWEST_SEEDS paired seeds or more, panels with fewer are left out.

    Returns them, and the others with the reason.
    """
    holding = _find_holding(rows)
    apart = [panel for panel in panels if panel not in holding]
    no_verdict = {*WITHHELD, BASELINE, ALONE}
    judged = [panel for panel in apart if not no_verdict.issuperset(comparisons[panel].verdicts)]
    candidates = judged or apart
    # Of a suite that runs seed by seed, a group with one seed would leave one seed to all: a mean is over seeds that are everywhere
    repeated = [panel for panel in candidates if _count_paired_seeds(comparisons[panel]) >= FEWEST_SEEDS]
    used = repeated or candidates
    withheld = {(row.group, row.task): row.withheld for row in rows if row.withheld}
    excluded: dict[Place, str] = {}
    for panel in panels:
        if panel in holding:
            excluded[panel] = holding[panel]
        elif panel not in used:
            has_too_few = panel in candidates  # left out for its seeds alone
            why = ONE_SEED if has_too_few else withheld.get(panel, NOTHING_PAIRED)
            excluded[panel] = why.removeprefix("withheld: ")
    return used, excluded


def _count_paired_seeds(comparison: Comparison) -> int:
    """Count the seeds of the regime that has most in common with its baseline."""
    return max((int(count) for count in comparison.gains.n), default=0)


def _title_panels(panels: Sequence[Place]) -> dict[Place, str]:
    """Name each panel by its group, its task, or by both where both differ between the panels."""
    groups = {group for group, _ in panels}
    tasks = {task for _, task in panels}
    titles: dict[Place, str] = {}
    for group, task in panels:
        if len(tasks) == 1:
            titles[group, task] = group
        else:
            titles[group, task] = task if len(groups) == 1 else f"{group}, {task}"
    return titles


def _find_holding(rows: Sequence[SeedRow]) -> dict[Place, str]:
    """Return the panels of a group that holds another group of the same rows, and in words which."""
    holds = {(row.group, row.task): row.holds for row in rows}
    holding: dict[Place, str] = {}
    for (group, task), others in holds.items():
        held = [other for other in others if (other, task) in holds]
        if held:
            holding[group, task] = f"it holds {joined(held)}"
    return holding


def compare_pair(rows: Sequence[SeedRow], ours: str, theirs: str, margin: float = MARGIN) -> list[Pairing]:
    """Compare two regimes by group, policy and task of `rows`, where they have seeds in common.

    rows: all of one metric; those of one policy are a family of tests. margin: of the verdicts.
    """
    by_policy: dict[str, list[SeedRow]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    compared = {policy: compare_rows(own, margin) for policy, own in by_policy.items()}
    pairs = []
    for group, policy, task in dict.fromkeys((row.group, row.policy, row.task) for row in rows):
        names, panels = compared[policy]
        if ours not in names or theirs not in names:
            continue
        places = names.index(ours), names.index(theirs)
        panel = panels[group, task]
        difference = panel.difference[places]
        p = float(panel.p[places])
        if not difference.n:
            continue
        verdicts = [panel.verdicts[place] for place in places]
        withheld = next((verdict for verdict in verdicts if verdict in WITHHELD), None)
        pair = Pairing(
            group=group,
            policy=policy,
            task=task,
            seeds=int(difference.n),
            difference=float(difference.mean),
            interval=to_bounds(difference),
            p=to_number(p),
            verdict=withheld or judge_gain(difference, p, margin),
        )
        pairs.append(pair)
    return pairs


def aggregate_panels(rows: Sequence[SeedRow]) -> list[Aggregate]:
    """Aggregate each regime's runs over two or more panels (else none), best interquartile mean first.

    Only seeds that are finished on every panel count. Groups that hold another one are left out, as by `rank_regimes`.
    """
    holding = _find_holding(rows)
    rows = [row for row in rows if (row.group, row.task) not in holding]
    panels = list(dict.fromkeys((row.group, row.task) for row in rows))
    if len(panels) < 2:
        return []
    references = {row.regime: row.baseline for row in rows}
    scores = _gather_runs(rows, panels)
    aggregated = []
    for regime, ours in scores.items():
        if not len(ours):
            continue
        middle = iqm_interval(ours)
        aggregate = Aggregate(
            regime=regime,
            seeds=len(ours),
            tasks=len(panels),
            iqm=middle.value,
            iqm_interval=_interval_if_enough(middle, len(ours)),
            baseline=None,
            better=None,
            better_interval=None,
        )
        theirs = scores.get(references[regime] or "", np.array([]))
        if len(theirs):
            better = improvement_interval(ours, theirs)
            interval = _interval_if_enough(better, min(len(ours), len(theirs)))
            aggregate = msgspec.structs.replace(
                aggregate, baseline=references[regime], better=better.value, better_interval=interval
            )
        aggregated.append(aggregate)
    return sorted(aggregated, key=lambda aggregate: -aggregate.iqm)


def _gather_runs(rows: Sequence[SeedRow], panels: Sequence[Place]) -> dict[str, Float[np.ndarray, "runs panels"]]:
    """Return by regime the accuracies of the seeds that are finished on every panel."""
    by_seed: dict[str, dict[int, dict[Place, float]]] = {}
    for row in rows:
        of_regime = by_seed.setdefault(row.regime, {})
        of_seed = of_regime.setdefault(row.seed, {})
        of_seed[row.group, row.task] = row.accuracy
    runs: dict[str, Float[np.ndarray, "runs panels"]] = {}
    for regime, seeds in by_seed.items():
        complete = [own for _, own in sorted(seeds.items()) if len(own) == len(panels)]
        runs[regime] = np.array([[own[panel] for panel in panels] for own in complete])
    return runs


def _interval_if_enough(interval: BootstrapInterval, runs: int) -> Pair | None:
    """Return the ends of a bootstrap interval, None for fewer than MIN_RUNS runs and where all resamples agree."""
    if runs < MIN_RUNS or interval.low >= interval.high:
        return None
    return interval.low, interval.high


def make_heading(snapshot: Snapshot, suite: str, margin: float = MARGIN, said: Said = "everything") -> Heading:
    """Make the sentences for each choice of policy, task and metric, the opening one first.

    margin: the largest effect that the verdicts count as none, a fraction. said: of which choices; tables that a brief page lacks
    are not computed for it. Claims, starts and processors are, for every page has them.
    """
    whole = said in ("everything", "opening")
    sentences: list[Headline] = []
    across: dict[str, list[Aggregate]] = {}
    roles: list[RoleRow] = []
    if said != "nothing":
        finished = read_finished(snapshot, suite)
        sentences, across = _speak_of_choices(finished, margin, said)
        if finished.rows:
            roles = role_rows(finished, finished.rows[0].metric)
    return Heading(
        margin=margin,
        sentences=sentences,
        across=across,
        roles=roles,
        retention=[] if said == "nothing" else read_retention(snapshot, suite),
        claims=answer_suite_claims(snapshot, suite, margin),
        checkpoints=read_checkpoint_choices(snapshot, suite) if whole else [],
        task_rewards=read_task_rewards(snapshot, suite) if whole else [],
        task_help=read_task_help(snapshot, suite) if whole else [],
        starts=read_moments(snapshot, suite),
        processors=mixed_in(snapshot, suite),
    )


def _speak_of_choices(
    finished: FinishedScores, margin: float, said: Said
) -> tuple[list[Headline], dict[str, list[Aggregate]]]:
    """Make the sentences of each choice that is spoken of, and by metric the aggregates of the first policy on all benchmarks.

    The first policy is the mean of policies where there is one. Aggregates are made for `everything` and `opening` alone.
    """
    rate = find_single_rate(finished)
    by_choice: dict[tuple[str, str], list[SeedRow]] = {}
    for row in finished.rows:
        of_choice = by_choice.setdefault((row.policy, row.metric), [])
        of_choice.append(row)
    sentences: list[Headline] = []
    across: dict[str, list[Aggregate]] = {}
    for policy, task, metric in _list_choices(by_choice, said):
        among = by_choice.get((policy, metric), [])
        chosen = [row for row in among if task in (MEAN, row.task)]
        if not chosen:
            continue
        ranking = rank_regimes(chosen, margin, among)
        sentences.append(_make_headline(policy, metric, task, ranking, rate))
        is_overall = (policy, task) == (sentences[0].policy, MEAN)
        aggregates = aggregate_panels(chosen) if is_overall and said != "first" else []
        if aggregates:
            across[metric] = aggregates
    return sentences, across


def _list_choices(by_choice: Mapping[tuple[str, str], Sequence[SeedRow]], said: Said) -> list[tuple[str, str, str]]:
    """Return policy, benchmark and metric of each choice that is spoken of: the mean before policies, all benchmarks before each.

    by_choice: a suite's rows by policy and metric. said: see `Said`.
    """
    rows = chain.from_iterable(by_choice.values())
    tasks = list(dict.fromkeys(row.task for row in rows))
    policies = sorted(dict.fromkeys(policy for policy, _ in by_choice), key=lambda policy: policy != MEAN)
    metrics = list(dict.fromkeys(metric for _, metric in by_choice))
    benchmarks = [MEAN]
    if said == "first":
        policies, metrics = policies[:1], metrics[:1]
    elif said == "opening":
        policies = policies[:1]
    elif len(tasks) > 1:
        benchmarks += tasks
    return list(product(policies, benchmarks, metrics))


def _make_headline(policy: str, metric: str, task: str, ranking: Ranking, rate: float | None) -> Headline:
    """Put a ranking into sentences. rate: of `find_single_rate`."""
    rates = "" if rate is None else f" One learning rate was run: {write_rate(rate)}."
    sentence = write_sentence(ranking) + rates
    doubt = write_doubt(ranking)
    summary = write_summary(ranking, rate)
    return Headline(policy, metric, task, sentence, doubt, summary)


def find_single_rate(finished: FinishedScores) -> float | None:
    """Return the one learning rate at which independent training ran; None where it ran at several, where none is known, and where
    nothing is compared."""
    lines = finished.lines
    every = {line.trained.rate for line in lines.values() if is_independent_training(line, lines)}
    known = [rate for rate in every if rate is not None]
    compared = any(row.gain is not None for row in finished.rows)
    return known[0] if len(every) == 1 and known and compared else None
