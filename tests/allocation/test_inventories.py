"""Plans over inventories: what is planned fits; more memory, RAM, GPUs or faster cards never make a plan worse; and the parts
of its memory add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.allocation.cost_model import SHEETS, USABLE, CellDemand, PolicyDemand, Workload
from harness.allocation.inventory import Inventory, capacity_of, parse_inventory, place_bundles
from harness.allocation.plan_text import describe_plan
from harness.allocation.planner import KindPlan, Plan, plan_cells, plan_workers
from harness.allocation.shapes import ModelShape, load_shape
from harness.engines.openrlhf import account
from harness.session.suite.demand import demand_of
from harness.session.suite.prepare import prepare_named

GB = 10**9
MODELS = ("Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-1.7B", "Llama-3.2-3B", "Qwen3-4B-Base", "Qwen3-8B")
CARDS = ("L4", "A10", "A6000", "RTX4090", "L40S", "H20", "A100", "H100", "H200", "GH200", "B200")
FASTER = {
    slow: [
        card
        for card in CARDS
        if card != slow and SHEETS[card].peak >= SHEETS[slow].peak and SHEETS[card].bandwidth >= SHEETS[slow].bandwidth
    ]
    for slow in CARDS
}


@dataclass(frozen=True)
class Machine:
    """memory: of a GPU, ram: of a node, in GB."""

    nodes: int
    gpus: int
    card: str
    memory: int
    ram: int

    def inventory(self) -> Inventory:
        return parse_inventory(f"{self.nodes}x{self.gpus}x{self.card}-{self.memory}G+{16 * self.gpus}cpu-{self.ram}G")


machines = st.builds(
    Machine,
    nodes=st.integers(1, 3),
    gpus=st.sampled_from([1, 2, 3, 4, 6, 8]),
    card=st.sampled_from(CARDS),
    memory=st.sampled_from([24, 40, 48, 64, 80, 96, 120, 141, 192]),
    ram=st.sampled_from([64, 200, 400, 800, 1100]),
)


def mixture(model: ModelShape) -> ModelShape:
    """Three quarters of its parameters in experts, of which a token takes an eighth."""
    return msgspec.structs.replace(
        model, name=f"{model.name}-moe", experts=3 * model.parameters // 4, routed=1 / 8, matmul=model.matmul // 3
    )


@st.composite
def cells(draw: st.DrawFn) -> CellDemand:
    work = Workload(
        steps=draw(st.sampled_from([10, 100])),
        prompts=draw(st.sampled_from([8, 32, 128])),
        prompt_tokens=512,
        answer_tokens=draw(st.sampled_from([256, 1024, 4096])),
        longest=512 + 4096,
        trained=draw(st.sampled_from([1.0, 2.0, 3.0])),
        scored=draw(st.sampled_from([0.0, 1.0])),
        measured=draw(st.sampled_from([0, 5])),
        curves=5,
        curve=draw(st.sampled_from([0, 640])),
        evaluated=draw(st.sampled_from([0, 1000, 20_000])),
        evaluation_tokens=draw(st.sampled_from([1024, 4096])),
        saves=2,
    )
    more = {
        "measured": draw(st.booleans()),
        "reference": draw(st.booleans()),
        "precision": draw(st.sampled_from(["bf16", "bf16", "fp32"])),
        "lora": draw(st.sampled_from([0, 0, 0, 16])),
    }
    shapes = [load_shape(name) for name in draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=3))]
    if draw(st.booleans()):
        shapes[0] = mixture(shapes[0])
    policies = (PolicyDemand(f"p{i}", shape, 8, **more) for i, shape in enumerate(shapes))  # type: ignore[arg-type]  # of mixed types
    return CellDemand(tuple(policies), work, draw(st.sampled_from([None, None, False, True])))


kinds = st.lists(st.tuples(cells(), st.sampled_from([1, 2, 3, 5])), min_size=1, max_size=3)
several = settings(
    deadline=None,
    max_examples=12,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


def planned(machine: Machine, asked: list[tuple[CellDemand, int]]) -> Plan:
    by_name = {f"kind{i}": one for i, one in enumerate(asked)}
    return plan_cells(sum(count for _, count in asked), by_name, machine.inventory(), account)


def more_of_each(machine: Machine) -> Iterator[tuple[str, Machine]]:
    yield "memory", replace(machine, memory=machine.memory + 8)
    yield "much memory", replace(machine, memory=2 * machine.memory)
    yield "RAM", replace(machine, ram=machine.ram + 100)
    yield "nodes", replace(machine, nodes=machine.nodes + 1)
    yield "GPUs", replace(machine, gpus=machine.gpus + 1)
    yield "many GPUs", replace(machine, gpus=2 * machine.gpus)
    for card in FASTER[machine.card][:1] + FASTER[machine.card][-1:]:
        yield f"{card}s", replace(machine, card=card)


@several
@given(machine=machines, asked=kinds)
def test_more_of_anything_never_makes_a_plan_worse(machine: Machine, asked: list[tuple[CellDemand, int]]) -> None:
    before = planned(machine, asked)
    if not before.feasible:
        return
    for what, larger in more_of_each(machine):
        after = planned(larger, asked)
        assert after.feasible, f"with more {what}: {after.shortfall}"
        limit = before.predicted.wall_seconds * (1 + 1e-9)
        assert after.predicted.wall_seconds <= limit, f"{machine} is faster than {larger}"


@several
@given(machine=machines, asked=kinds)
def test_what_is_planned_fits(machine: Machine, asked: list[tuple[CellDemand, int]]) -> None:
    plan, inventory = planned(machine, asked), machine.inventory()
    if not plan.feasible:
        assert plan.shortfall
        return
    for kind in plan.kinds:
        assert kind.layout is not None
        placed = place_bundles(kind.bundles, capacity_of(inventory))
        assert placed is not None
        assert all(left.memory >= 0 and left.gpus >= 0 for left in placed[0].values())
        for policy in kind.layout.policies:
            assert policy.peak <= USABLE * machine.memory * GB
            assert sum(bundle.gpus for bundle in policy.bundles) == policy.gpus
    assert plan.predicted.wall_seconds >= plan.predicted.wall_bound * (1 - 1e-9)


@several
@given(machine=machines, asked=kinds)
def test_parts_add_up_to_the_total_at_its_fullest_moment(machine: Machine, asked: list[tuple[CellDemand, int]]) -> None:
    plan = planned(machine, asked)
    for kind in plan.kinds:
        assert kind.layout is not None
        on_gpus = []
        for policy in kind.layout.policies:
            fullest = max(sum(parts.values()) for parts in policy.moments().values())
            assert fullest == policy.peak
            on_gpus.append(policy.gpus * fullest)
        together = max if kind.layout.arrangement == "stacked" else sum
        assert kind.layout.memory_bytes == together(on_gpus) + sum(p.host for p in kind.layout.policies)
    if len(plan.kinds) == 1:  # as many alike cells as run at once
        assert plan.kinds[0].layout is not None
        assert plan.predicted.memory_bytes == plan.resources.workers * plan.kinds[0].layout.memory_bytes
    for kind in plan.kinds:
        assert kind.layout is not None
        assert plan.predicted.memory_bytes >= kind.layout.memory_bytes


def test_cells_of_unlike_sizes_are_summed_when_they_really_run_together() -> None:
    """Not the largest one as often as there are cells."""
    large, small = (
        KindPlan(name, 1, seconds, parse_bundle(size)) for name, seconds, size in (("a", 1.0, 9), ("b", 2.0, 2))
    )
    assert plan_workers(2, [large, small], parse_inventory("2cpu-64G")).predicted.memory_bytes == 11 * GB
    assert plan_workers(2, [large, small], parse_inventory("1cpu-64G")).predicted.memory_bytes == 9 * GB


def parse_bundle(gigabytes: int):  # type: ignore[no-untyped-def]
    from harness.allocation.inventory import Bundle

    return (Bundle(0, 1, gigabytes * GB),)


def hetero_size() -> dict[str, tuple[CellDemand, int]]:
    prepared = prepare_named("hetero_size", Path("nowhere"))
    of_kind = {cell.kind: cell for cell in prepared.all_cells}
    return {kind: (demand_of(cell, prepared.resolved), 3) for kind, cell in of_kind.items()}


@pytest.mark.parametrize("card", ["A100", "H20", "H200"])
def test_a_suite_of_unlike_sizes_is_planned_on_each_memory_and_never_slower_on_more(card: str) -> None:
    """Where the host's RAM is what lacks, ways that take less of it are planned."""
    asked, before = hetero_size(), float("inf")
    for memory in (64, 80, 96, 120, 141):
        plan = plan_cells(42, asked, parse_inventory(f"8x{card}-{memory}G"), account)
        assert plan.feasible, plan.shortfall
        assert plan.predicted.wall_seconds <= before
        before = plan.predicted.wall_seconds
        for kind in plan.kinds:
            assert kind.layout is not None
            assert kind.layout.host <= 8 * 128 * 2**30


def test_a_total_is_told_in_parts() -> None:
    text = describe_plan(plan_cells(42, hetero_size(), parse_inventory("8xA100-80G"), account))
    for line in text.splitlines():
        when, _, parts = line.strip().partition(": ")
        if when.startswith(("always", "in training", "in rollouts", "in a weight sync")):
            total = float(when.rsplit(" ", 1)[1])
            assert total == pytest.approx(sum(float(part.rsplit(" ", 1)[1]) for part in parts.split(", ")), abs=0.5)
    assert " a cell, " in text
    assert " of RAM" in text


def test_too_little_ram_is_told_by_the_way_that_takes_least() -> None:
    asked = hetero_size()
    short = plan_cells(42, asked, parse_inventory("8xA100-80G+128cpu-100G"), account)
    assert not short.feasible
    assert "of RAM where there are 100.0 GB" in str(short.shortfall)
