"""The finished cells of a suite, as every format wants them; its tables as Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import replace_atomic
from harness.store.foreign import check_parts
from harness.store.journal import Contents, read_journal
from harness.store.manifest import MARK, ORIGIN, Manifest, read_manifest
from harness.store.read import Snapshot
from harness.store.reference_results import read_reference, suite_folder
from harness.store.table import seed_rows, show_rows, suites
from harness.tasks.data import SETS, DataSet


class Scored(NamedTuple):
    """One metric of one policy on one task. error: over questions, None for a single one. repeats: answers to a question.
    questions, answers: without those that `invalid` counts."""

    task: str
    metric: str
    value: float | None
    error: float | None
    questions: int
    answers: int
    step: int
    repeats: int
    invalid: int


class FinishedPolicy(NamedTuple):
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
        if self.manifest.origin == ORIGIN:
            return read_reference(self.folder.parent).contents(self.folder.name)
        return read_journal(self.folder)

    def asked(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Task, way and answers (rows of `samples`) of every question; none where prompts were not kept. Raises StoreError."""
        steps = {s.step for s in self.scores}
        rows = [r for r in self.contents.tables["samples"].to_pylist() if r["policy"] == self.policy]
        rows = [r for r in rows if r["checkpoint_step"] in steps and r["prompt"]]

        def question(row: dict[str, Any]) -> tuple[str, str, str]:
            return row["task"], row["metric"], row["doc_id"]

        for (task, way, _), answers in groupby(sorted(rows, key=lambda r: (*question(r), r["repeat"])), key=question):
            yield task, way, list(answers)

    @property
    def model(self) -> str:
        model = next(p.model for p in self.manifest.policies if p.name == self.policy)
        return Path(model).name if Path(model).is_absolute() else model

    def published(self, task: str) -> DataSet | None:
        """The published set that a task's questions are, if they are."""
        found = SETS.get(task)
        return found if found and self.manifest.identity.evaluation.get(task) == found.sha256 else None


def finished_cells(snapshot: Snapshot, results: Path, suite: str) -> Iterator[FinishedPolicy]:
    """Each policy of each finished cell that counts for the suite. Raises UsageError where there is none, StoreError."""
    found: dict[tuple[str, str], list[Scored]] = {}
    rows: list[dict[str, Any]] = snapshot.query(
        "SELECT cell, policy, task, metric, accuracy AS value, error, questions, answers, checkpoint_step AS step, repeats, "
        "invalid FROM scores "
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
        check_parts(folder, manifest, policy, *(score.task for score in scores))
        yield FinishedPolicy(folder, manifest, policy, scores)


def write_parquet(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write `show`, `seeds`, `cells` and the store's tables, of cells that count, into `out`; gives their number. Raises
    UsageError, StoreError, DiskFullError."""
    if suite not in suites(snapshot):
        raise UsageError(f"no results of a suite {suite!r}")
    shown = {"show": show_rows(snapshot, suite), "seeds": seed_rows(snapshot, suite)}
    tables = {name: pa.Table.from_pylist(msgspec.to_builtins(rows)) for name, rows in shown.items()}
    tables["cells"] = snapshot.query("SELECT * FROM current_cells WHERE suite = ? ORDER BY cell", [suite])
    for name in ("scores", "totals", "spent", "steps", "curves", "samples"):
        query = f"SELECT * FROM {name} SEMI JOIN current_cells USING (suite, cell) WHERE suite = ?"
        tables[name] = snapshot.query(query, [suite])
    for name, table in tables.items():
        replace_atomic(out / f"{name}.parquet", partial(pq.write_table, table, compression="zstd"))
    return len(tables)
