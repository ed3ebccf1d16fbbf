"""The finished cells of a suite as Parquet tables and as model cards (`docs/formats.md`).

Other programs' formats are queries of the store: `examples/export/` has those for lm-eval and Every Eval Ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from msgspec.structs import fields

from harness.errors import StoreError, UsageError
from harness.files import replace_atomic, write_atomic
from harness.store.finished import SeedRow, ShowRow
from harness.store.manifest import MARK, Manifest, read_manifest, suite_folder
from harness.store.read import Snapshot
from harness.store.reference_results import read_reference
from harness.store.statistic import Pair
from harness.store.table import list_suites, seed_rows, show_rows
from harness.store.validation import check_file_names
from harness.tasks.data import SETS, DataSet


class FinalScore(NamedTuple):
    """A policy's score on a task after training. value, error: fractions, the error over questions (None for a single one).
    repeats: answers to a question. questions, answers: without those that `invalid` counts."""

    task: str
    metric: str
    value: float | None
    error: float | None
    questions: int
    answers: int
    step: int
    repeats: int
    invalid: int

    @property
    def title(self) -> str:
        """The metric in words."""
        names = {"greedy": "greedy accuracy", "sampled": f"mean accuracy of samples (avg@{self.repeats})"}
        return names.get(self.metric, self.metric)


class _TrainingPart(msgspec.Struct):
    """What a card says of the training."""

    task: str | dict[str, Any]
    steps: int


class _EvaluationPart(msgspec.Struct):
    """limit: of questions; None for all."""

    limit: int | None


class _CardConfig(msgspec.Struct):
    """What a card reads of a manifest's `config`, which an import takes as it is."""

    training: _TrainingPart
    evaluation: _EvaluationPart


class FinishedPolicy(NamedTuple):
    """One policy of a finished cell. folder: the cell's."""

    folder: Path
    manifest: Manifest
    policy: str
    scores: list[FinalScore]

    @property
    def name(self) -> str:
        """`suite__group__regime__seed__policy`."""
        m = self.manifest
        return "__".join([m.suite, m.group, m.regime, str(m.seed), self.policy])

    @property
    def model(self) -> str:
        model = next(p.model for p in self.manifest.policies if p.name == self.policy)
        return Path(model).name if Path(model).is_absolute() else model

    def published(self, task: str) -> DataSet | None:
        """The published set that a task's questions are, or None."""
        shipped = SETS.get(task)
        if shipped and self.manifest.identity.evaluation.get(task) == shipped.sha256:
            return shipped
        return None


def finished_cells(snapshot: Snapshot, results: Path, suite: str) -> Iterator[FinishedPolicy]:
    """Yield each policy of each finished cell that counts. Raises UsageError where there is none, StoreError."""
    by_policy: dict[tuple[str, str], list[FinalScore]] = {}
    rows: list[dict[str, Any]] = snapshot.query(
        "SELECT cell, policy, task, metric, accuracy AS value, error, questions, answers, checkpoint_step AS step, repeats, "
        "invalid FROM scores "
        "JOIN current_cells USING (suite, cell) WHERE suite = ? AND kind = 'cell' AND state = 'done' "
        "ORDER BY group_name, regime, seed, policy, task, metric",
        [suite],
    ).to_pylist()
    for row in rows:
        by_policy.setdefault((row.pop("cell"), row.pop("policy")), []).append(FinalScore(**row))
    if not by_policy:
        raise UsageError(f"{results}: no finished cells of a suite {suite!r}")
    for (cell, policy), scores in by_policy.items():
        folder = suite_folder(results, suite) / cell
        manifest = read_reference(folder.parent).manifests[cell] if suite.endswith(MARK) else read_manifest(folder)
        check_file_names(folder, manifest, policy, *(score.task for score in scores))
        try:
            msgspec.convert(manifest.config, _CardConfig)
        except msgspec.ValidationError as error:
            raise StoreError(f"{folder}/manifest.json: config: {error}") from error
        yield FinishedPolicy(folder, manifest, policy, scores)


def write_parquet(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write the tables of the cells that count into `out`; return their number. Raises UsageError, StoreError, DiskFullError."""
    if suite not in list_suites(snapshot):
        raise UsageError(f"no results of a suite {suite!r}")
    cells = snapshot.query("SELECT * EXCLUDE fingerprint FROM current_cells WHERE suite = ? ORDER BY cell", [suite])
    tables = {
        "show": _table_of_rows(ShowRow, show_rows(snapshot, suite)),
        "seeds": _table_of_rows(SeedRow, seed_rows(snapshot, suite)),
        "cells": cells,
    }
    tables |= {
        name: snapshot.query(
            f"SELECT * FROM {name} SEMI JOIN current_cells USING (suite, cell) WHERE suite = ? ORDER BY ALL", [suite]
        )
        for name in ("scores", "totals", "spent", "steps", "curves")
    }
    each = "SELECT * FROM samples WHERE suite = ? AND cell = ?"  # in the journal's order, without a sort of all texts
    tables["samples"] = pa.concat_tables(
        snapshot.query(each, [suite, cell]) for cell in ["", *cells["cell"].to_pylist()]
    )
    for name, table in tables.items():
        replace_atomic(out / f"{name}.parquet", partial(pq.write_table, table, compression="zstd"))
    return len(tables)


def _table_of_rows(row: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> pa.Table:
    """Return the rows as a table whose types are the fields': columns may hold no value, and tables no row."""
    types: dict[Any, pa.DataType] = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        Pair: pa.list_(pa.float64()),
        tuple[str, ...]: pa.list_(pa.string()),
    }
    # A mean's members have rows of their own
    kept = [f for f in fields(row) if f.name != "members"]
    columns = {f.name: next(t for kind, t in types.items() if f.type in (kind, kind | None)) for f in kept}
    return pa.Table.from_pylist(msgspec.to_builtins(rows), pa.schema(columns))


# Model cards -----------------------------------------------------------------------------------------------------------


def write_cards(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a README.md and `.eval_results/` for each policy of each cell; return their number. Raises UsageError, StoreError,
    DiskFullError."""
    count = 0
    for count, cell in enumerate(finished_cells(snapshot, results, suite), 1):  # noqa: B007
        folder = out / cell.manifest.key / cell.policy
        write_atomic(folder / "README.md", write_card(cell).encode())
        for task, entry in find_benchmarks(cell).items():
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000)
            write_atomic(folder / ".eval_results" / f"{task}.yaml", text.encode())
    return count


def find_benchmarks(cell: FinishedPolicy) -> dict[str, EvalResultEntry]:
    """Return by task the score on each whole set of the hub: greedy, else the mean of samples."""
    limit = cell.manifest.config["evaluation"]["limit"]
    entries: dict[str, EvalResultEntry] = {}
    for score in sorted(
        (s for s in cell.scores if s.metric in ("greedy", "sampled")), key=lambda s: s.metric != "greedy"
    ):
        data = cell.published(score.task)
        if score.value is None or data is None or data.remote.host != "hub" or (limit or data.rows) < data.rows:
            continue
        way = "greedy" if score.metric == "greedy" else f"mean of {score.repeats} samples at temperature 1"
        error = "" if score.error is None else f", standard error {100 * score.error:.2f}"
        unknown = f", {score.invalid} without a verdict" if score.invalid else ""
        entry = EvalResultEntry(
            dataset_id=data.remote.repository,
            task_id=score.task,
            value=round(100 * score.value, 10),
            dataset_revision=data.remote.revision,
            date=cell.manifest.provenance.finished,
            notes=f"{way}; {score.questions} of {data.rows} questions{unknown}{error}",
        )
        entries.setdefault(score.task, entry)
    return entries


def write_card(cell: FinishedPolicy) -> str:
    """Return the text of a checkpoint's card."""
    m = cell.manifest
    peers = ", ".join(p.name for p in m.policies if p.name != cell.policy) or "none"
    training = m.config["training"]
    p = m.provenance
    lines = [
        f"| {s.task} | {s.title} | {'–' if s.value is None else f'{100 * s.value:.1f}'} | {s.questions} | {s.answers} |"
        for s in cell.scores
    ]
    head = yaml.safe_dump(_describe_metadata(cell), sort_keys=False, allow_unicode=True, width=1000)
    return f"""---
{head}---

# {cell.policy}, trained by {m.regime} on {m.group}

A checkpoint of the suite `{m.suite}`: `{cell.model}` after {training["steps"]} steps of reinforcement learning with verifiable
rewards on `{training["task"]}`, beside {peers}, under the experience-sharing regime `{m.regime_type}` with seed {m.seed} and
rollout budget {m.budget}. It was trained to compare regimes, and is not meant for anything else.

| task | metric | accuracy in % | questions | answers |
| --- | --- | ---: | ---: | ---: |
{chr(10).join(lines)}

One seed says little: `harness show {m.suite}` has the regime's intervals over seeds, and its gain over the baseline.

| | |
| --- | --- |
| cell | `{m.key}` |
| options | `{m.options or "the regime's own"}` |
| engine | {m.engine} |
| code | {p.code_version}, commit `{p.commit or "unknown"}`{", changed" if p.dirty else ""} |
| libraries | {", ".join(f"{name} {version}" for name, version in p.packages.items())} |
| finished | {p.finished} |
"""


def _describe_metadata(cell: FinishedPolicy) -> dict[str, Any]:
    """Return the head of a card, which the hub reads."""
    m = cell.manifest
    on_hub = "/" in cell.model and any(p.name == cell.policy and p.revision for p in m.policies)
    own = {"base_model": cell.model, "base_model_relation": "finetune"} if on_hub else {}
    tasks = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": s.task, "type": s.task},
            "metrics": [{"name": s.title, "type": "accuracy", "value": s.value}],
        }
        for s in cell.scores
        if s.value is not None
    ]
    return {
        "library_name": "transformers",
        **own,
        "tags": ["reinforcement-learning", "experience-sharing", m.regime_type],
        "model-index": [{"name": cell.name, "results": tasks}],
    }
