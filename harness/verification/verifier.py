"""The one verifier of training rewards and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Self

from msgspec.structs import replace

from harness.errors import VerificationError
from harness.limits import count_cores
from harness.verification.equivalence import NeedsAlgebra, decide_on_answer
from harness.verification.processes import JudgedQuestion, WorkerPool
from harness.verification.response import read_answer
from harness.verification.scorer import MATH, Called, digest_if_long
from harness.verification.verdict import Verdict

__all__ = ["Verifier", "require_valid"]

MAX_TEXT = 1 << 22
_CACHE_SIZE = 1 << 18
_LONGEST = 1 << 17


class Verifier(AbstractContextManager["Verifier"]):
    """Decides by mathematics or `by` a scorer, where needed in killable processes. Deterministic and thread-safe. workers:
    default one per core."""

    def __init__(self, workers: int | None = None) -> None:
        self._pool = WorkerPool(workers or count_cores())
        self._cache: dict[tuple[str, ...], Verdict] = {}
        self._scorer = MATH

    def by(self, scorer: Called) -> Self:
        """Return a verifier that judges by a scorer, in the same processes."""
        other = copy.copy(self)
        other._scorer = scorer
        return other

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[Verdict]:
        """Judge pairs of gold and response, in order. Raises VerificationError where processes do not start."""
        verdicts = [self._at_once(gold, text) for gold, text in pairs]
        waiting = list(dict.fromkeys(asked for asked in verdicts if isinstance(asked, JudgedQuestion)))
        decided = dict(zip(waiting, self._pool.decide(waiting), strict=True)) if waiting else {}
        for question, verdict in decided.items():
            if self._judges_mathematics:
                decided[question] = verdict = replace(verdict, extracted=digest_if_long(question.answer))
            if verdict.valid:
                self._keep_verdict(question, verdict)
        return [decided[asked] if isinstance(asked, JudgedQuestion) else asked for asked in verdicts]

    @property
    def _judges_mathematics(self) -> bool:
        """Whether answers are read and decided here, not by a task's own scorer."""
        return self._scorer.reference == MATH.reference

    def _at_once(self, gold: str, text: str | None) -> Verdict | JudgedQuestion:
        """Judge an answer without a process if that is possible, else return the question to be asked of one.

        Mathematics needs one where only algebra decides, a task's own scorer always.
        """
        if not isinstance(text, str) or not text.strip():
            return Verdict("wrong", "missing")
        if len(text) > (MAX_TEXT if self._judges_mathematics else _LONGEST):
            return Verdict("wrong", "over-limit: text")
        answer = read_answer(text) if self._judges_mathematics else text.encode("utf-8", "replace").decode()
        question = JudgedQuestion(gold, answer, self._scorer)
        verdict = self._cache.get(_cache_key(question))
        if verdict is not None:
            return verdict
        if not self._judges_mathematics:
            return question
        try:
            score = decide_on_answer(gold, answer)
        except NeedsAlgebra:
            return question
        except Exception as error:  # a fault of our own rules is no verdict, and never the cell's end
            return Verdict("invalid", f"crash: {type(error).__name__}", digest_if_long(answer))
        return self._keep_verdict(
            question, Verdict("right" if score.right else "wrong", score.reason, digest_if_long(answer))
        )

    def close(self) -> None:
        """End the processes. It may be called again; cached verdicts stay usable."""
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_verdict(self, question: JudgedQuestion, verdict: Verdict) -> Verdict:
        """Keep a verdict for the next time the question is asked."""
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[_cache_key(question)] = verdict
        return verdict


def _cache_key(question: JudgedQuestion) -> tuple[str, ...]:
    """Return what an earlier verdict is found by: a digest stands for the answer, which may be long."""
    answer = question.answer.encode("utf-8", "backslashreplace")
    return question.scorer.reference, question.gold, blake2b(answer, digest_size=16).hexdigest()


def require_valid(verdicts: Iterable[Verdict], max_share: float) -> None:
    """Check that at most a share of `max_share` of the verdicts is invalid. Raises VerificationError."""
    every = list(verdicts)
    invalid = [verdict for verdict in every if not verdict.valid]
    if every and len(invalid) > max_share * len(every):
        reasons = sorted({verdict.reason for verdict in invalid})
        raise VerificationError(
            f"the verifier could not decide {len(invalid)} of {len(every)} answers (limit {max_share:.1%}): {', '.join(reasons)}"
        )
