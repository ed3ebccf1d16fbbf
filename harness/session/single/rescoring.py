"""`harness rescore`: today's verifier on stored samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from harness.errors import PluginError, StoreError, UsageError
from harness.evaluation.metrics import Change, EvaluationSample, rescore_samples
from harness.store.journal import read_journal
from harness.store.manifest import read_manifests, read_suite, remedy_for, suite_files
from harness.suite.schema import FileTask
from harness.tasks.registry import get_task, is_known
from harness.verification.catalogue import scorer_called
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


class CellChange(msgspec.Struct, frozen=True):
    suite: str
    cell: str
    change: Change

    def __str__(self) -> str:
        c = self.change
        said = f"{c.before.value} -> {c.after.value} (gold {c.gold!r}, extracted {c.after.extracted!r})"
        return f"{self.suite}/{self.cell} {c.task} {c.mode} {c.document}#{c.repeat}: {said}"


@dataclass(frozen=True, slots=True)
class RescoreReport:
    """problems: of what could not be read or judged."""

    samples: int
    cells: int
    changes: tuple[CellChange, ...]
    problems: tuple[str, ...] = ()

    def describe(self) -> str:
        head = f"{self.samples} samples of {self.cells} cells verified again: {len(self.changes)} verdicts would change"
        more = [f"  ... and {len(self.changes) - 50} more (--json has all)"] if len(self.changes) > 50 else []
        unread = (f"not read: {problem}" for problem in self.problems)
        return "\n".join([head, *(f"  {change}" for change in self.changes[:50]), *more, *unread])


def rescore_results(results: Path, suite: str | None = None, scorer: str | None = None) -> RescoreReport:
    """Score stored answers again by each task's scorer, or this one. Raises UsageError, PluginError, VerificationError."""
    if scorer is not None:
        scorer_called(scorer)
    manifests = (results / suite).glob("*/manifest.json") if suite else results.glob("*/*/manifest.json")
    folders = sorted(file.parent for file in manifests)
    if not folders:
        which = f" of a suite {suite!r}" if suite else ""
        advice = "`tools/reference.py unpack` makes a folder of them, in a checkout of the source"
        raise UsageError(f"{results}: no results{which} (reference results are not verified again: {advice})")
    changes: list[CellChange] = []
    problems: list[str] = []
    count = 0
    with Verifier() as verifier:
        for folder in folders:
            contents = read_journal(folder)
            problems += [f"{problem}; {remedy_for(folder)}" for problem in contents.problems]
            table = contents.tables.get("samples")
            samples = [stored_sample(row) for row in table.to_pylist()] if table is not None else []
            count += len(samples)
            for task, asked in groupby(sorted(samples, key=lambda s: s.task), key=lambda s: s.task):
                if scorer is None and task.startswith("lm_eval:"):
                    continue  # by lm-eval's own rules, on its own documents
                try:
                    judge = verifier.by(scorer_called(scorer or _scorer_of_task(folder, task)))
                except (PluginError, AttributeError, TypeError, ValueError) as error:  # of settings made elsewhere
                    problems.append(f"{folder}: {task}: {' '.join(str(error).split())[:200]}")
                    continue
                changed = rescore_samples(list(asked), judge)
                changes += [CellChange(folder.parent.name, folder.name, change) for change in changed]
    return RescoreReport(count, len(folders), tuple(changes), tuple(problems))


def _scorer_of_task(folder: Path, name: str) -> str:
    """Find which scorer a stored task had: as its manifest or its suite states, else the task's own."""
    configs = [manifest.config for _, manifest in read_manifests([folder])]
    for file in suite_files(folder.parent):
        with suppress(StoreError):
            configs.append(read_suite(folder.parent, file).config)
    for config in configs:
        for task in config.get("evaluation", config).get("tasks", ()):
            if isinstance(task, Mapping) and name == str(FileTask.model_validate(task)):
                return str(task.get("scorer", "math"))
            path, mark, scorer = task.rpartition(".jsonl") if isinstance(task, str) else ("", "", "")
            if mark and name == str(FileTask(file=path + mark)):
                return scorer[1:] or "math"
            if task == name:
                return get_task(name).scorer
    if is_known(name) or "." in name:
        return get_task(name).scorer
    return "math"


def stored_sample(row: Mapping[str, object]) -> EvaluationSample:
    stored = {k: row[k] for k in ("task", "repeat", "prompt", "text", "gold", "tokens", "finished")}
    verdict = Verdict(row["verdict"], str(row["reason"]), str(row["extracted"]))  # type: ignore[arg-type]
    labels = dict(row["labels"] or {})  # type: ignore[call-overload]
    return EvaluationSample(mode=row["metric"], document=row["doc_id"], verdict=verdict, labels=labels, **stored)  # type: ignore[arg-type]
