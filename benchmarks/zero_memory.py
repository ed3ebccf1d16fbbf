"""Bytes that DeepSpeed really allocates for weights, sums of gradients and Adam states under ZeRO, over the planner's formulas.

    for stage in 2 3; do torchrun --nproc_per_node 2 benchmarks/zero_memory.py $stage; done

Needs the environment of `make install-openrlhf`. SmolLM2-135M with random weights, bf16, on the CPU through gloo, two
micro-batches. What is alive is counted by type: bf16 after the passes (weights), fp32 then (masters and sums) and after the step
(masters and moments, with ZeRO 3 the sums). `step`: the most that the step takes beside what was there. The last line, by rank
0, is one JSON document.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from itertools import accumulate

import deepspeed
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation.shapes import shape_from_config
from harness.allocation.size import REDUCE_BUCKET, bucket_bytes, trainer_states, working_bytes
from harness.engines.openrlhf import flash, seams

CONFIG = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip


def alive(dtype: torch.dtype) -> int:
    """Bytes of distinct storages of living tensors of a type."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.dtype == dtype]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def main() -> None:
    """One stage, two steps of two passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=int, choices=[2, 3])
    stage = parser.parse_args().stage
    ranks = int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    flash.stand_in()
    seams.adapt_trainer(60.0)
    deepspeed.init_distributed("gloo")
    config = AutoConfig.for_model("llama", **CONFIG)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).bfloat16()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), foreach=True),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": ranks,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": REDUCE_BUCKET},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "managed_gradient_accumulation": False,
            "zero_allow_untested_optimizer": True,
        },
    )
    tokens = torch.randint(0, CONFIG["vocab_size"], (1, 8))
    for _ in range(2):
        engine.backward(engine(input_ids=tokens).logits.float().mean())
    half, sums = alive(torch.bfloat16), alive(torch.float32)
    engine.step()
    full = alive(torch.float32)
    shape = shape_from_config("SmolLM2-135M", config.to_dict())
    states = trainer_states(shape, "bf16", stage, ranks)
    kept = states.gradients if stage == 3 else 0
    for _ in range(2):
        engine.backward(engine(input_ids=tokens).logits.float().mean())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        engine.step()
    step = working_bytes(shape, "bf16", stage, ranks, 0, 0)
    if int(os.environ["RANK"]) == 0:
        found = {
            "weights": half / (states.weights + (bucket_bytes("bf16", 3) if stage == 3 else 0)),
            "sums": (sums - states.optimiser // 3) / states.gradients,
            "optimiser": (full - kept) / states.optimiser,
            "step": _most(profiled) / step,
        }
        print(json.dumps({"stage": stage, "ranks": ranks, **{part: round(ratio, 4) for part, ratio in found.items()}}))


def _most(profiled: profile) -> int:
    """Bytes beside what was there."""
    assert profiled.profiler is not None
    events = (e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]")
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


if __name__ == "__main__":
    main()
