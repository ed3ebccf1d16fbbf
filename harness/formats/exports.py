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
from harness.tasks.sets import SETS, DataSet


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
    """limit: of questions; None for all. temperature, top_p: of sampled answers; cells from before these settings name neither."""

    limit: int | None
    temperature: float = 1.0
    top_p: float = 1.0


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
        """Return the published set that a task's questions are, or None."""
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
        place = row.pop("cell"), row.pop("policy")
        by_policy.setdefault(place, []).append(FinalScore(**row))
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
    for name in ("scores", "totals", "spent", "steps", "curves"):
        that_count = f"SELECT * FROM {name} SEMI JOIN current_cells USING (suite, cell) WHERE suite = ? ORDER BY ALL"
        tables[name] = snapshot.query(that_count, [suite])
    # In the journal's order, without a sort of all texts; the cell without a name gives the columns where there is none
    of_cell = "SELECT * FROM samples WHERE suite = ? AND cell = ?"
    names = ["", *cells["cell"].to_pylist()]
    tables["samples"] = pa.concat_tables(snapshot.query(of_cell, [suite, name]) for name in names)
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
    kept = [field for field in fields(row) if field.name != "members"]
    columns = {}
    for field in kept:
        columns[field.name] = next(stored for kind, stored in types.items() if field.type in (kind, kind | None))
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
            plain = eval_result_entries_to_yaml([entry])
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
            write_atomic(folder / ".eval_results" / f"{task}.yaml", text.encode())
    return count


def find_benchmarks(cell: FinishedPolicy) -> dict[str, EvalResultEntry]:
    """Return by task the score on each whole set of the hub: greedy, else the mean of samples."""
    evaluation = msgspec.convert(cell.manifest.config["evaluation"], _EvaluationPart)
    limit = evaluation.limit
    entries: dict[str, EvalResultEntry] = {}
    scores = [score for score in cell.scores if score.metric in ("greedy", "sampled")]
    for score in sorted(scores, key=lambda score: score.metric != "greedy"):
        data = cell.published(score.task)
        if score.value is None or data is None:
            continue
        asked = limit or data.rows
        if data.remote.host != "hub" or asked < data.rows:
            continue
        way = "greedy" if score.metric == "greedy" else _describe_samples(score.repeats, evaluation)
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


def _describe_samples(repeats: int, evaluation: _EvaluationPart) -> str:
    """Say how sampled answers were drawn."""
    cut = "" if evaluation.top_p == 1.0 else f" and top-p {evaluation.top_p:g}"
    return f"mean of {repeats} samples at temperature {evaluation.temperature:g}{cut}"


def write_card(cell: FinishedPolicy) -> str:
    """Return the text of a checkpoint's card."""
    manifest = cell.manifest
    provenance = manifest.provenance
    training = manifest.config["training"]
    steps = training["steps"]
    seed = manifest.seed
    others = [entry.name for entry in manifest.policies if entry.name != cell.policy]
    peers = ", ".join(others) or "none"
    scores = "\n".join(_score_line(score) for score in cell.scores)
    head = yaml.safe_dump(_describe_metadata(cell), sort_keys=False, allow_unicode=True, width=1000)
    options = manifest.options or "the regime's own"
    changed = ", changed" if provenance.dirty else ""
    code = f"{provenance.code_version}, commit `{provenance.commit or 'unknown'}`{changed}"
    libraries = ", ".join(f"{name} {version}" for name, version in provenance.packages.items())
    return f"""---
{head}---

# {cell.policy}, trained by {manifest.regime} on {manifest.group}

A checkpoint of the suite `{manifest.suite}`: `{cell.model}` after {steps} steps of reinforcement learning with verifiable
rewards on `{training["task"]}`, beside {peers}, under the experience-sharing regime `{manifest.regime_type}` with seed {seed} and
rollout budget {manifest.budget}. It was trained to compare regimes, and is not meant for anything else.

| task | metric | accuracy in % | questions | answers |
| --- | --- | ---: | ---: | ---: |
{scores}

One seed says little: `harness show {manifest.suite}` has the regime's intervals over seeds, and its gain over the baseline.

| | |
| --- | --- |
| cell | `{manifest.key}` |
| options | `{options}` |
| engine | {manifest.engine} |
| code | {code} |
| libraries | {libraries} |
| finished | {provenance.finished} |
"""


def _score_line(score: FinalScore) -> str:
    """Return a score's row in a card."""
    accuracy = "–" if score.value is None else f"{100 * score.value:.1f}"
    return f"| {score.task} | {score.title} | {accuracy} | {score.questions} | {score.answers} |"


def _describe_metadata(cell: FinishedPolicy) -> dict[str, Any]:
    """Return the head of a card, which the hub reads."""
    head: dict[str, Any] = {"library_name": "transformers"}
    pinned = {entry.name for entry in cell.manifest.policies if entry.revision}
    if "/" in cell.model and cell.policy in pinned:  # a model of the hub
        head |= {"base_model": cell.model, "base_model_relation": "finetune"}
    head["tags"] = ["reinforcement-learning", "experience-sharing", cell.manifest.regime_type]
    results = []
    for score in cell.scores:
        if score.value is None:
            continue
        metric = {"name": score.title, "type": "accuracy", "value": score.value}
        result = {
            "task": {"type": "text-generation"},
            "dataset": {"name": score.task, "type": score.task},
            "metrics": [metric],
        }
        results.append(result)
    head["model-index"] = [{"name": cell.name, "results": results}]
    return head
