"""Figures of the documentation from the reference results: docs/results.md as a whole, and what other pages mark.

    python tools/results_page.py            write them
    python tools/results_page.py --check    exit code 1, naming each page that is not what results/reference gives

docs/results.md is made from tools/results_page.md, where `{KIND SUITE ...}` is a figure, and what stands between `<!-- with
SUITE -->` and `<!-- /with -->` needs that suite. Elsewhere a figure stands between `<!-- results: KIND SUITE ... -->` and
`<!-- /results -->`. Kinds are the functions of FIGURES.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import HarnessError, UsageError
from harness.statistics import MARGIN, mean_interval
from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.comparisons import finished
from harness.store.ingest import ingest
from harness.store.ranking import heading, in_pairs, rank
from harness.store.read import Snapshot
from harness.store.reference_results import MARK, ORIGIN, references
from harness.store.remarks import stages
from harness.store.render import render
from harness.store.sentences import verdict_mark
from harness.store.statistic import PERCENT, POINTS, SHARE, Unit
from harness.store.table import MEAN, ShowRow, seed_rows, show_rows
from harness.store.tuning import Tuning, read_tuning
from harness.store.tuning_table import TuningRow, difference, transfer_rows, tuning_rows, whole

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
PAGE = "docs/results.md"
MARKED = ("README.md", "docs/micro.md", "docs/peers.md", "docs/tuning.md", "docs/disagreement.md", "docs/pretrained.md")
# Of suites on the page; others follow by name
ORDER = (
    "quickstart",
    "another_cpu",
    "elicit",
    "controls",
    "matched",
    "bad_peers",
    "reference",
    "tuned_small",
    "tuned_aa",
    "tuned_full",
    "disagreement",
    "pretrained",
)
_WITH = re.compile(r"<!-- with ([^>]*?) -->\n(.*?)<!-- /with -->\n", re.DOTALL)
_FIGURE = re.compile(r"\{([a-z][a-z-]*(?: [^{}\n]*)?)\}")
_MARKS = re.compile(r"(<!-- results: ([^>]*?) -->)(.*?)(<!-- /results -->)", re.DOTALL)
_NUMBER = re.compile(r"[+−–]?[\d,.]*%?( \[.*\])?$")
RATIO = Unit(digits=2)
PLAIN = Unit(digits=1)


class Store:
    def __init__(self, results: Path, snapshot: Snapshot, suites: Sequence[str]) -> None:
        self.results, self.snapshot = results, snapshot
        self.suites = sorted(suites, key=lambda s: (ORDER.index(s) if s in ORDER else len(ORDER), s))
        self._rows: dict[str, list[ShowRow]] = {}

    def rows(self, suite: str) -> list[ShowRow]:
        if suite not in self._rows:
            self._rows[suite] = show_rows(self.snapshot, f"{suite}{MARK}")
        return self._rows[suite]

    def row(self, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> ShowRow:
        found = [
            r for r in self.rows(suite)
            if (r.regime, r.metric, r.policy) == (regime, metric, policy) and group in ("", r.group)
        ]  # fmt: skip
        if len(found) != 1:
            raise UsageError(f"{suite} {regime} {metric} {group} {policy}: {len(found)} rows of the reference results")
        return found[0]

    def query(self, sql: str, suite: str) -> list[dict[str, Any]]:
        return self.snapshot.query(sql, [f"{suite}{MARK}"]).to_pylist()


@contextmanager
def opened(results: Path) -> Iterable[Store]:  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as place:
        if (results / ORIGIN).is_dir():
            (Path(place) / ORIGIN).mkdir()
            for folder in references(results).values():
                (Path(place) / ORIGIN / folder.name).symlink_to(folder.resolve())
        ingest(Path(place))
        with Snapshot(Path(place)) as snapshot:
            yield Store(Path(place), snapshot, [name.removesuffix(MARK) for name in references(Path(place))])


def gain(store: Store, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> str:
    """`+13.2 [12.2, 14.1]`, points over the baseline."""
    row = store.row(suite, regime, metric, group, policy)
    return POINTS.with_interval(row.gain, row.gain_interval)


def accuracy(store: Store, suite: str, regime: str, metric: str, group: str = "", policy: str = MEAN) -> str:
    """`51.7 [49.8, 53.5]`, percent."""
    row = store.row(suite, regime, metric, group, policy)
    return PERCENT.with_interval(row.accuracy, row.interval)


def used(store: Store, suite: str, regime: str, metric: str, group: str = "") -> str:
    """`5%`, of the received peer answers."""
    return SHARE.text(store.row(suite, regime, metric, group).peer_used)


def show(store: Store, suite: str, *metrics: str) -> str:
    rows = [r for r in store.rows(suite) if r.policy == MEAN and r.metric in metrics]
    return "\n" + render(suite, rows, "markdown")


def regimes(store: Store, suite: str, group: str, *metrics: str) -> str:
    heads = ["regime", *(h for m in metrics for h in (m, "gain")), "CPU-s a cell"]
    names = dict.fromkeys(r.regime for r in store.rows(suite) if r.group == group)
    lines = []
    for name in names:
        row = store.row(suite, name, metrics[0], group)
        values = [f(store, suite, name, metric, group) for metric in metrics for f in (accuracy, gain)]
        lines.append([name, *values, f"{row.cpu_seconds:.0f}"])
    return _table(heads, lines)


def chosen(store: Store, suite: str, metric: str, *names: str) -> str:
    lines = [
        [name, accuracy(store, suite, name, metric), gain(store, suite, name, metric), used(store, suite, name, metric)]
        for name in names
    ]
    return _table([f"suite `{suite}`, {metric}", "accuracy", "gain", "used"], lines)


def rise(store: Store, suite: str, regime: str, metric: str) -> str:
    row = store.row(suite, regime, metric)
    return f"{PERCENT.text(row.base)} -> {accuracy(store, suite, regime, metric)}"


def groups(store: Store, suite: str, policy: str, metric: str, *only: str) -> str:
    rows = {(r.group, r.regime): r for r in store.rows(suite) if (r.policy, r.metric) == (policy, metric)}
    names = list(dict.fromkeys(regime for group, regime in rows if not only or group in only))
    where = only or tuple(dict.fromkeys(group for group, _ in rows))
    several = any(r.gain_interval for r in rows.values())
    lines = []
    for name in names:
        found = [rows.get((group, name)) for group in where]
        texts = ["–" if r is None else gain(store, suite, name, metric, r.group, policy) for r in found] if several else [
            PERCENT.text(r.accuracy if r else None) for r in found
        ]  # fmt: skip
        if set(texts) != {"–"}:
            lines.append([name, *texts])
    return _table(["regime", *where], lines)


def peers(store: Store, suite: str, policy: str, metric: str) -> str:
    rows = {(r.group, r.regime): r for r in store.rows(suite) if (r.policy, r.metric) == (policy, metric)}
    names, where = (list(dict.fromkeys(key[i] for key in rows)) for i in (1, 0))
    lines = [[g, *(PERCENT.text(rows[g, n].accuracy) if (g, n) in rows else "–" for n in names)] for g in where]
    return _table(["peer", *names], lines)


def accuracies(store: Store, suite: str, metric: str, *names: str) -> str:
    where = list(dict.fromkeys(r.group for r in store.rows(suite)))
    lines = [[g, *(accuracy(store, suite, name, metric, g) for name in names)] for g in where]
    return _table(["group", *names], lines)


def over(store: Store, suite: str, baseline: str, metric: str) -> str:
    """Gain of every variant over that one; variants down, groups across."""
    names = _in_order(store, suite)
    where = list(dict.fromkeys(r.group for r in store.rows(suite)))
    found = finished(store.snapshot, f"{suite}{MARK}")
    (task,) = {task for _, _, task, _ in found.families}
    scores = {group: found.families[group, whole(found, group), task, metric].scores for group in where}
    lines = [
        [name, *(POINTS.with_interval(*difference(scores[g].get(name, {}), scores[g][baseline])) for g in where)]
        for name in names
        if name != baseline
    ]
    return _table([f"over {baseline}", *where], lines)


def shares(store: Store, suite: str, metric: str) -> str:
    rows = {(r.group, r.regime): r.peer_used for r in store.rows(suite) if (r.policy, r.metric) == (MEAN, metric)}
    where = list(dict.fromkeys(group for group, _ in rows))
    names = [name for name in _in_order(store, suite) if any(rows[group, name] is not None for group in where)]
    return _table(["used", *where], [[name, *(SHARE.text(rows[group, name]) for group in where)] for name in names])


def sentence(store: Store, suite: str, metric: str) -> str:
    """What `harness show` opens with."""
    found = heading(store.snapshot, f"{suite}{MARK}").sentences
    return next(h.sentence for h in found if (h.policy, h.metric, h.task) == (MEAN, metric, MEAN))


def together(store: Store, suite: str, metric: str) -> str:
    name = f"{suite}{MARK}"
    rows = [r for r in seed_rows(store.snapshot, name, MEAN) if r.metric == metric]
    ranks = rank(rows, in_pairs(store.snapshot, name), MARGIN).ranks
    found = sorted((r for r in ranks if r.gain is not None), key=lambda r: -(r.gain or 0.0))
    lines = [[r.regime, POINTS.with_interval(r.gain, r.gain_interval), verdict_mark(r.verdict, MARGIN)] for r in found]
    return _table(["regime", "gain over all groups", "verdict"], lines)


_ALONE = "SELECT DISTINCT regime FROM current_cells WHERE suite = ? AND regime_type = 'independent'"


def verdicts(store: Store, kind: str) -> str:
    """Every regime that shares of every suite with that verdict, under its sampled accuracy."""
    wanted = {"gains": GAINS, "loses": LOSES, "nothing": EQUIVALENT}[kind]
    lines = []
    for suite in store.suites:
        alone = {row["regime"] for row in store.query(_ALONE, suite)}
        found = [r for r in _sampled(store.rows(suite)) if r.policy == MEAN and r.verdict == wanted]
        for row in (r for r in found if r.variant not in alone):
            own = [r for r in store.rows(suite) if r.policy != MEAN and _same(r, row)]
            whom = ", ".join(f"{r.policy} {gain(store, suite, r.regime, r.metric, r.group, r.policy)}" for r in own)
            said = [gain(store, suite, row.regime, row.metric, row.group)]
            said += [POINTS.interval(row.gain_corrected_interval)] if wanted != EQUIVALENT else []
            lines.append([suite, row.group, row.regime, *said, whom])
    heads = ["suite", "group", "regime", "gain", *(["corrected"] if wanted != EQUIVALENT else []), "whom"]
    return _table(heads, lines) if lines else "\nNone.\n"


def harmed(store: Store) -> str:
    """Every single policy that a regime that shares makes worse."""
    lines = []
    for suite in store.suites:
        alone = {row["regime"] for row in store.query(_ALONE, suite)}
        for r in _sampled(store.rows(suite)):
            if r.policy != MEAN and r.verdict == LOSES and r.variant not in alone:
                both = (gain(store, suite, r.regime, r.metric, r.group, policy) for policy in (r.policy, MEAN))
                lines.append([suite, r.group, r.regime, r.policy, *both])
    return _table(["suite", "group", "regime", "policy", "gain", "its group's"], lines) if lines else "\nNone.\n"


def untold(store: Store) -> str:
    lines = []
    for suite in store.suites:
        rows = [r for r in _sampled(store.rows(suite)) if r.policy == MEAN and r.gain is not None]
        left = [r for r in rows if r.verdict == INCONCLUSIVE]
        seen = sorted(r.detectable for r in left if (r.detectable or 2) <= 1)
        span = f"{PERCENT.text(seen[0])} to {PERCENT.text(seen[-1])}" if seen else "–"
        if rows:
            lines.append([suite, str(len(rows)), str(len(left)), span])
    return _table(
        ["suite", "comparisons", "of these one cannot tell", "a gain that would have been seen, points"], lines
    )


_TOTALS = """
SELECT c.regime, c.group_name, c.seed, sum(t.peer_used) / nullif(sum(t.peer_received), 0) AS used,
    sum(t.prompts_rescued) / nullif(sum(t.prompts_all_wrong), 0) AS rescued, avg(t.peer_only_support_share) AS support,
    avg(t.effective_sample_size) AS sample, avg(t.weight_second_moment) AS moment,
    avg(t.gradient_norm_deviation / nullif(t.gradient_norm, 0)) AS noise, avg(t.kl_base) AS kl,
    sum(t.exchanged_bytes) / 1e6 AS megabytes, sum(t.generated_tokens) / 1e3 AS tokens, any_value(p.cpu) AS cpu
FROM current_cells c JOIN totals t USING (suite, cell)
JOIN (SELECT suite, cell, sum(cpu_seconds) AS cpu FROM spent GROUP BY ALL) p USING (suite, cell)
WHERE c.suite = ? AND c.kind = 'cell' AND c.state = 'done' GROUP BY ALL ORDER BY c.seed, c.group_name
"""


def support(store: Store, suite: str) -> str:
    kinds = {
        "peer answers used": ("used", SHARE), "peer-only support": ("support", PERCENT),
        "second moment of the weights": ("moment", RATIO), "effective sample size": ("sample", RATIO),
        "gradient noise": ("noise", RATIO), "KL to the base": ("kl", RATIO),
    }  # fmt: skip
    rows = store.query(_TOTALS, suite)
    lines = [
        [regime, *(_estimate(_by_seed(rows, regime, name), unit) for name, unit in kinds.values())]
        for regime in _in_order(store, suite)
    ]
    return _table(["regime", *kinds], lines)


def cost(store: Store, suite: str) -> str:
    rows = store.query(_TOTALS, suite)
    baseline = next(r.regime for r in store.rows(suite) if r.gain is None)
    reference = _by_seed(rows, baseline, "cpu")
    lines = []
    for regime in _in_order(store, suite):
        cpu = _by_seed(rows, regime, "cpu")
        values = [_estimate(_by_seed(rows, regime, n), PLAIN) for n in ("cpu", "tokens", "megabytes")]
        lines.append([regime, values[0], _estimate(np.asarray(cpu) / np.asarray(reference), RATIO), *values[1:]])
    return _table(["regime", "CPU-s a cell", f"x {baseline}", "thousand tokens sampled", "MB exchanged"], lines)


def tuned(store: Store, suite: str) -> str:
    heads = ["group", "regime", "gain as published", "gain tuned", "change", "lead promised", "kept"]
    lines = [
        [
            r.group, f"{r.variant}, tuned on {r.on}" if r.on else r.variant,
            _published(r), POINTS.with_interval(r.tuned_gain, r.tuned_interval),
            POINTS.with_interval(r.change, r.change_interval), POINTS.text(r.promised), POINTS.text(r.kept),
        ]
        for r in tuning_rows(store.snapshot, _tuning(store, suite))
    ]  # fmt: skip
    return _table(heads, lines)


def alike(store: Store, suite: str) -> str:
    """The same in short, groups across: each tuned on the tuning group that its name begins with."""
    rows = [r for r in tuning_rows(store.snapshot, _tuning(store, suite)) if r.group.startswith(r.on)]
    where, names = list(dict.fromkeys(r.group for r in rows)), list(dict.fromkeys(r.variant for r in rows))
    texts = {
        (r.variant, r.group): f"{_published(r)} → {POINTS.with_interval(r.tuned_gain, r.tuned_interval)}"
        for r in rows
        if r.published_gain is not None
    }
    lines = [[name, *(texts[name, group] for group in where)] for name in names if (name, where[0]) in texts]
    return _table(["gain as published → tuned", *where], lines)


def setting(store: Store, suite: str, regime: str, group: str, on: str, column: str) -> str:
    """`+18.0 [14.3, 21.6]`: `published` or `tuned` gain, or the `change`, with the setting that the tuning group `on` chose."""
    rows = tuning_rows(store.snapshot, _tuning(store, suite))
    (row,) = (r for r in rows if (r.variant, r.group, r.on) == (regime, group, on))
    return {
        "published": _published(row),
        "tuned": POINTS.with_interval(row.tuned_gain, row.tuned_interval),
        "change": POINTS.with_interval(row.change, row.change_interval),
    }[column]


def moved(store: Store, suite: str, regime: str, group: str) -> str:
    """`+9.6 [5.0, 14.2]`: with the setting of the first tuning group less with that of the second."""
    rows = transfer_rows(store.snapshot, _tuning(store, suite))
    (row,) = (r for r in rows if (r.variant, r.group) == (regime, group))
    return POINTS.with_interval(row.difference, row.interval)


def transfer(store: Store, suite: str) -> str:
    lines = [
        [
            r.group, r.variant, f"{PERCENT.text(r.first)} ({r.first_on})", f"{PERCENT.text(r.second)} ({r.second_on})",
            r.apart,
        ]
        for r in transfer_rows(store.snapshot, _tuning(store, suite))
    ]  # fmt: skip
    return _table(["group", "regime", "tuned on one", "tuned on the other", "first less second"], lines)


def optimism(store: Store, suite: str) -> str:
    leads = [(r.promised, r.kept) for r in tuning_rows(store.snapshot, _tuning(store, suite)) if r.kept is not None]
    promised, kept = (float(np.mean(each)) for each in zip(*leads, strict=True))
    return f"{POINTS.text(promised)} points promised, {POINTS.text(kept)} kept"


def starts(store: Store, suite: str, metric: str) -> str:
    lines = [
        [s.policy, s.moment, PERCENT.text(s.strict), PERCENT.text(s.lenient), f"{s.answers:,}"]
        for s in stages(store.snapshot, f"{suite}{MARK}")
        if s.metric == metric
    ]
    return _table(["policy", "when", "strict", "lenient", "answers"], lines)


def provenance(store: Store) -> str:
    lines = []
    for suite in store.suites:
        rows = store.query(
            "SELECT kind, commit_hash, dirty, machine, packages, substr(finished, 1, 10) AS day FROM cells WHERE suite = ?",
            suite,
        )
        hours = store.query("SELECT sum(cpu_seconds) / 3600 AS hours FROM spent WHERE suite = ?", suite)[0]["hours"]
        known = {
            "commit": {(r["commit_hash"][:12] or "unknown") + ("+" if r["dirty"] else "") for r in rows},
            "processor": {json.loads(r["machine"]).get("processor", "unknown") for r in rows},
            "torch": {json.loads(r["packages"]).get("torch", "unknown") for r in rows},
        }
        cells = sum(r["kind"] == "cell" for r in rows)
        where = ["; ".join(sorted(words)) for words in known.values()]
        lines.append([suite, str(cells), f"{hours:.1f}", *where, max(r["day"] for r in rows)])
    return _table(["suite", "cells", "CPU-hours", "commit", "processor", "torch", "finished"], lines)


_KINDS = (
    gain, accuracy, rise, used, show, chosen, regimes, groups, peers, accuracies, over, shares, sentence, together, verdicts,
    harmed, untold, support, cost, tuned, alike, setting, moved, transfer, optimism, starts, provenance,
)  # fmt: skip
FIGURES: dict[str, Callable[..., str]] = {kind.__name__: kind for kind in _KINDS}
OVER_ALL = ("verdicts", "harmed", "untold", "provenance")


def _tuning(store: Store, suite: str) -> Tuning:
    found = read_tuning(store.results, f"{suite}{MARK}")
    if found is None:
        raise UsageError(f"{suite}: no tuning among its reference results")
    return found


def _sampled(rows: Iterable[ShowRow]) -> list[ShowRow]:
    return [r for r in rows if r.metric.startswith("avg@")]


def _same(one: ShowRow, other: ShowRow) -> bool:
    return all(getattr(one, n) == getattr(other, n) for n in ("group", "regime", "task", "metric"))


def _in_order(store: Store, suite: str) -> list[str]:
    return list(dict.fromkeys(r.regime for r in store.rows(suite)))


def _by_seed(rows: Sequence[dict[str, Any]], regime: str, name: str) -> list[float]:
    seeds: dict[int, list[float]] = {}
    for r in rows:
        if r["regime"] == regime:
            seeds.setdefault(r["seed"], []).append(np.nan if r[name] is None else float(r[name]))
    return [float(np.mean(values)) for _, values in sorted(seeds.items())]


def _estimate(values: ArrayLike, unit: Unit) -> str:
    found = mean_interval(values)
    if not found.n:
        return "–"
    pair = None if np.isnan(found.low) else (float(found.low), float(found.high))
    return unit.with_interval(float(found.mean), pair)


def _published(row: TuningRow) -> str:
    return POINTS.with_interval(row.published_gain, row.published_interval)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    numbers = [all(_NUMBER.match(line[i]) for line in lines) for i in range(len(heads))]
    rows = [heads, ["---:" if number else "---" for number in numbers], *lines]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def figure(store: Store, words: str) -> str | None:
    kind, *arguments = shlex.split(words)
    if kind not in FIGURES:
        raise UsageError(f"{words}: no figure {kind!r} (there are {', '.join(FIGURES)})")
    if kind not in OVER_ALL and arguments[0] not in store.suites:
        return None
    try:
        return FIGURES[kind](store, *arguments)
    except (TypeError, ValueError, KeyError, StopIteration) as error:
        raise UsageError(f"{words}: {error!r}") from error


def written(store: Store, template: str) -> str:
    def section(found: re.Match[str]) -> str:
        there = store.suites if found[1] == "any" else found[1].split()
        return f"{found[2]}\n" if there and set(there) <= set(store.suites) else ""

    def value(found: re.Match[str]) -> str:
        text = figure(store, found[1])
        if text is None:
            raise UsageError(f"{TEMPLATE.name}: {{{found[1]}}} is not inside `with`")
        return text.strip("\n")

    return re.sub(r"\n{3,}", "\n\n", _FIGURE.sub(value, _WITH.sub(section, template)))


def marked(store: Store, page: str) -> str:
    def value(found: re.Match[str]) -> str:
        text = figure(store, found[2])
        return found[0] if text is None else f"{found[1]}{text}{found[4]}"

    return _MARKS.sub(value, page)


def pages(store: Store, root: Path = ROOT) -> dict[Path, str]:
    found = {root / name: marked(store, (root / name).read_text("utf-8")) for name in MARKED}
    return {root / PAGE: written(store, TEMPLATE.read_text("utf-8")), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="whose reference/ is meant")
    given = parser.parse_args()
    try:
        with opened(given.results) as store:
            wrong = {
                path: text
                for path, text in pages(store).items()
                if not path.exists() or path.read_text("utf-8") != text
            }
    except HarnessError as error:
        print(f"results_page: {error}", file=sys.stderr)
        return error.exit_code
    for path, text in wrong.items():
        if not given.check:
            path.write_text(text, "utf-8")
        print(f"{path.relative_to(ROOT)}: {'is not what the reference results give' if given.check else 'written'}")
    return int(given.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
