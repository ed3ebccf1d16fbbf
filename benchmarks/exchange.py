"""What the exchange costs a training step: publish and collect, against bare msgpack of the same records.

    python benchmarks/exchange.py [--steps 40]

A step of the micro setting: every policy sends 128 rollouts of 25 tokens to every other. Both sides run in turn inside
each step, so that they meet the same machine. The last line is one JSON object: per number of policies, the median CPU
milliseconds of a step, microseconds per record received, and the ratio to encoding and decoding alone.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import process_time

import msgspec
import numpy as np

from harness.exchange.exchange import Exchange, edges_of
from harness.experience.records import GroupValue, Record, Rollout, Success, TextRollout

PROMPTS = tuple(f"micro-{i:05d}" for i in range(16))
ANSWERS, TOKENS = 8, 25


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


def measure(policies: int, steps: int) -> dict[str, float]:
    """Medians over steps, in CPU time."""
    names = tuple(f"policy-{i}" for i in range(policies))
    exchange = Exchange(names, edges_of(names, "all"))
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Rollout | TextRollout | GroupValue | Success)
    rng = np.random.default_rng(0)
    ours, bare = [], []
    for step in range(steps):
        records = {name: rollouts(name, step, rng) for name in names}
        begin = process_time()
        for name in names:
            exchange.publish(name, step, records[name])
        received = [exchange.collect(name, step, PROMPTS) for name in names]
        ours.append(process_time() - begin)
        assert all(len(got.records) == (policies - 1) * len(PROMPTS) * ANSWERS for got in received)
        exchange.ledger.take()
        begin = process_time()
        for name in names:
            messages = [encoder.encode(record) for record in records[name]]
            for _ in range(policies - 1):
                for message in messages:
                    decoder.decode(message)
        bare.append(process_time() - begin)
    total = policies * (policies - 1) * len(PROMPTS) * ANSWERS
    return {
        "step_ms": 1e3 * median(ours),
        "record_us": 1e6 * median(ours) / total,
        "ratio_to_bare_msgpack": median(a / b for a, b in zip(ours, bare, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    print(json.dumps({str(n): measure(n, steps) for n in (2, 3, 4, 8)}))


if __name__ == "__main__":
    main()
