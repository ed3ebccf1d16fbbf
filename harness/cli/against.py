"""`harness show --against PAPER`: published numbers, ours beside them where the same models were trained the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness import published
from harness.published import Publication, PublishedRow, Trained
from harness.store.read import Snapshot
from harness.store.table import MEAN, show_rows

Ours = dict[tuple[str, str, str, str], dict[str, dict[str, float]]]
"""By (source, group, policy, method): our accuracy by task and metric."""
_WIDTH = 16


def against(name: str, snapshot: Snapshot, suites: Sequence[str]) -> str:
    """The comparison as text, in percent, with the paper's inconsistencies. Raises UsageError for an unknown paper."""
    paper = published.load(name)
    ours = _ours(paper, snapshot, suites)
    tasks = list(dict.fromkeys(task for row in paper.rows for task in row.values))
    lines = [f"{paper.title}, arXiv {paper.arxiv} {paper.version}; in percent, ours in brackets where it was run here"]
    lines.append(f"How it was measured there: {paper.protocol.strip()}")
    heads = "".join(f"{f'{task}, {paper.metric(task)}':>{_WIDTH}}" for task in tasks)
    marks: dict[str, None] = {}
    for group in dict.fromkeys((row.source, row.group) for row in paper.rows):
        lines += ["", f"{group[1]} ({group[0]})", f"  {'policy':<28} {'method':<14}{heads}"]
        for row in paper.rows:
            if (row.source, row.group) == group:
                cells = "".join(f"{_cell(paper, row, task, ours, marks):>{_WIDTH}}" for task in tasks)
                lines.append(f"  {row.policy:<28} {row.method:<14}{cells}")
    lines += ["", *marks] if marks else []
    if not ours:
        lines += ["", f"None of these models has been trained here yet (suites: {', '.join(paper.suites)})."]
    return "\n".join([*lines, "", "What does not fit together:", *(f"  - {note}" for note in paper.notes)]) + "\n"


def _cell(paper: Publication, row: PublishedRow, task: str, ours: Ours, marks: dict[str, None]) -> str:
    """Theirs, and ours in brackets: by the paper's own metric, else by another one with a mark; `marks` gathers what it means."""
    if task not in row.values:
        return ""
    there = f"{100 * paper.share(row.values[task]):.1f}"
    here = ours.get((row.source, row.group, row.policy, row.method), {}).get(task)
    if not here:
        return there
    wanted = paper.metric(task)
    metric = min(here, key=lambda metric: (_distance(metric, wanted), metric))
    value = f"{there} [{100 * here[metric]:.1f}]"
    match _distance(metric, wanted):
        case 0:
            return value
        case 1:
            marks[
                f"~ {task}: {wanted} there, {metric} here; the same expectation, estimated from another number of answers"
            ] = None
            return f"{value}~"
        case _:
            marks[f"! {task}: {wanted} there, {metric} here: two different quantities, not to be compared"] = None
            return f"{value}!"


def _distance(metric: str, wanted: str) -> int:
    """0 for the same metric, 1 for means over another number of samples, then whatever else there is."""
    if metric == wanted:
        return 0
    kind, sought = metric.partition("@")[0], wanted.partition("@")[0]
    if kind == sought == "avg":
        return 1
    return 2 if kind == "avg" else 3


def _ours(paper: Publication, snapshot: Snapshot, suites: Sequence[str]) -> Ours:
    found: Ours = {}
    for suite in suites:
        models = _models(snapshot, suite)
        variants = _variants(snapshot, suite)
        for row in show_rows(snapshot, suite):
            if row.policy == MEAN:
                continue
            group = models[row.group]
            regime, objective, factor = variants[row.variant]
            peers = tuple(model for policy, model in group.items() if policy != row.policy)
            there = paper.beside(Trained(group[row.policy], peers, regime, row.regime, objective, factor))
            if there is not None:
                key = there.source, there.group, there.policy, there.method
                found.setdefault(key, {}).setdefault(row.task, {})[row.metric] = row.accuracy
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
