"""lm-eval's output (0.4, `--output_path --log_samples`): a folder per policy of a cell. Metrics keep our names, their filter is
`none`; a sample line is one question under one way of asking, which `filter` says."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.files import write_atomic
from harness.formats.finished_cells import FinishedPolicy, finished_cells
from harness.store.read import Snapshot

FILTER = "none"


def write_lm_eval(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write a folder per policy and cell below `out`; gives their number. Raises UsageError, StoreError, DiskFullError."""
    count = 0
    for count, cell in enumerate(finished_cells(snapshot, results, suite), 1):  # noqa: B007
        when = datetime.fromisoformat(cell.manifest.provenance.finished).replace(tzinfo=None)
        date = when.isoformat().replace(":", "-")
        samples: dict[str, list[dict[str, Any]]] = {}
        for task, way, answers in cell.asked():
            lines = samples.setdefault(task, [])
            lines.append(_line(len(lines), way, answers))
        folder = out / cell.name
        for task, lines in samples.items():
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            write_atomic(folder / f"samples_{task}_{date}.jsonl", text.encode())
        written = json.dumps(_results(cell, samples), indent=2, ensure_ascii=False)
        write_atomic(folder / f"results_{date}.json", written.encode() + b"\n")
    return count


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
