"""Derived seeds: the same for every regime, so that comparisons are paired (common random numbers)."""

from __future__ import annotations

import hashlib

import numpy as np
from jaxtyping import UInt64


def derive_seed(*parts: int | str) -> int:
    """Derive a seed of 64 bits, e.g. from (seed, group, policy, step, prompt)."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def derive_many(count: int, *parts: int | str) -> UInt64[np.ndarray, "count"]:
    """Return one per sample: a prefix for smaller counts, so that budgets share their first samples."""
    return np.array([derive_seed(*parts, i) for i in range(count)], dtype=np.uint64)


def generator_of(*parts: int | str) -> np.random.Generator:
    """Make a generator of random numbers, seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))
