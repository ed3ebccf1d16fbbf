"""Samples, and greedy, avg@k, best@k and maj@k without invalid ones."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Literal

import msgspec

from harness.errors import UsageError
from harness.verification.catalogue import same_by
from harness.verification.verdict import Verdict, of_unfinished
from harness.verification.verifier import Verifier

Mode = Literal["greedy", "sampled"]


class EvaluationSample(msgspec.Struct, frozen=True, kw_only=True):
    """repeat: 0 .. k-1. tokens: EOS included. finished: None where unknown."""

    task: str
    mode: Mode
    document: str
    repeat: int
    prompt: str
    text: str
    gold: str
    verdict: Verdict
    tokens: int
    finished: bool | None
    labels: dict[str, str] = {}
    scorer: str = "math"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over documents; `invalid` counts answers left out."""

    task: str
    name: str
    value: float
    documents: int
    samples: int
    invalid: int


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Samples in task, mode, document, repeat order."""

    metrics: tuple[Metric, ...]
    samples: tuple[EvaluationSample, ...]


Kind = Literal["greedy", "avg", "best", "maj"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """k: 1 for greedy."""

    kind: Kind
    k: int

    @property
    def name(self) -> str:
        return "greedy" if self.kind == "greedy" else f"{self.kind}@{self.k}"

    @staticmethod
    def parse(name: str) -> MetricSpec:
        """Read a metric from its name: `greedy`, `avg@32`, `best@4` (alias `pass@4`) or `maj@8`. Raises UsageError."""
        if name == "greedy":
            return MetricSpec("greedy", 1)
        match = re.fullmatch(r"(avg|best|pass|maj)@([1-9]\d{0,3})", name)
        if match is None:
            raise UsageError(f"metric {name!r} is none of greedy, avg@K, best@K, pass@K, maj@K")
        kind: Kind = "maj"
        if match[1] in ("best", "pass"):
            kind = "best"
        elif match[1] == "avg":
            kind = "avg"
        return MetricSpec(kind, int(match[2]))


def summarise_samples(task: str, specs: Sequence[MetricSpec], samples: Sequence[EvaluationSample]) -> list[Metric]:
    """Compute each metric over a task's questions. `best@k` uses all samples, and others the first k; invalid answers are
    left out."""
    metrics = []
    for spec in specs:
        mode = "greedy" if spec.kind == "greedy" else "sampled"
        most = math.inf if spec.kind == "best" else spec.k
        chosen = [s for s in samples if s.task == task and s.mode == mode and s.repeat < most]
        by_document = [_document_value(spec, list(answers)) for _, answers in groupby(chosen, key=lambda s: s.document)]
        values = [value for value in by_document if value is not None]
        metrics.append(
            Metric(
                task=task,
                name=spec.name,
                value=math.fsum(values) / len(values) if values else math.nan,
                documents=len(values),
                samples=len(chosen),
                invalid=sum(not s.verdict.valid for s in chosen),
            )
        )
    return metrics


def _document_value(spec: MetricSpec, answers: list[EvaluationSample]) -> float | None:
    """Return a metric's value on one question, from 0 to 1; None where no answer was valid."""
    valid = [s for s in answers if s.verdict.valid]
    if not valid:
        return None
    right = sum(s.verdict.value == "right" for s in valid)
    if spec.kind == "best":
        return pass_at_k(len(valid), right, min(spec.k, len(valid)))
    if spec.kind == "maj":
        ballots = Counter(vote for vote in votes_of(valid) if vote >= 0)
        winner = max(ballots, key=lambda vote: (ballots[vote], -vote), default=-1)  # the earlier wins a tie
        return float(any(a.repeat == winner and a.verdict.value == "right" for a in valid))
    return right / len(valid)


def pass_at_k(n: int, right: int, k: int) -> float:
    """Return P(one of k answers is right), unbiased, from n >= k answers (Chen et al., arXiv 2107.03374, eq. 1)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def votes_of(answers: Sequence[EvaluationSample]) -> list[int]:
    """Return for each answer the `repeat` of the first valid one that says the same, by its scorer; -1 where it is invalid or
    silent."""
    firsts: list[EvaluationSample] = []
    winners = []
    same = cache(same_by)
    for answer in answers:
        said = answer.verdict.extracted if answer.verdict.valid else ""
        if not said:
            winners.append(-1)
            continue
        first = next((f for f in firsts if same(answer.scorer)(f.verdict.extracted, said)), answer)
        if first is answer:
            firsts.append(answer)
        winners.append(first.repeat)
    return winners


def judge_pairs(verifier: Verifier, pairs: Sequence[tuple[str, str]], finished: Sequence[bool | None]) -> list[Verdict]:
    """Return verdicts of (gold, text): one that was cut off is wrong, and its reason says whether it is right as it stands.
    finished: None where unknown, which counts as finished. Raises VerificationError."""
    return [
        of_unfinished(verdict) if done is False else verdict
        for verdict, done in zip(verifier.verify(pairs), finished, strict=True)
    ]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A stored sample that today's verifier decides otherwise."""

    task: str
    mode: str
    document: str
    repeat: int
    gold: str
    before: Verdict
    after: Verdict


def rescore_samples(samples: Sequence[EvaluationSample], verifier: Verifier) -> list[Change]:
    """Stored samples that are decided otherwise today. Raises VerificationError."""
    pairs = [(sample.gold, sample.text) for sample in samples]
    verdicts = judge_pairs(verifier, pairs, [sample.finished for sample in samples])
    return [
        Change(
            task=sample.task,
            mode=sample.mode,
            document=sample.document,
            repeat=sample.repeat,
            gold=sample.gold,
            before=sample.verdict,
            after=verdict,
        )
        for sample, verdict in zip(samples, verdicts, strict=True)
        if verdict.value != sample.verdict.value
    ]
