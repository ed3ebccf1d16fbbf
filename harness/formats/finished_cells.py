"""The finished cells of a suite, as every format wants them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.store.bounds import check_parts
from harness.store.journal import Contents, read_journal
from harness.store.manifest import Manifest, read_manifest
from harness.store.read import Snapshot
from harness.store.reference_results import MARK, ORIGIN, read_reference, suite_folder
from harness.tasks.sets import SETS, DataSet


class Scored(NamedTuple):
    """One metric of one policy on one task. error: standard error over questions, None for a single one. repeats: answers to a
    question. questions, answers: without those whose verdicts are invalid, which `invalid` counts."""

    task: str
    metric: str
    value: float | None
    error: float | None
    questions: int
    answers: int
    step: int
    repeats: int
    invalid: int


class QuestionSamples(NamedTuple):
    """The answers to one question, greedy (`way` greedy) or by sampling, in order of `repeat`: rows of `samples`."""

    task: str
    way: str
    answers: list[dict[str, Any]]


class FinishedPolicy(NamedTuple):
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
        if self.manifest.origin == ORIGIN:
            return read_reference(self.folder.parent).contents(self.folder.name)
        return read_journal(self.folder)

    def asked(self) -> Iterator[QuestionSamples]:
        """Every question under each way of asking, by task, way and `doc_id`, at the scores' step; none of results whose prompts
        were not kept (reference results, imported bundles). Raises StoreError."""
        steps = {s.step for s in self.scores}
        rows = [r for r in self.contents.tables["samples"].to_pylist() if r["policy"] == self.policy]
        rows = [r for r in rows if r["checkpoint_step"] in steps and r["prompt"]]

        def question(row: dict[str, Any]) -> tuple[str, str, str]:
            return row["task"], row["metric"], row["doc_id"]

        for (task, way, _), answers in groupby(sorted(rows, key=lambda r: (*question(r), r["repeat"])), key=question):
            yield QuestionSamples(task, way, list(answers))

    @property
    def model(self) -> str:
        """The name of what the policy was trained from."""
        model = next(p.model for p in self.manifest.policies if p.name == self.policy)
        return Path(model).name if Path(model).is_absolute() else model

    def published(self, task: str) -> DataSet | None:
        """The published set that a task's questions are; None where they are generated, from elsewhere, of another version."""
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
