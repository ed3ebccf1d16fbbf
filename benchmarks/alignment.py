"""What carrying answers over to another tokenizer costs, beside TRL's alignment and the tokenizers' bare core.

    TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 python benchmarks/alignment.py [--rounds 30]

Both sides of a comparison run in turn inside each round, in CPU time on one core; reported are medians, and medians of the
rounds' ratios. TRL (extra `bench`) is left out where it is not installed. The last line is one JSON object:
  alignment: chunks of two segmentations of 4,096 tokens each; TRL's as called (tensors to lists, garbage collection on;
      the ratio of total times and that of medians), and on ready lists with garbage collection off.
  encoding: text to ids and byte spans, as a ratio to `encode_batch` alone, on 2,000 texts of all kinds, on maths alone, and
      on maths as one text of about 4,096 tokens each (see tests/tokenization/zoo.py).
  step: publishing (pieces) and carrying over a step's answers, milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from time import process_time

import numpy as np

from harness.experience.records import Rollout
from harness.tokenization.alignment import Segmentations, chunks, spread
from harness.tokenization.carry import carry_over
from harness.tokenization.codec import TokenCodec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tokenization"))
import zoo

LENGTH = 4096


def seconds(call: Callable[[], object]) -> float:
    begin = process_time()
    call()
    return process_time() - begin


def alignment(rounds: int) -> dict[str, float]:
    """128 answers a round, one by one: 4,096 tokens of 4 bytes on the average on both sides, a quarter of the ends shared.

    Both sides start where their callers do, ours from arrays of ends, TRL's from padded tensors of offsets whose slices its
    loss turns into lists; neither side's offsets are made here. TRL's garbage is collected as by default, in its own loop:
    the ratio of the total times holds all of it, that of the medians hardly any.
    """
    rng = np.random.default_rng(0)
    ends = np.full((128, 2, LENGTH), 4 * LENGTH, dtype=np.int32)
    for side in ends.reshape(-1, LENGTH):
        side[:-1] = np.sort(rng.choice(np.arange(1, 4 * LENGTH), LENGTH - 1, replace=False))
    logprobs = -rng.exponential(1.0, LENGTH)
    try:
        import torch
        from trl.experimental.gold.gold_trainer import ULDLoss
    except ImportError:
        ULDLoss = None
    else:
        begins = ends - np.diff(ends, prepend=0)
        offsets = torch.from_numpy(np.stack([begins, ends], axis=-1)).long()
        lists = offsets[0].tolist()
    ours, whole, theirs, uncollected = [], [], [], []
    for _ in range(rounds):
        ours += [seconds(lambda both=both: chunks(Segmentations.of(*both))) for both in ends]
        for both in ends:
            pair = Segmentations.of(*both)
            whole.append(seconds(lambda pair=pair: spread(pair, chunks(pair), logprobs)))
        if ULDLoss is not None:
            for both in offsets:
                theirs.append(
                    seconds(lambda both=both: ULDLoss._align_by_byte_offsets(*[o[:LENGTH].tolist() for o in both]))
                )
            gc.disable()
            uncollected += [seconds(lambda: ULDLoss._align_by_byte_offsets(*lists)) for _ in range(16)]
            gc.enable()
    result = {
        "chunks_us": 1e6 * median(ours),
        "chunks_million_tokens_per_s": 2 * LENGTH / median(ours) / 1e6,
        "chunks_and_spread_us": 1e6 * median(whole),
    }
    if theirs:
        result |= {
            "objects_under_collection": len(gc.get_objects()),
            "trl_mean_us": 1e6 * mean(theirs),
            "trl_median_us": 1e6 * median(theirs),
            "trl_uncollected_median_us": 1e6 * median(uncollected),
            "times_trl": sum(theirs) / sum(ours),
            "times_trl_median": median(theirs) / median(ours),
            "times_trl_uncollected_median": median(uncollected) / median(ours),
        }
    return result


def encoding(rounds: int) -> dict[str, dict[str, float]]:
    """Ratio of ids with spans to bare ids, per kind of tokenizer and set of texts."""
    every = zoo.texts(250)
    sets = {"all": every, "maths": every[:500], "long": [" ".join(every[i : i + 250]) for i in (0, 250)]}
    result: dict[str, dict[str, float]] = {}
    for kind, build in zoo.KINDS.items():
        tokenizer = zoo.fast(build())
        codec, core = TokenCodec(tokenizer), tokenizer.backend_tokenizer
        result[kind] = {}
        for name, texts in sets.items():
            ratios = []
            for _ in range(rounds):
                bare = seconds(lambda texts=texts, core=core: core.encode_batch(texts, add_special_tokens=False))
                ratios.append(seconds(lambda texts=texts, codec=codec: codec.try_encode(texts)) / bare)
            result[kind][name] = round(median(ratios), 3)
    return result


def step(rounds: int) -> dict[str, float]:
    """128 answers of the micro setting's length, and 128 of over 1,000 tokens, between two byte-level tokenizers."""
    source, receiver = (TokenCodec(zoo.fast(zoo.KINDS[kind]())) for kind in ("byte_level", "byte_level_digits"))
    maths = zoo.texts(250)[:500]
    result = {}
    for name, texts in {
        "short": [text[:60] for text in maths[:128]],
        "long": [" ".join(maths[i : i + 40]) for i in range(128)],
    }.items():
        answers = [e.ids for e in source.encode(texts)]
        records = [
            Rollout(
                author="peer", version=0, step=0, prompt_id="p", index=i, text=text, tokens=ids.tolist(),
                logprobs=[-0.5] * ids.size, pieces=source.pieces(ids).tolist(), finished=True, reward=1.0,
            )
            for i, (text, ids) in enumerate(zip(texts, answers, strict=True))
        ]  # fmt: skip
        bare = receiver._own
        publish = [seconds(lambda answers=answers: source.read(answers)) for _ in range(rounds)]
        singly = [seconds(lambda answers=answers: [source.pieces(ids) for ids in answers]) for _ in range(rounds)]
        carry = [seconds(lambda records=records: carry_over(records, receiver)) for _ in range(rounds)]
        encode = [seconds(lambda texts=texts, bare=bare: bare.encode_batch(texts)) for _ in range(rounds)]
        result |= {
            f"{name}_tokens_per_answer": sum(ids.size for ids in answers) / len(answers),
            f"{name}_publish_ms": 1e3 * median(publish),
            f"{name}_publish_singly_ms": 1e3 * median(singly),
            f"{name}_carry_ms": 1e3 * median(carry),
            f"{name}_bare_encode_ms": 1e3 * median(encode),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(json.dumps({"alignment": alignment(rounds), "encoding": encoding(rounds), "step": step(rounds)}))


if __name__ == "__main__":
    main()
