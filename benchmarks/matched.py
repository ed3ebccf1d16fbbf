"""How far apart the policies of a suite's groups start: the cross-policy statistics that the papers report of real models.

    python benchmarks/matched.py [SUITE] [--prompts 600] [--rollouts 8]

For every ordered pair (learner, peer) of a group, on training prompts and at temperature 1, before any RL:
accuracy of the learner; `unsolved`, the share of prompts on which all its answers are wrong; `rescued`, of these, the share that
the peer solves at least once (GRAFT's figure); `ratio`, the own-length ratio of the peer's answers under the learner (HACPO's
figure), exp(mean lp per learner token - mean lp per peer token), EOS left out, once as the mean and once as the geometric mean.
Base checkpoints come from the cache or are trained. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from itertools import permutations

for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")):
    os.environ[name] = value

import numpy as np  # noqa: E402  # after the threads are set

from harness.engines.embedded.engine import EmbeddedEngine  # noqa: E402  # after the threads are set
from harness.engines.protocol import PolicyEngine, Sample, Sampling  # noqa: E402  # after the threads are set
from harness.experience.answers import Prompt  # noqa: E402  # after the threads are set
from harness.session.policy.models import base_folder  # noqa: E402  # after the threads are set
from harness.suite.load import load  # noqa: E402  # after the threads are set
from harness.suite.schema import Policy  # noqa: E402  # after the threads are set
from harness.tasks.micro import training_prompts  # noqa: E402  # after the threads are set
from harness.verification.verifier import Verifier  # noqa: E402  # after the threads are set


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A policy at its start: its engine, its answers to all prompts, and which are right (P, G)."""

    name: str
    engine: PolicyEngine
    answers: list[list[Sample]]
    right: np.ndarray


@dataclass(frozen=True, slots=True)
class Row:
    """What one learner meets in one peer; shares, and ratios with 1 for identical policies."""

    group: str
    learner: str
    peer: str
    accuracy: float
    unsolved: float
    rescued: float
    ratio: float
    geometric: float


def start(policy: Policy, index: int, prompts: list[Prompt], rollouts: int, verifier: Verifier) -> Member:
    engine = EmbeddedEngine(policy.name, base_folder(policy, 0), device="cpu", chat=policy.chat)
    seeds = np.arange(len(prompts) * rollouts, dtype=np.uint64).reshape(len(prompts), rollouts)
    answers = engine.sample(prompts, seeds + np.uint64(10_000_000 * (index + 1)), Sampling())
    asked = [
        (prompt.gold, sample.text if sample.finished else None)
        for prompt, row in zip(prompts, answers, strict=True)
        for sample in row
    ]
    right = np.array([verdict.value == "right" for verdict in verifier.verify(asked)])
    return Member(policy.name, engine, answers, right.reshape(seeds.shape))


def log_ratios(learner: Member, peer: Member, prompts: list[Prompt]) -> np.ndarray:
    """Per answer of the peer: mean log-probability of a learner token less that of a peer token."""
    asked, ids, source = [], [], []
    for prompt, row in zip(prompts, peer.answers, strict=True):
        for sample in row:
            own = sample.logprobs[:-1] if sample.finished else sample.logprobs
            tokens = learner.engine.tokenizer.encode(sample.text, add_special_tokens=False)
            if own.size and tokens:
                asked.append(prompt)
                ids.append(np.array(tokens, dtype=np.int32))
                source.append(float(own.mean()))
    scored = learner.engine.score(asked, ids)
    return np.array([float(one.mean()) - own for one, own in zip(scored, source, strict=True)])


def compare(group: str, learner: Member, peer: Member, prompts: list[Prompt]) -> Row:
    unsolved = ~learner.right.any(axis=1)
    logs = log_ratios(learner, peer, prompts)
    return Row(
        group,
        learner.name,
        peer.name,
        accuracy=float(learner.right.mean()),
        unsolved=float(unsolved.mean()),
        rescued=float(peer.right[unsolved].any(axis=1).mean()) if unsolved.any() else float("nan"),
        ratio=float(np.exp(logs).mean()),
        geometric=float(np.exp(logs.mean())),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cross-policy statistics of a suite's groups before RL.")
    parser.add_argument("suite", nargs="?", default="matched")
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--rollouts", type=int, default=8)
    options = parser.parse_args()
    prompts = training_prompts(1000, options.prompts)
    rows: list[Row] = []
    with Verifier(workers=1) as verifier:
        for group in load(options.suite).groups:
            members = [start(p, i, prompts, options.rollouts, verifier) for i, p in enumerate(group.policies)]
            rows += [compare(group.name, learner, peer, prompts) for learner, peer in permutations(members, 2)]
            for member in members:
                member.engine.close()
    print(f"{'group':<12} {'learner':<8} {'peer':<8} accuracy unsolved rescued  ratio geometric")
    for r in rows:
        shares = f"{r.accuracy:8.3f} {r.unsolved:8.3f} {r.rescued:7.3f} {r.ratio:6.3f} {r.geometric:9.3f}"
        print(f"{r.group:<12} {r.learner:<8} {r.peer:<8} {shares}")
    print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
