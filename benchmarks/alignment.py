"""What carrying answers over to another tokenizer costs, beside TRL's alignment and the tokenizers' bare core. Run by
`bench.py`.

alignment: chunks of two segmentations of 4,096 tokens each; TRL as its loss calls it, and on ready lists uncollected.
encoding: text to ids and byte spans, as a ratio to `encode_batch` alone, on three sets of texts; the worst tokenizer counts.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
from bench import Row, Size, costs, faster, turns

from harness.tokenization.alignment import cut_into_chunks
from harness.tokenization.codec import TokenCodec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tokenization"))
import zoo

LENGTH = 4096


def alignment(size: Size) -> list[Row]:
    """Answers of 4 bytes a token on both sides, a quarter of the ends shared."""
    try:
        import torch
        from trl.experimental.gold.gold_trainer import ULDLoss
    except ImportError:
        return []
    rng = np.random.default_rng(0)
    ends = np.full((2 if size.smoke else 128, 2, LENGTH), 4 * LENGTH, dtype=np.int32)
    for side in ends.reshape(-1, LENGTH):
        side[:-1] = np.sort(rng.choice(np.arange(1, 4 * LENGTH), LENGTH - 1, replace=False))
    offsets = torch.from_numpy(np.stack([ends - np.diff(ends, prepend=0), ends], axis=-1)).long()
    ready = [[side.tolist() for side in both] for both in offsets]

    def uncollected() -> Any:
        gc.disable()
        try:
            return [ULDLoss._align_by_byte_offsets(*both) for both in ready]
        finally:
            gc.enable()

    def equal(results: dict[str, Any]) -> None:
        for own, (left, right) in zip(results["ours"], results["TRL"], strict=True):
            assert np.diff(own.source).tolist() == [len(group) for group in left]
            assert own.receiver_sizes.tolist() == [len(group) for group in right]
        assert results["TRL"] == results["TRL, gc off"]

    sides = {
        "ours": lambda: [cut_into_chunks(*both) for both in ends],
        "TRL": lambda: [ULDLoss._align_by_byte_offsets(*[side[:LENGTH].tolist() for side in both]) for both in offsets],
        "TRL, gc off": uncollected,
    }
    spent = turns(sides, size.rounds, equal)
    return [
        faster("alignment at 4,096", "TRL as called", spent["ours"], spent["TRL"], 50.0),
        faster("alignment at 4,096, lists ready", "TRL, gc off", spent["ours"], spent["TRL, gc off"], 10.0),
    ]


def encoding(size: Size) -> list[Row]:
    every = zoo.texts(10 if size.smoke else 250)
    maths = every[: len(every) // 4]
    half = len(maths) // 2
    sets = {"all scripts": every, "maths": maths, "maths, 4,096": [" ".join(maths[:half]), " ".join(maths[half:])]}
    tokenizers = [zoo.fast(build()) for build in zoo.KINDS.values()]
    return [
        max((encoded(name, texts, one, size.rounds) for one in tokenizers), key=lambda row: row.value)
        for name, texts in sets.items()
    ]


def encoded(name: str, texts: list[str], tokenizer: Any, rounds: int) -> Row:
    codec, core = TokenCodec(tokenizer), tokenizer.backend_tokenizer

    def equal(results: dict[str, Any]) -> None:
        for own, bare in zip(results["ours"], results["core"], strict=True):
            assert getattr(own, "ids", None) is None or own.ids.tolist() == bare.ids

    sides = {
        "ours": lambda: codec.try_encode(texts),
        "core": lambda: core.encode_batch(texts, add_special_tokens=False),
    }
    spent = turns(sides, rounds, equal)
    return costs(f"text -> ids and spans, {name}", "bare encode_batch", spent["ours"], spent["core"], 1.2)


def bench(size: Size) -> list[Row]:
    return alignment(size) + encoding(size)
