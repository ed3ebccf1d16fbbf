"""Verify stored samples again, after the verifier has changed. Texts are read, never written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.evaluation.metrics import MetricSpec, summarise
from harness.evaluation.samples import EvaluationSample, Metric
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One sample whose verdict is another now."""

    task: str
    mode: str
    document: str
    repeat: int
    gold: str
    before: Verdict
    after: Verdict


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """samples: the same samples in the same order with today's verdicts. changes: those whose decision differs; another
    reason or another spelling of the extracted answer alone is no change."""

    samples: tuple[EvaluationSample, ...]
    changes: tuple[Change, ...]

    def metrics(self, names: Sequence[str]) -> tuple[Metric, ...]:
        """The named metrics under the new verdicts, for every task among the samples. Raises UsageError."""
        specs = [MetricSpec.parse(name) for name in names]
        tasks = dict.fromkeys(sample.task for sample in self.samples)
        return tuple(metric for task in tasks for metric in summarise(task, specs, self.samples))


def rescore(samples: Sequence[EvaluationSample], verifier: Verifier) -> Rescored:
    """Today's verdicts on stored samples, and what changed.

    Raises
    ------
    VerificationError
        The verifier's processes do not start.
    """
    verdicts = verifier.verify([(sample.gold, sample.text) for sample in samples])
    pairs = list(zip(samples, verdicts, strict=True))
    return Rescored(
        samples=tuple(msgspec.structs.replace(sample, verdict=verdict) for sample, verdict in pairs),
        changes=tuple(
            Change(
                task=sample.task,
                mode=sample.mode,
                document=sample.document,
                repeat=sample.repeat,
                gold=sample.gold,
                before=sample.verdict,
                after=verdict,
            )
            for sample, verdict in pairs
            if verdict.value != sample.verdict.value
        ),
    )
