"""`harness show --against PAPER`: published numbers, ours beside them where the same models were trained the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness import published
from harness.published import Publication, PublishedRow, Trained
from harness.store.read import Snapshot
from harness.store.table import MEAN, show_rows

Ours = dict[tuple[str, str, str, str], dict[str, float]]
"""By (source, group, policy, method): our accuracy by task."""


def against(name: str, snapshot: Snapshot, suites: Sequence[str]) -> str:
    """The comparison as text, in percent, with the paper's inconsistencies. Raises UsageError for an unknown paper."""
    paper = published.load(name)
    ours = _ours(paper, snapshot, suites)
    tasks = list(dict.fromkeys(task for row in paper.rows for task in row.values))
    lines = [f"{paper.title}, arXiv {paper.arxiv} {paper.version}; in percent, ours in brackets where it was run here"]
    lines.append(f"How it was measured there: {paper.protocol.strip()}")
    for group in dict.fromkeys((row.source, row.group) for row in paper.rows):
        lines += [
            "",
            f"{group[1]} ({group[0]})",
            f"  {'policy':<28} {'method':<14}" + "".join(f"{t:>16}" for t in tasks),
        ]
        for row in paper.rows:
            if (row.source, row.group) == group:
                lines.append(
                    f"  {row.policy:<28} {row.method:<14}" + "".join(_cell(paper, row, t, ours) for t in tasks)
                )
    if not ours:
        lines += ["", f"None of these models has been trained here yet (suites: {', '.join(paper.suites)})."]
    return "\n".join([*lines, "", "What does not fit together:", *(f"  - {note}" for note in paper.notes)]) + "\n"


def _cell(paper: Publication, row: PublishedRow, task: str, ours: Ours) -> str:
    if task not in row.values:
        return f"{'':>16}"
    there = f"{100 * paper.share(row.values[task]):.1f}"
    here = ours.get((row.source, row.group, row.policy, row.method), {}).get(task)
    return f"{there + (f' [{100 * here:.1f}]' if here is not None else ''):>16}"


def _ours(paper: Publication, snapshot: Snapshot, suites: Sequence[str]) -> Ours:
    found: Ours = {}
    for suite in suites:
        models = _models(snapshot, suite)
        variants = _variants(snapshot, suite)
        for row in show_rows(snapshot, suite):
            if row.policy == MEAN or row.metric == "greedy":
                continue
            group = models[row.group]
            regime, objective, factor = variants[row.regime]
            peers = tuple(model for policy, model in group.items() if policy != row.policy)
            there = paper.beside(Trained(group[row.policy], peers, regime, row.regime, objective, factor))
            if there is not None:
                key = there.source, there.group, there.policy, there.method
                found.setdefault(key, {})[row.task] = row.accuracy
    return found


def _models(snapshot: Snapshot, suite: str) -> dict[str, dict[str, str]]:
    rows = snapshot.query(
        "SELECT DISTINCT group_name, policies, models FROM current_cells WHERE suite = ? AND kind = 'cell'", [suite]
    ).to_pylist()
    return {r["group_name"]: dict(zip(r["policies"], r["models"], strict=True)) for r in rows}


def _variants(snapshot: Snapshot, suite: str) -> dict[str, tuple[str, str, int]]:
    rows = snapshot.query(
        "SELECT DISTINCT regime, regime_type, options, budget FROM current_cells WHERE suite = ? AND kind = 'cell'",
        [suite],
    ).to_pylist()
    return {
        r["regime"]: (r["regime_type"], json.loads(r["options"]).get("objective", "grpo"), int(r["budget"][:-1]))
        for r in rows
    }
