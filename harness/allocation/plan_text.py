"""A plan as text for people."""

from __future__ import annotations

import msgspec

from harness.allocation.gangs import gigabytes
from harness.allocation.layout import PolicyLayout
from harness.allocation.placement import CellLayout
from harness.allocation.planner import KindPlan, Plan
from harness.allocation.size import Memory

_PARTS = (
    ("weights", "weights"), ("gradients", "gradients"), ("optimiser", "optimiser"), ("activations", "activations"),
    ("reference", "reference"), ("measuring", "measuring"), ("rollout_weights", "rollout weights"), ("kv_cache", "KV cache"),
    ("context", "contexts and buffers"),
)  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def describe(plan: Plan) -> str:
    """Cells, resources and prediction, then each distinct layout with memory per GPU by part; or what is short."""
    lines = [
        f"inventory  {plan.resources.inventory}",
        f"cells      {plan.cells}, {plan.pending} to do",
    ]
    if not plan.feasible:
        return "\n".join([*lines, f"does not fit: {first_of(plan.shortfall or '')}"])
    p, r = plan.predicted, plan.resources
    used = f"{r.gpus_used} of {r.gpus} GPUs, " if r.gpus_used else ""
    lines += [
        f"resources  {r.workers} cells side by side on {used}{r.cores_used} of {r.cores} cores, {gigabytes(p.memory_bytes)}",
        f"predicted  {duration(p.wall_seconds)} (no schedule of these layouts takes less than {duration(p.wall_bound)}), "
        + (f"{p.gpu_hours:.1f} GPU-hours" if p.gpu_seconds else f"{duration(p.cpu_seconds)} of CPU"),
    ]
    if plan.disk.kept:
        d = plan.disk
        lines.append(
            f"disk       {_disk(d.kept)} kept, {_disk(d.running)} at the fullest"
            + (f", {_disk(d.caches)} of models to be had first" if d.caches else "")
        )
    layouts: dict[tuple[str, tuple[tuple[object, ...], ...]], list[KindPlan]] = {}
    for kind in plan.kinds:
        if kind.layout is not None:
            shape = tuple(_identity(policy) for policy in kind.layout.policies)
            layouts.setdefault((kind.layout.arrangement, shape), []).append(kind)
    for kinds in layouts.values():
        layout = kinds[0].layout
        assert layout is not None
        lines += ["", *_layout_lines(layout, kinds)]
    return "\n".join(lines)


def first_of(shortfall: str) -> str:
    """Its first sentence, and how many there are besides."""
    first, *more = shortfall.split("; ")
    return first + (f" (and {len(more)} more: `harness plan --json` has all)" if more else "")


def _disk(size: int) -> str:
    return gigabytes(size) if size >= 10**9 else f"{size / 1e6:.0f} MB"


def _identity(policy: PolicyLayout) -> tuple[object, ...]:
    return policy.policy, policy.gpus, policy.rollout_gpus, policy.tensor_parallel, policy.memory


def _layout_lines(layout: CellLayout, kinds: list[KindPlan]) -> list[str]:
    lines = [f"{layout.arrangement} on {layout.gpus} GPU{'s' if layout.gpus != 1 else ''}"]
    for policy in layout.policies:
        where = (
            f"{policy.gpus} GPUs"
            if not policy.split
            else f"{policy.gpus} GPUs to train, {policy.rollout_gpus} to roll out"
        )
        ways = [f"ZeRO {policy.zero}", f"micro-batch {policy.micro_batch}"]
        ways += ["checkpointing"] * policy.checkpointing
        ways += ["trainer and engine take turns"] * policy.sleeps
        lines.append(
            f"  {policy.policy}: {where}; {', '.join(ways)}; {policy.engines} rollout engine{'s' if policy.engines != 1 else ''} "
            f"x TP {policy.tensor_parallel}, {policy.concurrent} answers at once"
        )
        lines.append(f"    {gigabytes(policy.peak)} of {gigabytes(policy.capacity)} per GPU: {_parts(policy.memory)}")
    for kind in kinds:
        assert kind.layout is not None
        steps = ", ".join(f"{p.policy} {duration(p.seconds.total)}" for p in kind.layout.policies)
        lines.append(
            f"  {kind.kind}: {kind.cells} cell{'s' if kind.cells != 1 else ''} of {duration(kind.seconds)}; "
            f"step {duration(kind.layout.step_seconds)} ({steps})"
        )
    return lines


def _parts(memory: Memory) -> str:
    whole = msgspec.structs.replace(memory, context=memory.context + memory.rollout_context)
    sizes = [(words, getattr(whole, part)) for part, words in _PARTS]
    return ", ".join(f"{words} {size / 1e9:.1f}" for words, size in sizes if size)
