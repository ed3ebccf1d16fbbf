"""Model cards of checkpoints in the hub's own metadata, and beside them its evaluation results, a file for each registered
dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from harness.files import write_atomic
from harness.formats.finished_cells import FinishedPolicy, finished_cells
from harness.store.read import Snapshot

_NAMES = {"greedy": "greedy accuracy", "sampled": "mean accuracy of samples (avg@k)"}


def write_cards(snapshot: Snapshot, results: Path, suite: str, out: Path) -> int:
    """Write `<out>/<cell key>/<policy>/README.md` and `.eval_results/<task>.yaml` for each policy of each finished cell;
    gives their number. Raises UsageError, StoreError, DiskFullError."""
    count = 0
    for count, cell in enumerate(finished_cells(snapshot, results, suite), 1):  # noqa: B007
        folder = out / cell.manifest.key / cell.policy
        write_atomic(folder / "README.md", card(cell).encode())
        for task, entry in benchmarks(cell).items():
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000)
            write_atomic(folder / ".eval_results" / f"{task}.yaml", text.encode())
    return count


def benchmarks(cell: FinishedPolicy) -> dict[str, EvalResultEntry]:
    """By task, the score on each whole set of the hub: greedy where there is one, else the mean of samples."""
    limit = cell.manifest.config["evaluation"]["limit"]
    found: dict[str, EvalResultEntry] = {}
    for score in sorted((s for s in cell.scores if s.metric in _NAMES), key=lambda s: s.metric != "greedy"):
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
        found.setdefault(score.task, entry)
    return found


def card(cell: FinishedPolicy) -> str:
    m = cell.manifest
    peers = ", ".join(p.name for p in m.policies if p.name != cell.policy) or "none"
    training, p = m.config["training"], m.provenance
    lines = [
        f"| {s.task} | {_NAMES.get(s.metric, s.metric)} | {'–' if s.value is None else f'{100 * s.value:.1f}'} "
        f"| {s.questions} | {s.answers} |"
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
            "metrics": [{"name": _NAMES.get(s.metric, s.metric), "type": "accuracy", "value": s.value}],
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
