"""What a suite's table lacks: cells that are not done, or that are shown as other settings or older code made them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.errors import HarnessError
from harness.session.suite.prepare import prepare_named, prepare_stored
from harness.session.suite.prepared import Prepared
from harness.store.manifest import suite_files
from harness.store.read import Snapshot
from harness.store.remarks import STALE, Missing, missing_cells
from harness.store.starts import UNPAIRED


def find_gaps(
    snapshot: Snapshot, results: Path, suite: str, file: Path | None = None, prepared: Prepared | None = None
) -> tuple[list[Missing], str]:
    """Return the cells that the table lacks, or has from other settings or code than `prepared`, than the suite's `file`, or than
    the suite as it ran; and, where no such suite can be prepared, what is stored alone and why."""
    stored = missing_cells(snapshot, suite)
    if prepared is None and "@" not in suite and (file is not None or suite_files(results / suite)):
        try:
            prepared = prepare_stored(suite, results) if file is None else prepare_named(str(file), results)
        except HarnessError as error:
            return stored, f"whether its cells are of today's settings and code cannot be told: {error}"
    return (stored if prepared is None else _compare_with_shown(snapshot, suite, stored, prepared)), ""


def _compare_with_shown(snapshot: Snapshot, suite: str, stored: list[Missing], prepared: Prepared) -> list[Missing]:
    """Compare the table with a suite as it would run today, cell by cell.

    stored: what the table lacks by itself. A cell that is shown under another key is stale, one that is not shown is missing,
    with its state, and one that is shown though the suite has it no longer is stale too. What is told of an unpaired cell
    stays."""
    shown = _keys_shown(snapshot, suite)
    by_label = {gap.cell: gap for gap in stored}
    others = tuple(cell for cell in prepared.all_cells if shown.get(cell.label) != cell.key)
    gaps = []
    # States are read from every cell's folder, which takes seconds where there are thousands
    statuses = replace(prepared, cells=others, stored=None).with_states(snapshot).statuses() if others else []
    for status in statuses:
        label = status.label
        key = status.key
        state = status.state
        reason = status.reason
        before = by_label.pop(label, None)
        shown_key = shown.get(label)
        if shown_key is not None:
            why = reason.removesuffix(f" (was {shown_key})") or f"{state}, but shown is {shown_key}"
            gaps.append(Missing(cell=label, key=key, state=STALE, reason=why))
        elif before is not None and before.key == key and (state == "done" or before.fault):
            gaps.append(before)  # damaged, or says why it failed
        else:
            gaps.append(Missing(cell=label, key=key, state=state, reason=reason))
    if prepared.suite.tune is not None:  # what its search chose stands beside it in what is stored
        return [*gaps, *by_label.values()]
    gaps += [gap for gap in by_label.values() if gap.state == UNPAIRED]
    for label in sorted(shown.keys() - {cell.label for cell in prepared.all_cells}):
        gaps.append(Missing(cell=label, key=shown[label], state=STALE, reason="no longer in the suite"))
    return gaps


def _keys_shown(snapshot: Snapshot, suite: str) -> dict[str, str]:
    """Read the keys of finished cells in a suite's table, by group/regime/seed."""
    rows = snapshot.query(
        "SELECT group_name || '/' || regime || '/' || seed AS label, cell FROM current_cells "
        "WHERE suite = ? AND kind = 'cell' AND state = 'done'",
        [suite],
    )
    return dict(zip(rows["label"].to_pylist(), rows["cell"].to_pylist(), strict=True))
