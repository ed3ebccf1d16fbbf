"""Bytes that DeepSpeed really allocates for weights, gradients and Adam states under ZeRO, over the planner's formulas.

    for stage in 0 2 3; do torchrun --nproc_per_node 2 benchmarks/zero_memory.py $stage; done

Needs the environment of `make install-openrlhf`. SmolLM2-135M with random weights, bf16, on the CPU through gloo. What is
alive is counted by type: bf16 after the backward pass (weights and gradients), fp32 after the optimiser's step (masters and
moments). The last line, by rank 0, is one JSON document.
"""

from __future__ import annotations

import argparse
import gc
import json
import os

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation.shapes import shape_from_config
from harness.allocation.size import REDUCE_BUCKET, bucket_bytes, trainer_states

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
    """One stage, one backward pass, one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=int, choices=[0, 2, 3])
    stage = parser.parse_args().stage
    ranks = int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed.init_distributed("gloo")
    config = AutoConfig.for_model("llama", **CONFIG)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).bfloat16()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": ranks,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": REDUCE_BUCKET},
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
        },
    )
    loss = engine(input_ids=torch.randint(0, CONFIG["vocab_size"], (1, 8))).logits.float().mean()
    engine.backward(loss)
    half = alive(torch.bfloat16)
    engine.step()
    full = alive(torch.float32)
    states = trainer_states(shape_from_config("SmolLM2-135M", config.to_dict()), "bf16", stage, ranks)
    expected = states.weights + states.gradients + (bucket_bytes("bf16", 3) if stage == 3 else 0)
    if int(os.environ["RANK"]) == 0:
        found = {"weights_and_gradients": round(half / expected, 4), "optimiser": round(full / states.optimiser, 4)}
        print(json.dumps({"stage": stage, "ranks": ranks, **found}))


if __name__ == "__main__":
    main()
