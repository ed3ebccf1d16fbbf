"""Records to send: small, valid, and different from each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.experience.records import GroupValue, Rollout, Success

PROMPTS = ("p2", "p0", "p1")
"""In an order that is not alphabetical."""


def rollout(author: str = "a", step: int = 0, prompt: str = "p0", index: int = 0, **changes: Any) -> Rollout:
    text = f"{author} says {index} ≈ {step}"
    pieces = [1] * len(text.encode())
    fields: dict[str, Any] = {
        "author": author,
        "version": step,
        "step": step,
        "prompt_id": prompt,
        "index": index,
        "text": text,
        "tokens": list(range(len(pieces))),
        "logprobs": [-0.25 - 0.01 * i for i in range(len(pieces))],
        "pieces": pieces,
        "finished": True,
        "eos_logprob": -0.5,
        "reward": float(index % 2),
    }
    return Rollout(**{**fields, **changes})


def value(author: str = "a", step: int = 0, prompt: str = "p0", count: int = 4, right: int = 1) -> GroupValue:
    return GroupValue(author=author, version=step, step=step, prompt_id=prompt, count=count, right=right)


def success(author: str = "a", step: int = 0, prompt: str = "p0", index: int = 0, text: str = "42") -> Success:
    return Success(author=author, version=step, step=step, prompt_id=prompt, index=index, text=text)


def step_records(author: str, step: int, answers: int = 4) -> list[Rollout]:
    return [rollout(author, step, prompt, index) for prompt in PROMPTS for index in range(answers)]


def shuffled(items: list[Any], seed: int) -> list[Any]:
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))]
