"""What the account and the plan make of pretrained policies on the embedded engine."""

from __future__ import annotations

import pytest

from harness.allocation import embedded
from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.inventory import parse
from harness.allocation.planner import WorkerDemand, plan_workers
from harness.allocation.precision import chosen
from harness.allocation.shapes import ModelShape, micro_shapes, shape_from_config
from harness.allocation.work import device

GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144, "sliding_window": 512, "dtype": "bfloat16",
}  # fmt: skip
WORK = Workload(2, 8, 20, 40, 40.0)


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return shape_from_config("gemma", GEMMA)


def cell(shape: ModelShape, precision: str = "bf16") -> CellDemand:
    return CellDemand("a", "a", (PolicyDemand("a", shape, 8, precision),), WORK)


def test_precision_follows_the_stored_weights() -> None:
    assert chosen({"dtype": "bfloat16"}) == chosen({"torch_dtype": "torch.float16"}) == "bf16"
    assert chosen({"dtype": "float32"}) == chosen({}) == "fp32"


def test_states_and_logits(shape: ModelShape) -> None:
    """18 bytes a parameter in bf16; 2,560 positions of a vocabulary of 262,144 are 2.7 GB in fp32, and are never all there."""
    half, full = (embedded.process_memory(cell(shape, p)) for p in ("bf16", "fp32"))
    assert half.states == 18 * shape.parameters
    assert full.states == 16 * shape.parameters
    assert half.activations < full.activations
    without = 60 * 64 * (shape.half.layers + shape.half.head)
    assert half.activations < without + 2 * 2 * shape.largest + 0.6e9


def test_cells_of_large_models_have_several_cores(shape: ModelShape) -> None:
    small = cell(micro_shapes()["micro/llama"], "fp32")
    assert [embedded.cores(cell(shape), most) for most in (1, 2, 4, 64)] == [1, 2, 4, 4]
    assert embedded.cores(small, 64) == 1
    jobs = [WorkerDemand(str(i), "k", 100.0, 10**9, cores=2) for i in range(4)]
    plan = plan_workers(4, jobs, parse("4cpu-32G"))
    assert (plan.resources.workers, plan.resources.cores_used) == (2, 4)
    assert plan.predicted.cpu_seconds == 800.0
    assert plan.predicted.wall_seconds == pytest.approx(200.0, rel=0.01)


def test_bf16_is_planned_faster_on_a_core(shape: ModelShape) -> None:
    on = device("CORE")
    half, full = (embedded.phases(cell(shape, p), on, gpu=False) for p in ("bf16", "fp32"))
    assert full.train == pytest.approx(embedded.BF16_GAIN * half.train, rel=0.1)


def test_jobs_are_processes_however_many_cores_each_has() -> None:
    jobs = [WorkerDemand(f"{i}", "large", 100.0, 1 << 30, cores=2) for i in range(4)]
    plan = plan_workers(4, jobs, parse("8cpu-32G"), workers=1)
    assert plan.feasible, plan.shortfall
    assert (plan.resources.workers, plan.resources.cores_used, plan.predicted.wall_seconds) == (1, 2, 400.0)
    mixed = [*jobs, *(WorkerDemand(f"s{i}", "small", 10.0, 1 << 30) for i in range(9))]
    assert plan_workers(13, mixed, parse("8cpu-32G"), workers=2).resources.workers == 2
