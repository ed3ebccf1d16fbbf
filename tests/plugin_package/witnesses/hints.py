"""A regime with a record type of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Self

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Count, Pieces, Record, Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term


class Hint(Record, frozen=True, kw_only=True, tag="witness.hint"):
    """Of the shortest right answer: its tokens, and its first characters."""

    tokens: Count
    opening: Annotated[str, Meta(max_length=8)]

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        right = [a for a in group.valid if a.reward > 0 and a.text]
        if not right:
            return []
        shortest = min(right, key=lambda a: a.tokens.size)
        return [cls.about(group, tokens=int(shortest.tokens.size), opening=shortest.text[:8])]


class Hints(Regime):
    """GRPO on own answers; those that begin as a peer's right answer count double."""

    shares = frozenset({Hint})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        term = own_term(own, grpo_advantages, GRPO)
        texts = {id(a.tokens): (g.prompt.id, a.text) for g in own for a in g.answers}

        def weight(answer) -> float:
            prompt, text = texts[id(answer.tokens)]
            return 2.0 if any(text.startswith(hint.opening) for hint in inbox.records.get(prompt, ())) else 1.0

        return [replace(term, answers=tuple(replace(a, weight=weight(a)) for a in term.answers))]


class Endless(Record, frozen=True, kw_only=True, tag="witness.endless"):
    """A list without an end."""

    values: list[float]


class Boundless(Regime):
    """Shares what could be of any size."""

    shares = frozenset({Endless})


class Doubled(Success, frozen=True, kw_only=True, tag="success"):
    """Takes a tag that is taken."""


class Impostor(Regime):
    """Shares under another type's tag."""

    shares = frozenset({Doubled})
