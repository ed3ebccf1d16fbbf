"""What policies send each other, as types and as bytes, and why a receiver refuses it. A record type declares fields of bounded
size, what is sent of a group (`of`), what must hold (`check`), where it arrives (`inbox`). A peer's bytes are hostile until
`decode_record` has returned, whose memory is bounded by the message's size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, Union

import msgspec
from msgspec import Meta, inspect

from harness.errors import ExchangeError
from harness.experience.answers import Answer, Group

__all__ = [
    "AnswerRecord",
    "ChangedScores",
    "Draft",
    "GroupValue",
    "Pieces",
    "Record",
    "Refusal",
    "Rollout",
    "Scores",
    "Success",
    "TextRollout",
    "answers_to_send",
    "decode_record",
    "encode_record",
    "require_bounded",
]

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Pieces = Callable[[Answer], list[int]]
"""Byte length of each of an answer's tokens, final EOS left out; they sum to the text's length in bytes."""
MAX_TEXT_BYTES = 1 << 20  # of a record's text, in UTF-8
MAX_TOKENS = 1 << 17  # of one answer
MAX_ANSWERS = 1 << 22  # of one group, more than a suite can ask for
LOGPROB_SLACK = 1e-6  # rounding may lift a sure token's log-probability above 0
LOGPROB_FLOOR = -1e4  # a lower claim attacks the ratio's denominator
MAX_MESSAGE_BYTES = 4 << 20  # fits the largest record that the types allow


class Refusal(StrEnum):
    """Why something was refused.

    The message: `oversized`: more bytes than one may have; `malformed`: no msgpack, cut off, nested too deeply, no UTF-8;
    `wrong_type`: no record, or of a kind that the regime does not share; `not_finite`: or beyond float32 training;
    `not_logprob`: positive; `inconsistent`: fields contradict each other; `empty`: nothing to learn from.

    The header: `quota`: more messages or bytes than a sender has; `unknown_author`: no policy of the cell, or none that the
    receiver hears; `not_subscribed`: no such edge; `forged`: of another author than its sender; `stale`: of a step too long
    ago; `future`: of a step not reached; `unknown_prompt`: not asked at that step; `version`: contradicts an earlier record;
    `duplicate`: sent before; `late`: nothing by the deadline.

    The content: `unverified`: not right, as claimed; `invalid`: undecided; `residual`: its log-probabilities do not fit the
    receiver's tokens within the suite's limits; `untranslatable`: the receiver's tokenizer failed; `too_long`: more tokens than
    it trains on, or than its model has positions for; `open_thought`: its prompt opens a thought, which neither the answer
    closes nor its tokenizer can close.
    """

    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    WRONG_TYPE = "wrong_type"
    NOT_FINITE = "not_finite"
    NOT_LOGPROB = "not_logprob"
    INCONSISTENT = "inconsistent"
    EMPTY = "empty"
    UNKNOWN_AUTHOR = "unknown_author"
    FORGED = "forged"
    NOT_SUBSCRIBED = "not_subscribed"
    UNKNOWN_PROMPT = "unknown_prompt"
    STALE = "stale"
    FUTURE = "future"
    VERSION = "version"
    DUPLICATE = "duplicate"
    QUOTA = "quota"
    LATE = "late"
    UNVERIFIED = "unverified"
    INVALID = "invalid"
    RESIDUAL = "residual"
    UNTRANSLATABLE = "untranslatable"
    TOO_LONG = "too_long"
    OPEN_THOUGHT = "open_thought"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Header of all records. version: the author's optimiser updates. inbox: the field of `Inbox` that it fills."""

    inbox: ClassVar[Literal["answers", "successes", "values", "records", "scores"]] = "records"
    author: Name
    version: Count
    step: Count
    prompt_id: Annotated[str, Meta(min_length=1, max_length=200)]

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> Sequence[Self]:
        """Return what a group's author sends. Raises NotImplementedError."""
        raise NotImplementedError(f"{cls.__name__}.of: what is sent of a group")

    @classmethod
    def about(cls, group: Group, **fields: Any) -> Self:
        """Return a record with the group's header."""
        return cls(author=group.policy, version=group.version, step=group.step, prompt_id=group.prompt.id, **fields)

    def check(self) -> None:
        """Check the record's numbers. Raises ExchangeError for a number that is not finite."""
        if not all(map(math.isfinite, _floats_in(msgspec.to_builtins(self)))):
            raise ExchangeError(Refusal.NOT_FINITE, "a number is not finite")


class AnswerRecord(Record, frozen=True, kw_only=True):
    """A record with an answer to retokenise and verify. text: without EOS."""

    inbox: ClassVar[Literal["answers", "successes"]] = "answers"
    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]

    @property
    def finished(self) -> bool:
        """Whether it ended with EOS."""
        return True

    @property
    def reward(self) -> float:
        """The author's claim."""
        return 1.0

    def check(self) -> None:
        """Check that there is text, of bounded size."""
        _text_bytes(self.text)


class Rollout(AnswerRecord, frozen=True, kw_only=True, tag="rollout"):
    """An answer with the author's log-probabilities (nats). tokens: the author's ids, the end left out. pieces: bytes
    of each token's text. eos_logprob: of the end, the sum over its tokens. noncanonical: share of tokens that encoding
    the text would not make."""

    tokens: Annotated[list[Count], Meta(max_length=MAX_TOKENS)]
    logprobs: Annotated[list[float], Meta(max_length=MAX_TOKENS)]
    pieces: Annotated[list[Count], Meta(max_length=MAX_TOKENS)]
    finished: bool
    eos_logprob: float = 0.0
    reward: Share
    noncanonical: Share | None = None

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """Return one record per sent answer."""
        records = []
        for i, a in answers_to_send(group):
            end = a.content.size
            records.append(
                cls.about(
                    group,
                    index=i,
                    text=a.text,
                    tokens=a.content.tolist(),
                    logprobs=a.logprobs[:end].tolist(),
                    pieces=pieces(a),
                    finished=a.finished,
                    eos_logprob=float(a.logprobs[end:].sum()) if a.finished else 0.0,
                    reward=a.reward,
                )
            )
        return records

    def check(self) -> None:
        """Check that lengths agree, pieces sum to the text, log-probabilities are finite, none positive."""
        size = _text_bytes(self.text)
        count = len(self.tokens)
        if count == 0:
            raise ExchangeError(Refusal.EMPTY, "no tokens")
        if not count == len(self.logprobs) == len(self.pieces):
            raise ExchangeError(
                Refusal.INCONSISTENT,
                f"{count} tokens, {len(self.logprobs)} log-probabilities, {len(self.pieces)} pieces",
            )
        if sum(self.pieces) != size:
            raise ExchangeError(Refusal.INCONSISTENT, f"pieces of {sum(self.pieces)} bytes, text of {size}")
        _check_logprobs((*self.logprobs, self.eos_logprob))


class TextRollout(AnswerRecord, frozen=True, kw_only=True, tag="text"):
    """One answer as text with its reward (SAPO, naive pooling)."""

    finished: bool
    reward: Share

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """Return one record per sent answer."""
        return [
            cls.about(group, index=i, text=a.text, finished=a.finished, reward=a.reward)
            for i, a in answers_to_send(group)
        ]


class GroupValue(Record, frozen=True, kw_only=True, tag="value"):
    """Two counts of one group: valid answers, and the right ones (XGRPO)."""

    inbox: ClassVar[Literal["values"]] = "values"
    count: Annotated[int, Meta(ge=0, le=MAX_ANSWERS)]
    right: Count

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """Return one record, or none of a group without valid answers."""
        valid = group.valid
        if valid:
            return [cls.about(group, count=len(valid), right=sum(a.reward > 0 for a in valid))]
        return []

    def check(self) -> None:
        """Check that no more are right than valid, and at least one valid."""
        if self.count == 0:
            raise ExchangeError(Refusal.EMPTY, "a group without a valid answer")
        if self.right > self.count:
            raise ExchangeError(Refusal.INCONSISTENT, f"{self.right} right of {self.count}")


class Success(AnswerRecord, frozen=True, kw_only=True, tag="success"):
    """Text of an answer that its author found right (SGT)."""

    inbox: ClassVar[Literal["successes"]] = "successes"

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """Return one record per right answer."""
        return [cls.about(group, index=i, text=a.text) for i, a in answers_to_send(group) if a.verdict.value == "right"]


class Draft(AnswerRecord, frozen=True, kw_only=True, tag="draft"):
    """An own answer for peers to score (`Need.SCORES`): it goes to those whose experience the author receives; `Scores`
    come back in the same step."""

    finished: bool

    @classmethod
    def of(cls, group: Group, pieces: Pieces) -> list[Self]:
        """Return one record per sent answer."""
        return [cls.about(group, index=i, text=a.text, finished=a.finished) for i, a in answers_to_send(group)]


class Scores(Record, frozen=True, kw_only=True, tag="scores"):
    """The author's log-probabilities (nats) of the `index`-th answer that `reader` drafted, by the author's own tokens,
    of `pieces` bytes each. eos_logprob: 0 of a cut-off answer."""

    inbox: ClassVar[Literal["scores"]] = "scores"
    reader: Name
    index: Count
    logprobs: Annotated[list[float], Meta(min_length=1, max_length=MAX_TOKENS)]
    pieces: Annotated[list[Count], Meta(min_length=1, max_length=MAX_TOKENS)]
    eos_logprob: float = 0.0

    def check(self) -> None:
        """Check that lengths agree; log-probabilities are finite, none positive."""
        if len(self.logprobs) != len(self.pieces):
            raise ExchangeError(
                Refusal.INCONSISTENT, f"{len(self.logprobs)} log-probabilities, {len(self.pieces)} pieces"
            )
        _check_logprobs((*self.logprobs, self.eos_logprob))


class ChangedScores(Scores, frozen=True, kw_only=True, tag="changed_scores"):
    """Scores under the author's present weights and under those that it started from (`Need.START_SCORES`)."""

    start_logprobs: Annotated[list[float], Meta(min_length=1, max_length=MAX_TOKENS)]
    start_eos_logprob: float = 0.0

    @property
    def start(self) -> Scores:
        """What the author said of the answer when it started, as scores of their own."""
        fields = {name: getattr(self, name) for name in Scores.__struct_fields__}
        return Scores(**{**fields, "logprobs": self.start_logprobs, "eos_logprob": self.start_eos_logprob})

    def check(self) -> None:
        """Check that both are such scores."""
        super().check()
        self.start.check()


SHIPPED: frozenset[type[Record]] = frozenset({Rollout, TextRollout, GroupValue, Success, Draft, Scores, ChangedScores})


def answers_to_send(group: Group) -> Iterator[tuple[int, Answer]]:
    """Return a group's valid answers with text, with their index."""
    return ((i, a) for i, a in enumerate(group.answers) if a.verdict.valid and a.text)


def require_bounded(kind: type[Record]) -> None:
    """Check a plugin's type of record. Raises ValueError unless a plugin may declare the type: its own tag, fields of bounded
    size."""
    if kind.__struct_config__.tag in {other.__struct_config__.tag for other in SHIPPED}:
        raise ValueError(f"{kind.__name__}: the tag {kind.__struct_config__.tag!r} is taken; give the type its own")
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if field.encode_name == "index" and getattr(field.type, "le", None) is None:
            raise ValueError(f"{kind.__name__}.index: rows have it as a whole number; needs int with Meta(le=...)")
        problem = _find_unbounded(field.type)
        if problem:
            raise ValueError(f"{kind.__name__}.{field.name}: {problem}")


def _find_unbounded(kind: inspect.Type) -> str:
    """Say which part of a field's type has no bound on its size; empty where all have one."""
    match kind:
        case inspect.IntType() | inspect.FloatType() | inspect.BoolType() | inspect.NoneType():
            return ""
        case inspect.LiteralType() | inspect.EnumType():
            return ""
        case inspect.StrType() | inspect.BytesType():
            inner: tuple[inspect.Type, ...] = ()
        case inspect.ListType() | inspect.VarTupleType():
            inner = (kind.item_type,)
        case inspect.DictType():
            inner = kind.key_type, kind.value_type
        case inspect.UnionType():
            return next(filter(None, map(_find_unbounded, kind.types)), "")
        case _:
            return f"{type(kind).__name__.removesuffix('Type')} is no type of a record's field"
    if kind.max_length is None:
        return "needs Meta(max_length=...)"
    return next(filter(None, map(_find_unbounded, inner)), "")


def _floats_in(value: Any) -> Iterator[float]:
    """Yield all numbers with a fraction in plain data."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from _floats_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _floats_in(entry)


def _check_logprobs(values: Sequence[float]) -> None:
    # NaN would escape min and max
    if not math.isfinite(sum(values)) or min(values) < LOGPROB_FLOOR:
        raise ExchangeError(Refusal.NOT_FINITE, "a log-probability is not finite")
    if max(values) > LOGPROB_SLACK:
        raise ExchangeError(Refusal.NOT_LOGPROB, f"log-probability {max(values):.3g}")


def _text_bytes(text: str) -> int:
    """Return a text's bytes in UTF-8. Raises ExchangeError where there is none, or too much."""
    if not text:
        raise ExchangeError(Refusal.EMPTY, "no text")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if size > MAX_TEXT_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"text of {size} bytes")
    return size


_encoder = msgspec.msgpack.Encoder()


@cache
def _make_decoder(kinds: frozenset[type[Record]]) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of these kinds of records and no others."""
    every = sorted(SHIPPED | kinds, key=lambda kind: str(kind.__struct_config__.tag))
    return msgspec.msgpack.Decoder(Union[tuple(every)])  # noqa: UP007  # the types are known only now


def encode_record(record: Record) -> bytes:
    """Return one record as msgpack. Raises ExchangeError (`malformed`, `oversized`) if it cannot be carried."""
    try:
        message = _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if len(message) > MAX_MESSAGE_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes")
    return message


def decode_record(message: bytes, limit: int = MAX_MESSAGE_BYTES, kinds: frozenset[type[Record]] = SHIPPED) -> Record:
    """Return one checked record, of a shipped type or one of `kinds`. Raises ExchangeError."""
    if not isinstance(message, bytes):
        raise ExchangeError(Refusal.WRONG_TYPE, f"expected bytes, got {type(message).__name__}")
    if len(message) > limit:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes, at most {limit}")
    try:
        record: Record = _make_decoder(kinds).decode(message)
    except msgspec.ValidationError as error:
        raise ExchangeError(Refusal.WRONG_TYPE, str(error)[:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)[:200]) from None
    try:
        record.check()
    except ValueError as error:
        raise ExchangeError(Refusal.INCONSISTENT, str(error)[:200]) from None
    return record


# Earlier names, which packages of others may import
sent = answers_to_send
bounded = require_bounded
