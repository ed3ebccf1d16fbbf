"""Everything that a screen says about significance agrees."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from synthetic_results import Regime, write_results

from harness.session.cell.manifests import variant_options
from harness.statistics.comparison import (
    DIFFERS,
    DIFFERS_POLICIES,
    EQUIVALENT,
    GAINS,
    INCONCLUSIVE,
    LOSES,
    WITHHELD,
)
from harness.store.finished import ShowRow
from harness.store.ingest import STORE, ingest_journals
from harness.store.ranking import Rank, compare_pair, make_heading, rank_regimes
from harness.store.read import Snapshot
from harness.store.sentences import NO_TIES, write_sentence
from harness.store.table import MEAN, seed_rows, show_rows
from harness.suite.load import load_suite

SUITES = ("quickstart", "ablation_hacpo", "bad_peers", "map")
"""Of each shape that shipped suites have: 1 to 8 groups of 2 to 4, 1 to 14 regimes, 1 to 10 seeds, 1 to 7 tasks."""
MARGIN = 0.02
QUESTIONS, REPEATS = 240, 4

Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]
"""Accuracies of all rows, from the number of each one's regime and of its seed."""


def shape(rng: np.random.Generator, seeds: np.ndarray, noise: float) -> np.ndarray:
    return 0.5 + rng.normal(0, 0.03, seeds.max() + 1)[seeds] + rng.normal(0, noise, seeds.size)


DRAWS: dict[str, Draw] = {
    "nothing": lambda rng, regimes, seeds: shape(rng, seeds, 0.01),
    "effects": lambda rng, regimes, seeds: shape(rng, seeds, 0.004) + 0.1 * (regimes % 3 - 1),
    "nearly none": lambda rng, regimes, seeds: shape(rng, seeds, 0.0005) + 0.001 * (regimes % 3 - 1),
    "equal differences": lambda rng, regimes, seeds: shape(rng, seeds, 0.0) - 7 / 960 * (regimes % 5),
    "all the same": lambda rng, regimes, seeds: np.full(seeds.size, 0.5),
    "all right or wrong": lambda rng, regimes, seeds: (regimes % 2).astype(float),
    "one escapes": lambda rng, regimes, seeds: shape(rng, seeds, 0.003) + 0.3 * ((regimes == 1) & (seeds == 0)),
    "seeds missing": lambda rng, regimes, seeds: np.where(
        rng.random(seeds.size) < 0.2, np.nan, shape(rng, seeds, 0.006) + 0.05 * (regimes % 3 - 1)
    ),
}


@pytest.fixture(scope="module", params=SUITES)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite's own variants, groups, policies, budgets, baseline and seeds; two of its tasks (one where groups are many)."""
    suite = load_suite(request.param)
    folder = tmp_path_factory.mktemp(suite.name)
    write_results(
        folder,
        suite.name,
        {group.name: tuple(policy.name for policy in group.policies) for group in suite.groups},
        [Regime(v.name, v.regime, 0.0, v.budget, shares="", options=variant_options(v)) for v in suite.regimes],
        suite.seeds,
        steps=1,
        questions=4,
        repeats=2,
        tasks=suite.evaluation.tasks[: 2 if len(suite.groups) < 3 else 1],
        exchanges=0,
        baseline=suite.baseline,
    )
    ingest_journals(folder)
    return folder


def redraw(results: Path, draw: Draw, seed: int) -> None:
    """Other numbers in the place of the store's scores, and the metrics best@4 and maj@4 beside them."""
    rng = np.random.default_rng(seed)
    with duckdb.connect(str(results / STORE)) as store:
        rows = store.sql(
            "SELECT s.* EXCLUDE (repeats, questions, answers, accuracy, error), dense_rank() OVER (ORDER BY c.regime) - 1 AS r, "
            "dense_rank() OVER (ORDER BY c.seed) - 1 AS n FROM (SELECT * FROM scores WHERE metric IN ('greedy', 'sampled') "
            "UNION ALL BY NAME SELECT * REPLACE (CASE metric WHEN 'greedy' THEN 'best@4' ELSE 'maj@4' END AS metric) FROM scores "
            "WHERE metric IN ('greedy', 'sampled')) s JOIN cells c USING (suite, cell) ORDER BY ALL"
        ).to_arrow_table()
        accuracy = np.clip(draw(rng, rows["r"].to_numpy(), rows["n"].to_numpy()), 0, 1)
        repeats = np.where(rows["metric"].to_numpy(zero_copy_only=False) == "sampled", REPEATS, 1)
        # half of the spread lies between the questions
        spread = accuracy * (1 - accuracy) * np.where(repeats > 1, 0.5 + 0.5 / repeats, 1)
        columns = {
            "repeats": repeats,
            "questions": np.full(rows.num_rows, QUESTIONS),
            "answers": QUESTIONS * repeats,
            "accuracy": accuracy,
            "error": np.sqrt(spread / (QUESTIONS - 1)),
        }
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values, from_pandas=True))
        store.register("found", rows)
        store.execute("DELETE FROM scores")
        store.execute("INSERT INTO scores BY NAME SELECT * EXCLUDE (r, n) FROM found")


def clause(text: str, pattern: str) -> set[str]:
    """Which regimes the sentence says that of, over which baseline they ever are compared."""
    said = re.sub(r" \([^()]*\)", "", re.split(" seeds?, ", text, maxsplit=1)[-1])
    clauses = (re.search(pattern, part) for part in re.split(r"\. (?:Against \S+: )?", said))
    return {name for one in clauses if one for name in re.split(", | and ", one[1])}


def apart(one: str, other: str) -> bool:
    return set(one).isdisjoint(other)


def check_rows(rows: list[ShowRow] | list[Rank]) -> None:
    """Verdict, p-value, tie groups, interval of each regime against its baseline."""
    letters = {row.regime: row.tie_group for row in rows}
    for row in rows:
        assert row.tie_group
        if row.interval:
            assert 0 <= row.interval[0] <= row.accuracy <= row.interval[1] <= 1
        if row.baseline is None:
            assert row.verdict in ("baseline", "not compared")
            assert row.gain_p is None
            continue
        if row.verdict in WITHHELD:
            assert row.gain_p is row.gain_corrected_interval is None, row
            continue
        told = row.gain_p is not None and row.gain_p <= 0.05
        if NO_TIES not in (row.tie_group, letters[row.baseline]):
            assert told == apart(row.tie_group, letters[row.baseline]), row
        if row.gain_corrected_interval:
            assert told == (not row.gain_corrected_interval[0] <= 0 <= row.gain_corrected_interval[1]), row
        if row.verdict == DIFFERS:
            assert row.ends
            continue
        if row.verdict == DIFFERS_POLICIES:
            assert not told
            continue
        assert (row.verdict in (GAINS, LOSES)) == told, row
        if row.gain_interval is None:
            assert row.verdict == INCONCLUSIVE
            continue
        low, high = row.gain_interval
        assert low < row.gain < high
        inside = low >= -MARGIN and high <= MARGIN
        if told:
            assert (row.verdict == GAINS) == (row.gain > 0) == (low > 0), row
            assert not low <= 0 <= high
        else:
            assert (row.verdict == EQUIVALENT) == (inside and not getattr(row, "ends", None)), row


def check_sentence(text: str, ranks: list[Rank]) -> None:
    """What it says of each regime is the regime's verdict, and nothing is left out."""
    compared = [r for r in ranks if r.baseline is not None]
    if not compared or max(r.paired_seeds for r in compared) < 2:
        assert re.search("nothing|No regime has finished", text)
        return
    said = {
        GAINS: clause(text, r"(?:^|; )([^;]*?) gains? over"),
        LOSES: clause(text, r"(?:^|; )([^;]*?) loses? against"),
        DIFFERS: clause(text, r"(?:^|; )([^;]*?) differs? between groups"),
        DIFFERS_POLICIES: clause(text, r"(?:^|; )([^;]*?) differs? between policies"),
        EQUIVALENT: clause(text, r"(?:^|; )([^;]*?) shows? no effect larger than 2 points"),
        INCONCLUSIVE: clause(text, r"(?:^|; )for ([^;]*?) one cannot tell"),
    }
    assert said == {kind: {r.regime for r in compared if r.verdict == kind} for kind in said}, text
    gainers = {r.regime: r.tie_group for r in compared if r.verdict == GAINS}
    if "cannot be told apart" in text:
        assert not any(apart(a, b) for a, b in combinations(gainers.values(), 2))
    if most := clause(text, r"rollout budget, ([^;]*?) most"):
        assert all(apart(gainers[a], gainers[b]) for a in most for b in set(gainers) - most)
    for why in WITHHELD:
        assert clause(text, rf"(?:^|; )for ([^;]*?) the verdict is {why}") == {
            r.regime for r in compared if r.verdict == why
        }
    unseen = [r for r in compared if r.verdict == INCONCLUSIVE and (r.detectable or 2) <= 1]
    assert ("you could have seen" in text) == bool(unseen)
    for points, regime, _, seeds in re.findall(
        r"([0-9.]+) points \((\S+?)(, (\d+) seeds?)?\)", text.partition("80 %")[2]
    ):
        seen = next(r for r in unseen if r.regime == regime)
        assert points == f"{100 * seen.detectable:.1f}"
        assert int(seeds or seen.paired_seeds) == seen.paired_seeds, "power is that of the seeds that the regime has"


@pytest.mark.slow_but("quickstart")
@pytest.mark.parametrize("kind", DRAWS)
def test_everything_agrees(results: Path, kind: str) -> None:
    redraw(results, DRAWS[kind], seed=len(kind))
    suite = results.name.rstrip("0123456789")
    with Snapshot(results) as snapshot:
        rows, seeds = show_rows(snapshot, suite, MARGIN), seed_rows(snapshot, suite)
        head = make_heading(snapshot, suite, MARGIN)
    panels: dict[tuple[str, ...], list[ShowRow]] = {}
    for row in rows:
        panels.setdefault((row.group, row.policy, row.task, row.metric), []).append(row)
    for (group, policy, task, metric), panel in panels.items():
        check_rows(panel)
        chosen = [r for r in seeds if (r.group, r.policy, r.task, r.metric) == (group, policy, task, metric)]
        among = [r for r in seeds if (r.policy, r.metric) == (policy, metric)]
        alone = rank_regimes(chosen, MARGIN, among)
        check_rows(alone.ranks)
        check_sentence(write_sentence(alone), alone.ranks)
        assert {(r.regime, r.verdict, r.tie_group, r.gain_p) for r in alone.ranks} == {
            (r.regime, r.verdict, r.tie_group, r.gain_p) for r in panel
        }, "the ranking of one panel is the panel"
        one, other = panel[len(kind) % len(panel)], panel[len(kind) % len(panel) - 1]
        for pair in compare_pair(among, one.regime, other.regime, MARGIN) if one is not other else ():
            if NO_TIES in (one.tie_group, other.tie_group):
                continue
            if (pair.group, pair.task) == (group, task) and pair.verdict not in WITHHELD:
                assert (pair.verdict in (GAINS, LOSES)) == apart(one.tie_group, other.tie_group), "head to head"
    assert {(h.policy, h.metric) for h in head.sentences} == {(r.policy, r.metric) for r in rows}
    for headline in head.sentences:
        chosen = [
            r
            for r in seeds
            if (r.policy, r.metric) == (headline.policy, headline.metric) and headline.task in (MEAN, r.task)
        ]
        among = [r for r in seeds if (r.policy, r.metric) == (headline.policy, headline.metric)]
        whole = rank_regimes(chosen, MARGIN, among)
        check_rows(whole.ranks)
        for name in {r.regime for r in chosen} - {r.regime for r in whole.ranks}:
            named = rf"(: |; |, | and ){re.escape(name)}(, | and | \()"
            assert re.search(named, headline.sentence.partition(" Left out")[2]), "who is left out is named"
        check_sentence(headline.sentence, whole.ranks)
    if kind in ("all the same", "equal differences"):
        near = [r for r in rows if kind == "all the same" or (r.metric == "avg@4" and r.seeds > 2)]
        assert not any(r.verdict in (GAINS, LOSES) for r in near if abs(r.gain or 0) < 8 / 960)
    if kind == "effects" and len({s.seed for s in seeds}) > 2 and any(r.baseline for r in rows):
        assert any(r.verdict in (GAINS, LOSES) for r in rows), "and there is something to agree upon"
