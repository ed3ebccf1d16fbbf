"""SEE's wire types: what policies send to each other.

Every record names its author, the author's policy version, the step and the prompt. Records are decoded against their
type with size limits (`exchange.wire`); nothing is ever unpickled. A record is a claim by its author: the receiver
re-verifies what it can. A regime of a plugin may declare a type of its own (`bounded`, docs/regimes.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, inspect

from harness.errors import ExchangeError
from harness.experience.answers import Answer, Group
from harness.experience.refusal import Refusal

__all__ = [
    "LOGPROB_FLOOR",
    "LOGPROB_SLACK",
    "MAX_TEXT_BYTES",
    "MAX_TOKENS",
    "SHIPPED",
    "Count",
    "GroupValue",
    "Name",
    "Pieces",
    "Record",
    "Rollout",
    "Share",
    "Success",
    "Text",
    "TextRollout",
    "bounded",
    "sent",
]

Name = Annotated[str, Meta(min_length=1, max_length=128)]
"""Of a policy or a prompt."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number of things."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
"""A fraction."""
Pieces = Callable[[Answer], list[int]]
"""Byte length of each of an answer's tokens, final EOS left out; they sum to the text's length in bytes."""
MAX_TEXT_BYTES = 1 << 20
"""Of a record's text, in UTF-8."""
MAX_TOKENS = 1 << 17
"""Of one answer."""
LOGPROB_SLACK = 1e-6
"""Rounding may lift the log-probability of a sure token a little above 0."""
LOGPROB_FLOOR = -1e4
"""No token was ever sampled at exp(-1e4); a claim of less is an attack on the ratio's denominator."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Header shared by all records.

    Attributes
    ----------
    author
        Who sends it.
    version
        Optimiser updates that the author has made.
    step
        Training step at which the experience was made.
    prompt_id
        Of the prompt that it is about.
    """

    author: Name
    version: Count
    step: Count
    prompt_id: Name

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> Sequence[Self]:
        """What a group's author sends of it.

        Parameters
        ----------
        group
            The author's own.
        pieces
            Byte lengths of an answer's tokens.

        Raises
        ------
        NotImplementedError
            Its regime makes the records itself.
        """
        raise NotImplementedError(f"{cls.__name__}.of: what is sent of a group")

    @classmethod
    def about(cls, group: Group, **fields: Any) -> Self:
        """A record with the group's header.

        Parameters
        ----------
        group
            Whose policy, version, step and prompt it names.
        fields
            The type's own.
        """
        return cls(author=group.policy, version=group.version, step=group.step, prompt_id=group.prompt.id, **fields)

    def check(self) -> None:
        """What the type cannot say, of a record that a peer sent: here, that all numbers are finite.

        Raises
        ------
        ExchangeError
            With the reason (`Refusal`).
        """
        if not all(map(math.isfinite, _floats(msgspec.to_builtins(self)))):
            raise ExchangeError(Refusal.NOT_FINITE, "a number is not finite")


class Rollout(Record, frozen=True, kw_only=True, tag="rollout"):
    """One sampled answer with the author's own token-level log-probabilities.

    Attributes
    ----------
    index
        In the author's group.
    text
        Without EOS.
    tokens
        Ids in the author's vocabulary, final EOS left out.
    logprobs
        One per token, nats, of the sampling distribution.
    pieces
        Byte length of each token's text, so that a receiver can align without the author's tokenizer; their sum is the text's
        byte length.
    finished
        Whether it ended with EOS.
    eos_logprob
        Of that EOS, nats; 0 where there is none.
    reward
        The author's claim.
    noncanonical
        Share of `tokens` that the author's tokenizer would not have made of `text`; None if not measured.
    """

    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    tokens: Annotated[list[Count], Meta(max_length=MAX_TOKENS)]
    logprobs: Annotated[list[float], Meta(max_length=MAX_TOKENS)]
    pieces: Annotated[list[Count], Meta(max_length=MAX_TOKENS)]
    finished: bool
    eos_logprob: float = 0.0
    reward: Share
    noncanonical: Share | None = None

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """One record per answer that is sent."""
        found = []
        for i, a in sent(group):
            end = a.tokens.size - a.finished
            found.append(
                cls.about(
                    group,
                    index=i,
                    text=a.text,
                    tokens=a.tokens[:end].tolist(),
                    logprobs=a.logprobs[:end].tolist(),
                    pieces=pieces(a),
                    finished=a.finished,
                    eos_logprob=float(a.logprobs[-1]) if a.finished else 0.0,
                    reward=a.reward,
                )
            )
        return found

    def check(self) -> None:
        """Lengths agree, pieces sum to the text, log-probabilities are finite and none is positive."""
        size, count = _text_bytes(self.text), len(self.tokens)
        if count == 0:
            raise ExchangeError(Refusal.EMPTY, "no tokens")
        if not count == len(self.logprobs) == len(self.pieces):
            raise ExchangeError(
                Refusal.INCONSISTENT,
                f"{count} tokens, {len(self.logprobs)} log-probabilities, {len(self.pieces)} pieces",
            )
        if sum(self.pieces) != size:
            raise ExchangeError(Refusal.INCONSISTENT, f"pieces of {sum(self.pieces)} bytes, text of {size}")
        _check_logprobs(self.logprobs)
        if not LOGPROB_FLOOR <= self.eos_logprob <= LOGPROB_SLACK:
            _check_logprobs((self.eos_logprob,))


class TextRollout(Record, frozen=True, kw_only=True, tag="text"):
    """One sampled answer as text with its reward; no tokens, no log-probabilities (SAPO, naive pooling).

    Attributes
    ----------
    index
        In the author's group.
    text
        Without EOS.
    finished
        Whether it ended with EOS.
    reward
        The author's claim.
    """

    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    finished: bool
    reward: Share

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """One record per answer that is sent."""
        return [cls.about(group, index=i, text=a.text, finished=a.finished, reward=a.reward) for i, a in sent(group)]

    def check(self) -> None:
        """There is text, of bounded size."""
        _text_bytes(self.text)


class GroupValue(Record, frozen=True, kw_only=True, tag="value"):
    """Only scalar statistics of one group travel (XGRPO, arXiv 2605.07244).

    Attributes
    ----------
    count
        Valid answers, at least 1.
    right
        Those of them that are right.
    """

    count: Count
    right: Count

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """One record, or none of a group without valid answers."""
        valid = group.valid
        return [cls.about(group, count=len(valid), right=sum(a.reward > 0 for a in valid))] if valid else []

    def check(self) -> None:
        """No more right than valid, and at least one valid."""
        if self.count == 0:
            raise ExchangeError(Refusal.EMPTY, "a group without a valid answer")
        if self.right > self.count:
            raise ExchangeError(Refusal.INCONSISTENT, f"{self.right} right of {self.count}")


class Success(Record, frozen=True, kw_only=True, tag="success"):
    """Text of one answer that its author's verifier found right; no log-probabilities (SGT).

    Attributes
    ----------
    index
        In the author's group.
    text
        Without EOS.
    """

    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """One record per right answer."""
        return [cls.about(group, index=i, text=a.text) for i, a in sent(group) if a.verdict.value == "right"]

    def check(self) -> None:
        """There is text, of bounded size."""
        _text_bytes(self.text)


Text = Rollout | TextRollout | Success
"""Records that carry an answer."""
SHIPPED: frozenset[type[Record]] = frozenset({Rollout, TextRollout, GroupValue, Success})
"""All types but those that regimes declare themselves."""


def sent(group: Group) -> Iterator[tuple[int, Answer]]:
    """A group's answers with their index, but those with an invalid verdict and those that are only EOS."""
    return ((i, a) for i, a in enumerate(group.answers) if a.verdict.valid and a.text)


def bounded(kind: type[Record]) -> None:
    """Whether a type may be declared by a plugin: a tag of its own, and every field of a stated largest size.

    Raises
    ------
    ValueError
        Names the field.
    """
    if kind.__struct_config__.tag in {other.__struct_config__.tag for other in SHIPPED}:
        raise ValueError(f"{kind.__name__}: the tag {kind.__struct_config__.tag!r} is taken; give the type its own")
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if problem := _unbounded(field.type):
            raise ValueError(f"{kind.__name__}.{field.name}: {problem}")


def _unbounded(found: inspect.Type) -> str:
    """What is wrong with a field's type; empty where nothing is."""
    match found:
        case inspect.IntType() | inspect.FloatType() | inspect.BoolType() | inspect.NoneType():
            return ""
        case inspect.LiteralType() | inspect.EnumType():
            return ""
        case inspect.StrType() | inspect.BytesType():
            return "" if found.max_length is not None else "needs Meta(max_length=...)"
        case inspect.ListType() | inspect.VarTupleType():
            return "needs Meta(max_length=...)" if found.max_length is None else _unbounded(found.item_type)
        case inspect.DictType():
            inner = _unbounded(found.key_type) or _unbounded(found.value_type)
            return "needs Meta(max_length=...)" if found.max_length is None else inner
        case inspect.UnionType():
            return next(filter(None, map(_unbounded, found.types)), "")
    return f"{type(found).__name__.removesuffix('Type')} is no type of a record's field"


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from (number for entry in value.values() for number in _floats(entry))
    elif isinstance(value, list | tuple):
        yield from (number for entry in value for number in _floats(entry))


def _text_bytes(text: str) -> int:
    if not text:
        raise ExchangeError(Refusal.EMPTY, "no text")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if size > MAX_TEXT_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"text of {size} bytes")
    return size


def _check_logprobs(values: Sequence[float]) -> None:
    # A sum is finite only if every summand is; NaN would escape min and max.
    if not math.isfinite(sum(values)) or min(values) < LOGPROB_FLOOR:
        raise ExchangeError(Refusal.NOT_FINITE, "a log-probability is not finite")
    if max(values) > LOGPROB_SLACK:
        raise ExchangeError(Refusal.NOT_LOGPROB, f"log-probability {max(values):.3g}")
