"""What each regime sends: all valid answers but those that are only EOS, in the record types it shares."""

from __future__ import annotations

import numpy as np
import pytest

from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import GroupValue, Rollout, Success, TextRollout
from harness.learning.registry import build, installed
from harness.verification.verdict import Verdict

EOS = 7


def answer(text: str, value: str, finished: bool = True) -> Answer:
    tokens = np.array([*map(ord, text), *([EOS] if finished else [])], dtype=np.int32)
    return Answer(tokens, -np.arange(1, tokens.size + 1, dtype=np.float32), text, finished, Verdict(value))


GROUP = Group(
    Prompt("x", "question", "1"),
    "me",
    5,
    9,
    (answer("ab", "right"), answer("", "wrong"), answer("c", "invalid"), answer("de", "wrong", finished=False)),
)


def pieces(a: Answer) -> list[int]:
    return [1] * (a.tokens.size - a.finished)


def published(name: str, group: Group = GROUP):
    return build(name, {}).publish([group], pieces)


@pytest.mark.parametrize("name", ["prp", "hacpo", "graft", "ftis"])
def test_rollouts(name):
    first, second = published(name)
    assert first == Rollout(
        author="me", version=5, step=9, prompt_id="x", index=0, text="ab", tokens=[97, 98], logprobs=[-1.0, -2.0],
        pieces=[1, 1], finished=True, eos_logprob=-3.0, reward=1.0,
    )  # fmt: skip
    assert second == Rollout(
        author="me", version=5, step=9, prompt_id="x", index=3, text="de", tokens=[100, 101], logprobs=[-1.0, -2.0],
        pieces=[1, 1], finished=False, eos_logprob=0.0, reward=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["naive", "sapo", "core"])
def test_text_only(name):
    header = {"author": "me", "version": 5, "step": 9, "prompt_id": "x"}
    assert published(name) == [
        TextRollout(**header, index=0, text="ab", finished=True, reward=1.0),
        TextRollout(**header, index=3, text="de", finished=False, reward=0.0),
    ]


def test_successes_and_values():
    header = {"author": "me", "version": 5, "step": 9, "prompt_id": "x"}
    assert published("sgt") == [Success(**header, index=0, text="ab")]
    # An answer that is only EOS is not exchanged, but it is a valid wrong answer of the group's statistics.
    assert published("xgrpo") == [GroupValue(**header, count=3, right=1)]


def test_a_group_without_valid_answers_sends_nothing():
    empty = Group(GROUP.prompt, "me", 5, 9, (answer("a", "invalid"),))
    assert not [r for name in installed() for r in build(name, {}).publish([empty], pieces)]
    assert published("independent") == []
