"""The plan of a suite on an inventory: layouts, resources, predicted time and cost, or what is short and by how much."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from harness.allocation.demand import CellDemand
from harness.allocation.estimates import Estimates
from harness.allocation.gangs import Bundle, capacity, gigabytes, missing
from harness.allocation.gpus import has_bf16
from harness.allocation.inventory import LOGICAL, Inventory, Node
from harness.allocation.layout import LOGICAL_HOST_BYTES, USABLE, Gpu, fits, least_gpus
from harness.allocation.placement import CellLayout, cell_layout
from harness.allocation.scheduler import LONGEST_SECONDS, PATIENCE_SECONDS, Request, Scheduler, Start

MAX_PARALLEL = 16
"""Numbers of cells side by side that are tried."""


class Resources(msgspec.Struct, frozen=True):
    """What there is, and how much of it the plan uses at once. workers: cells side by side. nodes: that they are placed on;
    shared: parts into which these have cut each GPU."""

    inventory: str
    cores: int
    memory_bytes: int
    gpus: int
    workers: int = 0
    cores_used: int = 0
    gpus_used: int = 0
    nodes: tuple[Node, ...] = ()
    shared: int = 1


class Predicted(msgspec.Struct, frozen=True):
    """Of all pending cells. cpu_seconds: of reserved cores; gpu_seconds: of reserved GPUs; memory_bytes: host and devices
    together, at the fullest moment; wall_bound: no schedule of these layouts is shorter."""

    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_bytes: int = 0
    wall_bound: float = 0.0

    @property
    def gpu_hours(self) -> float:
        return self.gpu_seconds / 3600


class KindPlan(msgspec.Struct, frozen=True):
    """All pending cells of one kind, which share a layout (None on the embedded engine, of which micro_tokens is chosen where the
    default does not fit). bundles: what each reserves."""

    kind: str
    cells: int
    seconds: float
    bundles: tuple[Bundle, ...]
    layout: CellLayout | None = None
    micro_tokens: int = 0


class Disk(msgspec.Struct, frozen=True):
    """Bytes that the pending cells keep when all are done, and at the fullest moment before; of what is fetched or made first
    (base checkpoints, models), each once."""

    kept: int = 0
    running: int = 0
    caches: int = 0


class Plan(msgspec.Struct, frozen=True):
    """The answer. shortfall: in words, None where everything fits."""

    feasible: bool
    shortfall: str | None
    cells: int
    pending: int
    resources: Resources
    predicted: Predicted
    kinds: tuple[KindPlan, ...] = ()
    disk: Disk = Disk()

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``harness plan --json``."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


@dataclass(frozen=True, slots=True)
class WorkerDemand:
    """A cell in one process: seconds by prior or measurement, peak bytes of RAM, and of a GPU where it takes one, which it keeps
    busy for a share of the time. micro_tokens: what it was counted with, where that is the planner's choice. half: whether a policy
    is computed in bf16."""

    key: str
    kind: str
    seconds: float
    memory: int
    device: int = 0
    busy: float = 1.0
    micro_tokens: int = 0
    cores: int = 1
    half: bool = False

    @property
    def bundle(self) -> Bundle:
        return Bundle(int(self.device > 0), self.cores, self.memory, self.device)


def plan_workers(
    cells: int,
    pending: Sequence[WorkerDemand],
    inventory: Inventory,
    first: Sequence[WorkerDemand] = (),
    workers: int | None = None,
) -> Plan:
    """The embedded engine: one worker process per cell, on its cores, or on a GPU that it shares with as many others as its
    memory holds.

    first: what must end before any cell starts (base checkpoints). workers: most processes at once.
    """
    widest = max((job.cores for job in (*first, *pending)), default=1)
    held = inventory if workers is None else _at_most(inventory, workers * widest)
    held, shared = _shared_gpus(held, (*first, *pending))
    total, bound, used, memory, most, gpus = 0.0, 0.0, 0, 0, 0, 0
    queues = [
        [(Request(j.key, j.kind, (j.bundle,), LONGEST_SECONDS), j.seconds) for j in jobs] for jobs in (first, pending)
    ]
    half = any(job.device and job.half for job in pending)
    if refused := (half and _without_bf16(inventory)) or _refused(queues[1], held) or _refused(queues[0], held):
        return Plan(False, refused, cells, len(pending), _resources(inventory), Predicted())
    for requests in queues:
        run = timetable(requests, held)
        total, bound = total + run.seconds, bound + run.bound
        used, memory, most = max(used, run.cores), max(memory, run.memory), max(most, run.together)
        gpus = max(gpus, min(inventory.gpus, run.gpus))
    memory += max((j.device for j in pending), default=0) * most
    seconds = sum(j.seconds * j.cores for j in (*first, *pending))
    on_gpus = sum(j.seconds for j in (*first, *pending) if j.device) / shared
    predicted = Predicted(seconds, on_gpus, total, memory, bound)
    resources = msgspec.structs.replace(
        _resources(inventory),
        workers=most if workers is None else min(most, workers),
        cores_used=used,
        gpus_used=gpus,
        nodes=held.nodes,
        shared=shared,
    )
    return Plan(True, None, cells, len(pending), resources, predicted, _kinds(pending))


def plan_cells(
    cells: Sequence[CellDemand],
    inventory: Inventory,
    *,
    sleeps: bool = False,
    stacks: bool = False,
    estimates: Estimates | None = None,
) -> Plan:
    """Cells whose policies have GPUs of their own (the openrlhf engine), on a cluster's GPUs (logical ones where it has none).

    The number of cells side by side is the one whose makespan bound is the least; within a cell the GPUs are shared out so that
    its policies finish a step together. sleeps, stacks: what the engine can do (`Gpu`). estimates: measured seconds
    per kind of cell, which take the prediction's place.
    """
    cluster = inventory if inventory.gpus else inventory.with_logical_gpus()
    pending = [c for c in cells if c.pending]
    half = any(p.precision == "bf16" for c in pending for p in c.policies)
    able = tuple(n for n in cluster.nodes if n.gpus and (has_bf16(n.gpu_kind) or not half))
    if not able:
        return Plan(False, _without_bf16(cluster), len(cells), len(pending), _resources(inventory), Predicted())
    gpu, cluster = _uniform(Inventory(able), sleeps, stacks)
    kinds = {c.kind: c for c in pending}
    counts = {kind: sum(c.kind == kind for c in pending) for kind in kinds}
    if not pending:
        return Plan(True, None, len(cells), 0, _resources(inventory), Predicted())
    total = cluster.gpus
    alone = replace(gpu, stacks=False)
    if not any(cell.shared for cell in kinds.values()) and all(cell_layout(c, total, alone) for c in kinds.values()):
        gpu = alone  # cells whose policies have GPUs of their own are not made smaller by taking turns
    short: dict[str, list[str]] = {}
    for kind, cell in kinds.items():
        if words := _shortfall(cell, total, gpu):
            short.setdefault(words, []).append(kind)
    if short:
        said = "; ".join(f"{_named(group)}: {words}" for words, group in short.items())
        return Plan(False, said, len(cells), len(pending), _resources(inventory), Predicted())
    best: tuple[Timetable, dict[str, CellLayout]] | None = None
    why = ""
    for bound, layouts in _candidates(kinds, counts, total, gpu):
        if best is not None and best[0].seconds <= bound:
            break
        requests = []
        for cell in pending:
            layout = layouts[cell.kind]
            seconds = estimates.seconds(cell.kind, layout.seconds) if estimates is not None else layout.seconds
            requests.append((Request(cell.key, cell.kind, layout.bundles(gpu), LONGEST_SECONDS), seconds))
        if refused := _refused(requests, cluster):
            why = why or refused
            continue
        run = timetable(requests, cluster)
        if best is None or run.seconds < 0.999 * best[0].seconds:
            best = run, layouts
    if best is None:
        return Plan(False, why, len(cells), len(pending), _resources(inventory), Predicted())
    run, chosen = best
    device_bytes = {kind: layout.memory_bytes - layout.host for kind, layout in chosen.items()}
    predicted = Predicted(
        run.core_seconds,
        run.gpu_seconds,
        run.seconds,
        run.memory + max(device_bytes.values()) * run.together,
        run.bound,
    )
    resources = msgspec.structs.replace(
        _resources(cluster), workers=run.together, cores_used=run.cores, gpus_used=run.gpus, nodes=cluster.nodes
    )
    return Plan(
        True, None, len(cells), len(pending), resources, predicted,
        tuple(
            KindPlan(kind, counts[kind], chosen[kind].seconds, chosen[kind].bundles(gpu), chosen[kind]) for kind in kinds
        ),
    )  # fmt: skip


# Inside ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timetable:
    """What a schedule came to: its length and bound, core- and GPU-seconds, and the fullest moments."""

    seconds: float
    bound: float
    core_seconds: float
    gpu_seconds: float
    together: int
    cores: int
    gpus: int
    memory: int


def timetable(requests: Sequence[tuple[Request, float]], inventory: Inventory) -> Timetable:
    """Play the requests, each with its seconds, through the scheduler itself, with the limit and the patience of a run."""
    if not requests:
        return Timetable(0, 0, 0, 0, 0, 0, 0, 0)
    seconds = {request.key: s for request, s in requests}
    bundles = {request.key: request.bundles for request, _ in requests}
    prior = {request.kind: s for request, s in requests}
    scheduler = Scheduler(inventory, LONGEST_SECONDS, PATIENCE_SECONDS, estimates=Estimates(prior))
    running: list[tuple[float, str]] = []
    peak = [0, 0, 0, 0]
    now = 0.0
    actions = scheduler.submit([request for request, _ in requests], now)
    while True:
        for action in actions:
            if isinstance(action, Start):
                heapq.heappush(running, (now + seconds[action.key], action.key))
        held = [b for _, key in running for b in bundles[key]]
        now_held = [len(running), sum(b.cores for b in held), sum(b.gpus for b in held), sum(b.memory for b in held)]
        peak = [max(pair) for pair in zip(peak, now_held, strict=True)]
        if not running:
            break
        if scheduler.wake <= running[0][0]:
            now = scheduler.wake
            actions = scheduler.tick(now)
        else:
            now, key = heapq.heappop(running)
            actions = scheduler.finished(key, now)
    cores = sum(s * sum(b.cores for b in r.bundles) for r, s in requests)
    gpus = sum(s * sum(b.gpus for b in r.bundles) for r, s in requests)
    memory = sum(s * sum(b.memory for b in r.bundles) for r, s in requests)
    bounds = [max(seconds.values()), cores / max(1, inventory.cores), memory / max(1, inventory.memory)]
    bounds += [gpus / inventory.gpus] if inventory.gpus else []
    return Timetable(now, max(bounds), cores, gpus, *peak)


def _candidates(
    kinds: Mapping[str, CellDemand], counts: Mapping[str, int], total: int, gpu: Gpu
) -> list[tuple[float, dict[str, CellLayout]]]:
    """Layouts per kind for several numbers of cells side by side, with the makespan's bound, the least first; at most three."""
    sizes = sorted({total // side for side in range(1, min(total, sum(counts.values()), MAX_PARALLEL) + 1)})
    found = []
    for index in range(len(sizes)):
        layouts = {}
        for kind, cell in kinds.items():
            layout = next((fit for n in sizes[index:] if (fit := cell_layout(cell, n, gpu)) is not None), None)
            if layout is None:
                break
            layouts[kind] = layout
        if len(layouts) == len(kinds):
            work = sum(layouts[kind].gpus * layouts[kind].seconds * counts[kind] for kind in kinds) / total
            found.append((max(work, max(layout.seconds for layout in layouts.values())), index, layouts))
    found.sort(key=lambda entry: entry[:2])
    return [(bound, layouts) for bound, _, layouts in found[:3]]


def _shortfall(cell: CellDemand, total: int, gpu: Gpu) -> str:
    """In words, why a cell does not fit on all the GPUs there are; empty where it does."""
    if cell_layout(cell, total, gpu) is not None:
        return ""
    least = {p.name: least_gpus(p, cell.workload, gpu) for p in cell.policies}
    words = []
    for policy in cell.policies:
        needed = least[policy.name]
        if needed is not None and needed <= total:
            continue
        size = f"{policy.name} ({policy.model.name}, {policy.model.parameters / 1e9:.2f} B parameters)"
        smallest = _smallest_memory(cell, policy.name, total, gpu)
        where = f"{total} GPU{'s' if total != 1 else ''} of {gigabytes(gpu.memory)} ({gigabytes(gpu.usable)} usable)"
        enough = f"{needed} such GPUs would do: {needed - total} short" if needed else "no number of such GPUs would do"
        if smallest is not None and gpu.kind == LOGICAL:
            words.append(
                f"{size} needs {gigabytes(smallest)} per GPU, and here are none: {total} cores take their place, "
                f"{gigabytes(gpu.usable)} each"
            )
        elif smallest is not None and smallest > gpu.usable:
            words.append(
                f"{size} needs {gigabytes(smallest)} per GPU on {where}: {gigabytes(smallest - gpu.usable)} per GPU short "
                f"({enough})"
            )
        else:
            words.append(f"{size} does not fit on {where} ({enough})")
    if not words:
        known = {name: number for name, number in least.items() if number is not None}
        together = sum(known.values())
        list_ = ", ".join(f"{name} {number}" for name, number in known.items())
        words.append(
            f"its policies need {together} GPUs together ({list_}) where there are {total}: {together - total} short"
        )
    if _fits_unmeasured(cell, total, gpu):
        words.append("without measuring (training.measure_every: 0) it fits")
    return "; ".join(words)


def _fits_unmeasured(cell: CellDemand, total: int, gpu: Gpu) -> bool:
    if not any(p.measured for p in cell.policies):
        return False
    without = tuple(replace(p, measured=False, reference=p.penalised) for p in cell.policies)
    return cell_layout(replace(cell, policies=without), total, gpu) is not None


def _named(kinds: Sequence[str]) -> str:
    return (
        kinds[0]
        if len(kinds) == 1
        else f"{kinds[0]} and {len(kinds) - 1} other kind{'s' if len(kinds) > 2 else ''} of cells"
    )


def _smallest_memory(cell: CellDemand, name: str, total: int, gpu: Gpu) -> int | None:
    """The least bytes per GPU with which the policy would fit on `total` GPUs, to 0.1 GB; None where memory is not what lacks."""
    policy = next(p for p in cell.policies if p.name == name)
    low, high = 0, 2**45
    if not fits(policy, cell.workload, total, replace(gpu, memory=high)):
        return None
    while high - low > 10**8:
        middle = (low + high) // 2
        if fits(policy, cell.workload, total, replace(gpu, memory=middle)):
            high = middle
        else:
            low = middle
    return replace(gpu, memory=high).usable


def _uniform(inventory: Inventory, sleeps: bool, stacks: bool) -> tuple[Gpu, Inventory]:
    """The kind of GPU with most memory in all, and the nodes that have it: a cell's ranks should be equally fast."""
    memory: dict[tuple[str, int], int] = {}
    for node in inventory.nodes:
        if node.gpus:
            kind = (node.gpu_kind, node.gpu_memory)
            memory[kind] = memory.get(kind, 0) + node.gpus * node.gpu_memory
    name, size = max(memory, key=lambda kind: (memory[kind], kind))
    nodes = tuple(n for n in inventory.nodes if n.gpus and (n.gpu_kind, n.gpu_memory) == (name, size))
    own = {"context": 0, "host": LOGICAL_HOST_BYTES} if name == LOGICAL else {}
    return Gpu(name, size, max(n.gpus for n in nodes), sleeps, stacks, **own), Inventory(nodes)


def _without_bf16(inventory: Inventory) -> str:
    """In words, which GPUs there are that do not multiply bf16."""
    kinds = sorted({n.gpu_kind for n in inventory.nodes if n.gpus and not has_bf16(n.gpu_kind)})
    return f"{', '.join(kinds)} multiplies no bf16: engine_options.dtype=fp32 does without" if kinds else ""


def _refused(requests: Sequence[tuple[Request, float]], inventory: Inventory) -> str:
    """In words, what the empty inventory cannot hold; one sentence per kind."""
    seen: dict[tuple[Bundle, ...], list[str]] = {}
    for request, _ in requests:
        kinds = seen.setdefault(request.bundles, [])
        if request.kind not in kinds:
            kinds.append(request.kind)
    whole = capacity(inventory)
    return "; ".join(
        f"{_named(kinds)} {words}" for bundles, kinds in seen.items() if (words := missing(bundles, whole))
    )


def _shared_gpus(inventory: Inventory, jobs: Sequence[WorkerDemand]) -> tuple[Inventory, int]:
    """The same nodes with every GPU as so many as it holds processes, by its memory and by its time, and that number."""
    sizes = [n.gpu_memory for n in inventory.nodes if n.gpus]
    device = max((j.device for j in jobs), default=0)
    if not device or not sizes:
        return inventory, 1
    parts = max(1, min(int(min(sizes) * USABLE) // device, int(1 / max(j.busy for j in jobs))))
    nodes = (replace(n, gpus=n.gpus * parts, gpu_memory=int(n.gpu_memory * USABLE) // parts) for n in inventory.nodes)
    return Inventory(tuple(nodes)), parts


def _at_most(inventory: Inventory, workers: int) -> Inventory:
    """The same nodes with at most so many cores in all."""
    nodes = []
    for node in inventory.nodes:
        cores = min(node.cores, max(0, workers))
        workers -= cores
        nodes.append(replace(node, cores=cores))
    return Inventory(tuple(nodes))


def _resources(inventory: Inventory) -> Resources:
    return Resources(inventory.describe(), inventory.cores, inventory.memory, inventory.gpus)


def _kinds(jobs: Sequence[WorkerDemand]) -> tuple[KindPlan, ...]:
    kinds = {job.kind: [other for other in jobs if other.kind == job.kind] for job in jobs}
    return tuple(
        KindPlan(
            kind,
            len(group),
            sum(j.seconds for j in group) / len(group),
            (max(j.bundle for j in group),),
            micro_tokens=min(j.micro_tokens for j in group),
        )
        for kind, group in kinds.items()
    )
