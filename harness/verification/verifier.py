"""The one verifier of training rewards and evaluation."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Self

from harness.errors import VerificationError
from harness.verification.equivalence import NeedsAlgebra, OverLimit, compare
from harness.verification.extraction import extract
from harness.verification.messages import KEPT, Limits, Question
from harness.verification.pool import Pool
from harness.verification.scorer import Called
from harness.verification.verdict import Decision, Verdict

__all__ = ["Verifier", "require_valid"]

MAX_TEXT = 1 << 22
_CACHE_SIZE = 1 << 18
_LONGEST = 1 << 17


class Verifier:
    """Decides by mathematics or `by` a scorer. Cheap to create; deterministic; safe to share between threads.

    Most pairs are decided here by `compare`, the rest in a pool of killable processes. workers: default one per core.
    """

    def __init__(self, workers: int | None = None, limits: Limits | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = Pool(workers or cores, limits or Limits())
        self._cache: dict[tuple[str, ...], Verdict] = {}
        self._scorer: Called | None = None

    def by(self, scorer: Called | None) -> Self:
        """The same processes and verdicts, asked to judge by this scorer; None is mathematics."""
        other = copy.copy(self)
        other._scorer = scorer
        return other

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[Verdict]:
        """Verdicts on (gold, response), in order. Raises VerificationError where processes do not start."""
        scorer, cache = self._scorer, self._cache
        longest = MAX_TEXT if scorer is None else _LONGEST
        verdicts: list[Verdict | None] = []
        waiting: dict[tuple[str, ...], list[int]] = {}
        key: tuple[str, ...]
        for index, (gold, text) in enumerate(pairs):
            if not isinstance(text, str) or not text.strip():
                verdicts.append(Verdict("wrong", "missing"))
            elif len(text) > longest:
                verdicts.append(Verdict("wrong", "over-limit: text"))
            else:
                if scorer is None:
                    key = (gold, extract(text))
                    verdict = cache.get(key) or self._decide(*key)
                else:
                    key = (scorer.reference, gold, _digest(text))
                    verdict = cache.get(key)
                verdicts.append(verdict)
                if verdict is None:
                    waiting.setdefault(key, []).append(index)
        if waiting:
            questions = [self._question(*pairs[indices[0]], key[1]) for key, indices in waiting.items()]
            for (key, indices), reply in zip(waiting.items(), self._pool.decide(questions), strict=True):
                value: Decision = "invalid" if reply.right is None else "right" if reply.right else "wrong"
                said = key[1][:KEPT] if scorer is None else reply.extracted
                verdict = Verdict(value, reply.reason, said)
                if verdict.valid:
                    self._remember(key, verdict)
                for index in indices:
                    verdicts[index] = verdict
        return [verdict for verdict in verdicts if verdict is not None]

    def _question(self, gold: str, text: str | None, answer: str) -> Question:
        if self._scorer is None:
            return Question(gold, answer)
        clean = (text or "").encode("utf-8", "replace").decode()
        return Question(gold, clean, self._scorer.reference, self._scorer.cpu_seconds, self._scorer.wall_seconds)

    def close(self) -> None:
        """Idempotent; cached verdicts stay usable."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self, gold: str, answer: str) -> Verdict | None:
        """None where algebra is needed."""
        if not answer:
            return Verdict("wrong", "missing")
        try:
            right = compare(gold, answer)
        except OverLimit as limit:
            return self._remember((gold, answer), Verdict("wrong", f"over-limit: {limit}", answer[:KEPT]))
        except NeedsAlgebra:
            return None
        return self._remember((gold, answer), Verdict("right" if right else "wrong", "", answer[:KEPT]))

    def _remember(self, key: tuple[str, ...], verdict: Verdict) -> Verdict:
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[key] = verdict
        return verdict


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def require_valid(verdicts: Iterable[Verdict], max_share: float) -> None:
    """Raises VerificationError where more than `max_share` are invalid."""
    every = list(verdicts)
    invalid = [verdict for verdict in every if not verdict.valid]
    if every and len(invalid) > max_share * len(every):
        reasons = sorted({verdict.reason for verdict in invalid})
        raise VerificationError(
            f"the verifier could not decide {len(invalid)} of {len(every)} answers (limit {max_share:.1%}): {', '.join(reasons)}"
        )
