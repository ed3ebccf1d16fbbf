"""Plans: layouts that fit, policies that finish together, shortfalls in words, fields that other programs rely on."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from harness.allocation import planner
from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.estimates import Estimates
from harness.allocation.inventory import Inventory, parse
from harness.allocation.layout import USABLE, Gpu, least_gpus, policy_layout
from harness.allocation.placement import cell_layout
from harness.allocation.plan_text import describe
from harness.allocation.planner import Plan, WorkerDemand, plan_cells, plan_workers
from harness.allocation.scheduler import LONGEST_SECONDS, PATIENCE_SECONDS, Scheduler
from harness.allocation.shapes import load_shape, shape_from_config
from harness.allocation.size import CONTEXT_BYTES

WORK = Workload(
    steps=57, prompts=128, prompt_tokens=1024, answer_tokens=4096, mean_answer_tokens=2048, evaluated=20_000
)
H100 = Gpu("H100", 80 * 10**9, 8)


def cell(*models: str, work: Workload = WORK, key: str = "c", **more: object) -> CellDemand:
    policies = tuple(PolicyDemand(f"p{i}", load_shape(m), 8, **more) for i, m in enumerate(models))  # type: ignore[arg-type]
    return CellDemand(key, "+".join(models), policies, work)


PAIR = cell("Qwen3-4B-Base", "Llama-3.2-3B-Instruct")


def check_memory(plan: Plan) -> None:
    for kind in plan.kinds:
        assert kind.layout is not None
        for policy in kind.layout.policies:
            assert policy.peak <= USABLE * policy.capacity
            assert policy.split or policy.sleeps or policy.peak == sum(msgspec.to_builtins(policy.memory).values())
            assert policy.memory.train <= USABLE * policy.capacity
            assert policy.peak >= max(policy.memory.train, policy.memory.rollout)
            assert policy.memory.kv_cache > 0
        assert sum(b.gpus for b in kind.layout.bundles(H100)) == kind.layout.gpus


def test_a_pair_on_eight_gpus() -> None:
    plan = plan_cells([PAIR], parse("8xH100-80G"))
    assert plan.feasible
    check_memory(plan)
    assert plan.resources.gpus_used == 8
    assert plan.predicted.gpu_seconds == pytest.approx(8 * plan.predicted.wall_seconds)


def test_unequal_policies_finish_a_step_together() -> None:
    """Qwen3-8B beside 1.7B: with equal shares the larger takes twice as long and more."""
    layout = cell_layout(cell("Qwen3-8B-Base", "Qwen3-1.7B-Base"), 16, H100)
    assert layout is not None
    large, small = layout.policies
    assert large.gpus > small.gpus
    assert max(large.seconds.total, small.seconds.total) / min(large.seconds.total, small.seconds.total) < 1.6
    even = policy_layout(cell("Qwen3-8B-Base").policies[0], WORK, 8, H100)
    assert even is None or layout.step_seconds < even.seconds.total


def test_one_gpu_is_too_little_and_the_shortfall_is_exact() -> None:
    """With the GPUs that the sentence asks for it fits; with one less it does not."""
    plan = plan_cells([PAIR], parse("1xH100-80G"))
    assert not plan.feasible
    assert plan.shortfall is not None
    assert "Qwen3-4B-Base" in plan.shortfall
    assert "per GPU short" in plan.shortfall
    needed = [least_gpus(p, WORK, H100) for p in PAIR.policies]
    assert None not in needed
    total = sum(n for n in needed if n)
    assert plan_cells([PAIR], parse(f"{total}xH100-80G")).feasible
    short = plan_cells([PAIR], parse(f"{total - 1}xH100-80G"))
    assert f"need {total} GPUs together" in str(short.shortfall)
    assert f"where there are {total - 1}: 1 short" in str(short.shortfall)


def test_memory_said_to_be_short_is_what_is_missing() -> None:
    plan = plan_cells([cell("Qwen3-8B")], parse("1xH100-80G"))
    words = str(plan.shortfall)
    needs = float(words.split(" needs ")[1].split(" GB")[0])
    enough = replace(H100, memory=int((needs + 0.2) / 0.95 * 1e9))
    scarce = replace(H100, memory=int((needs - 0.2) / 0.95 * 1e9))
    policy = cell("Qwen3-8B").policies[0]
    assert policy_layout(policy, WORK, 1, enough) is not None
    assert policy_layout(policy, WORK, 1, scarce) is None


def test_an_engine_that_can_sleep_and_stack_puts_two_policies_on_one_gpu() -> None:
    pair = cell("Qwen3-1.7B-Base", "Qwen2.5-Math-1.5B")
    inventory = parse("1xH100-80G+16cpu-512G")
    assert not plan_cells([pair], inventory).feasible
    plan = plan_cells([pair], inventory, sleeps=True, stacks=True)
    assert plan.feasible, plan.shortfall
    (kind,) = plan.kinds
    assert kind.layout is not None
    assert kind.layout.arrangement == "stacked"
    assert kind.layout.step_seconds == pytest.approx(sum(p.seconds.total for p in kind.layout.policies))


def test_ram_can_be_what_is_short() -> None:
    pair = cell("Qwen3-1.7B-Base", "Qwen2.5-Math-1.5B")
    plan = plan_cells([pair], parse("1xH100-80G+16cpu-32G"), sleeps=True, stacks=True)
    assert "of RAM on one node where the largest has 32.0 GB" in str(plan.shortfall)


HALF = shape_from_config(
    "Qwen2.5-0.5B",
    {
        "model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 151_936, "tie_word_embeddings": True,
    },
)  # fmt: skip


def half_pair(**more: object) -> CellDemand:
    work = replace(WORK, prompts=32, answer_tokens=1024, mean_answer_tokens=512)
    return CellDemand("c", "halves", tuple(PolicyDemand(name, HALF, 8) for name in "ab"), work, **more)  # type: ignore[arg-type]


def test_a_plan_stops_nothing_that_a_run_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number true, 21: limit and patience of a plan's timetable are those with which the driver makes its scheduler."""
    played: list[tuple[float, float | None, set[float]]] = []

    class Watched(Scheduler):
        def submit(self, requests, now):  # type: ignore[no-untyped-def]
            played.append((self.longest_limit, self.patience, {request.limit for request in requests}))
            return super().submit(requests, now)

    monkeypatch.setattr(planner, "Scheduler", Watched)
    plan_cells([PAIR], parse("8xH100-80G"))
    plan_workers(2, [WorkerDemand("a", "a", 1.0, 10**9)], parse("4cpu-24G"))
    assert {(*own, *limits) for *own, limits in played} == {(LONGEST_SECONDS, PATIENCE_SECONDS, LONGEST_SECONDS)}


def test_cards_without_bf16_are_refused_when_the_plan_is_made() -> None:
    """The GPU path, 13. Where some nodes have it, these are taken."""
    asked = half_pair()
    refused = plan_cells([asked], parse("2xV100-32G"), sleeps=True, stacks=True)
    assert (refused.feasible, refused.shortfall) == (
        False,
        "V100 multiplies no bf16: engine_options.dtype=fp32 does without",
    )
    full = replace(asked, policies=tuple(replace(p, precision="fp32") for p in asked.policies))
    assert plan_cells([full], parse("2xV100-32G"), sleeps=True, stacks=True).feasible
    v100, a100 = parse("2x8xV100-32G").nodes[0], parse("2x2xA100-80G").nodes[1]
    both = plan_cells([asked], Inventory((v100, a100)), sleeps=True, stacks=True)
    assert [node.gpu_kind for node in both.resources.nodes] == ["A100"]
    for half in (True, False):
        work = [WorkerDemand("a", "a", 1.0, 10**9, 10**9, half=half)]
        assert plan_workers(1, work, parse("1xT4-16G")).feasible != half


@pytest.mark.parametrize("inventory", ["1xA100-40G", "1xRTX4090-24G"])
def test_two_half_billions_take_turns_on_one_small_gpu(inventory: str) -> None:
    """Beside the one that works, both processes of the other keep their contexts; what sleeps is in the host's RAM."""
    plan = plan_cells([half_pair()], parse(inventory), sleeps=True, stacks=True)
    assert plan.feasible, plan.shortfall
    layout = plan.kinds[0].layout
    assert layout is not None
    assert (layout.arrangement, layout.gpus, plan.resources.gpus_used) == ("stacked", 1, 1)
    for policy in layout.policies:
        working = max if policy.sleeps else sum
        parts = working([policy.memory.train, policy.memory.rollout])
        assert policy.peak >= parts + CONTEXT_BYTES * (2 + policy.sleeps)
        assert policy.peak <= USABLE * policy.capacity
        assert policy.host > 12 * HALF.parameters
    assert "its policies need 2 GPUs" in str(plan_cells([half_pair()], parse(inventory)).shortfall)


def test_turns_are_taken_where_nothing_else_fits_or_the_suite_wants_them() -> None:
    def arrangement(inventory: str, shared: bool | None) -> str | None:
        plan = plan_cells([half_pair(shared=shared)], parse(inventory), sleeps=True, stacks=True)
        return plan.kinds[0].layout.arrangement if plan.kinds and plan.kinds[0].layout else None

    assert arrangement("2xA100-40G", None) == "colocated"
    assert arrangement("8xH100-80G", None) == "colocated"
    assert arrangement("2xA100-40G", True) == "stacked"
    assert arrangement("1xA100-40G", None) == "stacked"
    assert arrangement("1xA100-40G", False) is None


def test_a_layout_of_the_suites_own_keeps_its_devices_when_policies_share_them() -> None:
    own = half_pair(shared=True)
    own = replace(own, policies=tuple(replace(p, devices=3) for p in own.policies))
    layout = cell_layout(own, 8, replace(H100, sleeps=True, stacks=True))
    assert layout is not None
    assert (layout.arrangement, layout.gpus) == ("stacked", 3)


def test_a_policy_alone_has_nobody_to_take_turns_with() -> None:
    alone = replace(half_pair(shared=True), policies=half_pair().policies[:1])
    plan = plan_cells([alone], parse("1xA100-40G"), sleeps=True, stacks=True)
    assert plan.feasible, plan.shortfall


def test_split_only_pays_when_experience_may_be_stale() -> None:
    lockstep = cell_layout(cell("Qwen3-8B", "Qwen3-8B"), 16, H100)
    stale = cell_layout(cell("Qwen3-8B", "Qwen3-8B", work=replace(WORK, staleness=1)), 16, H100)
    assert lockstep is not None
    assert stale is not None
    assert lockstep.arrangement == "colocated"
    assert stale.step_seconds <= lockstep.step_seconds
    if stale.arrangement == "split":
        assert all(p.split and p.rollout_gpus for p in stale.policies)


def test_the_base_takes_the_hosts_memory_and_measuring_a_share_of_the_gradients() -> None:
    plain, both = (
        policy_layout(cell("Qwen3-1.7B", reference=on, measured=on).policies[0], WORK, 4, H100) for on in (False, True)
    )
    assert plain is not None
    assert both is not None
    assert both.memory.reference == 0
    assert both.host - plain.host >= both.gpus * both.memory.weights // (4 if both.zero == 3 else 1)
    assert (
        4 * load_shape("Qwen3-1.7B").parameters // 4 < both.memory.measuring < 4 * load_shape("Qwen3-1.7B").parameters
    )
    assert plain.memory.measuring == 0


@pytest.mark.slow
def test_a_large_suite_is_always_planned_alike() -> None:
    models = [
        "Qwen3-4B-Base",
        "Llama-3.2-3B",
        "SmolLM3-3B",
        "Qwen3-1.7B",
        "Qwen2.5-Math-1.5B",
        "Qwen3-8B",
        "Llama-3.2-1B",
        "Qwen3-0.6B",
    ]
    cells = []
    for index in range(500):
        group = models[: 2 + index % 7]
        work = replace(WORK, trained=1.0 + index % 3, evaluated=1000 + index % 5)
        kind = f"{len(group)}/{index % 3}/{index % 5}"
        policies = tuple(PolicyDemand(f"p{i}", load_shape(m), 8) for i, m in enumerate(group))
        cells.append(CellDemand(f"cell{index}", kind, policies, work))
    plan = plan_cells(cells, parse("64xH100-80G"))
    assert plan.feasible, plan.shortfall
    assert plan == plan_cells(cells, parse("64xH100-80G"))
    assert plan.predicted.wall_bound <= plan.predicted.wall_seconds <= 1.5 * plan.predicted.wall_bound
    check_memory(plan)


def test_measured_seconds_take_the_predictions_place() -> None:
    estimates = Estimates()
    for _ in range(20):
        estimates.observe(PAIR.kind, 100.0)
    plan = plan_cells([PAIR], parse("8xH100-80G"), estimates=estimates)
    assert plan.predicted.wall_seconds < plan_cells([PAIR], parse("8xH100-80G")).predicted.wall_seconds / 2


def test_only_pending_cells_cost() -> None:
    done = replace(PAIR, key="d", pending=False)
    plan = plan_cells([PAIR, done], parse("8xH100-80G"))
    assert (plan.cells, plan.pending) == (2, 1)
    nothing = plan_cells([done], parse("8xH100-80G"))
    assert nothing.feasible
    assert nothing.predicted.wall_seconds == 0


def test_logical_gpus_where_there_are_none() -> None:
    tiny = CellDemand("t", "tiny", (PolicyDemand("a", load_shape("Qwen3-0.6B"), 2),), Workload(1, 2, 16, 16, 8.0))
    plan = plan_cells([tiny], parse("4cpu-240G"))
    assert plan.feasible, plan.shortfall
    assert plan.resources.gpus == 4


def test_workers_on_cores() -> None:
    jobs = [WorkerDemand(f"c{i}", "g/independent", 30.0, 9 * 10**8) for i in range(10)]
    bases = [WorkerDemand(f"b{i}", "base", 90.0, 9 * 10**8) for i in range(2)]
    plan = plan_workers(15, jobs, parse("4cpu-24G"), bases)
    assert plan.feasible
    assert (plan.cells, plan.pending, plan.resources.workers) == (15, 10, 4)
    assert plan.predicted.cpu_seconds == 480
    assert plan.predicted.wall_seconds == 90 + 3 * 30
    assert plan.predicted.memory_bytes == 4 * 9 * 10**8
    assert plan_workers(15, jobs, parse("4cpu-24G"), workers=2).predicted.wall_seconds == 150
    assert plan_workers(15, jobs, parse("4cpu-2G")).resources.workers == 2


def test_workers_share_gpus_by_memory_and_by_time() -> None:
    def jobs(size: int, busy: float) -> list[WorkerDemand]:
        return [WorkerDemand(f"c{i}", "g/independent", 30.0, 10**9, size, busy) for i in range(12)]

    by_memory = plan_workers(12, jobs(25 * 10**9, 0.1), parse("2xH100-80G"))
    assert (by_memory.resources.workers, by_memory.resources.gpus_used, by_memory.resources.shared) == (6, 2, 3)
    assert by_memory.predicted.wall_seconds == 60
    by_time = plan_workers(12, jobs(10**9, 0.4), parse("2xH100-80G"))
    assert (by_time.resources.workers, by_time.resources.shared) == (4, 2)
    alone = plan_workers(12, jobs(60 * 10**9, 0.1), parse("1xH100-80G"))
    assert (alone.resources.workers, alone.predicted.gpu_seconds) == (1, 360)
    small = plan_workers(12, jobs(60 * 10**9, 0.1), parse("1xRTX4090-24G"))
    assert "60.0 GB per GPU where the largest has 22.8 GB: 37.2 GB short" in str(small.shortfall)


def test_a_worker_that_does_not_fit() -> None:
    plan = plan_workers(1, [WorkerDemand("c", "g/independent", 30.0, 9 * 10**8)], parse("4cpu-0.5G"))
    assert not plan.feasible
    assert plan.shortfall == "g/independent needs 0.9 GB of RAM on one node where the largest has 0.5 GB: 0.4 GB short"


def test_fields_that_other_programs_rely_on() -> None:
    for inventory in ("8xH100-80G", "1xH100-80G"):
        document = json.loads(json.dumps(plan_cells([PAIR], parse(inventory)).as_json()))
        assert {"feasible", "shortfall", "cells", "pending", "resources", "predicted"} <= set(document)
        assert {"cpu_seconds", "gpu_seconds", "wall_seconds", "memory_bytes"} <= set(document["predicted"])


def test_text_names_the_layout_and_memory_by_part() -> None:
    text = describe(plan_cells([PAIR], parse("8xH100-80G")))
    for words in ("colocated on 8 GPUs", "ZeRO", "KV cache", "optimiser", "of 80.0 GB per GPU", "GPU-hours"):
        assert words in text
    assert "does not fit" in describe(plan_cells([PAIR], parse("1xH100-80G")))


def test_a_machine_without_gpus_is_told_so_in_one_line() -> None:
    """A policy of 4 B parameters on four cores: what it wants, that there are no GPUs, and how many policies more."""
    text = describe(plan_cells([PAIR], parse("4cpu-24G")))
    (line,) = (line for line in text.splitlines() if "does not fit" in line)
    assert "per GPU, and here are none: 4 cores take their place" in line
    assert line.endswith("(and 1 more: `harness plan --json` has all)")


def test_no_size_is_named_where_memory_is_not_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "fits", lambda *_: False)
    words = str(plan_cells([PAIR], parse("1xH100-80G")).shortfall)
    assert "does not fit on 1 GPU of 80.0 GB" in words
    assert "needs" not in words


def test_bf16_is_never_trained_without_zero() -> None:
    """Item 1: on one rank too; fp32 may be."""
    for precision, stages in (("bf16", {2}), ("fp32", {0})):
        policy = cell("Qwen3-1.7B-Base", precision=precision).policies[0]
        layouts = [policy_layout(policy, WORK, 1, H100), policy_layout(policy, WORK, 8, H100)]
        assert {layout.zero for layout in layouts[:1] if layout} == stages
        assert all(layout.zero in {2, 3} or precision == "fp32" for layout in layouts if layout)


def test_the_host_holds_a_checkpoint_and_what_sleeps_twice() -> None:
    """Items 6 and 13: one rank has weights and optimiser's state, and pinned memory is rounded up to powers of two."""
    policy = cell("Qwen3-1.7B-Base").policies[0]
    layout = policy_layout(policy, WORK, 4, H100)
    assert layout is not None
    assert layout.host == 4 * H100.host + 14 * policy.model.parameters
    pair = plan_cells([half_pair()], parse("1xA100-40G"), sleeps=True, stacks=True).kinds[0].layout
    assert pair is not None
    for place in pair.policies:
        asleep = place.memory.states + place.memory.rollout_weights
        assert place.host == H100.host + 14 * HALF.parameters + 2 * asleep
