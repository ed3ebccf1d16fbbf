"""What a bundle's numbers must be: those that its samples give, and no difference where there can be none."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec

from harness.statistics import paired
from harness.store.comparisons import MEAN, finished
from harness.store.ingest import ingest
from harness.store.read import Snapshot
from harness.submission.bundle import Stated, stated
from harness.submission.container import SCORES, BundleError
from harness.submission.evidence import Evidence
from harness.suite.schema import Variant

ROUNDING = 1e-9
ERROR = 0.01
"""How often an honest A/A control may be refused, over all of a suite's comparisons (Bonferroni)."""


def table(e: Evidence) -> str:
    """scores.json against what the samples give here: every accuracy of every cell, every line of the table."""
    path = e.root / SCORES
    try:
        said = msgspec.json.decode(path.read_bytes(), type=Stated)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError("table", e.place(SCORES), f"not a bundle's scores: {error}") from None
    found = stated(e.root, e.suite)
    for kind in ("scores", "rows"):
        theirs, ours = getattr(said, kind), getattr(found, kind)
        if len(theirs) != len(ours):
            raise BundleError("table", e.place(SCORES, kind), f"{len(theirs)} lines; the samples give {len(ours)}")
        for i, (line, right) in enumerate(zip(theirs, ours, strict=True)):
            for name in line.__struct_fields__:
                a, b = getattr(line, name), getattr(right, name)
                if not _equal(a, b):
                    who = ", ".join(
                        str(getattr(right, n))
                        for n in ("cell", "regime", "policy", "task", "metric")
                        if hasattr(right, n)
                    )
                    problem = f"{a} for {who}; the samples give {b}"
                    raise BundleError("table", e.place(f"{SCORES}: {kind}[{i}].{name}"), problem)
    return f"{len(found.scores)} accuracies and {len(found.rows)} lines, as the samples give them"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= ROUNDING * max(1.0, abs(b))
    return bool(a == b)


def noise_floor(e: Evidence) -> str:
    """Variants that differ in nothing but the stream of their samples differ by no more than chance."""
    pairs = [(a.name, b.name) for a, b in combinations(e.resolved.regimes, 2) if _alike(a, b)]
    if not pairs:
        return "the suite has no A/A control"
    ingest(e.root)
    with Snapshot(e.root) as snapshot:
        families = {k: f for k, f in finished(snapshot, e.suite).families.items() if k[1] == MEAN}
    largest, compared = 0.0, 0
    for (group, _, task, metric), family in families.items():
        for first, second in pairs:
            ours, theirs = family.scores.get(first, {}), family.scores.get(second, {})
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) < 2:
                continue
            compared += 1
            found = paired(
                [ours[s].accuracy for s in seeds],
                [theirs[s].accuracy for s in seeds],
                noise=[ours[s].noise + theirs[s].noise for s in seeds],
            )
            if float(found.p) * len(pairs) * len(families) < ERROR:
                problem = f"{second} differs from {first} by {-100 * float(found.mean):+.1f} points (p = {float(found.p):.2g})"
                where = f"{group}, {task}, {metric}"
                raise BundleError("a/a", e.place(where), f"{problem}, though nothing but chance tells them apart")
            largest = max(largest, abs(float(found.mean)))
    if not compared:
        return "one seed alone has no noise floor"
    return f"{compared} A/A comparisons inside the noise floor, the largest {100 * largest:.1f} points"


def _alike(a: Variant, b: Variant) -> bool:
    return a.sampling_stream != b.sampling_stream and all(
        getattr(a, name) == getattr(b, name) for name in type(a).model_fields if name not in ("name", "sampling_stream")
    )
