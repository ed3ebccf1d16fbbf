"""Which of a suite's cells are in no row of its table, and which stand there as other settings or other code made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product

import msgspec

from harness.store.ddl import LABEL
from harness.store.read import Snapshot

STALE = "stale"
"""The state of a cell whose row is of other settings or code than it has now."""
_NAMED = 3
"""Cells that are named of those with one state and reason."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of the suite that is in no row, or is there STALE. key: empty where nobody knows it. fault: the word for it
    (`errors.Fault`), None where it has not failed."""

    cell: str
    key: str
    state: str
    fault: str | None = None
    reason: str = ""


def missing(snapshot: Snapshot, suite: str) -> list[Missing]:
    """The cells of the suite as it was run last that are not done, by what is stored: those that never began are pending."""
    about = snapshot.query("SELECT groups, seeds, variants, cells FROM suites WHERE suite = ?", [suite]).to_pylist()
    labels, keys = list[str](), list[str]()
    for one in about:  # in the order of `suite.cells.expand`
        places = product(one["groups"], one["seeds"], one["variants"])
        labels = [f"{group}/{regime}/{seed}" for group, seed, regime in places]
        keys = one["cells"] if len(one["cells"]) == len(labels) else [""] * len(labels)
    known = dict(zip(keys, labels, strict=True))
    rows = snapshot.query(
        f"SELECT {LABEL} AS cell, cell AS key, state, fault, reason FROM current_cells WHERE suite = ? AND kind = 'cell'",
        [suite],
    )
    there = [
        msgspec.structs.replace(m, cell=known.get(m.key, m.cell))
        for m in msgspec.convert(rows.to_pylist(), list[Missing])
    ]
    began = {m.cell for m in there}
    pending = [Missing(cell=c, key=k, state="pending") for c, k in zip(labels, keys, strict=True) if c not in began]
    return sorted([*(m for m in there if m.state != "done"), *pending], key=lambda m: m.cell)


def told(found: Iterable[Missing]) -> list[str]:
    """A line for each state and reason, with the first cells that it is of and the number of the others."""
    alike: dict[tuple[str, str], list[str]] = {}
    for m in found:
        why = f"{m.fault}: {m.reason}" if m.fault else m.reason
        alike.setdefault((m.state, why), []).append(m.cell)
    return [
        ", ".join(cells[:_NAMED])
        + (f" and {len(cells) - _NAMED:,} more" if len(cells) > _NAMED else "")
        + f" {state}"
        + (f" ({why})" if why else "")
        for (state, why), cells in alike.items()
    ]


def noted(found: Iterable[Missing]) -> dict[str, list[str]]:
    """What a table must say of itself: a head with the number of cells, and the lines below it; nothing where it is whole."""
    kinds: tuple[list[Missing], list[Missing]] = ([], [])
    for m in found:
        kinds[m.state == STALE].append(m)
    heads = ("Missing from these numbers", "In these numbers, but of other settings or code than now")
    return {
        f"{head}: {len(part):,} cell{'s' * (len(part) > 1)}": told(part)
        for head, part in zip(heads, kinds, strict=True)
        if part
    }


def counted(snapshot: Snapshot, suite: str, found: Iterable[Missing]) -> str:
    """How many of the suite's cells are in which state, e.g. `4 done, 2 pending`, with what it lacks."""
    done = snapshot.query(
        "SELECT count(*) AS n FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'", [suite]
    )
    states = Counter(m.state for m in found)
    states["done"] = done["n"][0].as_py() - states[STALE]
    order = ("done", STALE, "running", "cut off", "failed", "pending")
    return ", ".join(f"{states[state]:,} {state}" for state in order if states[state])
