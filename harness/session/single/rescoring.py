"""`harness rescore`: today's verifier on stored samples. Texts and journals are read, never written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import UsageError
from harness.evaluation.rescore import Change, rescore
from harness.evaluation.samples import EvaluationSample
from harness.store.journal import read_journal
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


class CellChange(msgspec.Struct, frozen=True):
    """One sample of one cell whose verdict is another now."""

    suite: str
    cell: str
    change: Change


@dataclass(frozen=True, slots=True)
class RescoreReport:
    """How many samples were read, and what changed."""

    samples: int
    cells: int
    changes: tuple[CellChange, ...]

    def describe(self) -> str:
        lines = [
            f"{self.samples} samples of {self.cells} cells verified again: {len(self.changes)} verdicts would change"
        ]
        for found in self.changes[:50]:
            c = found.change
            lines.append(
                f"  {found.suite}/{found.cell} {c.task} {c.mode} {c.document}#{c.repeat}: "
                f"{c.before.value} -> {c.after.value} (gold {c.gold!r}, extracted {c.after.extracted!r})"
            )
        if len(self.changes) > 50:
            lines.append(f"  ... and {len(self.changes) - 50} more (--json has all)")
        return "\n".join(lines)


def rescore_results(results: Path, suite: str | None = None) -> RescoreReport:
    """Every finished evaluation of one suite, or of all. Raises UsageError, VerificationError."""
    name = Path(suite).stem if suite else None
    folders = sorted(m.parent for m in results.glob(f"{name or '*'}/*/manifest.json"))
    if not folders:
        raise UsageError(f"{results}: no results{f' of a suite {name!r}' if name else ''}")
    changes: list[CellChange] = []
    count = 0
    with Verifier() as verifier:
        for folder in folders:
            table = read_journal(folder).tables.get("samples")
            samples = [_sample(row) for row in table.to_pylist()] if table is not None else []
            count += len(samples)
            found = rescore(samples, verifier).changes
            changes += [CellChange(folder.parent.name, folder.name, change) for change in found]
    return RescoreReport(count, len(folders), tuple(changes))


def _sample(row: dict[str, object]) -> EvaluationSample:
    stored = {k: row[k] for k in ("task", "repeat", "prompt", "text", "gold", "tokens", "finished")}
    verdict = Verdict(row["verdict"], str(row["reason"]), str(row["extracted"]))  # type: ignore[arg-type]
    labels = dict(row["labels"] or {})  # type: ignore[call-overload]
    return EvaluationSample(mode=row["metric"], document=row["doc_id"], verdict=verdict, labels=labels, **stored)  # type: ignore[arg-type]
