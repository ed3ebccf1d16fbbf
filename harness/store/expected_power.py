"""What a suite could find before it runs, from how much the seeds of stored suites differ: for `harness plan`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path

import msgspec
import numpy as np

import harness
from harness.files import write_atomic
from harness.statistics import MARGIN
from harness.statistics.power import find_power
from harness.store.database import store_path
from harness.store.finished import estimate_difference, read_finished
from harness.store.read import Snapshot
from harness.store.statistic import SHARE
from harness.store.table import MEAN, list_suites
from harness.store.tuning import without_trials

# What a plan states its power for
GAIN, PACE = 0.02, 1.10


@dataclass(frozen=True, slots=True)
class StoredSpreads:
    """Standard deviations over seeds, each the median of the stored lines': of a gain of avg@k, a fraction, and of the logarithm of
    a pace; None where no line has one. gains, paces: how many lines they are the median of."""

    gain: float | None
    gains: int
    pace: float | None
    paces: int


def read_spreads(snapshot: Snapshot, suites: Sequence[str] = ()) -> StoredSpreads:
    """Read how much seeds differ in these suites, or in all that are stored. Lines of fewer than three seeds do not count."""
    gains: list[float] = []
    paces: list[float] = []
    for suite in suites or without_trials(list_suites(snapshot)):
        finished = read_finished(snapshot, suite)
        for key, lines in finished.by_key.items():
            if key.policy != MEAN or not key.metric.startswith("avg@"):
                continue
            for name, by_seed in lines.items():
                reference = finished.lines[name].reference
                if reference not in lines:
                    continue
                gain = estimate_difference(by_seed, lines[reference])
                if gain.n >= 3:
                    gains.append(float(gain.error) * sqrt(int(gain.n)))
                pace = finished.paces.find_pace(key.group, key.policy, name, MARGIN)
                if pace is not None and pace.kappa is not None and pace.fit is not None:
                    paces.append(pace.fit.kappa_error * sqrt(pace.fit.n))
    return StoredSpreads(
        gain=float(np.median(gains)) if gains else None,
        gains=len(gains),
        pace=float(np.median(paces)) if paces else None,
        paces=len(paces),
    )


class _KeptSpreads(msgspec.Struct, frozen=True):
    """of: the harness's version, and inode, time of change in nanoseconds and bytes of the store that was read."""

    of: tuple[str, int, int, int]
    spreads: StoredSpreads


def recall_spreads(results: Path) -> StoredSpreads:
    """Read the spreads of all stored suites of a results folder. They are kept beside its store for as long as that does not
    change: fitting the paces takes seconds, and plans are made often. Raises StoreError where the store cannot be read."""
    store = store_path(results)
    status = store.stat()
    of = (harness.__version__, status.st_ino, status.st_mtime_ns, status.st_size)
    place = store.with_suffix(".spreads.json")
    with suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(place.read_bytes(), type=_KeptSpreads)
        if kept.of == of:
            return kept.spreads
    with Snapshot(results) as snapshot:
        spreads = read_spreads(snapshot)
    with suppress(OSError):  # a folder that can only be read
        write_atomic(place, msgspec.json.encode(_KeptSpreads(of, spreads)))
    return spreads


def describe_power(spreads: StoredSpreads, seeds: int) -> str:
    """Say how likely so many seeds are to find a gain of 2 points, and a pace of 1.10; empty where nothing is stored.

    Of one comparison by itself: a table corrects for all that it compares, and finds less.
    """
    parts = []
    if spreads.gain is not None:
        power = SHARE.text(find_power(spreads.gain, seeds, GAIN))
        parts.append(f"a gain of {100 * GAIN:g} points in {power} (spread of {spreads.gains} stored gains)")
    if spreads.pace is not None:
        power = SHARE.text(find_power(spreads.pace, seeds, log(PACE)))
        parts.append(f"a pace of {PACE:.2f} in {power} (spread of {spreads.paces} stored paces)")
    if not parts:
        return ""
    return f"Power with {seeds} seeds, one comparison by itself: {' and '.join(parts)} of such runs."
