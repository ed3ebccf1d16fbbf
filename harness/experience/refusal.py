"""Why a message, a record or an author was refused: one vocabulary for the codec, the gate, THL and the verifier."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Refusal"]


class Refusal(StrEnum):
    """Reasons, used as names of counters and as values of the ledger's `reason` column."""

    # the message
    OVERSIZED = "oversized"
    """More bytes than a message, or a record's text, may have."""
    MALFORMED = "malformed"
    """No msgpack, cut off, trailing bytes, nested too deeply, or text that is not UTF-8."""
    WRONG_TYPE = "wrong_type"
    """Well-formed, but no record: wrong types, unknown or missing fields, a value or a count out of range."""
    NOT_FINITE = "not_finite"
    """A log-probability is NaN, infinite or beyond what float32 training can use."""
    NOT_LOGPROB = "not_logprob"
    """A log-probability is positive."""
    INCONSISTENT = "inconsistent"
    """Fields contradict each other: unequal lengths, pieces that do not sum to the text, more right than counted."""
    EMPTY = "empty"
    """Nothing to learn from: no token, no text, or a group without a valid answer."""

    # the header
    UNKNOWN_AUTHOR = "unknown_author"
    """No endpoint of that name."""
    FORGED = "forged"
    """The author named in the record is not the endpoint that sent it."""
    NOT_SUBSCRIBED = "not_subscribed"
    """The suite's `direction` has no edge from this author to this receiver."""
    UNKNOWN_PROMPT = "unknown_prompt"
    """The prompt was not asked at the record's step."""
    STALE = "stale"
    """Older than `max_staleness` allows."""
    FUTURE = "future"
    """Of a step that the receiver has not reached."""
    VERSION = "version"
    """The policy version contradicts an earlier record of the same author."""
    DUPLICATE = "duplicate"
    """Of the same author, kind, step, prompt and index as one that was let in."""
    QUOTA = "quota"
    """Over the author's number of records or bytes for this step."""
    LATE = "late"
    """The author had sent nothing for this step when the deadline passed (no record; `messages` is 0)."""

    # the content, judged by the receiver
    UNVERIFIED = "unverified"
    """The receiver's own verifier does not find right what its author claims to be right."""
    INVALID = "invalid"
    """The receiver's own verifier could not decide."""
    RESIDUAL = "residual"
    """THL's residual is over the regime's budget."""
    UNTRANSLATABLE = "untranslatable"
    """The receiver's tokenizer cannot represent the text, or failed on it."""
    TOO_LONG = "too_long"
    """More of the receiver's tokens than it is trained on."""
