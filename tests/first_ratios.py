"""Every shipped regime on an engine whose sampler reports log-probabilities that are off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.engines.protocol import Optimisation, Sampling
from harness.experience.answers import Answer, Group, Inbox, PeerAnswer
from harness.experience.records import GroupValue
from harness.learning.regime import Context
from harness.learning.registry import build, installed
from harness.learning.terms import with_step_weights
from harness.verification.verdict import Verdict

VARIANTS = [
    *((n, {}) for n, e in installed().items() if e.value.startswith("regimes.")),
    ("independent", {"objective": "gspo"}),
    ("independent", {"objective": "dr_grpo"}),
]
OFF = 0.3
"""Standard deviation of what the sampler is off by, nats per token: beyond every regime's own window."""


class OffSampler:
    """An engine, but for the log-probabilities of its samples."""

    def __init__(self, engine):
        self.engine = engine

    def sample(self, prompts, seeds, sampling):
        rng = np.random.default_rng(1)

        def off(s):
            return replace(s, logprobs=(s.logprobs + rng.normal(0, OFF, s.tokens.size)).astype(np.float32))

        return [[off(s) for s in group] for group in self.engine.sample(prompts, seeds, sampling)]


def check_every_regime(engine, prompts, longest=24):
    """Ratio 1 within 1e-6 under the regime's own default, clipped under the sampler's; returns the drift."""
    seeds = np.arange(8 * len(prompts), dtype=np.uint64).reshape(len(prompts), 8)
    sampled = OffSampler(engine).sample(prompts, seeds, Sampling(1.0, longest))
    own, inbox = _experience(engine, prompts, sampled)
    for name, options in VARIANTS:
        regime = build(name, options)
        assert regime.old_logprobs == "trainer", name
        terms = with_step_weights(
            regime.learn(own, inbox, Context("a", ("a", "b"), 1, np.random.default_rng(0), longest)), 2, 3
        )
        still = Optimisation(learning_rate=0.0, max_tokens=longest, old_logprobs=regime.old_logprobs)
        report = engine.update(prompts, terms, still)
        first = report.terms[0]
        assert first.source == "own", name
        assert abs(first.ratio_mean - 1) <= 1e-6, name
        assert abs(first.ratio_second - 1) <= 1e-6, name
        learnt = [a for a in terms[0].answers if a.advantage]
        assert (first.active, first.active_tokens) == (len(learnt), sum(a.counted for a in learnt)), name
        clipped = engine.update(prompts, terms, replace(still, old_logprobs="sampler"))
        assert clipped.terms[0].active_tokens < first.active_tokens, name
        assert abs(clipped.terms[0].ratio_second - 1) > 1e-3, name
        by_id = {p.id: p for p in prompts}
        scores = engine.score([by_id[a.prompt_id] for a in learnt], [a.tokens for a in learnt])
        off = np.abs(np.concatenate([s - a.sampled for s, a in zip(scores, learnt, strict=True)]))
        for drift in (report.drift, clipped.drift):
            assert abs(drift.mean - off.mean()) < 1e-4, name
            assert abs(drift.p99 - np.quantile(off, 0.99)) < 1e-4, name
            assert drift.outside > 0.1, name
        for asked, term in zip(terms[1:], report.terms[1:], strict=True):
            if not asked.weight:  # of a phase that is over
                assert not term.active, f"{name}: {term.name} is over"
            else:
                assert term.active or term.source == "own", f"{name}: no peer answer was learnt"
    return report.drift


def _experience(engine, prompts, sampled):
    """Own groups of 0, 2 or 3 right of 4, and as many answers that pass for a peer's."""
    own, peers = [], {}
    for i, (p, group) in enumerate(zip(prompts, sampled, strict=True)):
        mine = [
            Answer(s.tokens, s.logprobs, s.text, s.finished, _verdict(n, (0, 2, 3)[i % 3]))
            for n, s in enumerate(group[:4])
        ]
        own.append(Group(p, "a", 0, 1, tuple(mine)))
        old = engine.score([p] * 4, [s.tokens for s in group[4:]])
        peers[p.id] = tuple(
            PeerAnswer(
                "b", 0, 1, p.id, n, s.tokens, s.text, s.finished, _verdict(n, (3, 0, 2)[i % 3]), aligned=o,
                source_logprob=float(o.sum()), source_tokens=o.size, receiver_old=o,
            )
            for n, (s, o) in enumerate(zip(group[4:], old, strict=True))
        )  # fmt: skip
    right = {key: tuple(a for a in answers if a.reward) for key, answers in peers.items()}
    header = {"author": "b", "version": 0, "step": 1}
    values = {
        key: (GroupValue(prompt_id=key, count=len(answers), right=len(right[key]), **header),)
        for key, answers in peers.items()
    }
    return own, Inbox(peers, right, values)


def _verdict(index, right):
    return Verdict("right", extracted="7") if index < right else Verdict("wrong", extracted=str(index))
