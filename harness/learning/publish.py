"""From own groups to typed records: what a regime's `shares` means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.experience.answers import Answer, Group
from harness.experience.records import GroupValue, Record, Rollout, Success, TextRollout

Pieces = Callable[[Answer], list[int]]
"""Byte length of each of an answer's tokens, final EOS left out; they sum to the text's length in bytes."""


def records_of(groups: Sequence[Group], shares: frozenset[type[Record]], pieces: Pieces) -> list[Record]:
    """All records of the types in `shares`. Answers with an invalid verdict, and those that are only EOS, are not exchanged."""
    return [
        record
        for group in groups
        for kind in sorted(shares, key=lambda k: k.__name__)
        for record in _BUILD[kind](group, pieces)
    ]


def _header(group: Group) -> dict[str, Any]:
    return {"author": group.policy, "version": group.version, "step": group.step, "prompt_id": group.prompt.id}


def _sent(group: Group) -> Iterator[tuple[int, Answer]]:
    return ((i, a) for i, a in enumerate(group.answers) if a.verdict.valid and a.text)


def _rollouts(group: Group, pieces: Pieces) -> list[Record]:
    found: list[Record] = []
    for i, a in _sent(group):
        end = a.tokens.size - a.finished
        found.append(
            Rollout(
                **_header(group),
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


def _texts(group: Group, pieces: Pieces) -> list[Record]:
    return [
        TextRollout(**_header(group), index=i, text=a.text, finished=a.finished, reward=a.reward)
        for i, a in _sent(group)
    ]


def _successes(group: Group, pieces: Pieces) -> list[Record]:
    return [Success(**_header(group), index=i, text=a.text) for i, a in _sent(group) if a.verdict.value == "right"]


def _value(group: Group, pieces: Pieces) -> list[Record]:
    valid = group.valid
    return [GroupValue(**_header(group), count=len(valid), right=sum(a.reward > 0 for a in valid))] if valid else []


_BUILD: dict[type[Record], Callable[[Group, Pieces], list[Record]]] = {
    Rollout: _rollouts,
    TextRollout: _texts,
    Success: _successes,
    GroupValue: _value,
}
