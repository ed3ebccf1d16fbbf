"""MWRA: ten thousand mixtures under the judge, seconds per plan, and memory formulas against allocated bytes.

    python benchmarks/allocation.py                    all three (about ten minutes of one idle core, under 8 GiB)
    python benchmarks/allocation.py --only memory      or `scheduler`, `planner`
    python benchmarks/allocation.py --mixtures 500

The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mixtures

from harness.allocation import size
from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.inventory import parse
from harness.allocation.planner import plan_cells
from harness.allocation.shapes import ModelShape, load_shape, shape_from_config

if TYPE_CHECKING:
    import torch


def scheduler(count: int, seed: int) -> dict[str, Any]:
    """Every promise on `count` random mixtures, and how often naive reservation deadlocks on the same ones."""
    begin = time.process_time()
    deadlocks = violated = naive = starts = troubled = jobs = 0
    worst_wait, utilisations = 0.0, []
    for index, mixture in enumerate(mixtures.mixtures(seed, count)):
        outcome = mixtures.run(mixture)
        deadlocks += outcome.deadlock
        violated += bool(outcome.violations)
        if outcome.violations:
            print(f"mixture {seed}/{index}: {outcome.violations[:3]}", file=sys.stderr)
        worst_wait = max(worst_wait, outcome.worst_wait)
        naive += mixtures.naive_deadlocks(mixture)
        starts += outcome.starts
        jobs += len(mixture.jobs)
        troubled += any(len(j.attempts) > 1 for j in mixture.jobs)
        if mixtures.allows(mixture):
            utilisations.append(mixtures.work_bound(mixture) / outcome.makespan)
        if index % 500 == 499:
            print(f"{index + 1} mixtures, {violated} violated, {naive} naive deadlocks", file=sys.stderr)
    return {
        "mixtures": count, "jobs": jobs, "starts": starts, "with_failures": troubled, "deadlocks": deadlocks,
        "violated": violated, "naive_deadlocks": naive, "worst_wait_over_bound": round(worst_wait, 4),
        "allow_0.9": len(utilisations), "below_0.9": sum(u < 0.9 for u in utilisations),
        "least_utilisation": round(min(utilisations, default=float("nan")), 4),
        "median_utilisation": round(statistics.median(utilisations), 4) if utilisations else None,
        "cpu_seconds": round(time.process_time() - begin, 1),
    }  # fmt: skip


MODELS = [
    "Qwen3-4B-Base", "Llama-3.2-3B", "SmolLM3-3B", "Qwen3-1.7B", "Qwen2.5-Math-1.5B", "Qwen3-8B", "Llama-3.2-1B", "Qwen3-0.6B",
]  # fmt: skip


def planner() -> dict[str, Any]:
    """CPU-seconds of plans: a pair, 500 cells of up to eight policies in 105 kinds, and refusals."""
    work = Workload(57, 128, 1024, 4096, 2048.0, evaluated=20_000)

    def cell(key: str, models: list[str], work: Workload, kind: str) -> CellDemand:
        return CellDemand(key, kind, tuple(PolicyDemand(f"p{i}", load_shape(m), 8) for i, m in enumerate(models)), work)

    pair = [cell(f"c{i}", MODELS[:2], work, "pair") for i in range(81)]
    large = [
        cell(
            f"c{i}",
            MODELS[: 2 + i % 7],
            replace(work, trained=1.0 + i % 3, evaluated=1000 + i % 5),
            f"{i % 7}/{i % 3}/{i % 5}",
        )
        for i in range(500)
    ]
    found = {}
    for name, cells, inventory in (
        ("pair on 8xH100-80G", pair, "8xH100-80G"),
        ("pair refused on 1xH100-80G", pair, "1xH100-80G"),
        ("500 cells, 8 policies, 64xH100-80G", large, "64xH100-80G"),
        ("500 cells, 8 policies, refused on 4xL4-24G", large, "4xL4-24G"),
    ):
        begin = time.process_time()
        plan = plan_cells(cells, parse(inventory))
        seconds = time.process_time() - begin
        bound = plan.predicted.wall_seconds / plan.predicted.wall_bound if plan.feasible else None
        found[name] = {"cpu_seconds": round(seconds, 3), "feasible": plan.feasible, "makespan_over_bound": bound}
    return found


CONFIGS: dict[str, dict[str, Any]] = {
    "SmolLM2-360M (Llama)": {
        "model_type": "llama", "hidden_size": 960, "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5,
        "head_dim": 64, "intermediate_size": 2560, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "Qwen2.5-0.5B": {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Real configurations, built with random weights. The last one's Adam states do not fit under 8 GiB beside the rest: they are
measured with the masters in bf16, at half their size."""


def memory() -> dict[str, Any]:
    """Allocated bytes by part over the formula's, for mixed precision (bf16 weights, fp32 masters and Adam moments)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    found = {}
    for name, raw in CONFIGS.items():
        config = AutoConfig.for_model(**raw, pad_token_id=0, bos_token_id=0, eos_token_id=0)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        found[name] = _measure(model, shape_from_config(name, config.to_dict()), half=name == "Qwen3-0.6B")
        del model
        gc.collect()
    return found


def _measure(model: Any, shape: ModelShape, half: bool) -> dict[str, float]:
    import torch

    states = size.trainer_states(shape, "bf16", zero=0, ranks=1)
    ratio = {"parameters": shape.parameters, "weights": _stored(model.parameters()) / states.weights}
    with torch.no_grad():
        cache = model(torch.zeros(2, 160, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    ratio["kv_cache"] = kept / size.kv_cache_bytes(shape, 2, 160)
    del cache
    ratio["activations"] = _activations(model, shape)
    model(torch.zeros(1, 2, dtype=torch.long), use_cache=False).logits.float().sum().backward()
    ratio["gradients"] = _stored(p.grad for p in model.parameters()) / size.weight_bytes(shape, "bf16")
    total = 0
    for parameter in model.parameters():
        master = parameter.detach().to(torch.bfloat16 if half else torch.float32, copy=True).requires_grad_()
        master.grad = parameter.grad.to(master.dtype)
        parameter.grad = None
        optimiser = torch.optim.AdamW([master])
        optimiser.step()
        master.grad = None
        parameter.states = [master, *(t for s in optimiser.state.values() for t in s.values() if t.dim())]
        total += _stored(parameter.states)
    ratio["optimiser"] = total * (2 if half else 1) / states.optimiser
    return {key: round(value, 4) for key, value in ratio.items()}


def _stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of distinct storages."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _activations(model: Any, shape: ModelShape) -> float:
    """What autograd keeps over the formula, the two copies of the logits that autograd does not keep left out."""
    import torch

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    answers, tokens = 2, 128
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(answers, tokens, dtype=torch.long), use_cache=False).logits.float()
        loss = torch.log_softmax(logits, -1).mean()
    formula = size.activation_bytes(shape, answers * tokens, False) - answers * tokens * shape.vocab * (
        size.LOGITS_BYTES - 4
    )
    del loss
    return sum(kept.values()) / formula


def main() -> None:
    """Run what was asked for; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["scheduler", "planner", "memory"])
    parser.add_argument("--mixtures", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    parts = {"scheduler": lambda: scheduler(options.mixtures, options.seed), "planner": planner, "memory": memory}
    print(json.dumps({name: part() for name, part in parts.items() if options.only in (None, name)}))


if __name__ == "__main__":
    main()
