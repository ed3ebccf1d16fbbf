"""What a record costs, encoded, decoded and validated, beside pydantic and pickle: a policy's 128 rollouts of a micro step. Run by
`bench.py`."""

from __future__ import annotations

import pickle

import numpy as np
from bench import Row, Size, costs, faster, turns
from pydantic import BaseModel, ConfigDict

from harness.exchange.wire import decode, encode
from harness.experience.records import Record, Rollout

PROMPTS = tuple(f"micro-{i:05d}" for i in range(16))
ANSWERS, TOKENS = 8, 25


class PydanticRollout(BaseModel):
    """The same fields with the same strictness."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    author: str
    version: int
    step: int
    prompt_id: str
    index: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    pieces: list[int]
    finished: bool
    eos_logprob: float
    reward: float


def rollouts(author: str, step: int, rng: np.random.Generator) -> list[Record]:
    """One policy's records of one step."""
    return [
        Rollout(
            author=author,
            version=step,
            step=step,
            prompt_id=prompt,
            index=index,
            text="7" * (2 * TOKENS),
            tokens=rng.integers(0, 400, TOKENS).tolist(),
            logprobs=(-rng.exponential(0.5, TOKENS)).astype(np.float32).tolist(),
            pieces=[2] * TOKENS,
            finished=True,
            eos_logprob=-0.1,
            reward=float(rng.integers(2)),
        )
        for prompt in PROMPTS
        for index in range(ANSWERS)
    ]


def bench(size: Size) -> list[Row]:
    rng = np.random.default_rng(0)
    some = rollouts("policy", 0, rng)
    same = [PydanticRollout(**{f: getattr(r, f) for f in PydanticRollout.model_fields}) for r in some]
    times = 1 if size.smoke else 20
    codecs = {
        "ours": lambda: [decode(encode(record)) for _ in range(times) for record in some],
        "pydantic": lambda: [PydanticRollout.model_validate_json(r.model_dump_json()) for _ in range(times) for r in same],
        "pickle": lambda: [pickle.loads(pickle.dumps(record)) for _ in range(times) for record in some],
    }  # fmt: skip

    def equal(found: dict[str, list[object]]) -> None:
        assert found["ours"] == found["pickle"] == some * times
        assert found["pydantic"] == same * times

    spent = turns(codecs, size.rounds, equal)
    name = "record: encode, decode, validate"
    return [
        faster(f"{name}, pydantic", "pydantic", spent["ours"], spent["pydantic"], 5.0),
        costs(f"{name}, pickle", "pickle, unvalidated", spent["ours"], spent["pickle"], 1.5),
    ]
