"""Every Eval Ever records, schema 0.3.0: `data/<collection>/<developer>/<model>/<uuid>.json`, `<uuid>_samples.jsonl` beside it.

The developer is the placeholder `local`; the base is among the details. A question without any verdict has no line and is counted
in `details`. Results whose prompts were not kept give records without samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from harness.files import write_atomic
from harness.formats.finished_cells import FinishedPolicy, Scored, finished_cells
from harness.store.read import Snapshot
from harness.suite.cells import placeless

COLLECTION = "experience-sharing-harness"
DEVELOPER = "local"
_IDS = {"greedy": "accuracy", "sampled": "pass_at_k", "best": "pass_at_k", "maj": "maj_at_k"}
Values = dict[tuple[str, str, str], float | None]


def write_every_eval_ever(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a record per policy and cell below `out`; gives their number. Raises UsageError, StoreError, DiskFullError."""
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
    found = {
        "dataset_name": data.title,
        "additional_details": {"revision": remote.revision, "files": ", ".join(remote.files), "sha256": data.sha256},
    }
    if remote.host == "github":
        urls = [f"https://github.com/{remote.repository}/blob/{remote.revision}/{file}" for file in remote.files]
        return {**found, "source_type": "url", "url": urls}
    return {**found, "source_type": "hf_dataset", "hf_repo": remote.repository, "samples_number": data.rows}


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
                "sample_hash": hashlib.sha256(canonical.encode()).hexdigest(),
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
