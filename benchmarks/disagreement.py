"""Where HACPO's gain changes its sign, from the stored results of `harness run disagreement`, as Markdown.

    python benchmarks/disagreement.py [--results DIR] [--statistics FILE] [--write docs/disagreement.md]

For each point of the dial: gain in points of every variant over GSPO and over GRPO, mean of both policies at temperature 1, with
95 % intervals paired by seed, and the share of peers' answers that had a gradient. --statistics: what `python benchmarks/matched.py
disagreement` printed; its ratio and rescue share, mean of the two directions, stand in front. --write puts the tables between the
markers `<!-- measured -->` and `<!-- end -->` of that file instead of printing them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from harness.errors import StoreError
from harness.store.comparisons import Finished, finished
from harness.store.ingest import ingest
from harness.store.read import Snapshot
from harness.store.tuning import difference, metric_of, whole

SUITE, BASELINES = "disagreement", ("gspo", "grpo")
MARKS = "<!-- measured -->", "<!-- end -->"


def gain(found: Finished, group: str, variant: str, baseline: str) -> str:
    """In points, with its interval where there are two seeds or more."""
    task = next(task for _, _, task, _ in found.families)
    scores = found.families[group, whole(found, group), task, metric_of(found, task)].scores
    mean, interval = difference(scores.get(variant, {}), scores.get(baseline, {}))
    if mean is None:
        return "–"
    said = f"{100 * mean:+.1f}" + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")
    return said.replace("-", "−")


def used(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Share of the peers' answers that arrived and had a gradient, by group and variant."""
    query = """SELECT c.group_name, c.regime, sum(s.peer_used) / sum(s.peer_received)
               FROM steps s JOIN current_cells c USING (suite, cell)
               WHERE suite = ? AND s.peer_received > 0 GROUP BY ALL"""
    return {(group, variant): float(share) for group, variant, share in _rows(snapshot, query)}


def levels(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Groups and variants in the suite's order."""
    found = snapshot.query("SELECT groups, variants FROM suites WHERE suite = ?", [SUITE]).to_pylist()
    return [(group, variant) for row in found for group in row["groups"] for variant in row["variants"]]


def _rows(snapshot: Snapshot, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in snapshot.query(query, [SUITE]).to_pylist()]


def table(heads: list[str], body: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *body])


def tables(results: Path, statistics: Path | None) -> str:
    """Both tables. Raises StoreError where nothing of the suite is finished."""
    ingest(results)
    with Snapshot(results) as snapshot:
        found, shares, places = finished(snapshot, SUITE), used(snapshot), levels(snapshot)
    if not found.families:
        raise StoreError(f"{results}: nothing of {SUITE} is finished; harness run {SUITE}")
    groups, variants = list(dict.fromkeys(g for g, _ in places)), list(dict.fromkeys(v for _, v in places))
    groups = [g for g in groups if any(g == of for of, *_ in found.families)]
    parts = []
    if statistics is not None:
        rows = json.loads(statistics.read_text().strip().splitlines()[-1])
        body = []
        for group in groups:
            own = [row for row in rows if row["group"] == group]
            means = [
                float(np.mean([row[name] for row in own])) for name in ("accuracy", "unsolved", "rescued", "geometric")
            ]
            body.append([group, *(f"{mean:.2f}" for mean in means)])
        parts.append(table(["preset", "accuracy", "unsolved", "rescued", "ratio"], body))
    for baseline in BASELINES:
        body = [[v, *(gain(found, g, v, baseline) for g in groups)] for v in variants if v != baseline]
        parts.append(f"Gain over {baseline.upper()}, points:\n\n" + table(["variant", *groups], body))
    body = [
        [v, *(f"{100 * shares[g, v]:.0f} %" if (g, v) in shares else "–" for g in groups)]
        for v in variants if v not in BASELINES
    ]  # fmt: skip
    parts.append("Peers' answers that had a gradient:\n\n" + table(["variant", *groups], body))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Where HACPO's gain changes its sign.")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--statistics", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    try:
        text = tables(options.results, options.statistics)
    except (StoreError, OSError) as error:
        raise SystemExit(f"disagreement: {error}") from None
    if options.write is None:
        print(text)
        return
    before, _, rest = options.write.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise SystemExit(f"disagreement: {options.write} has no lines {MARKS[0]} and {MARKS[1]}")
    options.write.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
