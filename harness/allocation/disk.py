"""The account of the disk: what a cell keeps when it is finished, and what it holds while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.allocation.demand import CellDemand
from harness.allocation.size import checkpoint_bytes
from harness.suite.schema import Keep

_TABLES = {
    "samples": 4200,
    "steps": 8300,
    "terms": 2700,
    "curves": 1350,
    "costs": 2030,
    "exchanges": 4200,
    "traces": 4000,
}
"""Bytes of a finished journal's tables before their first row (schemas), measured."""
_ROWS = {"samples": 72, "steps": 130, "terms": 52, "curves": 13, "costs": 24, "exchanges": 33, "traces": 60}
"""Bytes per row, texts and lists left out, as lz4 leaves them; measured on micro cells."""
_PHASES = 7
"""Cost rows of one policy between two checkpoints."""
_TRACES = 2
"""Traces of one policy and step."""
_MANIFEST = 3300


@dataclass(frozen=True, slots=True)
class Text:
    """Bytes per token that lz4 leaves of an answer's text, and of what a trace lists per token."""

    answer: float
    trace: float


PROSE, MICRO = Text(2.2, 32.0), Text(0.3, 4.0)
"""Prose is a prior; the micro task's answers are measured."""


@dataclass(frozen=True, slots=True)
class CellDisk:
    """Bytes of one cell. kept: when it is finished; running: at the fullest moment before that."""

    kept: int
    running: int


def cell_disk(
    cell: CellDemand, keep: Keep, shared: float, text: Text = PROSE, tokenizers: Mapping[str, int] | None = None
) -> CellDisk:
    """shared: records received per own rollout. tokenizers: bytes of the policies' tokenizer files, where they are known."""
    known = tokenizers or {}
    saved = [checkpoint_bytes(p.model, p.precision, known.get(p.name), p.adapters) for p in cell.policies]
    journal = journal_bytes(cell, shared, text)
    weights, whole = sum(c.kept for c in saved), sum(c.whole for c in saved)
    copies = min(2, max(1, cell.workload.saves))
    kept = journal + (0 if keep == "none" else weights)
    best = 2 * weights + max(c.optimiser for c in saved) if keep == "best" else 0
    return CellDisk(kept, max(kept, journal + copies * whole + best))


def evaluation_bytes(answers: int, tokens: float, text: Text = PROSE) -> int:
    """The journal of an evaluation alone: of a base checkpoint."""
    return 2000 + _MANIFEST // 3 + _TABLES["samples"] + int(answers * (_ROWS["samples"] + text.answer * tokens))


def journal_bytes(cell: CellDemand, shared: float, text: Text = PROSE) -> int:
    """A finished journal with its manifest."""
    work, policies = cell.workload, len(cell.policies)
    share = work.mean_answer_tokens / work.answer_tokens
    own = sum(p.rollouts for p in cell.policies) * work.prompts * work.steps
    rows = {
        "samples": policies * work.evaluated,
        "steps": policies * work.steps,
        "terms": policies * work.steps * (2 if shared else 1),
        "curves": policies * work.curves,
        "costs": policies * _PHASES * work.saves,
        "exchanges": int(own * shared),
        "traces": policies * work.steps * _TRACES if shared else 0,
    }
    texts = rows["samples"] * text.answer * share * (work.evaluation_tokens or work.answer_tokens)
    texts += rows["traces"] * text.trace * work.mean_answer_tokens
    return _MANIFEST + int(texts) + sum(_TABLES[name] + _ROWS[name] * count for name, count in rows.items() if count)
