"""The scores of a suite with its finished cells, each paired with the baseline of its seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from harness.statistics import (
    Estimate,
    estimate_paired_difference,
    sampling_variance,
)
from harness.statistics.comparison import CEILING, FLOOR, IDLE
from harness.store import pace_statistics as pace_statistics  # it fills STATISTICS
from harness.store.learning_curves import MEAN as MEAN
from harness.store.pace import Clocks, PaceBook
from harness.store.question_scores import QuestionBook
from harness.store.read import Snapshot
from harness.store.statistic import STATISTICS, SeedCost
from harness.store.tuning import tuned_label

# Group and task: one panel
Place = tuple[str, str]


class Key(NamedTuple):
    """Where a score belongs, all but regime and seed. policy: MEAN for the mean over the group's policies."""

    group: str
    policy: str
    task: str
    metric: str


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row belongs. policy: MEAN for the mean over the group's policies."""

    group: str
    policy: str
    regime: str
    task: str
    metric: str


if TYPE_CHECKING:

    class ShowRow(_Place, frozen=True, kw_only=True):
        """A regime on one group, policy, task and metric, with a field per statistic (`store.statistic`). Accuracies,
        gains and shares are fractions; costs are means per seed. variant: the suite's."""

        variant: str

        def __getattr__(self, name: str) -> Any: ...
else:
    ShowRow = msgspec.defstruct(
        "ShowRow",
        [*((s.name, s.kind) for s in STATISTICS.values()), ("variant", str)],
        bases=(_Place,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class Member(NamedTuple):
    """One policy's part in the mean of its group: its accuracy, and the `sampling_variance` of it."""

    policy: str
    accuracy: float
    noise: float


class SeedRow(_Place, frozen=True, kw_only=True):
    """One seed of a row; accuracies and gains are fractions.

    variant: whose cell it is. noise: `sampling_variance` of the accuracy. base: accuracy before training. gain: over the
    baseline's same seed. withheld: why there is no verdict. unlike: the baseline had other rollouts, or too few for a
    second round. holds: other groups of the suite, all of whose policies are in this one too. members: the policies that a
    mean is of.
    """

    variant: str
    seed: int
    accuracy: float
    noise: float
    base: float | None
    gain: float | None
    baseline: str | None
    withheld: str = ""
    unlike: bool = False
    holds: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainedAs:
    """Settings of a variant's cells that decide with which independent training it is compared. rate: the learning rate, None where
    the store does not say it. stream: another number draws other prompts and samples. dynamic: whether prompts are replaced.
    updates: of the optimiser a step."""

    rate: float | None = None
    steps: int | None = None
    prompts: int | None = None
    stream: int = 0
    dynamic: bool = False
    updates: int | None = None

    def has_clock_of(self, other: TrainedAs) -> bool:
        """Say whether both have the same learning rate, steps and questions a step."""
        return (self.rate, self.steps, self.prompts) == (other.rate, other.steps, other.prompts)


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of the tables: a variant of the suite, or one as tuned.

    cells: the suite's variant whose cells it is made of. sampled: rollouts of both rounds over the first's. reference: the
    line that gains are over. trained: how its cells were trained.
    """

    name: str
    kind: str
    options: str
    budget: str
    baseline: str
    cells: str = ""
    sampled: float = 1.0
    reference: str | None = None
    trained: TrainedAs = TrainedAs()

    @property
    def multiple(self) -> float:
        """The rollout budget as a multiple of the suite's."""
        return float(self.budget.removesuffix("x"))


BySeed = dict[int, SeedRow]


@dataclass(frozen=True)
class FinishedScores:
    """The finished cells of a suite. lines: by name, in the suite's order. paces, questions: of these lines. rows: in the same
    order. costs: by `Key` and line, of each seed. policies: by group. curve_task: of which the curves are; empty where the store
    does not say it."""

    lines: dict[str, TableLine]
    paces: PaceBook
    questions: QuestionBook
    curve_task: str = ""
    rows: list[SeedRow] = field(default_factory=list)
    costs: dict[tuple[Key, str], list[SeedCost]] = field(default_factory=dict)
    policies: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def by_key(self) -> dict[Key, dict[str, BySeed]]:
        """The rows by key, line and seed. For a reader: `rows` is complete by then."""
        return group_by_line(self.rows)

    def gains_beside(self, key: Key, name: str) -> dict[str, Estimate]:
        """Return a line's gain by the other metrics of the same answers, by metric; nothing but beside avg@k."""
        if not key.metric.startswith("avg@"):
            return {}
        reference = self.lines[name].reference or ""
        gains: dict[str, Estimate] = {}
        for metric in dict.fromkeys(other.metric for other in self.by_key):
            lines = self.by_key.get(key._replace(metric=metric), {})
            if metric != key.metric and name in lines and reference in lines:
                gains[metric] = estimate_difference(lines[name], lines[reference])
        return gains


def group_by_line(rows: Sequence[SeedRow]) -> dict[Key, dict[str, BySeed]]:
    """Return the rows by key, line and seed."""
    lines: dict[Key, dict[str, BySeed]] = {}
    for row in rows:
        key = Key(row.group, row.policy, row.task, row.metric)
        of_key = lines.setdefault(key, {})
        of_line = of_key.setdefault(row.regime, {})
        of_line[row.seed] = row
    return lines


def estimate_difference(ours: BySeed, theirs: BySeed) -> Estimate:
    """Estimate our accuracy minus theirs, paired over the seeds that both have."""
    seeds = sorted(ours.keys() & theirs.keys())
    our_scores = [ours[seed].accuracy for seed in seeds]
    their_scores = [theirs[seed].accuracy for seed in seeds]
    noise = [ours[seed].noise + theirs[seed].noise for seed in seeds]
    return estimate_paired_difference(our_scores, their_scores, noise=noise)


# A row for each policy's accuracy on one task by one metric. Rows of one cell, task and metric stand together, which `_read_scores`
# relies on. Base checkpoints have no training and so no totals: their costs are 0
_SCORES = """
WITH by_policy AS (
    SELECT suite, cell, policy, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu,
        coalesce(sum(wall_seconds) FILTER (phase = 'score'), 0) > 0 AS scores
    FROM spent GROUP BY ALL
),
by_cell AS (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL),
every AS (SELECT suite, cell, sum(answers) AS answers, sum(generated_tokens) AS tokens FROM totals GROUP BY ALL)
SELECT c.kind = 'base' AS base, c.cell, c.group_name, c.regime, c.seed, c.policies, s.task,
    -- the name that tables have: of sampled answers with how many there are to a question
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy,
    -- no gradient of the policy ever differed from 0; false where none is known
    coalesce(t.gradient_norm, 'NaN') = 0 AS idle,
    -- of the whole cell, for the mean over its policies; rounded, as sums of floating-point numbers depend on their order
    round(coalesce(w.cpu, 0), 6) AS cell_cpu, round(coalesce(w.gpu, 0), 6) AS cell_gpu,
    s.accuracy, coalesce(s.error, 'NaN') AS error, s.questions,
    -- how many judged answers the accuracy is a mean of
    CASE s.metric WHEN 'sampled' THEN s.answers ELSE s.questions END AS answers,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    -- tokens of others that the policy scored: those that were sent to it, else the drafts of all others; 0 where it never scored
    CASE WHEN p.scores THEN coalesce(nullif(t.exchanged_tokens, 0), every.tokens - t.generated_tokens, 0) ELSE 0 END::DOUBLE
        AS scored,
    coalesce(t.trained_tokens, 0) AS trained,
    -- of this policy alone
    round(coalesce(p.cpu, 0), 6) AS cpu, round(coalesce(p.gpu, 0), 6) AS gpu,
    coalesce(t.peer_received, 0) AS received, coalesce(t.peer_used, 0) AS used,
    -- answers that it might have received: all of the others', else, with no others, what it did receive
    coalesce(nullif(every.answers - t.answers, 0), t.peer_received, 0)::DOUBLE AS offered
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy) LEFT JOIN by_policy p USING (suite, cell, policy)
LEFT JOIN by_cell w USING (suite, cell) LEFT JOIN every USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY base, c.group_name, s.task, metric, c.regime, c.seed, c.cell, s.policy
"""
_VARIANTS = """
SELECT regime AS name, any_value(regime_type) AS kind, any_value(options) AS options, any_value(budget) AS budget,
    coalesce(nullif(any_value(s.baseline), ''), any_value(c.baseline)) AS baseline,
    coalesce(sum(t.rollouts) / nullif(sum(t.answers), 0), 1.0) AS sampled, any_value(c.config) AS config
FROM current_cells c LEFT JOIN suites s USING (suite) LEFT JOIN totals t USING (suite, cell)
WHERE kind = 'cell' AND suite = ? GROUP BY regime
"""


class _SeedScore(NamedTuple):
    """One seed's accuracy, its `sampling_variance`, and what it cost. members: the policies that it is the mean of."""

    accuracy: float
    noise: float
    cost: SeedCost
    members: tuple[Member, ...] = ()


@dataclass(slots=True)
class _StoredScores:
    """What the store has of a suite's finished cells, by the names that cells have.

    scores: by key, variant and seed. base: accuracy of base checkpoints by key and seed; None is the seed of a checkpoint
    that all seeds share. idle: by group, policy and variant, whether no cell's gradient ever differed from 0. policies: by
    group, in the cells' order.
    """

    scores: dict[Key, dict[str, dict[int, _SeedScore]]] = field(default_factory=dict)
    base: dict[Key, dict[int | None, float]] = field(default_factory=dict)
    idle: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    policies: dict[str, list[str]] = field(default_factory=dict)

    def add_base(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in a base checkpoint's scores on one task and metric, one row a policy."""
        for row in rows:
            key = Key(row["group_name"], row["policy"], row["task"], row["metric"])
            self.base.setdefault(key, {})[row["seed"]] = row["accuracy"]

    def add_cell(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in a cell's scores on one task and metric, one row a policy, and their mean."""
        first = rows[0]
        group = first["group_name"]
        variant = first["regime"]
        seed = first["seed"]
        names = first["policies"]
        self.policies[group] = list(dict.fromkeys([*self.policies.get(group, ()), *names]))
        costs = []
        for row in rows:
            cost = SeedCost(*(row[name] for name in SeedCost._fields))
            costs.append(cost)
            key = Key(group, row["policy"], row["task"], row["metric"])
            score = _SeedScore(row["accuracy"], row["noise"], cost)
            self.scores.setdefault(key, {}).setdefault(variant, {})[seed] = score
            place = group, row["policy"], variant
            self.idle[place] = row["idle"] and self.idle.get(place, True)
        # One policy has no mean, and a mean over some of the policies is not comparable
        if len(rows) < max(2, len(names)):
            return
        accuracy = sum(row["accuracy"] for row in rows) / len(rows)
        noise = sum(row["noise"] for row in rows) / len(rows) ** 2
        cost = SeedCost(*map(sum, zip(*costs, strict=True)))
        cost = cost._replace(cpu=first["cell_cpu"], gpu=first["cell_gpu"])
        key = Key(group, MEAN, first["task"], first["metric"])
        members = tuple(Member(row["policy"], row["accuracy"], row["noise"]) for row in rows)
        self.scores.setdefault(key, {}).setdefault(variant, {})[seed] = _SeedScore(accuracy, noise, cost, members)

    def members_of(self, key: Key) -> list[str]:
        """Return the policies that the key's policy stands for."""
        return self.policies[key.group] if key.policy == MEAN else [key.policy]

    def accuracy_before_training(self, key: Key) -> dict[int | None, float]:
        """Return by seed the mean accuracy of the members' base checkpoints, where each member has one."""
        by_member = [self.base.get(key._replace(policy=name), {}) for name in self.members_of(key)]
        if not all(by_member):
            return {}
        means: dict[int | None, float] = {}
        for seed in set().union(*by_member):
            # a checkpoint that all seeds share counts where a seed has none of its own
            accuracies = [own.get(seed, own.get(None, np.nan)) for own in by_member]
            means[seed] = sum(accuracies) / len(by_member)
        return means

    def has_learnt_nothing(self, key: Key, variant: str) -> bool:
        """Say whether no gradient of the variant's cells differed from 0, for any member of the key."""
        return all(self.idle.get((key.group, member, variant)) for member in self.members_of(key))


def read_finished(snapshot: Snapshot, suite: str) -> FinishedScores:
    """Read the finished cells of a suite, once from a snapshot; nothing for an unknown suite."""
    if suite not in snapshot.finished:
        snapshot.finished[suite] = _read_finished_anew(snapshot, suite)
    done: FinishedScores = snapshot.finished[suite]
    return done


def read_retained(snapshot: Snapshot, suite: str) -> FinishedScores:
    """Read the scores of tasks that the suite names as not trained (`retention`), which `read_finished` leaves out."""
    return _read_finished_anew(snapshot, suite, retained=True)


def _read_finished_anew(snapshot: Snapshot, suite: str, retained: bool = False) -> FinishedScores:
    """Read the finished cells of a suite from the store. retained: of the tasks in the suite's `retention`, else of all others."""
    query = "SELECT groups, variants, tuned, config FROM suites WHERE suite = ?"
    described = snapshot.query(query, [suite]).to_pylist()
    about: dict[str, Any] = described[0] if described else {"groups": [], "variants": [], "tuned": [], "config": ""}
    config = json.loads(about["config"] or "{}")
    held_groups = _find_held_groups(config.get("groups", ()))
    variants = [_make_variant(row) for row in snapshot.query(_VARIANTS, [suite]).to_pylist()]
    untrained = frozenset(config.get("retention") or ())
    stored = _read_scores(snapshot, suite, untrained, retained)
    lines = make_lines(variants, about["variants"], about["tuned"])
    paces = PaceBook(snapshot, suite, stored.policies, find_clocks(lines))
    questions = QuestionBook(snapshot, suite)
    done = FinishedScores(lines, paces, questions, policies=stored.policies, curve_task=_first_task(config))

    group_places = {name: place for place, name in enumerate(about["groups"])}

    def place_of(key: Key) -> tuple[object, ...]:
        """Return the key's place in tables: the suite's order of groups, the mean before policies, greedy last."""
        group = group_places.get(key.group, len(group_places))
        member = -1 if key.policy == MEAN else stored.policies[key.group].index(key.policy)
        return group, key.group, key.task, key.metric == "greedy", key.metric, member

    for key in sorted(stored.scores, key=place_of):
        _add_key(done, stored, key, held_groups.get(key.group, ()))
    return done


def _make_variant(row: Mapping[str, Any]) -> TableLine:
    """Make a line of a row of `_VARIANTS`."""
    cell = json.loads(row["config"] or "{}")
    training = cell.get("training") or {}
    variant = cell.get("variant") or {}
    trained = TrainedAs(
        rate=training.get("learning_rate"),
        steps=training.get("steps"),
        prompts=training.get("prompts"),
        stream=variant.get("sampling_stream", 0),
        dynamic=variant.get("dynamic_sampling") is not None,
        updates=training.get("updates"),
    )
    return TableLine(
        name=row["name"],
        kind=row["kind"],
        options=row["options"],
        budget=row["budget"],
        baseline=row["baseline"],
        cells=row["name"],
        sampled=row["sampled"],
        trained=trained,
    )


def _first_task(config: Mapping[str, Any]) -> str:
    """Return the name of the suite's first held-out task, of which learning curves are; empty where the file does not say it."""
    tasks = config.get("evaluation", {}).get("tasks") or [""]
    return str(tasks[0]["name"] if isinstance(tasks[0], dict) else tasks[0])


def _read_scores(snapshot: Snapshot, suite: str, untrained: frozenset[str], retained: bool) -> _StoredScores:
    """Read a suite's scores, each with its `sampling_variance`, on the tasks that are not trained (retained), or on all others."""
    stored = _StoredScores()
    if retained and not untrained:
        return stored  # most suites name none: their cells need not be read a second time
    data = snapshot.query(_SCORES, [suite])
    columns = [data[name].to_pylist() for name in ("accuracy", "error", "questions", "answers")]
    noise = sampling_variance(*columns)
    every = data.append_column("noise", [noise]).to_pylist()
    rows = [row for row in every if (row["task"] in untrained) == retained]
    for (is_base, *_), part in groupby(rows, key=itemgetter("base", "cell", "task", "metric")):
        if is_base:
            stored.add_base(list(part))
        else:
            stored.add_cell(list(part))
    return stored


def _add_key(done: FinishedScores, stored: _StoredScores, key: Key, holds: tuple[str, ...]) -> None:
    """Add the rows and costs of one key: for each line, seed by seed, paired with its reference."""
    before = stored.accuracy_before_training(key)
    of_variants = stored.scores[key]
    scores = {name: of_variants[line.cells] for name, line in done.lines.items() if line.cells in of_variants}
    accuracies = set[float]()
    for by_seed in scores.values():
        accuracies.update(score.accuracy for score in by_seed.values())
    for name, by_seed in scores.items():
        line = done.lines[name]
        against = scores.get(line.reference or "", {})
        reference = done.lines.get(line.reference or "")
        withheld = _find_withheld_reason(stored, key, accuracies, reference)
        done.costs[key, name] = [score.cost for score in by_seed.values()]
        for seed, score in sorted(by_seed.items()):
            theirs = against.get(seed, score)
            row = SeedRow(
                **key._asdict(),
                regime=name,
                variant=line.cells,
                seed=seed,
                accuracy=score.accuracy,
                noise=score.noise,
                base=before.get(seed, before.get(None)),
                gain=score.accuracy - theirs.accuracy if seed in against else None,
                baseline=line.reference,
                withheld=withheld,
                unlike=not _has_budget(line, score.cost.rollouts, theirs.cost.rollouts),
                holds=holds,
                members=score.members,
            )
            done.rows.append(row)


def _find_withheld_reason(stored: _StoredScores, key: Key, accuracies: Set[float], reference: TableLine | None) -> str:
    """Return why the verdict on a line is withheld, or empty. accuracies: those of all lines and seeds of the key."""
    if accuracies == {0.0}:
        return FLOOR
    if accuracies == {1.0}:
        return CEILING
    if reference is not None and stored.has_learnt_nothing(key, reference.cells):
        return IDLE
    return ""


def _has_budget(line: TableLine, rollouts: float, of_baseline: float) -> bool:
    """Say whether the baseline had the line's budget: as many rollouts, or enough to cover a second round."""
    return rollouts <= of_baseline if line.sampled > 1 else rollouts == of_baseline


def _find_held_groups(groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return by group of a suite's file the smaller groups whose policies it all has, whatever they are called."""

    def count_policies(group: Mapping[str, Any]) -> Counter[str]:
        counts = Counter[str]()
        for policy in group.get("policies", ()):
            unnamed = {key: value for key, value in policy.items() if key != "name"}
            counts[json.dumps(unnamed, sort_keys=True)] += 1
        return counts

    policies_of = {group["name"]: count_policies(group) for group in groups}
    held: dict[str, tuple[str, ...]] = {}
    for name, own in policies_of.items():
        held[name] = tuple(other for other, theirs in policies_of.items() if theirs and theirs < own)
    return held


def make_lines(
    variants: Sequence[TableLine], order: Sequence[str], tuned: Sequence[Sequence[str]]
) -> dict[str, TableLine]:
    """Return the lines of the tables by name: the suite's variants, then each as tuned.

    order: the suite's order of variants. tuned: variant, name of the chosen setting, and the group that chose, of each choice.
    A tuned line is compared with the baseline that the same group tuned.
    """
    places = {name: place for place, name in enumerate(order)}
    copies = {final for variant, final, _ in tuned if final != variant}
    ordered = sorted(variants, key=lambda variant: (places.get(variant.name, len(places)), variant.name))
    by_name = {variant.name: variant for variant in ordered}
    lines: dict[str, TableLine] = {}
    for name, variant in by_name.items():
        if name not in copies:
            lines[name] = replace(variant, reference=_find_reference(variant, by_name, copies))
    for name, final, group in tuned:
        if final in by_name and name in lines:
            over = lines[name].reference
            label = tuned_label(name, group)
            reference = over and tuned_label(over, group)
            trained = by_name[final].trained
            lines[label] = replace(lines[name], name=label, cells=final, reference=reference, trained=trained)
    return lines


def is_independent_training(line: TableLine, lines: Mapping[str, TableLine]) -> bool:
    """Say whether a line is of the baseline's regime, with whatever budget, rate or options, and on the same prompts."""
    baseline = lines.get(line.baseline)
    if baseline is None or line.trained.stream != baseline.trained.stream:
        return False
    return line.kind == baseline.kind


def is_baseline_training(line: TableLine, lines: Mapping[str, TableLine]) -> bool:
    """Say whether a line is the suite's baseline, perhaps at another budget or rate."""
    return is_independent_training(line, lines) and line.options == lines[line.baseline].options


def find_clocks(lines: Mapping[str, TableLine]) -> Clocks:
    """Find the line on whose clock each line is measured: the baseline at the line's own learning rate, or as tuned."""
    plain = [line for line in lines.values() if is_baseline_training(line, lines) and not line.trained.dynamic]
    of: dict[str, str] = {}
    for line in lines.values():
        if ", tuned" in line.name:
            if line.reference:
                of[line.name] = line.reference if line.reference in lines else ""
            continue
        baseline = lines.get(line.baseline)
        if baseline is None:
            continue
        alike = [
            one.name
            for one in plain
            if ", tuned" not in one.name and one.budget == baseline.budget and one.trained.has_clock_of(line.trained)
        ]
        clock = baseline.name if baseline.name in alike else next(iter(alike), "")
        if clock != line.name:
            of[line.name] = clock
    return Clocks(
        of=of,
        cells={name: line.cells for name, line in lines.items()},
        ladders=_find_ladders(plain, of),
        on_chosen_prompts=frozenset(name for name, line in lines.items() if line.trained.dynamic),
    )


def _find_ladders(plain: Sequence[TableLine], clocks: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return by clock the lines that are its training at other budgets, with the budget as a multiple of the clock's."""
    multiples = {line.name: line.multiple for line in plain}
    ladders: dict[str, dict[str, float]] = {}
    for line in plain:
        clock = clocks.get(line.name)
        if clock in multiples and multiples[clock] != line.multiple:
            ladders.setdefault(clock, {})[line.name] = line.multiple / multiples[clock]
    return ladders


def _find_reference(ours: TableLine, variants: Mapping[str, TableLine], copies: Container[str]) -> str | None:
    """Return the name of the baseline of the same rollout budget, None for a baseline or where there is none.

    A regime with a second round samples more than its budget; the next budget that covers both rounds counts, or the largest where
    none does. Where the suite has the baseline at the regime's own learning rate too, that counts; the baseline at another rate is
    compared with the suite's.
    """
    of_suite = variants.get(ours.baseline)
    if of_suite is None:
        return None
    independent = [
        variant
        for variant in variants.values()
        if (variant.kind, variant.options) == (of_suite.kind, of_suite.options) and variant.name not in copies
    ]
    at_own_rate = _lines_at_own_rate(ours, independent)
    if ours in independent or of_suite in at_own_rate or not at_own_rate:
        candidates = independent
        usual = of_suite
    else:
        candidates = at_own_rate
        usual = next((variant for variant in at_own_rate if variant.budget == of_suite.budget), of_suite)
    budget = _smallest_covering_budget(ours, candidates)
    names = [variant.name for variant in candidates if variant.budget == budget]
    # Of several with the baseline's own budget the suite names one; the others are controls of it
    if budget == usual.budget:
        names = [usual.name]
    if not names or ours.name in names or ours.name == usual.name:
        return None
    return names[0]


def _lines_at_own_rate(ours: TableLine, candidates: Sequence[TableLine]) -> list[TableLine]:
    """Return the candidates with the line's own learning rate, steps and questions, on the suite's prompts and none replaced."""
    return [
        variant
        for variant in candidates
        if variant.trained.has_clock_of(ours.trained) and not variant.trained.dynamic and not variant.trained.stream
    ]


def _smallest_covering_budget(ours: TableLine, candidates: Sequence[TableLine]) -> str:
    """Return the smallest budget of the candidates that covers what the line samples, or the largest where none does.

    A line without a second round, and with no less than the suite's budget, is compared at its own budget. Of the budgets
    1x, 2x and 4x a line of 1x that samples half as much again in a second round is compared at 2x.
    """
    may_lie_between_budgets = ours.sampled > 1 or ours.multiple < 1
    if not may_lie_between_budgets or not candidates:
        return ours.budget
    by_size = sorted(candidates, key=lambda variant: (variant.multiple, variant.budget))
    for variant in by_size:
        if variant.multiple >= ours.multiple * ours.sampled:
            return variant.budget
    return by_size[-1].budget
