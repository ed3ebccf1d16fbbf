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
from harness.verification.messages import KEPT, Limits, Question, Reply
from harness.verification.pool import Pool
from harness.verification.scorer import Called
from harness.verification.verdict import Verdict

__all__ = ["MAX_TEXT", "Verifier", "require_valid"]

MAX_TEXT = 1 << 22
"""Characters; a longer response is wrong unread."""
_CACHE_SIZE = 1 << 18
_LONGEST = 1 << 17
"""Characters of a text that a scorer is given: with its gold, less than a message holds."""


class Verifier:
    """Decides whether answers are right, by mathematics or `by` a scorer. Cheap to create; deterministic; safe to share between
    threads.

    Most pairs are decided here, exactly, by `equivalence.compare`; the rest go to a pool of killable processes that is started
    when first needed. Verdicts are cached by (gold, extracted answer).

    Parameters
    ----------
    workers
        Processes of the pool; default one per core that this process may use.
    limits
        CPU seconds and wall-clock seconds per pair, bytes of memory per worker.
    """

    def __init__(self, workers: int | None = None, limits: Limits | None = None) -> None:
        self._pool = Pool(workers or _cores(), limits or Limits())
        self._cache: dict[tuple[str, ...], Verdict] = {}
        self._scorer: Called | None = None

    def by(self, scorer: Called | None) -> Self:
        """The same processes and verdicts, asked to judge by this scorer; None is mathematics."""
        other = copy.copy(self)
        other._scorer = scorer
        return other

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[Verdict]:
        """Verdicts for pairs of (gold, response text), in order.

        Raises
        ------
        VerificationError
            The worker processes cannot be started.
        """
        if self._scorer is not None:
            return self._scored(pairs, self._scorer)
        verdicts: list[Verdict | None] = [None] * len(pairs)
        open_pairs: dict[tuple[str, str], list[int]] = {}
        cache = self._cache
        for index, (gold, text) in enumerate(pairs):
            if not isinstance(text, str) or not text:
                verdicts[index] = Verdict("wrong", "missing")
                continue
            if len(text) > MAX_TEXT:
                verdicts[index] = Verdict("wrong", "over-limit: text")
                continue
            key = (gold, extract(text))
            verdict = cache.get(key) or self._decide(*key)
            if verdict is None:
                open_pairs.setdefault(key, []).append(index)
            else:
                verdicts[index] = verdict
        if open_pairs:
            replies = self._pool.decide([Question(gold=gold, answer=answer) for gold, answer in open_pairs])
            for (key, indices), reply in zip(open_pairs.items(), replies, strict=True):
                verdict = self._remember(key, _verdict(reply, key[1]))
                for index in indices:
                    verdicts[index] = verdict
        return [verdict for verdict in verdicts if verdict is not None]

    def _scored(self, pairs: Sequence[tuple[str, str | None]], scorer: Called) -> list[Verdict]:
        """All in the pool: neither a scorer nor a text is trusted with this process."""
        keys: list[tuple[str, ...]] = [(scorer.reference, gold, _digest(text)) for gold, text in pairs]
        said: dict[tuple[str, ...], Verdict] = {}
        waiting: dict[tuple[str, ...], Question] = {}
        for key, (gold, text) in zip(keys, pairs, strict=True):
            if not isinstance(text, str) or not text.strip():
                said[key] = Verdict("wrong", "missing")
            elif len(text) > _LONGEST:
                said[key] = Verdict("wrong", "over-limit: text")
            elif key in self._cache:
                said[key] = self._cache[key]
            else:
                clean = text.encode("utf-8", "replace").decode()
                waiting[key] = Question(gold, clean, scorer.reference, scorer.cpu_seconds, scorer.wall_seconds)
        for key, reply in zip(waiting, self._pool.decide(list(waiting.values())) if waiting else (), strict=True):
            verdict = _verdict(reply, reply.extracted)
            said[key] = self._remember(key, verdict) if verdict.valid else verdict
        return [said[key] for key in keys]

    def close(self) -> None:
        """Stop the pool's processes. Idempotent; cached verdicts stay usable."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self, gold: str, answer: str) -> Verdict | None:
        """The verdict where strings and exact arithmetic suffice; None where algebra is needed."""
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


def _digest(text: str | None) -> str:
    return blake2b((text or "").encode("utf-8", "replace"), digest_size=16).hexdigest()


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _verdict(reply: Reply, answer: str) -> Verdict:
    if reply.right is None:
        return Verdict("invalid", reply.reason, answer[:KEPT])
    return Verdict("right" if reply.right else "wrong", reply.reason, answer[:KEPT])


def require_valid(verdicts: Iterable[Verdict], max_share: float) -> None:
    """Stop a cell whose verifier fails too often.

    Parameters
    ----------
    verdicts
        Of a step or an evaluation.
    max_share
        Of them that may be invalid, in [0, 1].

    Raises
    ------
    VerificationError
        More are.
    """
    every = list(verdicts)
    invalid = [verdict for verdict in every if not verdict.valid]
    if every and len(invalid) > max_share * len(every):
        reasons = sorted({verdict.reason for verdict in invalid})
        raise VerificationError(
            f"the verifier could not decide {len(invalid)} of {len(every)} answers (limit {max_share:.1%}): {', '.join(reasons)}"
        )
