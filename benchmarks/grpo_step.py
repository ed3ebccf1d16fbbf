"""Whole GRPO steps of the micro setting, 16 prompts x 8 answers sampled and learnt once, in lock step with TRL's GRPOTrainer in
fp32 without checkpointing. Run by `bench.py`.

All sides start from the same weights, are asked the same prompts in the same order, with the same rewards, rate and optimiser, and
sample for themselves: ratios are per sampled token. `equal rows` trains every answer, as TRL does; `as run` leaves out those of
groups that are all right or all wrong, whose gradient is zero, as the harness does. The rewards of the last quarter are compared.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from bench import NotHere, Row, Size, faster, seconds
from generation import MAX_NEW_TOKENS, PAIR, random_policy

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.warmup import base_checkpoint
from harness.engines.protocol import Optimisation, Sampling
from harness.experience.answers import Prompt
from harness.learning.advantages import GRPO, standardise
from harness.learning.terms import OLD, Term, TermAnswer
from harness.tasks.micro import training_prompts

STEPS, PROMPTS, GROUP, RATE = 42, 16, 8, 1e-4
ADVANTAGE_OF_NONE = 1e-9
"""Of `equal rows` where it would be zero: too little to matter, enough to be trained."""
APART = 0.15
"""How far apart mean rewards may be: each side's is of some 1,400 answers of its own to 176 prompts."""


def judge(texts: list[str], golds: list[str]) -> list[float]:
    return [float(text.rstrip().endswith(f"\\boxed{{{gold}}}")) for text, gold in zip(texts, golds, strict=True)]


class Side:
    """A policy of ours that learns step by step, and what its steps took, sampled and were rewarded."""

    def __init__(self, folder: Path, every_row: bool) -> None:
        self._engine, self._every_row = EmbeddedEngine("own", folder, device="cpu"), every_row
        self.spent, self.tokens, self.rewards = list[float](), list[int](), list[float]()

    def step(self, prompts: list[Prompt], number: int) -> None:
        """Prepared here, timed where the other side is: from sampling to the update's end."""
        seeds = np.random.default_rng(number).integers(0, 2**64, (len(prompts), GROUP), dtype=np.uint64)
        self.spent.append(seconds(lambda: self._step(prompts, seeds)))

    def _step(self, prompts: list[Prompt], seeds: np.ndarray) -> None:
        groups = self._engine.sample(prompts, seeds, Sampling(1.0, MAX_NEW_TOKENS))
        answers, every = list[TermAnswer](), list[float]()
        for prompt, group in zip(prompts, groups, strict=True):
            rewards = np.array(judge([sample.text for sample in group], [prompt.gold] * GROUP))
            every += rewards.tolist()
            for sample, advantage in zip(group, standardise(rewards, rewards), strict=True):
                given = float(advantage) or (ADVANTAGE_OF_NONE if self._every_row else 0.0)
                answers.append(TermAnswer(prompt.id, sample.tokens, given, OLD, sampled=sample.logprobs))
        settings = Optimisation(learning_rate=RATE, max_tokens=MAX_NEW_TOKENS)
        self._engine.update(prompts, [Term("own", "own", GRPO, tuple(answers))], settings)
        self.tokens.append(sum(len(answer.tokens) for answer in answers))
        self.rewards.append(mean(every))


def bench(size: Size) -> list[Row]:
    if find_spec("trl") is None:
        raise NotHere("TRL: make bench installs it")
    import pretrained

    torch.set_num_threads(1)
    steps, pretrained.PROMPTS = (2, 2) if size.smoke else (STEPS, PROMPTS)
    asked = [training_prompts(step, pretrained.PROMPTS) for step in range(steps)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "policy"
        if size.smoke:
            folder = random_policy(Path(temporary), "llama")
        else:
            shutil.copytree(base_checkpoint(PAIR[0]), folder)
        sides = {"equal rows": Side(folder, True), "as run": Side(folder, False)}
        theirs = list[float]()

        def rewarded(texts: list[str], golds: list[str]) -> list[float]:
            rewards = judge(texts, golds)
            theirs.append(mean(rewards))
            return rewards

        def others(number: int) -> None:
            for side in list(sides.values())[:: 1 - 2 * (number % 2)]:
                side.step(asked[number], number)

        turns = pretrained.run_trl(
            "trl fp32", folder, MAX_NEW_TOKENS, steps, others, [prompt for step in asked for prompt in step], rewarded,
            learning_rate=RATE, lr_scheduler_type="constant", adam_beta2=0.99, epsilon_high=0.28, shuffle_dataset=False,
        )  # fmt: skip
    spent = sum(count for _, _, count in turns.spent)
    curves = {"TRL": theirs} | {name: side.rewards for name, side in sides.items()}
    last = {name: mean(curve[-(steps // 4 or 1) :]) for name, curve in curves.items()}
    print("mean reward of the last quarter:", {name: round(value, 3) for name, value in last.items()}, file=sys.stderr)
    for name, side in sides.items():
        assert 0.8 < sum(side.tokens) / spent < 1.25, f"{name}: the answers are not as long as TRL's"
        assert size.smoke or abs(last[name] - last["TRL"]) < APART, f"{name}: another reward curve than TRL's: {curves}"
    rival = [cpu / count for cpu, _, count in turns.spent[1:]]
    return [
        faster(f"GRPO step, {name}, per token", "TRL GRPOTrainer",
               [cpu / count for cpu, count in zip(side.spent[1:], side.tokens[1:], strict=True)], rival, bar)
        for (name, side), bar in zip(sides.items(), (3.0, 4.0), strict=True)
    ]  # fmt: skip
