"""Plans: layouts that fit, policies that finish together, shortfalls in words, fields that other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from harness.allocation.cell_layout import CellLayout, cell_layout
from harness.allocation.cost_model import CONTEXT_BYTES, USABLE, CellDemand, PolicyDemand, Workload
from harness.allocation.inventory import Bundle, Inventory, parse_inventory
from harness.allocation.layout import Gpu, least_gpus, policy_layout
from harness.allocation.plan_text import describe_plan
from harness.allocation.planner import KindPlan, Plan, plan_cells, plan_workers
from harness.allocation.shapes import load_shape
from harness.engines.openrlhf import account

WORK = Workload(57, 128, 1024, 4096, 5120, evaluated=20_000, evaluation_tokens=4096)
H100 = Gpu("H100", 80 * 10**9, 8, account)
PROCESS_RAM = account.process_ram("H100")
HALF = load_shape("Qwen/Qwen2.5-0.5B-Instruct")


def cell(*models: str, work: Workload = WORK, **more: object) -> CellDemand:
    policies = (PolicyDemand(f"p{i}", load_shape(m), 8, **more) for i, m in enumerate(models))  # type: ignore[arg-type]  # of mixed types
    return CellDemand(tuple(policies), work)


def halves(shared: bool | None = None, **more: object) -> CellDemand:
    work = replace(WORK, prompts=32, answer_tokens=1024, longest=2048, evaluation_tokens=1024)
    return CellDemand(tuple(PolicyDemand(name, HALF, 8, **more) for name in "ab"), work, shared)  # type: ignore[arg-type]  # of mixed types


def workers(kind: str, cells: int, seconds: float, memory: int, device: int = 0, cores: int = 1) -> KindPlan:
    return KindPlan(kind, cells, seconds, (Bundle(int(device > 0), cores, memory, device),))


PAIR = cell("Qwen3-4B-Base", "Llama-3.2-3B-Instruct")


def plan(inventory: str | Inventory, *cells: CellDemand, **more: object) -> Plan:
    kinds = {f"kind{i}": (one, 1) for i, one in enumerate(cells)}
    machine = parse_inventory(inventory) if isinstance(inventory, str) else inventory
    made = plan_cells(len(cells), kinds, machine, account, **more)  # type: ignore[arg-type]  # mixed
    for kind in made.kinds:
        assert kind.layout is not None
        assert sum(b.gpus for b in kind.bundles) == kind.layout.gpus
        for p in kind.layout.policies:
            assert max(p.memory.train, p.memory.rollout) <= p.peak <= USABLE * p.capacity
            stacked = kind.layout.arrangement == "stacked"
            assert p.sleeps or stacked or p.peak == sum(msgspec.to_builtins(p.memory).values())
            assert p.memory.kv_cache > 0
    return made


def layout(inventory: str, one: CellDemand) -> CellLayout | None:
    return next((kind.layout for kind in plan(inventory, one).kinds), None)


def test_a_pair_on_eight_gpus() -> None:
    made = plan("8xH100-80G", PAIR)
    assert (made.feasible, made.resources.gpus_used) == (True, 8)
    assert made.predicted.gpu_seconds == pytest.approx(8 * made.predicted.wall_seconds)
    text = describe_plan(made)
    for words in ("colocated on 8 GPUs", "ZeRO", "KV cache", "optimiser", "of 80.0 GB per GPU", "GPU-hours"):
        assert words in text
    host = "1 cell on 8 of 8 GPUs, 8 of 128 cores, {} GB, GPUs included"  # more than the inventory's main memory
    assert host.format(f"{made.predicted.memory_bytes / 1e9:.1f}") in text
    assert plan("8xH100-80G", PAIR, measured={"kind0": 100.0}).predicted.wall_seconds == 100.0


def test_unequal_policies_finish_a_step_together() -> None:
    whole = cell_layout(cell("Qwen3-8B-Base", "Qwen3-1.7B-Base"), 16, H100)
    assert whole is not None
    large, small = whole.policies
    assert large.gpus > small.gpus
    assert max(large.seconds.total, small.seconds.total) / min(large.seconds.total, small.seconds.total) < 1.6
    even, _ = policy_layout(cell("Qwen3-8B-Base").policies[0], WORK, 8, H100)
    assert even is None or whole.step_seconds < even.seconds.total


def test_one_gpu_is_too_little_and_the_shortfall_is_exact() -> None:
    unlike = replace(PAIR, shared=False)
    needed = [least_gpus(p, WORK, H100) for p in unlike.policies]
    total = sum(n or 99 for n in needed)
    assert plan(f"{total}xH100-80G", unlike).feasible
    short = str(plan(f"{total - 1}xH100-80G", unlike).shortfall)
    assert (
        f"its policies need {total} GPUs together (p0 {needed[0]}, p1 {needed[1]}) where there are {total - 1}: 1 short"
        in short
    )
    large = cell("Qwen3-8B")
    policy, words = large.policies[0], str(plan("1xH100-80G", large).shortfall)
    _, least = policy_layout(policy, WORK, 1, H100)
    lack = f"{(least - 76e9) / 1e9:.1f} GB per GPU short"
    assert f"needs {least / 1e9:.1f} GB per GPU on 1 GPU of 80.0 GB (76.0 GB usable): {lack}" in words
    for memory, fits in ((least / USABLE + 9, True), (least / USABLE - 9, False)):
        assert bool(policy_layout(policy, WORK, 1, replace(H100, memory=int(memory)))[0]) == fits


def test_a_machine_without_gpus_is_told_so_in_one_line() -> None:
    (line,) = (line for line in describe_plan(plan("4cpu-24G", PAIR)).splitlines() if "does not fit" in line)
    assert "per GPU, and here are none: 4 cores take their place" in line
    assert line.endswith("(and 1 more: `harness plan --json` has all)")
    tiny = plan("4cpu-240G", cell("Qwen3-0.6B", work=Workload(1, 2, 16, 16, 32)))
    assert (tiny.feasible, tiny.resources.gpus) == (True, 4)


def test_ram_or_measuring_can_be_what_is_too_much() -> None:
    pair = cell("Qwen3-1.7B-Base", "Qwen2.5-Math-1.5B")
    assert "of RAM on one node where the largest has 32.0 GB" in str(plan("1xH100-80G+16cpu-32G", pair).shortfall)
    needy = cell("Qwen3-4B", measured=True, work=replace(WORK, prompts=8))
    sizes = [f"1xH100-{n}G+16cpu-400G" for n in range(50, 130)]
    words = next(str(made.shortfall) for n in sizes if plan(n, replace(needy, policies=cell("Qwen3-4B").policies)).feasible
                 for made in [plan(n, needy)])  # fmt: skip
    assert words.endswith("; without measuring (training.measure_every: 0) it fits")


def test_cards_without_bf16_are_refused_when_the_plan_is_made() -> None:
    """Where some nodes have it, these are taken."""
    refused = plan("2xV100-32G", halves())
    assert (refused.feasible, refused.shortfall) == (
        False, "V100 multiplies no bf16: engine_options.dtype=fp32 does without",
    )  # fmt: skip
    assert plan("2xV100-32G", halves(precision="fp32")).feasible
    v100, a100 = parse_inventory("2x8xV100-32G").nodes[0], parse_inventory("2x2xA100-80G").nodes[1]
    assert [node.gpu_kind for node in plan(Inventory((v100, a100)), halves()).resources.nodes] == ["A100"]
    for half in (True, False):
        work = [workers("a", 1, 1.0, 10**9, 10**9)]
        assert plan_workers(1, work, parse_inventory("1xT4-16G"), half=half).feasible != half


@pytest.mark.parametrize("inventory", ["1xA100-40G", "1xRTX4090-24G"])
def test_two_half_billions_take_turns_on_one_small_gpu(inventory: str) -> None:
    """Beside the one that works, both processes of the other keep their contexts. Items 6 and 13: the host holds a checkpoint, as
    one rank has weights and optimiser's state, and what sleeps twice, as pinned memory is rounded up to powers of two."""
    placed = layout(inventory, halves())
    assert placed is not None
    assert (placed.arrangement, placed.gpus) == ("stacked", 1)
    assert placed.step_seconds == pytest.approx(sum(p.seconds.total for p in placed.policies))
    for p in placed.policies:
        parts = (max if p.sleeps else sum)([p.memory.train, p.memory.rollout])
        assert p.peak >= parts + CONTEXT_BYTES * (2 + p.sleeps)
        assert p.host == PROCESS_RAM + 14 * HALF.parameters + 2 * (p.memory.states + p.memory.rollout_weights)


@pytest.mark.parametrize(
    ("inventory", "shared", "arrangement"),
    [("2xA100-40G", None, "colocated"), ("8xH100-80G", None, "colocated"), ("2xA100-40G", True, "stacked"),
     ("1xA100-40G", None, "stacked"), ("1xA100-40G", False, None)],
)  # fmt: skip
def test_turns_are_taken_where_nothing_else_fits_or_the_suite_wants_them(inventory, shared, arrangement) -> None:  # type: ignore[no-untyped-def]
    placed = layout(inventory, halves(shared))
    assert (placed and placed.arrangement) == arrangement


def test_a_layout_of_the_suites_own_keeps_its_devices() -> None:
    own = cell_layout(halves(shared=True, devices=3), 8, replace(H100, stacks=True))
    assert own is not None
    assert (own.arrangement, own.gpus) == ("stacked", 3)
    wide = layout("3x8xH100-80G", replace(halves(devices=24), policies=halves(devices=24).policies[:1]))
    assert wide is not None
    assert (wide.arrangement, wide.gpus) == ("colocated", 24)  # no size that is tried where the plan chooses
    assert layout("1xA100-40G", replace(halves(shared=True), policies=halves().policies[:1])) is not None
    assert "does not fit on 1 GPU of 80.0 GB" in str(plan("1xH100-80G", cell("Qwen3-8B", devices=2)).shortfall)


class HeavierProcesses:
    """OpenRLHF's account with processes that take a gigabyte more on each GPU."""

    ways_to_train = staticmethod(account.ways_to_train)
    trainer_ram = staticmethod(account.trainer_ram)
    sleeping_ram = staticmethod(account.sleeping_ram)

    def process_ram(self, kind: str) -> int:
        return account.process_ram(kind) + 10**9


def test_a_layout_takes_what_the_engines_account_counts() -> None:
    policy = cell("Qwen3-1.7B").policies[0]
    own, _ = policy_layout(policy, WORK, 4, H100)
    heavier, _ = policy_layout(policy, WORK, 4, replace(H100, account=HeavierProcesses()))
    assert own is not None
    assert heavier is not None
    assert heavier.host == own.host + 4 * 10**9


def test_the_base_takes_the_hosts_memory_and_measuring_a_share_of_the_gradients() -> None:
    demands = [cell("Qwen3-1.7B", reference=on, measured=on).policies[0] for on in (False, True)]
    plain, both = (policy_layout(policy, WORK, 4, H100)[0] for policy in demands)
    assert plain is not None
    assert both is not None
    assert both.memory.reference == plain.memory.measuring == 0
    assert plain.host == 4 * PROCESS_RAM + 14 * demands[0].model.parameters
    assert account.trainer_ram(demands[1], both.zero, 4, "H100") >= 4 * both.memory.weights // (
        4 if both.zero == 3 else 1
    )
    assert demands[1].model.parameters < both.memory.measuring < 4 * demands[1].model.parameters


@pytest.mark.parametrize(("precision", "stages"), [("bf16", (2, 3)), ("fp32", (0, 2, 3))])
def test_bf16_is_never_trained_without_zero(precision: str, stages: Sequence[int]) -> None:
    """Item 1: on one rank too; fp32 may be."""
    policy = cell("Qwen3-1.7B-Base", precision=precision).policies[0]
    one, many = (policy_layout(policy, WORK, gpus, H100)[0] for gpus in (1, 8))
    assert one is None or one.zero == stages[0]
    assert many is not None
    assert many.zero in stages


def test_adapters_let_a_policy_fit_one_consumer_gpu() -> None:
    """Gradients, moments and measuring are the adapters'; ZeRO 3, which shards what they are merged into, is never planned."""
    work, gpu = (
        replace(WORK, prompts=16, answer_tokens=512, longest=1024, prompt_tokens=256),
        Gpu("RTX4090", 24 * 10**9, 8, account),
    )
    whole, adapted = (cell("Qwen3-1.7B", lora=rank, measured=True).policies[0] for rank in (0, 16))
    assert policy_layout(whole, work, 1, gpu)[0] is None
    placed = policy_layout(adapted, work, 1, gpu)[0]
    assert placed is not None
    assert placed.memory.gradients + placed.memory.optimiser == 16 * adapted.adapters < placed.memory.weights / 4
    layouts = [policy_layout(adapted, work, n, gpu)[0] for n in (1, 8)]
    assert [one and one.zero for one in layouts] == [2, 2]


def test_trainer_and_rollout_engine_have_their_weights_while_they_are_synced() -> None:
    """With adapters training needs little more than the weights; both sides' are there at once in every sync."""
    work = replace(WORK, prompts=16, answer_tokens=512, longest=1024, prompt_tokens=256)
    policy = cell("Qwen3-8B", lora=16, work=work).policies[0]
    for memory in range(24, 80, 4):
        placed, _ = policy_layout(policy, work, 1, Gpu("card", memory * 10**9, 8, account))
        if placed is not None:
            assert placed.memory.weights + placed.memory.rollout_weights + 2 * CONTEXT_BYTES <= placed.peak


def test_a_rollout_engine_decodes_no_more_answers_than_its_step_has_tokens() -> None:
    """vLLM refuses to start with more sequences than the 2,048 tokens of a step."""
    many = replace(WORK, prompts=1024, answer_tokens=16, longest=32, prompt_tokens=16)
    placed, _ = policy_layout(cell("Qwen3-0.6B", work=many).policies[0], many, 1, H100)
    assert placed is not None
    assert placed.concurrent == 2048


@pytest.mark.parametrize(
    ("inventory", "models", "count"),
    [
        ("2x3xH100-80G", ["Qwen3-4B-Base", "Llama-3.2-3B", "SmolLM3-3B"], 3),
        ("2x7xH100-80G", ["Qwen3-4B-Base", "Llama-3.2-3B"], 1),
        ("8x1xH100-80G", ["Qwen3-8B-Base"], 12),
    ],
)
def test_a_cut_that_fits_the_nodes_is_found(inventory: str, models: Sequence[str], count: int) -> None:
    made = plan_cells(count, {"kind": (cell(*models), count)}, parse_inventory(inventory), account)
    assert made.feasible, made.shortfall


def test_tensor_parallelism_cuts_heads_of_keys_whole() -> None:
    """vLLM divides them by the devices or repeats each on as many, and refuses 10 (Phi-4) on 4 or 8."""
    policy = cell("Qwen3-8B").policies[0]
    phi = msgspec.structs.replace(policy.model, attention=(policy.model.attention[0]._replace(heads=40, kv_heads=10),))
    assert [n for n in (1, 2, 4, 8) if phi.divides(n)] == [1, 2]
    assert [n for n in (1, 2, 4, 8) if load_shape("Qwen/Qwen2.5-Math-1.5B").divides(n)] == [1, 2, 4]


@pytest.mark.slow
def test_a_large_suite_is_planned_near_its_bound() -> None:
    models = ["Qwen3-4B-Base", "Llama-3.2-3B", "SmolLM3-3B", "Qwen3-1.7B", "Qwen2.5-Math-1.5B", "Qwen3-8B", "Llama-3.2-1B",
              "Qwen3-0.6B"]  # fmt: skip
    cells = [
        cell(*models[: 2 + i % 7], work=replace(WORK, trained=1.0 + i % 3, evaluated=1000 + i % 5)) for i in range(500)
    ]
    made = plan("64xH100-80G", *cells)
    assert made.feasible, made.shortfall
    assert made.predicted.wall_bound <= made.predicted.wall_seconds <= 1.5 * made.predicted.wall_bound


def test_workers_on_cores() -> None:
    jobs, bases = [workers("g/independent", 10, 30.0, 9 * 10**8)], [workers("base", 2, 90.0, 9 * 10**8)]
    made = plan_workers(15, jobs, parse_inventory("4cpu-24G"), bases)
    assert (made.cells, made.pending, made.resources.workers) == (15, 10, 4)
    assert made.predicted == msgspec.convert(
        {"cpu_seconds": 480, "wall_seconds": 90 + 3 * 30, "memory_bytes": 4 * 9 * 10**8, "wall_bound": 90 + 75},
        type(made.predicted),
    )
    assert plan_workers(15, jobs, parse_inventory("4cpu-24G"), workers=2).predicted.wall_seconds == 150
    assert plan_workers(15, jobs, parse_inventory("4cpu-2G")).resources.workers == 2
    small = plan_workers(1, jobs, parse_inventory("4cpu-0.5G"))
    words = "g/independent needs 0.9 GB of RAM on one node where the largest has 0.5 GB: 0.4 GB short"
    assert (small.feasible, small.shortfall) == (False, words)


def test_jobs_are_processes_however_many_cores_each_has() -> None:
    large, little = workers("large", 4, 100.0, 1 << 30, cores=2), workers("small", 9, 10.0, 1 << 30)
    for inventory, most, expected in (("4cpu-32G", None, (2, 4, 200.0)), ("8cpu-32G", 1, (1, 2, 400.0))):
        planned = plan_workers(4, [large], parse_inventory(inventory), workers=most)
        resources = planned.resources
        assert (resources.workers, resources.cores_used, planned.predicted.wall_seconds) == expected
        assert planned.predicted.cpu_seconds == 800.0
    assert plan_workers(13, [large, little], parse_inventory("8cpu-32G"), workers=2).resources.workers == 2


@pytest.mark.parametrize(
    ("size", "busy", "inventory", "together", "shared", "seconds"),
    [(25 * 10**9, 0.1, "2xH100-80G", 6, 3, 60), (25 * 10**9, 0.0, "2xH100-80G", 6, 3, 60),
     (10**9, 0.4, "2xH100-80G", 4, 2, 90), (60 * 10**9, 0.1, "1xH100-80G", 1, 1, 360)],
)  # fmt: skip
def test_workers_share_gpus_by_memory_and_by_time(size, busy, inventory, together, shared, seconds) -> None:  # type: ignore[no-untyped-def]
    made = plan_workers(12, [workers("g/independent", 12, 30.0, 10**9, size)], parse_inventory(inventory), busy=busy)
    assert (made.resources.workers, made.resources.shared, made.predicted.wall_seconds) == (
        together,
        shared,
        seconds,
    )
    assert made.predicted.gpu_seconds == 360 / shared
    alone = plan_workers(1, [workers("g/independent", 1, 30.0, 10**9, size)], parse_inventory(inventory), busy=busy)
    assert alone.predicted.gpu_seconds == 30, "a GPU with room for others is taken all the same"
    assert describe_plan(alone).count(", 30 s of GPU\n") == 1
    small = plan_workers(12, [workers("g/independent", 12, 30.0, 10**9, 60 * 10**9)], parse_inventory("1xRTX4090-24G"))
    assert "60.0 GB per GPU where the largest has 22.8 GB: 37.2 GB short" in str(small.shortfall)


@pytest.mark.parametrize("inventory", ["8xH100-80G", "1xH100-80G"])
def test_fields_that_other_programs_rely_on(inventory: str) -> None:
    document = json.loads(msgspec.json.encode(plan(inventory, PAIR)))
    assert {"feasible", "shortfall", "cells", "pending", "resources", "predicted", "kinds", "disk", "margin"} == set(
        document
    )
    assert {"cpu_seconds", "gpu_seconds", "wall_seconds", "memory_bytes"} <= set(document["predicted"])
    assert plan_cells(2, {}, parse_inventory(inventory), account).feasible, "nothing to do fits everywhere"
