"""The finished cells of a suite, as every format wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.store.journal import Contents, read_journal
from harness.store.manifest import Manifest, read_manifest
from harness.store.read import Snapshot
from harness.store.reference_results import MARK, ORIGIN, read_reference, suite_folder


class Scored(NamedTuple):
    """One metric of one policy on one task. error: standard error over questions, None for a single one."""

    task: str
    metric: str
    value: float | None
    error: float | None
    questions: int
    answers: int
    step: int


class Finished(NamedTuple):
    """One policy of one finished cell. folder: the cell's."""

    folder: Path
    manifest: Manifest
    policy: str
    scores: list[Scored]

    @property
    def name(self) -> str:
        """`suite__group__regime__seed__policy`, a folder's name."""
        m = self.manifest
        return "__".join([m.suite, m.group, m.regime, str(m.seed), self.policy])

    @property
    def contents(self) -> Contents:
        """The cell's journal. Raises StoreError."""
        stored = self.manifest.origin == ORIGIN
        return read_reference(self.folder.parent).contents(self.folder.name) if stored else read_journal(self.folder)

    @property
    def model(self) -> str:
        """What the policy was trained from."""
        return next(p.model for p in self.manifest.policies if p.name == self.policy)


def finished_cells(snapshot: Snapshot, results: Path, suite: str) -> Iterator[Finished]:
    """Each policy of each finished cell that counts for the suite. Raises UsageError where there is none, StoreError."""
    found: dict[tuple[str, str], list[Scored]] = {}
    rows: list[dict[str, Any]] = snapshot.query(
        "SELECT cell, policy, task, metric, accuracy AS value, error, questions, answers, checkpoint_step AS step FROM scores "
        "JOIN current_cells USING (suite, cell) WHERE suite = ? AND kind = 'cell' AND state = 'done' "
        "ORDER BY group_name, regime, seed, policy, task, metric",
        [suite],
    ).to_pylist()
    for row in rows:
        found.setdefault((row.pop("cell"), row.pop("policy")), []).append(Scored(**row))
    if not found:
        raise UsageError(f"{results}: no finished cells of a suite {suite!r}")
    for (cell, policy), scores in found.items():
        folder = suite_folder(results, suite) / cell
        manifest = read_reference(folder.parent).manifests[cell] if suite.endswith(MARK) else read_manifest(folder)
        yield Finished(folder, manifest, policy, scores)
