"""How much faster each regime learns than independent training (kappa) and how much higher it ends (reach), from the store.

python examples/analyse/acceleration.py SUITE [RESULTS]

The same numbers as `harness show SUITE --json` has. docs/statistics.md has the definitions and their limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from harness.store.read import Snapshot
from harness.store.table import MEAN, ShowRow, show_rows


def describe_paces(rows: list[ShowRow]) -> Iterator[str]:
    """Yield a line for each group and regime, of the mean of the group's policies and the first metric."""
    first = next(row.metric for row in rows if row.policy == MEAN)
    for row in rows:
        if (row.policy, row.metric) != (MEAN, first) or not row.pace_clock:
            continue
        if row.kappa is None:
            yield f"  {row.group} {row.regime:18} {row.pace_status}: {row.pace_reason}"
            continue
        low, high = row.kappa_interval
        reach = row.pace_status
        if row.reach is not None:
            least, most = row.reach_interval
            reach = f"{100 * row.reach:+.1f} [{100 * least:+.1f}, {100 * most:+.1f}] points"
        yield f"  {row.group} {row.regime:18} kappa {row.kappa:.2f} [{low:.2f}, {high:.2f}]  reach {reach}"


if __name__ == "__main__":
    suite, *folder = sys.argv[1:]
    with Snapshot(Path(folder[0] if folder else "results")) as store:
        shown = show_rows(store, suite)
    kinds = {row.pace_curve for row in shown if row.pace_curve}
    print("\n".join([f"{suite}: {', '.join(sorted(kinds)) or 'no curves'}", *describe_paces(shown)]))
