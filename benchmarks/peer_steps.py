"""A step of a regime that trains on peers' answers, per trained token, beside `independent`: two policies, sharing included. Run by
`bench.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import Row, Size, costs
from generation import random_policy
from sharing import measure

REGIMES = ("independent", "naive", "sgt", "hacpo")
STEPS = 8
"""Of a cell in a round; the first one pays for caches."""


def bench(size: Size) -> list[Row]:
    """The costliest regime's: the whole step, and learning alone."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in REGIMES}
    for _ in range(size.rounds):
        with tempfile.TemporaryDirectory() as name:
            bases = [random_policy(Path(name), family) for family in ("llama", "qwen")] if size.smoke else None
            for row in measure(2, ",".join(REGIMES), 2 if size.smoke else STEPS, Path(name), bases):
                figures = {key: float(str(row[key])) for key in ("token_seconds", "token_train_seconds")}
                found[str(row["regime"])].append(figures)
    rows = []
    for key, what in (("token_seconds", ""), ("token_train_seconds", ", learning")):
        spent = {regime: [row[key] for row in found[regime]] for regime in REGIMES}
        name = f"step with peers, per trained token{what}"
        each = [costs(name, "independent", spent[regime], spent["independent"], 1.05) for regime in REGIMES[1:]]
        rows.append(max(each, key=lambda row: row.value))
    return rows
