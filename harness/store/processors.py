"""Whether what is compared in pairs was computed on one kind of processor: another kind rounds otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from harness.store.read import Snapshot

NAMED = 3
"""So many of the mixed blocks are named."""


def mixed(cells: Iterable[tuple[str, int | None, Mapping[str, str]]]) -> str:
    """A sentence where cells of one group and seed ran on several kinds of processors or GPUs; empty where none did.

    cells: of each its group, its seed and the machine of its provenance. What does not say its processor counts for none.
    """
    kinds: dict[tuple[str, int | None], set[str]] = {}
    for group, seed, machine in cells:
        if machine.get("processor"):
            own = " with ".join(machine[part] for part in ("processor", "gpu") if machine.get(part))
            kinds.setdefault((group, seed), set()).add(own)
    several = {block: own for block, own in kinds.items() if len(own) > 1}
    if not several:
        return ""
    named = ", ".join(f"{group}/{seed}" for group, seed in [*several][:NAMED])
    more = f" and {len(several) - NAMED} more" if len(several) > NAMED else ""
    unlike = "; ".join(sorted(set().union(*several.values())))
    return (
        f"mixed processors: the regimes of {named}{more} ran on different ones ({unlike}), "
        "which round differently: a part of their paired differences may be the machines'"
    )


def mixed_in(snapshot: Snapshot, suite: str) -> str:
    """The same of a suite's finished cells."""
    rows = snapshot.query(
        "SELECT DISTINCT group_name, seed, machine FROM current_cells "
        "WHERE suite = ? AND kind = 'cell' AND state = 'done' ORDER BY ALL",
        [suite],
    )
    return mixed((row["group_name"], row["seed"], json.loads(row["machine"] or "{}")) for row in rows.to_pylist())
