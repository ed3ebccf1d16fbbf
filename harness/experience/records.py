"""SEE's wire types: what policies send to each other.

Every record names its author, the author's policy version, the step and the prompt. Records are decoded against their
type with size limits (`exchange.codec`); nothing is ever unpickled. A record is a claim by its author: the receiver
re-verifies what it can.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
MAX_TEXT_BYTES = 1 << 20
MAX_TOKENS = 1 << 17


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Header shared by all records. `version` counts the author's optimiser updates."""

    author: Name
    version: Count
    step: Count
    prompt_id: Name


class Rollout(Record, frozen=True, kw_only=True, tag="rollout"):
    """One sampled answer with the author's own token-level log-probabilities.

    `tokens` and `logprobs` (nats, of the sampling distribution) are in the author's vocabulary and have equal length;
    they exclude the final EOS, whose log-probability is `eos_logprob` when `finished`. `pieces` holds the byte length of
    each token's text, so that a receiver can align without the author's tokenizer; their sum is the text's byte length.
    `noncanonical` is the share of `tokens` that the author's tokenizer would not have made of `text`; None if not measured.
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


class TextRollout(Record, frozen=True, kw_only=True, tag="text"):
    """One sampled answer as text with its reward; no tokens, no log-probabilities (SAPO, naive pooling)."""

    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    finished: bool
    reward: Share


class GroupValue(Record, frozen=True, kw_only=True, tag="value"):
    """Only scalar statistics of one group travel (XGRPO): `count` valid answers, `right` of them right."""

    count: Count
    right: Count


class Success(Record, frozen=True, kw_only=True, tag="success"):
    """Text of one answer that its author's verifier found right; no log-probabilities (SGT)."""

    index: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]


AnyRecord = Rollout | TextRollout | GroupValue | Success
