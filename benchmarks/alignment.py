"""What carrying answers over to another tokenizer costs, beside TRL's alignment and the tokenizers' bare core.

    TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 python benchmarks/alignment.py [--rounds 30]

Both sides of a comparison run in turn inside each round, in CPU time on one core; reported are medians, and medians of the
rounds' ratios. TRL (extra `bench`) is left out where it is not installed. The last line is one JSON object:
  alignment: chunks of two segmentations of 4,096 tokens each; TRL's as called (tensors to lists, garbage
      collection on), and on ready lists with garbage collection off.
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
from statistics import median
from time import process_time

import numpy as np

from harness.exchange.records import Rollout
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
    """Chunks at 4,096 tokens of 4 bytes on the average, a quarter of the ends shared; and log-probabilities spread on them.

    TRL as called: offsets from tensors, as its loss does, with garbage collection on. Collections come in bursts, so the
    ratio is that of the total times, and the median is given beside it.
    """
    rng = np.random.default_rng(0)
    ends = [np.sort(rng.choice(np.arange(1, 4 * LENGTH), LENGTH - 1, replace=False)) for _ in range(2)]
    source, receiver = (np.append(e, 4 * LENGTH).astype(np.int32) for e in ends)
    pair, logprobs = Segmentations.of(source, receiver), -rng.exponential(1.0, LENGTH)
    spans = [np.stack([np.append(0, e[:-1]), e], axis=1) for e in (source, receiver)]
    lists = [s.tolist() for s in spans]
    try:
        from trl.experimental.gold.gold_trainer import ULDLoss
    except ImportError:
        ULDLoss = None
    ours, whole, theirs, uncollected = [], [], [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: [chunks(pair) for _ in range(10)]) / 10)
        whole.append(seconds(lambda: [spread(pair, chunks(pair), logprobs) for _ in range(10)]) / 10)
        if ULDLoss is not None:
            theirs.append(seconds(lambda: ULDLoss._align_by_byte_offsets(*[s.tolist() for s in spans])))
            gc.disable()
            uncollected.append(seconds(lambda: ULDLoss._align_by_byte_offsets(*lists)))
            gc.enable()
    result = {
        "chunks_us": 1e6 * median(ours),
        "chunks_million_tokens_per_s": 2 * LENGTH / median(ours) / 1e6,
        "chunks_and_spread_us": 1e6 * median(whole),
    }
    if theirs:
        result |= {
            "trl_mean_us": 1e6 * sum(theirs) / rounds,
            "trl_median_us": 1e6 * median(theirs),
            "trl_uncollected_median_us": 1e6 * median(uncollected),
            "times_trl": sum(theirs) / sum(ours),
            "times_trl_median": median(t / o for t, o in zip(theirs, ours, strict=True)),
            "times_trl_uncollected_median": median(t / o for t, o in zip(uncollected, ours, strict=True)),
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
