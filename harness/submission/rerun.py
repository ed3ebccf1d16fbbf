"""Stored cells trained again and compared row by row."""

from __future__ import annotations

import math
import queue
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa

from harness.engines.embedded.numerics import environment
from harness.errors import CellError, SuiteError, UsageError
from harness.learning import registry
from harness.phases import Interrupted
from harness.session.cell.manifests import label_of, packages, processor
from harness.session.driver.jobs import Finished, Progress, job_of
from harness.session.driver.matrix import CLOSE_SECONDS, SILENCE_SECONDS, Inbox, WorkerProcess
from harness.session.suite.files import check_roots
from harness.store.journal import read_journal
from harness.store.manifest import Manifest
from harness.submission.bundle import WORDLESS, compact
from harness.submission.evidence import EVERY, Evidence, repeats_on, untimed
from harness.suite.cells import cell_of
from harness.versions import recorded

# Tables of times alone
APART = {"costs"}
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """seed: of the choice; None: random. minutes: each cell."""

    cells: int
    seed: int | None = None
    minutes: float = 60.0


def train(manifest: Manifest, folder: Path, deadline: float = math.inf) -> None:
    """In a worker process with the cell's environment. Raises the cell's errors, and Interrupted at `deadline`
    (`time.monotonic`)."""
    beside = {name: getattr(manifest, name) for name in ("suite", "key", "baseline", "identity")}
    cell, inbox = cell_of({**manifest.config, **beside}), Inbox()
    worker = WorkerProcess(inbox, environment(cell.engine_options), SILENCE_SECONDS)
    try:
        worker.give_job(job_of(cell, folder))
        while (left := min(deadline, worker.heard + SILENCE_SECONDS) - time.monotonic()) > 0:
            with suppress(queue.Empty):
                match inbox.get(timeout=min(left, threading.TIMEOUT_MAX))[1]:
                    case Progress(done=done, total=total, words=words):
                        print(f"{done:g}/{total:g}  {words}", file=sys.stderr)
                    case Finished(outcome="done"):
                        return
                    case Finished(reason=reason):
                        raise CellError(f"{folder}: {reason}")
                    case None:
                        raise CellError(f"{folder}: {worker.exit_reason()}")
                worker.heard = time.monotonic()
        raise Interrupted
    finally:
        worker.close(time.monotonic() + CLOSE_SECONDS)


def differences(left: Mapping[str, pa.Table], right: Mapping[str, pa.Table]) -> Iterator[tuple[str, bool, str]]:
    """Each table, whether its rows but times and costs are the same, and that in words."""
    for table in sorted((left.keys() | right.keys()) - APART):
        old, new = (
            [untimed(row) for row in side[table].to_pylist()] if table in side else [] for side in (left, right)
        )
        columns = sorted({c for row in (old or new) for c in row})
        wrong = [c for c in columns if [row.get(c) for row in old] != [row.get(c) for row in new]]
        later = [c for c in wrong if old and all(row.get(c) is None for row in old)]
        differing = [c for c in wrong if c not in later]
        if len(old) != len(new) or differing:
            yield table, False, f"{len(old)} rows stored, {len(new)} now; differing columns: {', '.join(differing)}"
        else:
            added = f"; not stored then: {', '.join(later)}" if later else ""
            yield table, True, f"{len(old)} rows, the same{added}"


def re_execute(evidence: Evidence, again: RerunRequest) -> dict[str, str]:
    """How alike random cells of a checked bundle are, by label. Raises UsageError for the first that differs, or cannot
    be trained here."""
    seed = secrets.randbelow(1 << 31) if again.seed is None else again.seed
    stated = [manifest for _, manifest in sorted(evidence.stated.items())]
    cells = [m for m in stated if m.kind == "cell" and m.regime_type in registry.installed()]
    if not cells:
        raise evidence.fault("none of its regimes is installed here", evidence.suite)
    chosen = {
        f"{evidence.bundle}: {evidence.suite}/{m.key} ({label_of(m)}, --seed {seed})": m
        for m in Random(seed).sample(cells, min(again.cells, len(cells)))
    }
    for place, manifest in chosen.items():
        possible(manifest, place)
    try:
        check_roots(evidence.resolved, Path("results"))
    except SuiteError as error:
        raise evidence.fault(error.problem, evidence.suite) from None
    return {
        label_of(m): re_run(m, evidence.tables(m.key), evidence.folder / "again" / m.key, place, again.minutes)
        for place, m in chosen.items()
    }


def repeats(manifest: Manifest) -> bool:
    return repeats_on(manifest) in (EVERY, processor())


def possible(manifest: Manifest, place: str) -> None:
    """Raises UsageError where the cell cannot be trained here to the same rows."""
    made_on = manifest.provenance.machine.get("processor") or "an unknown CPU"
    threads = manifest.provenance.machine.get("threads", "1")
    faults = {
        f"of the engine {manifest.engine}; embedded cells alone can be trained again": manifest.engine != "embedded",
        f"computed by {threads} threads, which round otherwise in every run": threads != "1",
        f"computed with numerics: fast on {made_on}, and comes out the same there alone": not repeats(manifest),
    }
    for package, version in manifest.identity.versions.items():
        here = str(recorded()[package].version) if package in recorded() else version
        faults[f"computed by {package} {version}; here is {here}, whose results are others"] = here != version
    for policy in manifest.config["group"]["policies"]:
        absent = not str(policy["model"]).startswith("micro/") and not policy.get("revision")
        faults[f"the model {policy['model']} is not in the bundle"] = absent
    for problem in (problem for problem, wrong in faults.items() if wrong):
        raise UsageError(f"{place}: {problem}")


def re_run(
    manifest: Manifest,
    stored: Mapping[str, pa.Table],
    folder: Path,
    place: str,
    minutes: float,
    wordless: Sequence[str] = WORDLESS,
) -> str:
    """What is the same. wordless: columns that were not stored. Raises UsageError where rows differ, or it takes too
    long."""
    print(f"training again: {place}", file=sys.stderr)
    try:
        train(manifest, folder, time.monotonic() + 60 * minutes)
    except Interrupted:
        raise UsageError(f"{place}: not finished in {minutes:g} minutes") from None
    now = compact(read_journal(folder).tables, wordless)
    wrong = [f"{table}: {words}" for table, same, words in differences(stored, now) if not same]
    if not wrong:
        return "every row the same"
    here, there = packages(), manifest.provenance.packages
    unlike = ", ".join(f"{n} {there.get(n)}, here {here.get(n)}" for n in _LIBRARIES if here.get(n) != there.get(n))
    raise UsageError(f"{place}: other rows{f' (made with {unlike})' * bool(unlike)}: {wrong[0]}")
