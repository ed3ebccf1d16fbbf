"""A whole GRPO step of the micro setting, 16 prompts x 8 answers sampled and all of them learnt once, against TRL's GRPOTrainer in
fp32 without checkpointing. Run by `bench.py`. Both sides start from the same weights and sample for themselves: the ratio is per
token.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from bench import Row, Size, faster, seconds
from generation import MAX_NEW_TOKENS, PAIR, random_policy

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.stage0 import base_checkpoint


def bench(size: Size) -> list[Row]:
    if find_spec("trl") is None:
        return []
    import pretrained

    torch.set_num_threads(1)
    pretrained.PROMPTS = 2 if size.smoke else 16
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "policy"
        if size.smoke:
            folder = random_policy(Path(temporary), "llama")
        else:
            shutil.copytree(base_checkpoint(PAIR[0]), folder)
        engine = EmbeddedEngine("own", folder, device="cpu")
        tokens: list[int] = []
        ours: list[float] = []

        def own(seed: int) -> None:
            work = partial(pretrained.own_step, engine, MAX_NEW_TOKENS, seed)
            ours.append(seconds(lambda: tokens.append(work())) / tokens[-1])

        turns = pretrained.run_trl("trl fp32", folder, MAX_NEW_TOKENS, size.rounds + 1, own)
    theirs = [cpu / count for cpu, _, count in turns.spent]
    spent = sum(count for _, _, count in turns.spent)
    assert 0.8 < sum(tokens) / spent < 1.25, "the two sides' answers are not equally long"
    return [faster("GRPO step, equal rows, per token", "TRL GRPOTrainer", ours[1:], theirs[1:], 3.0)]
