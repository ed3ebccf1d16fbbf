"""The finished cells of a suite as other programs read them (`docs/formats.md`). In lm-eval a sample line is one
question under one way of asking, which `filter` says. In Every Eval Ever the base is among the details."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from msgspec.structs import fields

from harness.errors import StoreError, UsageError
from harness.files import replace_atomic, write_atomic
from harness.store.journal import Contents, read_journal
from harness.store.manifest import MARK, ORIGIN, Manifest, read_manifest, suite_folder
from harness.store.read import Snapshot
from harness.store.reference_results import read_reference
from harness.store.statistic import Pair
from harness.store.table import SeedRow, ShowRow, list_suites, seed_rows, show_rows
from harness.store.validation import check_file_names
from harness.suite.cells import placeless
from harness.tasks.data import SETS, DataSet


class Scored(NamedTuple):
    """error: over questions, None for a single one. repeats: answers to a question. questions, answers: without those
    that `invalid` counts."""

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
        names = {"greedy": "greedy accuracy", "sampled": f"mean accuracy of samples (avg@{self.repeats})"}
        return names.get(self.metric, self.metric)


class _Training(msgspec.Struct):
    task: str | dict[str, Any]
    steps: int


class _Evaluation(msgspec.Struct):
    limit: int | None
    max_new_tokens: int | None
    k: int | None


class _Config(msgspec.Struct):
    """Of a manifest's `config`, which an import takes as it is."""

    training: _Training
    evaluation: _Evaluation


class FinishedPolicy(NamedTuple):
    folder: Path
    manifest: Manifest
    policy: str
    scores: list[Scored]

    @property
    def name(self) -> str:
        """`suite__group__regime__seed__policy`."""
        m = self.manifest
        return "__".join([m.suite, m.group, m.regime, str(m.seed), self.policy])

    @property
    def contents(self) -> Contents:
        if self.manifest.origin == ORIGIN:
            return read_reference(self.folder.parent).cells[self.folder.name]
        return read_journal(self.folder)

    def asked(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Task, way and answers (rows of `samples`) of every question; none where prompts were not kept. Raises
        StoreError."""
        steps = {s.step for s in self.scores}
        rows = self.contents.tables["samples"].to_pylist()
        own = [r for r in rows if r["policy"] == self.policy and r["checkpoint_step"] in steps and r["prompt"]]
        own.sort(key=itemgetter("task", "metric", "doc_id", "repeat"))
        for (task, way, _), answers in groupby(own, key=itemgetter("task", "metric", "doc_id")):
            yield task, way, list(answers)

    @property
    def model(self) -> str:
        model = next(p.model for p in self.manifest.policies if p.name == self.policy)
        return Path(model).name if Path(model).is_absolute() else model

    def published(self, task: str) -> DataSet | None:
        """The published set that a task's questions are, or None."""
        shipped = SETS.get(task)
        return shipped if shipped and self.manifest.identity.evaluation.get(task) == shipped.sha256 else None


def finished_cells(snapshot: Snapshot, results: Path, suite: str) -> Iterator[FinishedPolicy]:
    """Each policy of each finished cell that counts. Raises UsageError where there is none, StoreError."""
    by_policy: dict[tuple[str, str], list[Scored]] = {}
    rows: list[dict[str, Any]] = snapshot.query(
        "SELECT cell, policy, task, metric, accuracy AS value, error, questions, answers, checkpoint_step AS step, repeats, "
        "invalid FROM scores "
        "JOIN current_cells USING (suite, cell) WHERE suite = ? AND kind = 'cell' AND state = 'done' "
        "ORDER BY group_name, regime, seed, policy, task, metric",
        [suite],
    ).to_pylist()
    for row in rows:
        by_policy.setdefault((row.pop("cell"), row.pop("policy")), []).append(Scored(**row))
    if not by_policy:
        raise UsageError(f"{results}: no finished cells of a suite {suite!r}")
    for (cell, policy), scores in by_policy.items():
        folder = suite_folder(results, suite) / cell
        manifest = read_reference(folder.parent).manifests[cell] if suite.endswith(MARK) else read_manifest(folder)
        check_file_names(folder, manifest, policy, *(score.task for score in scores))
        try:
            msgspec.convert(manifest.config, _Config)
        except msgspec.ValidationError as error:
            raise StoreError(f"{folder}/manifest.json: config: {error}") from error
        yield FinishedPolicy(folder, manifest, policy, scores)


def write_parquet(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write the tables, of cells that count; gives their number. Raises UsageError, StoreError, DiskFullError."""
    if suite not in list_suites(snapshot):
        raise UsageError(f"no results of a suite {suite!r}")
    cells = snapshot.query("SELECT * EXCLUDE fingerprint FROM current_cells WHERE suite = ? ORDER BY cell", [suite])
    tables = {
        "show": _table(ShowRow, show_rows(snapshot, suite)),
        "seeds": _table(SeedRow, seed_rows(snapshot, suite)),
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


def _table(row: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> pa.Table:
    """By the fields' types: columns may hold no value, and tables no row."""
    types: dict[Any, pa.DataType] = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        Pair: pa.list_(pa.float64()),
        tuple[str, ...]: pa.list_(pa.string()),
    }
    columns = {f.name: next(t for kind, t in types.items() if f.type in (kind, kind | None)) for f in fields(row)}
    return pa.Table.from_pylist(msgspec.to_builtins(rows), pa.schema(columns))


# Model cards -----------------------------------------------------------------------------------------------------------


def write_cards(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a README.md and `.eval_results/` per policy and cell; gives their number. Raises UsageError, StoreError,
    DiskFullError."""
    count = 0
    for count, cell in enumerate(finished_cells(snapshot, results, suite), 1):  # noqa: B007
        folder = out / cell.manifest.key / cell.policy
        write_atomic(folder / "README.md", card(cell).encode())
        for task, entry in benchmarks(cell).items():
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000)
            write_atomic(folder / ".eval_results" / f"{task}.yaml", text.encode())
    return count


def benchmarks(cell: FinishedPolicy) -> dict[str, EvalResultEntry]:
    """By task, the score on each whole set of the hub: greedy, else the mean of samples."""
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


def card(cell: FinishedPolicy) -> str:
    m = cell.manifest
    peers = ", ".join(p.name for p in m.policies if p.name != cell.policy) or "none"
    training, p = m.config["training"], m.provenance
    lines = [
        f"| {s.task} | {s.title} | {'–' if s.value is None else f'{100 * s.value:.1f}'} | {s.questions} | {s.answers} |"
        for s in cell.scores
    ]
    head = yaml.safe_dump(_metadata(cell), sort_keys=False, allow_unicode=True, width=1000)
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


def _metadata(cell: FinishedPolicy) -> dict[str, Any]:
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


# lm-eval ---------------------------------------------------------------------------------------------------------------

FILTER = "none"


def write_lm_eval(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a folder per policy and cell; gives their number. Raises UsageError, StoreError, DiskFullError."""
    folders: set[Path] = set()
    for cell in finished_cells(snapshot, results, suite):
        when = datetime.fromisoformat(cell.manifest.provenance.finished).replace(tzinfo=None)
        date = when.isoformat().replace(":", "-")
        samples = {
            task: [_line(i, way, answers) for i, (_, way, answers) in enumerate(asked)]
            for task, asked in groupby(cell.asked(), key=itemgetter(0))
        }
        folder = out / cell.name
        if folder in folders:  # names may hold "__"
            folder = out / f"{cell.name}__{cell.manifest.key}"
        folders.add(folder)
        for task, lines in samples.items():
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            write_atomic(folder / f"samples_{task}_{date}.jsonl", text.encode())
        written = json.dumps(_results(cell, samples), indent=2, ensure_ascii=False)
        write_atomic(folder / f"results_{date}.json", written.encode() + b"\n")
    return len(folders)


def _results(cell: FinishedPolicy, samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    m = cell.manifest
    tasks = list(dict.fromkeys(s.task for s in cell.scores))
    results: dict[str, dict[str, Any]] = {task: {"alias": task} for task in tasks}
    for s in cell.scores:
        results[s.task][f"{s.metric},{FILTER}"] = s.value
        results[s.task][f"{s.metric}_stderr,{FILTER}"] = "N/A" if s.error is None else s.error
    questions = {s.task: s.questions for s in cell.scores}
    evaluation = m.config["evaluation"]
    return {
        "results": results,
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: {"task": task, "output_type": "generate_until", "num_fewshot": 0} for task in tasks},
        "versions": {task: m.identity.versions.get("tasks", "") for task in tasks},
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {task: {s.metric: True for s in cell.scores if s.task == task} for task in tasks},
        "n-samples": {task: {"original": questions[task], "effective": questions[task]} for task in tasks},
        "config": {
            "model": m.engine,
            "model_args": f"pretrained={cell.model}",
            "limit": evaluation["limit"],
            "gen_kwargs": {"max_new_tokens": evaluation["max_new_tokens"], "k": evaluation["k"]},
            "regime": m.regime,
            "group": m.group,
            "seed": m.seed,
            "cell": m.key,
        },
        "git_hash": m.provenance.commit,
        "date": datetime.fromisoformat(m.provenance.finished).timestamp(),
        "lm_eval_version": m.provenance.packages.get("lm-eval", ""),
        "transformers_version": m.provenance.packages.get("transformers", ""),
        "model_source": m.engine,
        "model_name": cell.name,
        "model_name_sanitized": cell.name,
        "task_hashes": {
            task: _hash("".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in lines))
            for task, lines in samples.items()
        },
    }


def _line(number: int, metric: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    doc = {"id": first["doc_id"], "question": first["prompt"], "answer": first["gold"], **dict(first["labels"] or {})}
    valid = [r["verdict"] == "right" for r in rows if r["verdict"] != "invalid"]
    return {
        "doc_id": number,
        "doc": doc,
        "target": first["gold"],
        "arguments": {"gen_args_0": {"arg_0": first["prompt"], "arg_1": {"do_sample": metric != "greedy"}}},
        "resps": [[r["text"] for r in rows]],
        "filtered_resps": [r["extracted"] for r in rows],
        "filter": metric,
        "metrics": ["exact_match"],
        "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(first["prompt"]),
        "target_hash": _hash(first["gold"]),
        "exact_match": sum(valid) / len(valid) if valid else None,
        "verdicts": [r["verdict"] for r in rows],
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Every Eval Ever -------------------------------------------------------------------------------------------------------

COLLECTION = "experience-sharing-harness"
DEVELOPER = "local"
_IDS = {"greedy": "accuracy", "sampled": "pass_at_k", "best": "pass_at_k", "maj": "maj_at_k"}
Values = dict[tuple[str, str, str], float | None]


def write_every_eval_ever(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a record per policy and cell; gives their number. Raises UsageError, StoreError, DiskFullError."""
    count = 0
    for cell in finished_cells(snapshot, results, suite):
        values: Values = {
            (row["task"], row["metric"], row["doc_id"]): row["value"]
            for row in snapshot.query(
                "SELECT task, metric, doc_id, value FROM questions WHERE suite = ? AND cell = ? AND policy = ?",
                [suite, cell.manifest.key, cell.policy],
            ).to_pylist()
        }
        time = str(datetime.fromisoformat(cell.manifest.provenance.finished).timestamp())
        model = f"{DEVELOPER}/{cell.name}"
        head = {"schema_version": "0.3.0", "evaluation_id": f"{COLLECTION}/{DEVELOPER}_{cell.name}/{time}"}
        evaluations = [_result(cell, score, values) for score in cell.scores if score.value is not None]
        if not evaluations:
            continue
        seed = hashlib.blake2b(f"{cell.manifest.key}/{cell.policy}".encode(), digest_size=16).digest()
        place = f"data/{COLLECTION}/{model}/{UUID(bytes=seed, version=4)}"
        record = {
            **head,
            "evaluation_timestamp": time,
            "retrieved_timestamp": time,
            **_about(cell),
            "evaluation_results": evaluations,
        }
        lines = [head | {"model_id": model} | line for asked in cell.asked() for line in _lines(cell, values, *asked)]
        if lines:
            samples = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
            write_atomic(out / f"{place}_samples.jsonl", samples)
            record["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": f"{place}_samples.jsonl",
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(samples).hexdigest(),
                "total_rows": len(lines),
            }
        write_atomic(out / f"{place}.json", json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
        count += 1
    return count


def _about(cell: FinishedPolicy) -> dict[str, Any]:
    m, p = cell.manifest, cell.manifest.provenance
    details = {
        "deployment_type": "self_deployed",
        "model_availability": "unknown",
        "base_model": cell.model,
        "base_model_identity": m.identity.models.get(cell.policy, ""),
        "suite": m.suite,
        "group": m.group,
        "policy": cell.policy,
        "peers": ", ".join(entry.name for entry in m.policies if entry.name != cell.policy),
        "regime": m.regime,
        "regime_type": m.regime_type,
        "regime_options": json.dumps(m.options, sort_keys=True),
        "seed": str(m.seed),
        "budget": m.budget,
        "training_task": str(placeless(m.config["training"]["task"])),
        "training_steps": str(m.config["training"]["steps"]),
        "cell": m.key,
    }
    return {
        "source_metadata": {
            "source_name": COLLECTION,
            "source_type": "evaluation_run",
            "source_organization_name": DEVELOPER,
            "evaluator_relationship": "first_party",
        },
        "eval_library": {
            "name": COLLECTION,
            "version": p.code_version,
            "additional_details": {"lm_eval_version": p.packages.get("lm-eval", "unknown"), "commit": p.commit},
        },
        "model_info": {
            "name": cell.name,
            "id": f"{DEVELOPER}/{cell.name}",
            "developer": DEVELOPER,
            "inference_engine": {"name": f"{COLLECTION} {m.engine}", "version": p.code_version},
            "additional_details": {name: text for name, text in details.items() if text},
        },
    }


def _result(cell: FinishedPolicy, score: Scored, values: Values) -> dict[str, Any]:
    kind = score.metric.partition("@")[0]
    once = kind in ("greedy", "sampled")
    settings = cell.manifest.config["evaluation"]
    error = {} if score.error is None else {"standard_error": {"value": score.error, "method": "analytic"}}
    length = {"max_tokens": settings["max_new_tokens"]} if settings["max_new_tokens"] else {}  # else the task's own
    unknown = [v for (task, metric, _), v in values.items() if (task, metric, v) == (score.task, score.metric, None)]
    return {
        "evaluation_result_id": f"{score.task}/{score.metric}",
        "evaluation_name": score.task,
        "source_data": _source(cell, score.task),
        "metric_config": {
            "metric_id": _IDS[kind],
            "metric_name": f"avg@{score.repeats}" if kind == "sampled" else score.metric,
            "metric_unit": "proportion",
            "metric_parameters": {"k": 1 if once else score.repeats, "samples": score.repeats},
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {
            "score": score.value,
            "uncertainty": {**error, "num_samples": score.questions},
            "details": {
                "answers": str(score.answers),
                "answers_without_verdict": str(score.invalid),
                "questions_without_verdict": str(len(unknown)),
            },
        },
        "generation_config": {
            "generation_args": ({"temperature": 0.0} if kind == "greedy" else {"temperature": 1.0, "top_p": 1.0})
            | length,
            "additional_details": {"question_limit": str(settings["limit"] or "none")},
        },
    }


def _source(cell: FinishedPolicy, task: str) -> dict[str, Any]:
    if (data := cell.published(task)) is None:
        return {"dataset_name": task, "source_type": "other"}
    remote = data.remote
    source = {
        "dataset_name": data.title,
        "additional_details": {"revision": remote.revision, "files": ", ".join(remote.files), "sha256": data.sha256},
    }
    if remote.host == "github":
        urls = [f"https://github.com/{remote.repository}/blob/{remote.revision}/{file}" for file in remote.files]
        return {**source, "source_type": "url", "url": urls}
    return {**source, "source_type": "hf_dataset", "hf_repo": remote.repository, "samples_number": data.rows}


def _lines(
    cell: FinishedPolicy, values: Values, task: str, way: str, answers: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    first, greedy = answers[0], way == "greedy"
    text = {"raw": first["prompt"], "reference": [first["gold"]]}
    canonical = json.dumps(text, sort_keys=True, separators=(",", ":"))
    invalid = [r["reason"] for r in answers if r["verdict"] == "invalid"]
    said = f"{len(invalid)} of {len(answers)} answers without a verdict: {', '.join(sorted(set(invalid)))}"
    taken = {"turn_idx": 0, "extraction_method": "custom", "is_terminal": True}
    for metric in (s.metric for s in cell.scores if s.task == task and (s.metric == "greedy") == greedy):
        if (value := values.get((task, metric, first["doc_id"]))) is not None:
            yield {
                "evaluation_name": task,
                "evaluation_result_id": f"{task}/{metric}",
                "sample_id": first["doc_id"],
                "sample_hash": _hash(canonical),
                "interaction_type": "single_turn",
                "input": text,
                "output": {"raw": [r["text"] for r in answers]},
                "answer_attribution": [
                    taken | {"source": f"output.raw[{i}]", "extracted_value": r["extracted"]}
                    for i, r in enumerate(answers)
                ],
                "evaluation": {"score": value, "is_correct": value == 1},
                "error": said if invalid else None,
                "metadata": {**dict(first["labels"] or {}), "verdicts": ", ".join(r["verdict"] for r in answers)},
            }
