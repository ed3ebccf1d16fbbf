"""A plan as people read it: resources, prediction and each distinct layout, or what is short."""

from __future__ import annotations

from collections.abc import Mapping

from harness.allocation.cell_layout import CellLayout
from harness.allocation.inventory import format_gigabytes
from harness.allocation.layout import PolicyLayout
from harness.allocation.planner import KindPlan, Plan


def format_duration(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def describe_plan(plan: Plan) -> str:
    """Describe a plan: resources, prediction and each distinct layout; or what is short."""
    lines = [f"inventory  {plan.resources.inventory}", f"cells      {plan.cells}, {plan.pending} to do"]
    if not plan.feasible:
        return "\n".join([*lines, f"does not fit: {first_of(plan.shortfall or '')}"])
    if not plan.pending:
        return "\n".join([*lines, "finished: nothing is left to run"])
    lines += [_describe_resources(plan), _describe_prediction(plan)]
    margin = plan.margin
    if margin:
        caches = (
            f"; {format_gigabytes(margin.spare)} with the smallest KV caches" if margin.spare != margin.left else ""
        )
        left = f"{format_gigabytes(margin.left)} of {format_gigabytes(margin.memory)}"
        lines.append(f"margin     {left} left on the fullest GPU{caches}")
    disk = plan.disk
    if disk.kept:
        models = (
            f", {_format_disk(disk.caches)} of models and starts to be fetched or made first" if disk.caches else ""
        )
        lines.append(f"disk       {_format_disk(disk.kept)} kept, {_format_disk(disk.running)} at the fullest{models}")
    for layout, kinds in _group_alike_layouts(plan):
        lines += ["", *_describe_layout(layout)]
        lines += [_describe_kind(own, kind) for own, kind in kinds]
    return "\n".join(lines)


def _describe_resources(plan: Plan) -> str:
    """Return the line of what a run takes of the machines."""
    there = plan.resources
    cells = f"{there.workers} cells side by side" if there.workers > 1 else "1 cell"
    memory = format_gigabytes(plan.predicted.memory_bytes)
    cores = f"{there.cores_used} of {there.cores} cores"
    if not there.gpus_used:
        return f"resources  {cells} on {cores}, {memory}"
    return f"resources  {cells} on {there.gpus_used} of {there.gpus} GPUs, {cores}, {memory}, GPUs included"


def _describe_prediction(plan: Plan) -> str:
    """Return the line of how long a run takes, and of what it costs: on a GPU in hours from six minutes on."""
    predicted = plan.predicted
    if predicted.gpu_seconds >= 360:
        cost = f"{predicted.gpu_seconds / 3600:.1f} GPU-hours"
    elif predicted.gpu_seconds:
        cost = f"{format_duration(predicted.gpu_seconds)} of GPU"
    else:
        cost = f"{format_duration(predicted.cpu_seconds)} of CPU"
    bound = f"no schedule of these layouts takes less than {format_duration(predicted.wall_bound)}"
    return f"predicted  {format_duration(predicted.wall_seconds)} ({bound}), {cost}"


def _group_alike_layouts(plan: Plan) -> list[tuple[CellLayout, list[tuple[CellLayout, KindPlan]]]]:
    """Return the layouts that differ in what is shown of them, each with the kinds of cells that it stands for."""
    alike: dict[object, list[tuple[CellLayout, KindPlan]]] = {}
    for kind in plan.kinds:
        layout = kind.layout
        if layout is None:
            continue
        parts = [(one.policy, one.gpus, one.tensor_parallel, one.memory, one.host) for one in layout.policies]
        alike.setdefault((layout.arrangement, *parts), []).append((layout, kind))
    return [(same[0][0], same) for same in alike.values()]


def _describe_layout(layout: CellLayout) -> list[str]:
    """Return what a cell takes in all, and then each of its policies."""
    gpus = f"{layout.gpus} GPU{'s' if layout.gpus != 1 else ''}"
    lines = [f"{layout.arrangement} on {gpus}{_describe_sizes(layout)}"]
    for policy in layout.policies:
        lines += _policy_lines(policy)
    return lines


def _describe_kind(layout: CellLayout, kind: KindPlan) -> str:
    """Say how many cells of a kind there are, and how long each takes."""
    steps = ", ".join(f"{policy.policy} {format_duration(policy.seconds.total)}" for policy in layout.policies)
    cells = f"{kind.cells} cell{'s' if kind.cells != 1 else ''} of {format_duration(kind.seconds)}"
    return f"  {kind.kind}: {cells}; step {format_duration(layout.step_seconds)} ({steps})"


def first_of(shortfall: str) -> str:
    """Return its first sentence, and how many there are besides."""
    first, *more = shortfall.split("; ")
    return first + (f" (and {len(more)} more: `harness plan --json` has all)" if more else "")


def _format_disk(size: int) -> str:
    """Return a size on disk in megabytes or gigabytes."""
    if size >= 10**9:
        return format_gigabytes(size)
    return f"{size / 1e6:.0f} MB"


def _describe_sizes(layout: CellLayout) -> str:
    """Return what a cell adds to the total, where it is one number for all of the alike ones."""
    on_gpus = format_gigabytes(layout.memory_bytes - layout.host)
    return f": {format_gigabytes(layout.memory_bytes)} a cell, {on_gpus} on GPUs and {format_gigabytes(layout.host)} of RAM"


def _policy_lines(policy: PolicyLayout) -> list[str]:
    """Write how a policy trains and rolls out, and what memory it takes at each moment of a step."""
    ways = [f"ZeRO {policy.zero}", f"micro-batch {policy.micro_batch}"]
    if policy.checkpointing:
        ways.append("checkpointing")
    if policy.sleeps:
        ways.append("trainer and engine take turns")
    engines = f"{policy.engines} rollout engine{'s' if policy.engines != 1 else ''} x TP {policy.tensor_parallel}"
    peak = format_gigabytes(policy.peak)
    capacity = format_gigabytes(policy.capacity)
    moments = [f"    {_describe_moment(when, parts)}" for when, parts in policy.moments().items()]
    return [
        f"  {policy.policy}: {policy.gpus} GPUs; {', '.join(ways)}; {engines}, {policy.concurrent} answers at once",
        f"    {peak} of {capacity} per GPU, {format_gigabytes(policy.host)} of RAM",
        *moments,
    ]


def _describe_moment(when: str, parts: Mapping[str, int]) -> str:
    """Return the parts of memory at one moment of a run, and their sum."""
    named = {"kv_cache": "KV cache"}
    words = [f"{named.get(part, part.replace('_', ' '))} {size / 1e9:.1f}" for part, size in parts.items() if size]
    return f"{when} {sum(parts.values()) / 1e9:.1f}: {', '.join(words)}"
