"""From suites to plans, and no torch on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.allocation.cells_as_demand import Asked, Lengths, RegimeLoad, demand, plan_suite, regime_load
from harness.allocation.inventory import parse
from harness.allocation.layout import HOST_BYTES, USABLE
from harness.learning import registry
from harness.suite.cells import Cell, Identity, expand
from harness.suite.load import load, shipped

ASKED = Asked(9000, 8196)
IN_BF16 = lambda policy: "bf16"  # noqa: E731


def cells_and_loads(name: str, *overrides: str) -> tuple[list[Cell], dict[str, RegimeLoad]]:
    suite = load(name, overrides)
    loads = {}
    for variant in suite.regimes:
        regime = registry.build(variant.regime, variant.options)
        loads[variant.name] = regime_load({r.__name__ for r in regime.shares}, {str(n) for n in regime.needs})
    return expand(suite, lambda group, variant: Identity()), loads


def test_what_declarations_imply() -> None:
    assert regime_load(set(), set()) == RegimeLoad(0, 0)
    assert regime_load({"GroupValue"}, set()) == RegimeLoad(0, 0)
    assert regime_load({"Success"}, set()).trained == pytest.approx(0.1)
    assert regime_load({"Rollout"}, {"aligned"}) == RegimeLoad(1, 0)
    assert regime_load({"TextRollout"}, {"receiver_old"}) == RegimeLoad(1, 1)


def test_a_cell_as_the_planner_sees_it() -> None:
    cells, loads = cells_and_loads("cross_family", "training.kl=0.001", "evaluation.limit=10")
    by_label = {c.label: demand(c, loads[c.variant.name], ASKED, IN_BF16) for c in cells}
    naive, single = by_label["qwen4b-llama3b/naive/11"], by_label["qwen4b-llama3b/gspo/11"]
    double = by_label["qwen4b-llama3b/gspo-2x/11"]
    assert [p.model.parameters for p in naive.policies] == [4022468096, 3212749824]
    assert all(p.reference for p in naive.policies)
    assert (naive.workload.trained, naive.workload.scored) == (2.0, 1.0)
    assert (single.workload.trained, single.workload.scored) == (1.0, 0.0)
    assert double.policies[0].rollouts == 2 * single.policies[0].rollouts
    assert naive.workload.sequence == 5120
    assert naive.workload.sampled == 5120 + 8196 - 4096
    assert naive.workload.evaluated == ASKED.answers
    assert naive.workload.measured == 5
    assert all(p.measured for p in (*naive.policies, *single.policies))


def test_without_direction_nobody_trains_on_peers() -> None:
    cells, loads = cells_and_loads("cross_family", "sharing.direction=none")
    assert all(demand(c, loads[c.variant.name], ASKED, IN_BF16).workload.trained == 1 for c in cells)


GPU_SUITES = sorted(n for n in shipped() if n != "bandit" and load(n).engine == "openrlhf")


@pytest.mark.parametrize("name", GPU_SUITES)
@pytest.mark.parametrize("gpus", [8, 16])
def test_every_place_of_a_shipped_suite_holds_reference_and_measuring(name: str, gpus: int) -> None:
    cells, loads = cells_and_loads(name)
    plan = plan_suite(cells, parse(f"{gpus}xH100-80G"), loads=loads, asked=ASKED, precision=IN_BF16)
    measured = cells[0].training.measure_every > 0
    assert plan.feasible, plan.shortfall
    assert plan.cells == len(cells)
    for kind in plan.kinds:
        assert kind.layout is not None
        for place in kind.layout.policies:
            memory = place.memory
            assert memory.train <= USABLE * place.capacity
            assert place.peak <= USABLE * place.capacity
            assert bool(memory.measuring) == measured
            assert memory.reference == 0  # the base borrows the trainer's memory; its own weights wait in the host
            assert place.host >= place.gpus * (HOST_BYTES + 4 * measured * memory.weights // (8 * place.gpus))


def test_memory_is_planned_for_the_lengths_that_each_side_has() -> None:
    """24.1: trainers hold what is trained on, rollout engines what evaluation asks too; a prior for a prompt limits nobody."""
    cells, loads = cells_and_loads("hetero_size")
    plans = {
        tokens: plan_suite(cells, parse("8xH100-80G"), loads=loads, asked=Asked(9000, tokens), precision=IN_BF16)
        for tokens in (4096, 8196)
    }
    short, long = ([p for k in plans[tokens].kinds for p in k.layout.policies] for tokens in plans)  # type: ignore[union-attr]
    for less, more in zip(short, long, strict=True):
        assert less.sequence == more.sequence == 5120
        assert more.memory.kv_cache / more.concurrent / (less.memory.kv_cache / less.concurrent) == pytest.approx(
            9220 / 5120 * less.tensor_parallel / more.tensor_parallel, rel=0.01
        )
        assert more.engine_options()["micro_batch_tokens"] == more.micro_batch * 5120
        assert "max_length" not in more.engine_options()
    (measured, *_) = cells
    work = demand(measured, loads["grpo"], Asked(9000, 8196), IN_BF16, lengths=Lengths(2000, 10_000)).workload
    assert (work.sequence, work.sampled) == (6096, 10_000)


def test_finished_cells_cost_nothing() -> None:
    cells, loads = cells_and_loads("cross_family")
    plan = plan_suite(cells, parse("8xH100-80G"), loads=loads, asked=ASKED, precision=IN_BF16, pending=[cells[0].key])
    assert plan.pending == 1
    assert len(plan.kinds) == 1


def test_allocation_imports_no_torch() -> None:
    code = (
        "import sys, harness.allocation.cells_as_demand, harness.allocation.plan_text;"
        "print([m for m in ('torch', 'transformers', 'ray', 'deepspeed', 'vllm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "[]"
