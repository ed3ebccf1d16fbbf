"""What a table lacks of its suite, or shows of another state of it, by the state that `harness status` gives each cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.errors import HarnessError
from harness.session.suite.prepare import Prepared, prepare, prepare_stored
from harness.store.manifest import suite_files
from harness.store.read import Snapshot
from harness.store.remarks import STALE, Missing, missing


def lacking(
    snapshot: Snapshot, results: Path, suite: str, file: Path | None = None, prepared: Prepared | None = None
) -> tuple[list[Missing], str]:
    """The suite's cells that its table in `snapshot` lacks, or has from other settings or other code than now.

    Now: as `prepared`, else as in `file`, else as its run was written, with today's code. Of results that are not our own, and
    where the suite cannot be prepared, that is not asked: then by what is stored alone, and the second value says why.
    """
    stored = missing(snapshot, suite)
    if prepared is None and "@" not in suite and (file is not None or suite_files(results / suite)):
        try:
            prepared = prepare_stored(suite, results) if file is None else prepare(str(file), results)
        except HarnessError as error:
            return stored, f"whether its cells are of today's settings and code cannot be told: {error}"
    return (stored if prepared is None else _compared(snapshot, suite, stored, prepared)), ""


def _compared(snapshot: Snapshot, suite: str, stored: list[Missing], prepared: Prepared) -> list[Missing]:
    known = {m.cell: m for m in stored}
    rows = snapshot.query(
        "SELECT group_name || '/' || regime || '/' || seed AS label, cell FROM current_cells "
        "WHERE suite = ? AND kind = 'cell' AND state = 'done'",
        [suite],
    )
    shown = dict(zip(rows["label"].to_pylist(), rows["cell"].to_pylist(), strict=True))
    found = []
    others = tuple(c for c in prepared.every if shown.get(c.label) != c.key)
    old = {label: shown[label] for label in shown.keys() - {c.label for c in prepared.every}}
    for status in replace(prepared, cells=others, seen=None).status():
        label, key, state, reason = status.cell.label, status.cell.key, status.state, status.reason
        before, there = known.pop(label, None), shown.get(label)
        if there is not None:
            why = reason.removesuffix(f" (was {there})") or f"{state}, but shown is {there}"
            found.append(Missing(cell=label, key=key, state=STALE, reason=why))
        elif before is not None and before.key == key and (state == "done" or before.fault):
            found.append(before)  # its records are damaged, or have the word for its failure
        else:
            found.append(Missing(cell=label, key=key, state=state, reason=reason))
    if prepared.suite.tune is not None:  # what its search has chosen stands beside it in what is stored alone
        return [*found, *known.values()]
    return [
        *found,
        *(Missing(cell=c, key=k, state=STALE, reason="no longer in the suite") for c, k in sorted(old.items())),
    ]
