"""Figures of the documentation from the reference results: docs/results.md as a whole, and what other pages mark.

    python tools/results_page.py            write them; a test says when they are not what results/reference gives

docs/results.md is made from tools/results_page.md, where `{KIND SUITE ...}` is a figure, and what stands between `<!-- with
SUITE -->` and `<!-- /with -->` needs that suite. Elsewhere a figure stands between `<!-- results: KIND SUITE ... -->` and
`<!-- /results -->`. Kinds are the functions of FIGURES.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError, UsageError
from harness.statistics import MARGIN
from harness.statistics.comparison import GAINS, LOSES
from harness.store.finished import BySeed, ShowRow, estimate_difference, group_by_line, read_finished
from harness.store.ingest import ingest_journals
from harness.store.manifest import MARK, ORIGIN
from harness.store.pace_table import HEADS, choose_rows, make_pace_line
from harness.store.ranking import make_heading
from harness.store.read import Snapshot
from harness.store.reference_results import list_references
from harness.store.sentences import verdict_mark
from harness.store.statistic import PERCENT, POINTS, SHARE, to_bounds, to_number
from harness.store.table import MEAN, show_rows
from harness.store.tuning import read_tuning
from harness.store.tuning_table import tuning_rows, whole_group

sys.path.insert(0, str(Path(__file__).parent))
from measured_starts import MeasuredStart, read_measured  # beside this script
from results_curves import average_accuracies, estimate_gains_by_step, read_held_out_curves
from results_findings import (
    SuiteRows,
    describe_excluded,
    describe_found,
    describe_found_paces,
    describe_unseen,
    select_sharing,
)

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
PAGE = "docs/results.md"
MARKED = (
    "README.md",
    "docs/tutorial-compare.md",
    "docs/peers.md",
    "docs/tuning.md",
    "docs/disagreement.md",
    "docs/pretrained.md",
)
# Of suites on the page; others follow by name
ORDER = (
    "quickstart",
    "elicit",
    "controls",
    "bad_peers",
    "map",
    "beyond",
    "tuned_small",
    "tuned_aa",
    "disagreement",
    "pretrained",
)
_WITH = re.compile(r"<!-- with ([^>]*?) -->\n(.*?)<!-- /with -->\n", re.DOTALL)
_FIGURE = re.compile(r"\{([a-z][a-z_-]*(?: [^{}\n]*)?)\}")
_MARKS = re.compile(r"(<!-- results: ([^>]*?) -->)(.*?)(<!-- /results -->)", re.DOTALL)
_NUMBER = re.compile(r"[+−–]?[\d,.]*%?( \[.*\])?$")


class Store:
    """The reference results of `results`, and beside them what was measured of starts in `starts`."""

    def __init__(self, results: Path, snapshot: Snapshot, suites: Sequence[str], starts: Path) -> None:
        self.results, self.snapshot, self.starts = results, snapshot, starts
        self.suites = sorted(suites, key=lambda s: (ORDER.index(s) if s in ORDER else len(ORDER), s))
        self.rows: Callable[[str], list[ShowRow]] = cache(lambda suite: show_rows(snapshot, f"{suite}{MARK}"))

    def row(self, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> ShowRow:
        matching = [
            r for r in self.rows(suite)
            if (r.regime, r.metric, r.policy) == (regime, metric, policy) and group in ("", r.group)
        ]  # fmt: skip
        if len(matching) != 1:
            raise UsageError(
                f"{suite} {regime} {metric} {group} {policy}: {len(matching)} rows of the reference results"
            )
        return matching[0]

    def query(self, sql: str, suite: str) -> list[dict[str, Any]]:
        return self.snapshot.query(sql, [f"{suite}{MARK}"]).to_pylist()


@contextmanager
def opened(results: Path) -> Iterable[Store]:  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as place:
        alone = Path(place)
        (alone / ORIGIN).symlink_to((results / ORIGIN).resolve())
        ingest_journals(alone)
        with Snapshot(alone) as snapshot:
            suites = [name.removesuffix(MARK) for name in list_references(alone)]
            yield Store(alone, snapshot, suites, results / "starts")


def gain(store: Store, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> str:
    """`+13.2 [12.2, 14.1]`, points over the baseline."""
    row = store.row(suite, regime, metric, group, policy)
    return POINTS.with_interval(row.gain, row.gain_interval)


def at_cost(store: Store, suite: str, regime: str, metric: str, group: str) -> str:
    """`+1.6 [−0.6, 3.9] over independent-2x`: the gain over the baseline of nearest cost."""
    row = store.row(suite, regime, metric, group)
    return f"{POINTS.with_interval(row.equal_cost_gain, row.equal_cost_interval)} over {row.equal_cost_baseline}"


def span(store: Store, suite: str, metric: str, group: str) -> str:
    """`−0.4 [−2.2, 1.4] (sgt) to +1.9 [−0.7, 4.5] (naive)`: the smallest and the largest gain on a group, of regimes that share."""
    rows = [r for r in _shared(store, suite) if (r.policy, r.metric, r.group) == (MEAN, metric, group)]
    ends = (find(rows, key=lambda r: r.gain) for find in (min, max))
    return " to ".join(f"{POINTS.with_interval(r.gain, r.gain_interval)} ({r.regime})" for r in ends)


_AMOUNTS = """
WITH received AS (SELECT suite, cell, sum(peer_received) AS received FROM totals WHERE policy = $3 GROUP BY ALL),
costs AS (SELECT suite, cell, sum(cpu_seconds) AS cpu FROM spent GROUP BY ALL)
SELECT regime, sum(received) AS received, sum(cpu) AS cpu
FROM current_cells JOIN received USING (suite, cell) JOIN costs USING (suite, cell)
WHERE suite = $1 AND group_name = $2 GROUP BY regime
"""


def amount_ratio(store: Store, suite: str, amount: str, regime: str, other: str, group: str, policy: str) -> str:
    """`18`: how many times as much one regime has of an amount as another one: of answers that the policy `received`, or of `cpu`
    seconds of all policies."""
    found = store.snapshot.query(_AMOUNTS, [f"{suite}{MARK}", group, policy]).to_pylist()
    by_regime = {row["regime"]: row[amount] for row in found}
    ratio = by_regime[regime] / by_regime[other]
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def power(store: Store, suite: str, metric: str, group: str) -> str:
    """`3.8 (graft) to 6.6 points (luffy)`: the smallest gains that a suite's seeds would have shown with 80 % power."""
    rows = [r for r in _shared(store, suite) if (r.policy, r.metric, r.group) == (MEAN, metric, group)]
    least, most = (find(rows, key=lambda r: r.detectable) for find in (min, max))
    return f"{100 * least.detectable:.1f} ({least.regime}) to {100 * most.detectable:.1f} points ({most.regime})"


def verdict(store: Store, suite: str, regime: str, metric: str, group: str = "") -> str:
    """`cannot tell`: by the test that is corrected for all that the suite compares."""
    return verdict_mark(store.row(suite, regime, metric, group).verdict, MARGIN)


def _shared(store: Store, suite: str) -> list[ShowRow]:
    """Rows of regimes that share, over a baseline."""
    alone = {row["regime"] for row in store.query(_ALONE, suite)}
    return [r for r in store.rows(suite) if r.variant not in alone and r.gain is not None]


def accuracy(store: Store, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> str:
    """`51.7 [49.8, 53.5]`, percent."""
    row = store.row(suite, regime, metric, group, policy)
    return PERCENT.with_interval(row.accuracy, row.interval)


def used(store: Store, suite: str, regime: str, metric: str, group: str = "") -> str:
    """`2%`: of the other policies' answers those that had a gradient."""
    return SHARE.text(store.row(suite, regime, metric, group).peer_used)


def regimes(store: Store, suite: str, group: str, *metrics: str) -> str:
    heads = ["regime", *(h for m in metrics for h in (m, "gain")), "used", "CPU-s a cell"]
    names = dict.fromkeys(r.regime for r in store.rows(suite) if r.group == group)
    lines = []
    for name in names:
        row = store.row(suite, name, metrics[0], group)
        values = [f(store, suite, name, metric, group) for metric in metrics for f in (accuracy, gain)]
        lines.append([name, *values, SHARE.text(row.peer_used), f"{row.cpu_seconds:.0f}"])
    return _table(heads, lines)


def rise(store: Store, suite: str, regime: str, metric: str) -> str:
    row = store.row(suite, regime, metric)
    return f"{PERCENT.text(row.base)} -> {accuracy(store, suite, regime, metric)}"


def peers(store: Store, suite: str, policy: str, metric: str) -> str:
    rows = {(r.group, r.regime): r for r in store.rows(suite) if (r.policy, r.metric) == (policy, metric)}
    names, where = (list(dict.fromkeys(key[i] for key in rows)) for i in (1, 0))
    lines = [[g, *(PERCENT.text(rows[g, n].accuracy) if (g, n) in rows else "–" for n in names)] for g in where]
    return _table(["peer", *names], lines)


def over(store: Store, suite: str, baseline: str, metric: str) -> str:
    """Gain of every variant over that one; variants down, groups across."""
    names, where = (
        list(dict.fromkeys(each)) for each in zip(*((r.regime, r.group) for r in store.rows(suite)), strict=True)
    )
    done = read_finished(store.snapshot, f"{suite}{MARK}")
    scores = {
        k.group: v
        for k, v in group_by_line(done.rows).items()
        if (k.policy, k.metric) == (whole_group(done, k.group), metric)
    }
    lines = [
        [name, *(_apart(scores[g].get(name, {}), scores[g][baseline]) for g in where)]
        for name in names
        if name != baseline
    ]
    return _table([f"over {baseline}", *where], lines)


def sentence(store: Store, suite: str, metric: str) -> str:
    """What `harness show` opens with."""
    sentences = make_heading(store.snapshot, f"{suite}{MARK}").sentences
    return next(h.summary for h in sentences if (h.policy, h.metric, h.task) == (MEAN, metric, MEAN))


_ALONE = "SELECT DISTINCT regime FROM current_cells WHERE suite = ? AND regime_type = 'independent'"


def gains(store: Store, suite: str, metric: str) -> str:
    """Variants down, groups across; bold where the corrected interval leaves out 0; accuracies of what others are compared with."""
    rows = {(r.group, r.regime): r for r in store.rows(suite) if (r.policy, r.metric) == (MEAN, metric)}
    where = list(dict.fromkeys(group for group, _ in rows))
    lines = []
    for name in dict.fromkeys(regime for _, regime in rows):
        by_group = [rows.get((group, name)) for group in where]
        costs = [row.cost for row in by_group if row and row.cost is not None]
        cost = f"{np.mean(costs):.1f}" if costs else "–"
        lines.append([name, *(_gain(row) if row else "–" for row in by_group), cost])
    return _table(["regime", *where, "cost"], lines)


def _gain(row: ShowRow) -> str:
    if row.gain is None:
        return f"*{PERCENT.with_interval(row.accuracy, row.interval)}*"
    text = POINTS.with_interval(row.gain, row.gain_interval)
    return f"**{text}**" if row.verdict in (GAINS, LOSES) else text


def _harms(store: Store) -> list[tuple[str, ShowRow]]:
    """Suite and row of every policy, and of every group's mean, that a regime which shares makes worse, by avg@k."""
    return [
        (suite, r)
        for suite in store.suites
        for r in _shared(store, suite)
        if r.metric.startswith("avg@") and r.verdict == LOSES
    ]


def harmed(store: Store) -> str:
    """The table of `_harms`."""
    lines = []
    for suite, r in _harms(store):
        both = (gain(store, suite, r.regime, r.metric, r.group, policy) for policy in (r.policy, MEAN))
        lines.append([suite, r.group, r.regime, "mean" if r.policy == MEAN else r.policy, *both])
    return _table(["suite", "group", "regime", "policy", "gain", "its group's"], lines) if lines else "\nNone.\n"


def harms(store: Store) -> str:
    """The table of `_harms` in a sentence: groups whose mean is worse, then policies of other groups."""
    every = _harms(store)
    worse = {(suite, r.group, r.regime) for suite, r in every if r.policy == MEAN}
    told = [
        f"{r.regime} {POINTS.with_interval(r.gain, r.gain_interval)}"
        f"{'' if r.policy == MEAN else f' for `{r.policy}`'} on `{r.group}` of `{suite}`"
        for suite, r in every
        if r.policy == MEAN or (suite, r.group, r.regime) not in worse
    ]
    return "; ".join(told) or "nothing"


def _every_suite(store: Store) -> list[SuiteRows]:
    """The rows of all suites for `results_findings`."""
    suites = []
    for name in store.suites:
        config = json.loads(store.query("SELECT config FROM suites WHERE suite = ?", name)[0]["config"] or "{}")
        alone = {row["regime"] for row in store.query(_ALONE, name)}
        if "training" in config:
            suites.append(SuiteRows(name, config["training"], select_sharing(store.rows(name), alone)))
    return suites


def found(store: Store) -> str:
    """The gains that are found: also at equal cost and over the baseline at its best rate."""
    return describe_found(_every_suite(store))


def found_paces(store: Store) -> str:
    """The paces that differ from the baseline's, with their reach."""
    return describe_found_paces(_every_suite(store))


def excluded(store: Store) -> str:
    """What is excluded, with the margin."""
    return describe_excluded(_every_suite(store))


def unseen(store: Store) -> str:
    """What could not have been seen."""
    return describe_unseen(_every_suite(store))


def ends(store: Store, suite: str, group: str) -> str:
    """The table "pace and end" of a group, as `harness show` has it."""
    lines = [make_pace_line(row) for row in choose_rows(store.rows(suite)) if row.group == group]
    shown = [line for line in lines if line.gain != "–" or line.kappa != "–"]
    kept = [i for i in range(len(HEADS)) if any(line[i] not in ("–", "") for line in shown)]
    return _table([HEADS[i] for i in kept], [[line[i] or "–" for i in kept] for line in shown])


def clocks(store: Store, suites: str, group: str, *left_out: str) -> str:
    """Pace, gain at the end, greedy gain, cost and seeds of a group's regimes, in short. suites: one, or several as `map+beyond`,
    each with the lines that those before it do not have. left_out: patterns of lines that are not shown, as `graft-*`."""
    shown = set[str]()
    lines = []
    for suite in suites.split("+"):
        for row in choose_rows(store.rows(suite)):
            if row.group != group or row.regime in shown or any(fnmatch(row.regime, one) for one in left_out):
                continue
            line = make_pace_line(row)
            if line.gain != "–" or line.kappa != "–":
                lines.append([line.regime, line.kappa, line.gain, line.greedy, line.cost, str(row.seeds)])
                shown.add(row.regime)
    return _table(["regime", "kappa", "gain at the end", "greedy", "cost", "seeds"], lines)


def by_step(store: Store, suite: str, group: str, baseline: str, steps: str, *lines: str) -> str:
    """Gains of lines over the baseline on held-out questions at some steps, as `20,60,100`, with 95 % intervals over seeds; the
    baseline's accuracies in the first line."""
    served = [int(step) for step in steps.split(",")]
    curves = read_held_out_curves(store.snapshot, f"{suite}{MARK}")
    alone = average_accuracies(curves.of(group, MEAN, baseline), served)
    table = [[baseline, *(f"*{PERCENT.text(accuracy)}*" for accuracy in alone)]]
    for name in lines:
        gains = estimate_gains_by_step(curves, group, name, baseline, served)
        table.append([name, *(POINTS.with_interval(to_number(one.mean), to_bounds(one)) for one in gains)])
    return _table(["regime", *(f"step {step}" for step in served)], table)


def gain_at(store: Store, suite: str, regime: str, baseline: str, group: str, step: str) -> str:
    """`+6.0 [3.0, 9.0]`: a line's gain over the baseline on the curves' held-out questions at one step."""
    curves = read_held_out_curves(store.snapshot, f"{suite}{MARK}")
    [one] = estimate_gains_by_step(curves, group, regime, baseline, [int(step)])
    return POINTS.with_interval(to_number(one.mean), to_bounds(one))


def gain_over(store: Store, suite: str, regime: str, baseline: str, metric: str, group: str) -> str:
    """`+0.3 [−5.7, 6.2]`, points of one variant over another one, paired by seed."""
    done = read_finished(store.snapshot, f"{suite}{MARK}")
    for key, scores in group_by_line(done.rows).items():
        if (key.group, key.policy, key.metric) == (group, whole_group(done, group), metric):
            return _apart(scores[regime], scores[baseline])
    raise UsageError(f"{suite} {group} {metric}: no rows of the reference results")


def claims(store: Store, suite: str) -> str:
    """What was claimed of a suite before it ran, with the answers."""
    answers = make_heading(store.snapshot, f"{suite}{MARK}").claims
    heads = ["claim", "says", "answer", "number", "seeds"]
    lines = [
        [
            one.claim.name,
            one.words,
            one.answer,
            one.number if one.value is not None else "–",
            f"{one.done} of {one.planned}",
        ]
        for one in answers
    ]
    return _table(heads, lines)


def claim_answer(store: Store, suite: str, claim: str) -> str:
    """`supported, 1.27 [1.19, 1.35]`: the answer to one claim, with its number."""
    answers = make_heading(store.snapshot, f"{suite}{MARK}").claims
    one = next(one for one in answers if one.claim.name == claim)
    return f"{one.answer}, {one.number}"


def starts(store: Store, suite: str) -> str:
    """What the starts of each group do when asked for the skill that they lack: means over the seeds that were measured."""
    measured = read_measured(store.starts / f"{suite}.json")
    by_policy: dict[tuple[str, str], list[MeasuredStart]] = {}
    for place, key in measured.policies.items():
        group, policy, _ = place.split("/")
        by_policy.setdefault((group, policy), []).append(measured.starts[key])
    lines = []
    for (group, policy), ones in by_policy.items():
        reasoned = float(np.mean([one.reasoned for one in ones]))
        mass = float(np.mean([one.mass for one in ones]))
        asked = sum(one.answers for one in ones)
        lines.append([group, policy, ones[0].lacks, f"{100 * reasoned:.2f}", f"{100 * mass:.2f}", f"{asked:,}"])
    return _table(["group", "policy", "lacks", "with steps, %", "and right, % (*p*0)", "answers"], lines)


def optimism(store: Store, suite: str) -> str:
    tuning = read_tuning(store.results, f"{suite}{MARK}")
    if tuning is None:
        raise UsageError(f"{suite}: no tuning among its reference results")
    leads = [(r.promised, r.kept) for r in tuning_rows(store.snapshot, tuning) if r.kept is not None]
    promised, kept = (float(np.mean(each)) for each in zip(*leads, strict=True))
    return f"{POINTS.text(promised)} points promised, {POINTS.text(kept)} kept"


def provenance(store: Store) -> str:
    """A line for suites of one commit, processor and day."""
    by_place: dict[tuple[str, str, str], tuple[list[str], int, float]] = {}
    for suite in store.suites:
        rows = store.query(
            "SELECT kind, commit_hash, dirty, machine, substr(finished, 1, 10) AS day FROM cells WHERE suite = ?", suite
        )
        hours = store.query("SELECT sum(cpu_seconds) / 3600 AS hours FROM spent WHERE suite = ?", suite)[0]["hours"]
        commits = {(r["commit_hash"][:12] or "unknown") + ("+" if r["dirty"] else "") for r in rows}
        processors = {_model(json.loads(r["machine"]).get("processor", "unknown")) for r in rows}
        place = "; ".join(sorted(commits)), "; ".join(sorted(processors)), max(r["day"] for r in rows)
        suites, cells, spent = by_place.get(place, ([], 0, 0.0))
        by_place[place] = [*suites, suite], cells + sum(r["kind"] == "cell" for r in rows), spent + hours
    lines = [[", ".join(suites), str(n), f"{hours:.1f}", *place] for place, (suites, n, hours) in by_place.items()]
    return _table(["suites", "cells", "CPU-hours", "commit", "processor", "finished"], lines)


def _model(processor: str) -> str:
    """`Intel Xeon` of `x86_64, Intel(R) Xeon(R) Processor, 41228779`."""
    return re.sub(r"^\w+, |\(R\)|\(TM\)| Processor|, \w+$", "", processor)


_KINDS = (
    gain, at_cost, span, power, verdict, accuracy, rise, used, regimes, gains, peers, over, sentence, harmed, harms, optimism,
    provenance, found, found_paces, excluded, unseen, ends, claims, claim_answer, starts, clocks, gain_over, gain_at,
    by_step, amount_ratio,
)  # fmt: skip
FIGURES: dict[str, Callable[..., str]] = {kind.__name__: kind for kind in _KINDS}
OVER_ALL = ("harmed", "harms", "provenance", "found", "found_paces", "excluded", "unseen")


def _apart(ours: BySeed, theirs: BySeed) -> str:
    apart = estimate_difference(ours, theirs)
    return POINTS.with_interval(to_number(apart.mean), to_bounds(apart))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    numbers = [all(_NUMBER.match(line[i]) for line in lines) for i in range(len(heads))]
    rows = [heads, ["---:" if number else "---" for number in numbers], *lines]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def figure(store: Store, words: str) -> str | None:
    kind, *arguments = shlex.split(words)
    if kind not in FIGURES:
        raise UsageError(f"{words}: no figure {kind!r} (there are {', '.join(FIGURES)})")
    if kind not in OVER_ALL and not {*arguments[0].split("+")} <= {*store.suites}:
        return None
    try:
        return FIGURES[kind](store, *arguments)
    except (TypeError, ValueError, KeyError, StopIteration) as error:
        raise UsageError(f"{words}: {error!r}") from error


def written(store: Store, template: str) -> str:
    def section(match: re.Match[str]) -> str:
        there = store.suites if match[1] == "any" else match[1].split()
        return f"{match[2]}\n" if there and set(there) <= set(store.suites) else ""

    def value(match: re.Match[str]) -> str:
        text = figure(store, match[1])
        if text is None:
            raise UsageError(f"{TEMPLATE.name}: {{{match[1]}}} is not inside `with`")
        return text.strip("\n")

    return re.sub(r"\n{3,}", "\n\n", _FIGURE.sub(value, _WITH.sub(section, template)))


def marked(store: Store, page: str) -> str:
    def value(match: re.Match[str]) -> str:
        text = figure(store, match[2])
        return match[0] if text is None else f"{match[1]}{text}{match[4]}"

    return _MARKS.sub(value, page)


def pages(store: Store) -> dict[Path, str]:
    texts = {ROOT / name: marked(store, (ROOT / name).read_text("utf-8")) for name in MARKED}
    return {ROOT / PAGE: written(store, TEMPLATE.read_text("utf-8")), **texts}


def main() -> None:
    with opened(ROOT / "results") as store:
        for path, text in pages(store).items():
            path.write_text(text, "utf-8")
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    try:
        main()
    except HarnessError as error:
        print(f"results_page: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
