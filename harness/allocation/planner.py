"""The plan of a suite on an inventory, or what is short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from harness.allocation.cell_layout import CellLayout, cell_layout, frugal_layout
from harness.allocation.cost_model import USABLE, CellDemand, Device, PolicyDemand, Workload
from harness.allocation.inventory import (
    LOGICAL,
    Bundle,
    Inventory,
    Node,
    capacity_of,
    explain_shortage,
    format_gigabytes,
    has_bf16,
    place_bundles,
)
from harness.allocation.layout import Gpu, PolicyAccount, least_gpus, places_up_to, policy_layout, sizes_up_to
from harness.allocation.scheduler import JobRequest, Timetable, play_schedule

MAX_PARALLEL = 16  # cells at once
WIDEST = (8, 4, 2, 1)  # tensor parallelism at most
LEAST_BUSY = 1e-3  # where nothing of a cell is foreseen


class Resources(msgspec.Struct, frozen=True):
    """workers: cells side by side. nodes: where they are placed; shared: parts into which these have cut each GPU."""

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
    """cpu_seconds, gpu_seconds: reserved; memory_bytes: host and devices at the fullest moment; wall_bound: no schedule of
    these layouts is shorter."""

    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_bytes: int = 0
    wall_bound: float = 0.0


class KindPlan(msgspec.Struct, frozen=True):
    """Pending cells of one kind. bundles: of each. layout: None on the embedded engine, whose micro_tokens is chosen where the
    default does not fit."""

    kind: str
    cells: int
    seconds: float
    bundles: tuple[Bundle, ...]
    layout: CellLayout | None = None
    micro_tokens: int = 0


class Margin(msgspec.Struct, frozen=True):
    """Bytes of the fullest GPU, and what the plan leaves. spare: left with KV caches for the fewest answers."""

    memory: int
    left: int
    spare: int


class Disk(msgspec.Struct, frozen=True):
    """Bytes that the pending cells keep, and at the fullest moment; caches: base checkpoints and models."""

    kept: int = 0
    running: int = 0
    caches: int = 0


class Plan(msgspec.Struct, frozen=True):
    """shortfall: in words, None where everything fits. margin: None without GPUs."""

    feasible: bool
    shortfall: str | None
    cells: int
    pending: int
    resources: Resources
    predicted: Predicted
    kinds: tuple[KindPlan, ...] = ()
    disk: Disk = Disk()
    margin: Margin | None = None


def plan_workers(
    cells: int,
    pending: Sequence[KindPlan],
    inventory: Inventory,
    first: Sequence[KindPlan] = (),
    workers: int | None = None,
    busy: float = 1.0,
    half: bool = False,
) -> Plan:
    """Plan cells that are one process each, on cores, or on a GPU shared with as many as its memory holds. first: what must end
    before any cell starts (base checkpoints). workers: most processes at once. busy: share of the time that a process keeps a
    GPU at work. half: a policy computes in bf16."""
    bundles = [bundle for kind in (*first, *pending) for bundle in kind.bundles]
    held = inventory
    parts = 1
    if workers is not None:
        most_cores = max((bundle.cores for bundle in bundles), default=1)
        held = _at_most(held, workers * most_cores)
    device = max((bundle.gpu_memory for bundle in bundles), default=0)
    sizes = [int(node.gpu_memory * USABLE) for node in held.nodes if node.gpus]
    if device and sizes:  # a GPU counts as the processes that it holds
        by_memory = min(sizes) // device
        by_time = int(1 / max(busy, LEAST_BUSY))
        parts = max(1, min(by_memory, by_time))
        nodes = [_cut_gpus(node, parts) for node in held.nodes]
        held = Inventory(tuple(nodes))
    without = _without_bf16(inventory) if half and device else ""
    words = without or _describe_refusals(pending, held) or _describe_refusals(first, held)
    if words:
        return _refuse_plan(words, cells, sum(kind.cells for kind in pending), inventory)
    runs = [play_schedule(_list_requests(kinds), held, parts, workers) for kinds in (pending, first)]
    memory = min((node.gpu_memory for node in inventory.nodes if node.gpus), default=0)
    left = memory - parts * device
    margin = Margin(memory, left, left) if device else None
    return _make_plan(cells, pending, runs, inventory, held, margin, parts, workers)


def _cut_gpus(node: Node, parts: int) -> Node:
    """Put so many parts in the place of each GPU of a node."""
    usable = int(node.gpu_memory * USABLE)
    return replace(node, gpus=node.gpus * parts, gpu_memory=usable // parts)


def plan_cells(
    cells: int,
    kinds: Mapping[str, tuple[CellDemand, int]],
    inventory: Inventory,
    account: PolicyAccount,
    measured: Mapping[str, float] | None = None,
    on: Device | None = None,
    workers: int | None = None,
) -> Plan:
    """Plan cells whose policies have GPUs of their own, logical ones where there are none: as many side by side as take the least
    time. kinds: pending, with numbers of cells. account: the engine's, of its memory. measured: seconds by kind, instead of the
    prediction. on: what a GPU does, instead of the priors. workers: most cells at once, which the prediction ignores."""
    cluster = inventory if inventory.gpus else inventory.with_logical_gpus()
    pending = sum(count for _, count in kinds.values())
    half = any(p.precision == "bf16" for cell, _ in kinds.values() for p in cell.policies)
    able = [n for n in cluster.nodes if n.gpus and (has_bf16(n.gpu_kind) or not half)]
    if not able or not kinds:
        return _refuse_plan(_without_bf16(cluster) if kinds else None, cells, pending, inventory)
    plans = [
        _plan_alike(cells, kinds, Inventory(nodes), inventory, account, measured or {}, on, workers)
        for nodes in _group_alike_nodes(able)
    ]
    fitting = [plan for plan in plans if plan.feasible]
    return min(fitting, key=lambda plan: plan.predicted.wall_seconds) if fitting else plans[0]


def _plan_alike(
    cells: int,
    kinds: Mapping[str, tuple[CellDemand, int]],
    cluster: Inventory,
    inventory: Inventory,
    account: PolicyAccount,
    measured: Mapping[str, float],
    on: Device | None,
    workers: int | None,
) -> Plan:
    """Plan cells on nodes with GPUs of one kind. All divisions of the GPUs into equal places for cells are compared.

    cluster: the nodes; inventory: all that the user has, for the plan's words. The rest as in `plan_cells`."""
    gpu = _gpu_of(cluster, account, on)
    pending = sum(count for _, count in kinds.values())
    alone = {kind: _fastest_alone(cell, cluster, gpu) for kind, (cell, _) in kinds.items()}
    lacking = {kind: cell for kind, (cell, _) in kinds.items() if alone[kind] is None}
    if lacking:
        return _refuse_plan(_describe_shortfalls(lacking, cluster, gpu), cells, pending, inventory)
    # One cell at a time is played first, whatever it takes: 0 is below all bounds of the others, which come sorted
    one_by_one = _Candidate(0.0, 1, {kind: layout for kind, layout in alone.items() if layout})
    candidates = [one_by_one, *_list_candidates(kinds, cluster, gpu, measured)]
    chosen, run = _play_best_candidate(candidates, kinds, cluster, measured)
    places = [place for kind in chosen if kind.layout for place in kind.layout.policies]
    fullest = max(place.peak for place in places)
    least = max(place.needed for place in places)
    margin = Margin(gpu.memory, gpu.memory - fullest, gpu.memory - least)
    return _make_plan(cells, chosen, [run], cluster, cluster, margin if inventory.gpus else None, 1, workers)


def _play_best_candidate(
    candidates: Sequence[_Candidate],
    kinds: Mapping[str, tuple[CellDemand, int]],
    cluster: Inventory,
    measured: Mapping[str, float],
) -> tuple[list[KindPlan], Timetable]:
    """Play the schedules of candidates, and return the plan of the shortest run with that run.

    candidates: by bound, the least first. No run is shorter than its candidate's bound: once the best run is as short as the next
    bound, all further ones are as long or longer. The first candidate's bound must be below any run's, so that one is played."""
    best = Timetable(float("inf"))
    chosen = list[KindPlan]()
    for candidate in candidates:
        if best.seconds <= candidate.bound:
            break
        plans = [KindPlan(kind, kinds[kind][1], of.seconds, of.bundles, of) for kind, of in candidate.layouts.items()]
        run = play_schedule(_list_requests(plans, measured), cluster, most=candidate.places)
        if run.seconds < best.seconds:
            best = run
            chosen = plans
    return chosen, best


def _list_requests(kinds: Sequence[KindPlan], measured: Mapping[str, float] = {}) -> list[JobRequest]:
    """List the cells' requests in the order of a run: a cell of each kind, then the next one of each."""
    rounds = max((kind.cells for kind in kinds), default=0)
    requests: list[JobRequest] = []
    for cell in range(rounds):
        for number, kind in enumerate(kinds):
            if cell >= kind.cells:
                continue
            request = JobRequest(
                key=f"{number}/{cell}",
                bundles=kind.bundles,
                seconds=measured.get(kind.kind, kind.seconds),
                turn=len(requests),
                on_gpus=_on_gpus(kind),
            )
            requests.append(request)
    return requests


def _on_gpus(kind: KindPlan) -> int:
    """Return the bytes that a cell takes on its GPUs: by its layout, or one process's."""
    if kind.layout is not None:
        return kind.layout.memory_bytes - kind.layout.host
    return sum(bundle.gpu_memory for bundle in kind.bundles)


def _refuse_plan(words: str | None, cells: int, pending: int, inventory: Inventory) -> Plan:
    """Make a plan that does not fit, with the words why; without words, one in which there is nothing to do."""
    there = Resources(inventory.describe(), inventory.cores, inventory.memory, inventory.gpus)
    return Plan(words is None, words, cells, pending, there, Predicted())


def _make_plan(
    cells: int,
    kinds: Sequence[KindPlan],
    runs: Sequence[Timetable],
    inventory: Inventory,
    held: Inventory,
    margin: Margin | None,
    parts: int = 1,
    workers: int | None = None,
) -> Plan:
    """Put together a plan that fits. runs: one after the other, on `held`, whose GPUs are `parts` of the inventory's."""
    most = max(run.together for run in runs)
    core_seconds = sum(run.core_seconds for run in runs)
    gpu_seconds = sum(run.gpu_seconds for run in runs)
    wall_seconds = sum(run.seconds for run in runs)
    memory = max(run.memory for run in runs)
    bound = sum(run.bound for run in runs)
    predicted = Predicted(core_seconds, gpu_seconds, wall_seconds, memory, bound)
    gpus_used = max(run.gpus for run in runs)  # parts of them count
    resources = Resources(
        inventory=inventory.describe(),
        cores=inventory.cores,
        memory_bytes=inventory.memory,
        gpus=inventory.gpus,
        workers=most if workers is None else min(most, workers),
        cores_used=max(run.cores for run in runs),
        gpus_used=min(inventory.gpus, gpus_used),
        nodes=held.nodes,
        shared=parts,
    )
    pending = sum(kind.cells for kind in kinds)
    return Plan(True, None, cells, pending, resources, predicted, tuple(kinds), margin=margin)


def _fastest_alone(cell: CellDemand, cluster: Inventory, gpu: Gpu) -> CellLayout | None:
    """Find the fastest way to run one cell at a time, which has all RAM; None where the nodes hold none."""
    inside = replace(gpu, ram=_largest_ram(cluster))
    tried = [_fastest_placeable(cell, gpu.node, cluster, inside)]
    if len(cluster.nodes) > 1:
        free = cell_layout(cell, cluster.gpus, gpu)
        for size in reversed(sizes_up_to(cluster.gpus)):
            tried += [_fastest_placeable(cell, size, cluster, limited) for limited in _choose_nodes(cluster, gpu, size)]
            if free in tried:  # RAM is not what lacks, and smaller places are not faster
                break
    return min(filter(None, tried), key=lambda layout: layout.seconds, default=None)


def _largest_ram(cluster: Inventory) -> int:
    """Return the bytes of RAM of a node that has as many GPUs as any."""
    most = max(node.gpus for node in cluster.nodes)
    return max(node.memory for node in cluster.nodes if node.gpus == most)


def _choose_nodes(cluster: Inventory, gpu: Gpu, gpus: int) -> Iterator[Gpu]:
    """Yield ways to use so many GPUs, evenly on all nodes, or on those alone that have more RAM, with the RAM that each GPU then
    has: none takes more than those beside it leave."""
    for least in sorted({node.memory for node in cluster.nodes}):
        nodes = sum(node.memory >= least for node in cluster.nodes)
        yield replace(gpu, ram_each=least // -(-gpus // nodes))


def _fastest_placeable(cell: CellDemand, gpus: int, cluster: Inventory, gpu: Gpu, copies: int = 1) -> CellLayout | None:
    """Find the fastest layout of which the empty nodes hold so many copies, with narrower tensor parallelism, if need be; None
    where there is none. gpus: of each copy."""
    for widest in WIDEST:
        layout = cell_layout(cell, gpus, replace(gpu, widest=widest))
        if layout is None or place_bundles(layout.bundles * copies, capacity_of(cluster)) is not None:
            return layout
    return None


class _Candidate(NamedTuple):
    """Layouts by kind, on places of one size. places: cells at once. bound: seconds, than which no run is shorter."""

    bound: float
    places: int
    layouts: dict[str, CellLayout]


def _list_candidates(
    kinds: Mapping[str, tuple[CellDemand, int]], cluster: Inventory, gpu: Gpu, measured: Mapping[str, float]
) -> list[_Candidate]:
    """List, for each number of GPUs that every cell can live on, as many places as there are; by bound, the least first, on which
    `_play_best_candidate` relies.

    A larger cluster has at least as many places of each size, and in each the cells are as fast. They start in one
    order on equal places, whatever their length: so none of its plans is longer. Unlike places for unlike kinds would
    save up to a twentieth of the shipped suites' time, and break this."""
    candidates = []
    for size in places_up_to(cluster.gpus):
        free = {kind: cell_layout(cell, size, gpu) for kind, (cell, _) in kinds.items()}
        if None in free.values():
            continue
        for places, limited in _ways_to_divide(cluster, gpu, size):
            at_once = min(places, MAX_PARALLEL)
            layouts = dict[str, CellLayout]()
            for kind, (cell, _) in kinds.items():
                fit = _fastest_placeable(cell, size, cluster, limited, at_once)
                if fit:
                    layouts[kind] = fit
            if len(layouts) < len(kinds):
                continue
            seconds = {kind: measured.get(kind, layout.seconds) for kind, layout in layouts.items()}
            work = sum(seconds[kind] * count for kind, (_, count) in kinds.items())
            candidates.append(_Candidate(max(work / at_once, *seconds.values()), at_once, layouts))
            if layouts == free:  # RAM is not what lacks: fewer places make none faster
                break
    return sorted(candidates, key=lambda candidate: candidate.bound)


def _ways_to_divide(cluster: Inventory, gpu: Gpu, size: int) -> Iterator[tuple[int, Gpu]]:
    """Yield numbers of cells at once on so many GPUs each, the most first, with the RAM that each has: within nodes, or evenly
    across them."""
    for beside in range(gpu.node // size, 0, -1):
        places = sum(min(_count_places(node, size), beside) for node in cluster.nodes)
        yield max(1, places), replace(gpu, ram=_largest_ram(cluster) // beside)
    if len(cluster.nodes) > 1 and size > 1:
        for places in range(min(cluster.gpus // size, MAX_PARALLEL), 0, -1):
            yield from ((places, limited) for limited in _choose_nodes(cluster, gpu, places * size))


def _count_places(node: Node, size: int) -> int:
    """Count the places for cells of so many GPUs on one node; each GPU wants a core."""
    return min(node.gpus, node.cores) // size


def _describe_shortfalls(lacking: Mapping[str, CellDemand], cluster: Inventory, gpu: Gpu) -> str:
    """Say what lacks for the kinds of cells that fit nowhere, each reason once, with the kinds that it keeps out."""
    kinds_by_reason: dict[str, list[str]] = {}
    for kind, cell in lacking.items():
        reason = _describe_shortfall(cell, cluster.gpus, gpu, cluster)
        kinds_by_reason.setdefault(reason, []).append(kind)
    return "; ".join(f"{_name_kinds(kinds)}{reason}" for reason, kinds in kinds_by_reason.items())


def _describe_shortfall(cell: CellDemand, total: int, gpu: Gpu, cluster: Inventory) -> str:
    """Say what lacks, as it follows a kind's name: RAM, or GPUs and their memory."""
    frugal = frugal_layout(cell, total, gpu)
    if not frugal:
        return f": {_short_of_gpus(cell, total, gpu)}"
    each = explain_shortage(frugal.bundles, capacity_of(cluster))
    if each:
        return f" {each}"
    return f" needs {format_gigabytes(frugal.host)} of RAM together on one node or evenly spread"


def _short_of_gpus(cell: CellDemand, total: int, gpu: Gpu) -> str:
    """Say what lacks of GPUs and of their memory: for single policies, else for all of a cell together. total: GPUs that there
    are."""
    words = []
    # Where cores take the place of GPUs, nobody is told how many more of them would do: a plan need not look for that number.
    most = total if gpu.kind == LOGICAL else None
    least = {policy.name: least_gpus(policy, cell.workload, gpu, most) for policy in cell.policies}
    for policy in cell.policies:
        needed = least[policy.name]
        if needed is None or needed > total:
            words.append(_short_of_memory(policy, cell.workload, total, gpu, needed))
    if not words:
        together = sum(number or 0 for number in least.values())
        each = ", ".join(f"{name} {number}" for name, number in least.items())
        words.append(
            f"its policies need {together} GPUs together ({each}) where there are {total}: {together - total} short"
        )
    if any(policy.measured for policy in cell.policies):
        unmeasured = [replace(policy, measured=False, reference=policy.penalised) for policy in cell.policies]
        if cell_layout(replace(cell, policies=tuple(unmeasured)), total, gpu):
            words.append("without measuring (training.measure_every: 0) it fits")
    return "; ".join(words)


def _short_of_memory(policy: PolicyDemand, work: Workload, total: int, gpu: Gpu, needed: int | None) -> str:
    """Say what one policy lacks on so many GPUs. needed: GPUs that would do, None where no number does."""
    size = f"{policy.name} ({policy.model.name}, {policy.model.parameters / 1e9:.2f} B parameters)"
    usable = format_gigabytes(gpu.usable)
    plural = "s" if total != 1 else ""
    where = f"{total} GPU{plural} of {format_gigabytes(gpu.memory)} ({usable} usable)"
    enough = f"{needed} such GPUs would do: {needed - total} short" if needed else "no number of such GPUs would do"
    memory = policy_layout(policy, work, total, gpu)[1]
    if not memory:
        return f"{size} does not fit on {where} ({enough})"
    wanted = format_gigabytes(memory)
    if gpu.kind == LOGICAL:
        return f"{size} needs {wanted} per GPU, and here are none: {total} cores take their place, {usable} each"
    lack = format_gigabytes(memory - gpu.usable)
    return f"{size} needs {wanted} per GPU on {where}: {lack} per GPU short ({enough})"


def _name_kinds(kinds: Sequence[str]) -> str:
    """Name the first kind, and say how many others there are."""
    others = len(kinds) - 1
    if not others:
        return kinds[0]
    plural = "s" if others > 1 else ""
    return f"{kinds[0]} and {others} other kind{plural} of cells"


def _group_alike_nodes(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """Group nodes by their kind of GPU, that with most memory first: a cell's ranks should be equally fast."""
    alike: dict[tuple[str, int], list[Node]] = {}
    for node in nodes:
        alike.setdefault((node.gpu_kind, node.gpu_memory), []).append(node)
    most = sorted(alike, key=lambda kind: (sum(n.gpus * n.gpu_memory for n in alike[kind]), kind), reverse=True)
    return [tuple(alike[kind]) for kind in most]


def _gpu_of(cluster: Inventory, account: PolicyAccount, on: Device | None) -> Gpu:
    """Describe the GPUs of a cluster whose nodes have one kind. on: what one does, instead of the priors."""
    widest = max(node.gpus for node in cluster.nodes)
    return Gpu(
        kind=cluster.nodes[0].gpu_kind,
        memory=cluster.nodes[0].gpu_memory,
        node=widest,
        account=account,
        stacks=True,
        measured=on,
    )


def _without_bf16(inventory: Inventory) -> str:
    """Say which of the GPUs cannot multiply bf16, and what to do; empty where all can."""
    kinds = sorted({n.gpu_kind for n in inventory.nodes if n.gpus and not has_bf16(n.gpu_kind)})
    return f"{', '.join(kinds)} multiplies no bf16: engine_options.dtype=fp32 does without" if kinds else ""


def _describe_refusals(kinds: Sequence[KindPlan], inventory: Inventory) -> str:
    """Say why kinds of cells do not fit, those with equal bundles together; empty where all fit."""
    alike: dict[tuple[Bundle, ...], list[str]] = {}
    for kind in kinds:
        alike.setdefault(kind.bundles, []).append(kind.kind)
    refusals = ((names, explain_shortage(bundles, capacity_of(inventory))) for bundles, names in alike.items())
    return "; ".join(f"{_name_kinds(list(dict.fromkeys(names)))} {words}" for names, words in refusals if words)


def _at_most(inventory: Inventory, cores: int) -> Inventory:
    """Leave so many cores of an inventory, those of its first nodes."""
    nodes = []
    for node in inventory.nodes:
        nodes.append(replace(node, cores=min(node.cores, cores)))
        cores -= nodes[-1].cores
    return Inventory(tuple(nodes))
