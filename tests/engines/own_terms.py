"""One own term over fresh answers of an engine, and the gradient that it gives."""

from __future__ import annotations

import numpy as np

from harness.engines.protocol import Optimisation, Sampling
from harness.learning.terms import Objective, Term, TermAnswer


def terms_of(engine, prompts, samples=None):
    """Answers of random advantages: four to each prompt where none are given."""
    seeds = np.arange(4 * len(prompts), dtype=np.uint64).reshape(-1, 4)
    samples = samples or engine.sample(prompts, seeds, Sampling(1.0, 24))
    rng = np.random.default_rng(0)
    answers = tuple(
        TermAnswer(p.id, s.tokens, float(rng.normal()), s.logprobs)
        for p, group in zip(prompts, samples, strict=True)
        for s in group
    )
    return [Term("own", "own", Objective(), answers)]


def gradients(engine, prompts, terms):
    engine.update(prompts, terms, Optimisation(learning_rate=0.0, clip_norm=1e9, max_tokens=24))
    return {n: p.grad.clone() for n, p in engine._masters_of_model().named.items() if p.grad is not None}
