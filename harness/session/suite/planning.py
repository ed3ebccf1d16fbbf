"""The plan of a prepared suite on this machine or another, with finished cells' seconds where there are some. No torch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from harness.allocation import inventory as machines
from harness.allocation.calibration import measured_device
from harness.allocation.cost_model import CORE, USABLE, CellDemand, Device, Lengths, PolicyDemand, Workload, device_of
from harness.allocation.inventory import LOGICAL, Bundle, Inventory
from harness.allocation.layout import START_SECONDS
from harness.allocation.plan_text import first_of
from harness.allocation.planner import KindPlan, Plan, plan_cells, plan_workers
from harness.allocation.scheduler import JobRequest, play_schedule
from harness.allocation.shapes import load_shape
from harness.engines import catalogue
from harness.engines.catalogue import backend_of
from harness.engines.embedded import account as embedded_account
from harness.engines.embedded.presets import SHIPPED, START_EXAMPLES, START_STEPS
from harness.engines.embedded.sizes import MICRO_TOKENS
from harness.errors import DataError, EngineError, InfeasibleError, StoreError
from harness.session.cell.manifests import BaseCheckpoint
from harness.session.policy import MICRO, at_hand
from harness.session.suite.demand import LADDER_PROMPT_TOKENS, demand_of
from harness.session.suite.disk import disk_of
from harness.session.suite.places import faults_at
from harness.session.suite.prepared import Prepared
from harness.store.journal import read_journal
from harness.suite.cells import Cell
from harness.suite.schema import Stage0, Suite

# Training and evaluating a micro base checkpoint, on one core
BASE_SECONDS = 75.0
# Of the longest predicted phase, at least half an hour: an engine's deadline
LEAST_CALL_SECONDS, CALL_FACTOR = 1800.0, 4.0

Options = Mapping[str, int | float | bool]


def plan_for(
    prepared: Prepared,
    inventory: str | None,
    jobs: int | None = None,
    address: str | None = None,
    calibration: Path | None = None,
) -> Plan:
    """Plan the cells that are left, on a stated inventory, or on what there is; at `address`, on a Ray cluster. calibration: a
    hardware record. Raises UsageError."""
    engine = prepared.resolved.engine
    options = prepared.suite.engine_options
    machine = engine.inventory(address) if inventory is None else machines.parse_inventory(inventory)
    if not engine.clustered and str(options.get("device") or "cuda").startswith("cpu"):
        machine = machine.without_gpus()
    pending = in_run_order(prepared.cells_to_run())
    measured = _measured_seconds(prepared, engine.clustered) if inventory is None else {}  # of this machine
    stands = LOGICAL if engine.clustered else CORE  # for a GPU, where there is none
    calibrated = measured_device(calibration, machine, stands) if calibration else None
    if engine.clustered:
        plan = _plan_cluster(prepared, pending, machine, measured, calibrated, jobs)
    else:
        plan = _plan_workers(prepared, pending, machine, measured, calibrated, jobs)
    return replace(plan, disk=disk_of(prepared, plan.resources.workers))


def _plan_cluster(
    prepared: Prepared,
    pending: Sequence[Cell],
    machine: Inventory,
    measured: Mapping[str, float],
    calibrated: Device | None,
    jobs: int | None,
) -> Plan:
    """Plan the cells of an engine that spreads each policy over a cluster's devices.

    pending: in the order of a run. measured: seconds of finished cells, by kind. calibrated: what a device does by a hardware
    record. jobs: cells at once, at most."""
    resolved = prepared.resolved
    devices = resolved.engine.devices(prepared.suite.engine_options, prepared.source)
    lengths = dict[tuple[str, str], Lengths | None]()
    demands = {}
    for kind, cell in _first_of_each_kind(pending).items():
        demands[kind] = demand_of(cell, resolved, devices, _measured_lengths(prepared.source, cell, lengths))
    counts = Counter(cell.kind for cell in pending)
    kinds = {kind: (demands[kind], counts[kind]) for kind in counts}
    account = resolved.engine.policy_account
    plan = plan_cells(len(prepared.cells), kinds, machine, account, measured, calibrated, jobs)
    return _with_bases(prepared, plan)


def _plan_workers(
    prepared: Prepared,
    pending: Sequence[Cell],
    machine: Inventory,
    measured: Mapping[str, float],
    calibrated: Device | None,
    jobs: int | None,
) -> Plan:
    """Plan the cells of an engine whose cells are one process each. Arguments as `_plan_cluster`'s."""
    resolved = prepared.resolved
    options = prepared.suite.engine_options
    on = calibrated or device_of(next((n.gpu_kind for n in machine.nodes if n.gpus), CORE))
    if options.get("numerics") == "portable" and not on.gpu:
        on = embedded_account.with_portable_speed(on)
    of_kind = _first_of_each_kind(pending)
    counts = Counter(cell.kind for cell in pending)
    demands = {kind: demand_of(cell, resolved) for kind, cell in of_kind.items()}
    most_workers = len(pending) if jobs is None else min(jobs, len(pending))
    work = []
    for kind, count in counts.items():
        seconds = measured.get(kind)
        work.append(_plan_worker(of_kind[kind], demands[kind], count, machine, seconds, on, most_workers))
    bases = _plan_bases(prepared, work, machine, on)
    busy = max((embedded_account.busy_share(one, on) for one in demands.values()), default=1.0) if machine.gpus else 1.0
    half = any(policy.precision == "bf16" for one in demands.values() for policy in one.policies)
    return plan_workers(len(prepared.cells), work, machine, bases, jobs, busy, half)


def _first_of_each_kind(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Choose one cell for each group and variant, whose cells take equally long and the same place."""
    return {cell.kind: cell for cell in reversed(cells)}


def _plan_bases(prepared: Prepared, work: Sequence[KindPlan], machine: Inventory, on: Device) -> list[KindPlan]:
    """Plan the missing base checkpoints, each in the place of the largest cell."""
    if not work:
        return []
    largest = max(work, key=lambda kind: (kind.bundles[0].gpu_memory, kind.bundles[0].memory))
    plans = []
    started: set[tuple[str, str | None, str, int | None]] = set()
    for base in prepared.missing_bases():
        stage0 = base.policy.stage0
        start = base.policy.model, base.policy.revision, stage0.model_dump_json() if stage0 else "", base.seed
        # Groups that share a start measure it each, with samples of their own, but it is trained once
        seconds = _base_seconds(prepared, base, machine, on, largest.bundles[0].cores, trains=start not in started)
        started.add(start)
        bundles = _for_start(base, largest.bundles)
        plans.append(replace(largest, kind="base", cells=1, seconds=seconds, bundles=bundles, micro_tokens=0))
    return plans


def in_run_order(cells: Iterable[Cell], plan: Plan | None = None) -> list[Cell]:
    """Sort cells seed by seed, and of each group the baseline first: so that after two cells there is something to compare. With a
    plan the group's quickest other variant comes second, which makes this comparison early; the rest keep their order."""
    listed = list(cells)
    seconds = {kind.kind: kind.seconds for kind in plan.kinds} if plan else {}
    groups: dict[str, int] = {}
    quickest: dict[str, str] = {}  # by group, the kind of the cell
    for cell in listed:
        group = cell.group.name
        groups.setdefault(group, len(groups))
        if cell.variant.name != cell.baseline:
            best = quickest.setdefault(group, cell.kind)
            if seconds.get(cell.kind, 0.0) < seconds.get(best, 0.0):
                quickest[group] = cell.kind

    def find_place(cell: Cell) -> tuple[int, int, bool, bool]:
        group = cell.group.name
        is_baseline = cell.variant.name == cell.baseline
        return cell.seed, groups[group], not is_baseline, cell.kind != quickest.get(group)

    return sorted(listed, key=find_place)


def place_of(plan: Plan, work: Cell | BaseCheckpoint, turn: int = 0) -> JobRequest:
    """Request the place of a cell, or of a base checkpoint, which is where its policy will be. turn: of its start."""
    if isinstance(work, Cell):
        kind = next(k for k in plan.kinds if k.kind == work.kind)
        layout = _layout_options(kind, work, [p.name for p in work.group.policies])
        return JobRequest(work.key, kind.bundles, kind.seconds, layout, turn)
    kind = next(k for k in plan.kinds if k.kind.startswith(f"{work.group.name}/"))
    own = [_for_start(work, kind.bundles)]
    if kind.layout:
        own = [p.bundles for p in kind.layout.policies if p.policy == work.policy.name]
    seconds = kind.layout.phases.start + kind.layout.phases.evaluate if kind.layout else 0.0
    return JobRequest(work.key, own[0], seconds, _layout_options(kind, work.suite, [work.policy.name]), turn)


def _for_start(base: BaseCheckpoint, bundles: tuple[Bundle, ...]) -> tuple[Bundle, ...]:
    """Give a base checkpoint's place the memory of its supervised start, which trains all weights, where that takes more."""
    policy = base.policy
    engine = backend_of(base.suite.engine)
    if policy.is_micro or policy.stage0 is None or bundles[0].gpus:
        return bundles
    shape = load_shape(policy.model, policy.revision)
    precision = engine.precision(policy, base.suite.engine_options)
    work = Workload(1, START_EXAMPLES, LADDER_PROMPT_TOKENS, LADDER_PROMPT_TOKENS, 2 * LADDER_PROMPT_TOKENS)
    memory = engine.account.process_memory(CellDemand((PolicyDemand(policy.name, shape, 1, precision),), work)).train
    least = embedded_account.WORKER_BYTES + memory
    return tuple(dataclasses.replace(bundle, memory=max(bundle.memory, least)) for bundle in bundles)


def _with_bases(prepared: Prepared, plan: Plan) -> Plan:
    """Add to a plan what its missing base checkpoints cost, which are made before any cell starts."""
    asked = [place_of(plan, base) for base in prepared.missing_bases() if plan.feasible]
    run = play_schedule(asked, Inventory(plan.resources.nodes))
    cells = plan.predicted
    both = replace(
        cells,
        cpu_seconds=cells.cpu_seconds + run.core_seconds,
        gpu_seconds=cells.gpu_seconds + run.gpu_seconds,
        wall_seconds=cells.wall_seconds + run.seconds,
        wall_bound=cells.wall_bound + run.bound,
    )
    return replace(plan, predicted=both)


def _layout_options(kind: KindPlan, owner: Cell | Suite, policies: list[str]) -> Mapping[str, Options]:
    """Return the engine options that a plan chooses, by policy; the suite's own come before them."""
    engine = backend_of(owner.engine)
    if kind.layout is None:
        own = {"threads": max(b.cores for b in kind.bundles)}
        own |= {"micro_tokens": kind.micro_tokens} if kind.micro_tokens else {}
        known = engine.Options.__struct_fields__
        return {policy: {name: value for name, value in own.items() if name in known} for policy in policies}
    phases = kind.layout.phases
    patience = min(86400.0, CALL_FACTOR * max(phases.evaluate, phases.curve, kind.layout.step_seconds))
    chosen: dict[str, int | float | bool] = {"share_devices": kind.layout.arrangement == "stacked"}
    chosen |= {"call_seconds": patience} if patience > LEAST_CALL_SECONDS else {}
    stated = engine.devices(owner.engine_options, "") is not None
    return {
        p.policy: chosen if stated else {**p.engine_options(), **chosen}
        for p in kind.layout.policies
        if p.policy in policies
    }


def _measured_lengths(source: str, cell: Cell, known: dict[tuple[str, str], Lengths | None]) -> Lengths | None:
    """Measure a cell's longest prompts and answers in the policies' tokens; None where one's tokenizer is not at hand.

    known: by policy and training, filled here: cells share them. Raises SuiteError where a stated `max_length`, or a model, holds
    less."""
    from harness.session.cell.questions import measure_lengths, with_checked_length

    by_policy = []
    for policy in cell.group.policies:
        about = policy.model_dump_json(exclude={"name"}), cell.training.model_dump_json()
        if about not in known:
            known[about] = None
            with suppress(DataError), faults_at(source, "", EngineError):
                folder = at_hand(policy)
                if folder:
                    known[about] = lengths = measure_lengths(policy, folder, cell.evaluation, cell, fetch=False)
                    with_checked_length(cell.engine, cell.engine_options, policy, folder, lengths)
        by_policy.append(known[about])
    if None in by_policy:
        return None
    return Lengths(*map(max, zip(*filter(None, by_policy), strict=True)))


def check_feasible(prepared: Prepared, jobs: int | None, address: str | None = None) -> Plan:
    """Plan a run here. Raises InfeasibleError, with one sentence, where it cannot run."""
    engine = catalogue.engine_info(prepared.suite.engine)
    plan = plan_for(prepared, None, jobs, address)
    if not plan.feasible or not engine.available:
        wants = f"the {engine.name} engine" + (f" (missing: {engine.missing})" if engine.missing else "")
        reason = first_of(plan.shortfall or f"{engine.name} is not installed")
        raise InfeasibleError(
            f"{prepared.suite.name} cannot run here: {reason}. It needs {wants}; this machine has "
            f"{plan.resources.inventory}. `harness run quickstart` would run here, `harness plan SUITE --inventory "
            "8xH100-80G` shows what this suite needs."
        )
    return plan


def _plan_worker(
    cell: Cell,
    asks: CellDemand,
    count: int,
    machine: Inventory,
    measured: float | None,
    on: Device,
    most_workers: int,
) -> KindPlan:
    """Plan the cells of one kind, each of which is one process: on a GPU where there are any, else on cores.

    cell: one of the kind. asks: what each of them computes. count: cells of the kind that are left. measured: seconds that a
    finished one took here, in place of the prediction. on: what a device of this machine does. most_workers: processes at once,
    of all kinds together."""
    micro_batch = _choose_micro_batch(cell, asks, machine, on)
    seconds = measured or backend_of(cell.engine).account.phases(asks, on).total
    if machine.gpus:
        bundle = Bundle(1, 1, embedded_account.GPU_WORKER_BYTES, micro_batch.memory)
    else:
        bundle = _share_cpu_node(cell, asks, machine, micro_batch.memory, most_workers)
        seconds = seconds / _speedup_of_cores(bundle.cores)
    is_stated = bool(cell.engine_options.get("micro_tokens"))
    is_chosen = micro_batch.tokens != MICRO_TOKENS and not is_stated
    return KindPlan(cell.kind, count, seconds, (bundle,), micro_tokens=micro_batch.tokens if is_chosen else 0)


class _MicroBatch(NamedTuple):
    """Tokens of a micro-batch, and the bytes that its process takes beside those that every process takes."""

    tokens: int
    memory: int


def _choose_micro_batch(cell: Cell, asks: CellDemand, machine: Inventory, on: Device) -> _MicroBatch:
    """Choose the largest micro-batch that one process has memory for, the smallest where none fits; the suite's own, if it names
    one."""
    account = backend_of(cell.engine).account
    stated = cell.engine_options.get("micro_tokens")
    tried = [stated] if stated else [MICRO_TOKENS, *embedded_account.FEWER_TOKENS]
    most = _memory_of_largest_process(machine)
    ways = [_MicroBatch(tokens, account.process_memory(asks, tokens, on).train) for tokens in tried]
    return next((way for way in ways if way.memory <= most), ways[-1])


def _memory_of_largest_process(machine: Inventory) -> float:
    """Return the bytes that one process may take for a model: of the largest GPU, else of the node with most memory."""
    if machine.gpus:
        return max(node.gpu_memory * USABLE for node in machine.nodes)
    return max(node.memory - embedded_account.WORKER_BYTES for node in machine.nodes)


def _share_cpu_node(cell: Cell, asks: CellDemand, machine: Inventory, model_bytes: int, most_workers: int) -> Bundle:
    """Divide the node with most cores among as many processes as it holds, and return what each has of it.

    Processes come first, since several do more than one with as many threads; the cores that these leave idle become threads.
    Portable numerics compute on one thread. model_bytes: of the model and its micro-batch."""
    memory = embedded_account.WORKER_BYTES + model_bytes
    node = max(machine.nodes, key=lambda n: n.cores)
    processes = max(1, min(node.cores, node.memory // memory, most_workers))
    is_portable = cell.engine_options.get("numerics") == "portable"
    cores_each = 1 if is_portable else node.cores // processes
    cores = cell.engine_options.get("threads") or backend_of(cell.engine).account.cores(asks, cores_each)
    return Bundle(0, cores, memory)


def _speedup_of_cores(cores: int) -> float:
    """Return how many times faster a process is on so many cores than on one."""
    return 1 + embedded_account.NEXT_CORE * (cores - 1)


def _base_seconds(
    prepared: Prepared, base: BaseCheckpoint, machine: Inventory, on: Device, cores: int, trains: bool
) -> float:
    """Predict the seconds that a base checkpoint takes to be trained and measured. cores: of the process, without GPUs. trains:
    whether its start is trained for it, not for another group before."""
    cell = next(c for c in prepared.all_cells if base.needed_by(c))
    account = backend_of(cell.engine).account
    gpus = machine.gpus > 0
    asks = demand_of(cell, prepared.resolved)
    own = next(p for p in asks.policies if p.name == base.policy.name)
    seconds = account.phases(CellDemand((own,), asks.workload), on).evaluate
    stage0 = base.policy.stage0
    if base.policy.is_micro:
        return BASE_SECONDS if trains and not _is_shipped(base) else seconds
    if stage0 is not None and trains:
        work = dataclasses.replace(
            asks.workload, steps=stage0.steps or START_STEPS, prompts=START_EXAMPLES, trained=1.0
        )
        start = CellDemand((dataclasses.replace(own, rollouts=1),), work)
        seconds = 2 * seconds + account.phases(start, on).train
    return float(seconds if gpus else seconds / _speedup_of_cores(cores))


def _is_shipped(base: BaseCheckpoint) -> bool:
    """Whether a micro base checkpoint comes with the package, and is not trained here."""
    policy = base.policy
    start = base.policy.stage0 or Stage0()
    if start.weak_cot is not None:
        return False
    name = f"{policy.model.removeprefix(MICRO)}-{start.strong}-{start.preset}-{start.seed_of(base.seed or 0)}-*"
    return any(SHIPPED.glob(name))


def _measured_seconds(prepared: Prepared, clustered: bool) -> dict[str, float]:
    """Average the seconds of finished cells by kind, of the slowest policy: by the clock on GPUs, else of CPU."""
    by_kind: dict[str, list[float]] = {}
    for cell in prepared.done_cells():
        try:
            costs = read_journal(prepared.folder / cell.key).tables["costs"].to_pandas()
        except (StoreError, KeyError):
            continue
        if clustered:
            seconds = costs.groupby("policy")["wall_seconds"].sum().max() + START_SECONDS
        else:
            seconds = costs["wall_seconds" if costs["gpu_seconds"].sum() > 0 else "cpu_seconds"].sum()
        by_kind.setdefault(cell.kind, []).append(float(seconds))
    return {kind: sum(seconds) / len(seconds) for kind, seconds in by_kind.items()}
