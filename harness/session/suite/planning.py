"""The plan of a prepared suite. Imports without torch. Finished cells of the same folder take the place of predicted seconds."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from harness.allocation import embedded
from harness.allocation import inventory as machines
from harness.allocation.calibration import measured_device
from harness.allocation.chunks import MICRO_TOKENS
from harness.allocation.cost_model import CORE, USABLE, CellDemand, Device, Lengths, device
from harness.allocation.inventory import LOGICAL, Bundle, Inventory
from harness.allocation.layout import START_SECONDS
from harness.allocation.planner import KindPlan, Plan, first_of, plan_cells, plan_workers
from harness.engines import catalogue
from harness.engines.catalogue import backend_of
from harness.engines.embedded.presets import START_EXAMPLES, START_STEPS
from harness.errors import DataError, EngineError, InfeasibleError, StoreError, SuiteError
from harness.session.cell.manifests import Base
from harness.session.policy.models import at_hand
from harness.session.suite.demands import demand
from harness.session.suite.disk_space import disk_of
from harness.session.suite.prepare import Prepared
from harness.suite.cells import Cell
from harness.suite.schema import Policy, Suite

BASE_SECONDS = 75.0
"""Training and evaluating a micro base checkpoint, on one core; others' are counted."""
LEAST_CALL_SECONDS, CALL_FACTOR = 1800.0, 4.0
"""One call of an engine may take so many times the longest phase that the plan predicts, and no less than the engine's own
half an hour."""

Options = Mapping[str, int | float | bool]


@dataclass(frozen=True, slots=True)
class Place:
    """What one job reserves, and the plan's engine options, by policy."""

    bundles: tuple[Bundle, ...]
    layout: Mapping[str, Options]


def plan_for(
    prepared: Prepared,
    inventory: str | None,
    jobs: int | None = None,
    address: str | None = None,
    calibration: Path | None = None,
) -> Plan:
    """On a stated inventory, else on what there is: at `address`, a Ray cluster's. calibration: a hardware record, whose figures
    replace the priors. Raises UsageError."""
    engine, options = backend_of(prepared.suite.engine), prepared.suite.engine_options
    machine = machines.parse(inventory) if inventory else engine.inventory(address)
    pending = prepared.left()
    counts = Counter(cell.kind for cell in pending)
    of_kind = {cell.kind: cell for cell in reversed(pending)}
    measured = _measured(prepared, engine.clustered)
    stands = LOGICAL if engine.clustered else CORE  # for a GPU, where there is none
    replaced = measured_device(calibration, machine, stands) if calibration else None
    if engine.clustered:
        devices, known = engine.devices(options, prepared.source), dict[tuple[str, str], Lengths | None]()
        lengths = {name: _lengths(prepared.source, cell, known) for name, cell in of_kind.items()}
        kinds = {name: (demand(of_kind[name], devices, lengths[name]), counts[name]) for name in counts}
        plan = plan_cells(len(prepared.cells), kinds, machine, measured, replaced)
        workers = min(jobs or plan.resources.workers, plan.resources.workers)
        plan = replace(plan, resources=replace(plan.resources, workers=workers))
    else:
        on_gpu = machine.gpus > 0 and not str(options.get("device") or "cuda").startswith("cpu")
        machine = machine if on_gpu else machine.without_gpus()
        on = replaced or device(next((n.gpu_kind for n in machine.nodes if n.gpus), CORE))
        asks = {name: demand(cell) for name, cell in of_kind.items()}
        work = [_worker(of_kind[name], asks[name], counts[name], machine, measured, on) for name in counts]
        most = max(work, key=lambda kind: (kind.bundles[0].gpu_memory, kind.bundles[0].memory), default=None)
        first = [
            replace(most, kind="base", cells=1, seconds=_base_seconds(prepared, base, machine, on), micro_tokens=0)
            for base in prepared.missing()
            if most
        ]
        busy = max((embedded.busy(one, on) for one in asks.values()), default=1.0) if on_gpu else 1.0
        half = any(policy.precision == "bf16" for one in asks.values() for policy in one.policies)
        plan = plan_workers(len(prepared.cells), work, machine, first, jobs, busy, half)
    return replace(plan, disk=disk_of(prepared, plan.resources.workers))


def place_of(plan: Plan, work: Cell | Base) -> Place:
    """A base is where its policy will be."""
    if isinstance(work, Cell):
        kind = next(k for k in plan.kinds if k.kind == work.kind)
        return Place(kind.bundles, _layout(kind, work, [p.name for p in work.group.policies]))
    kind = next(k for k in plan.kinds if k.kind.startswith(f"{work.group.name}/"))
    own = [p.bundles for p in kind.layout.policies if p.policy == work.policy.name] if kind.layout else [kind.bundles]
    return Place(own[0], _layout(kind, work.suite, [work.policy.name]))


def _layout(kind: KindPlan, owner: Cell | Suite, policies: list[str]) -> Mapping[str, Options]:
    """The suite's own options come before these."""
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


def _lengths(source: str, cell: Cell, known: dict[tuple[str, str], Lengths | None]) -> Lengths | None:
    """By its policies' tokenizers; None where one is not at hand. known: found so far. Raises SuiteError where a stated
    `max_length`, or a model, holds less."""
    found = []
    for policy in cell.group.policies:
        about = policy.model_dump_json(exclude={"name"}), cell.training.model_dump_json()
        if about not in known:
            known[about] = _measured_lengths(source, policy, cell)
        found.append(known[about])
    sure = [lengths for lengths in found if lengths is not None]
    return Lengths(*map(max, zip(*sure, strict=True))) if len(sure) == len(found) else None


def _measured_lengths(source: str, policy: Policy, cell: Cell) -> Lengths | None:
    from harness.session.cell.questions import checked, measured

    try:
        folder = at_hand(policy)
        lengths = measured(policy, folder, cell.evaluation, cell, fetch=False) if folder else None
    except DataError:
        return None
    try:
        if folder and lengths:
            checked(cell.engine, cell.engine_options, policy, folder, lengths)
    except EngineError as error:
        raise SuiteError(source, "", str(error)) from None
    return lengths


def check_feasible(prepared: Prepared, jobs: int | None, address: str | None = None) -> Plan:
    """Raises InfeasibleError, in one sentence."""
    engine = catalogue.info(prepared.suite.engine)
    plan = plan_for(prepared, None, jobs, address)
    if not plan.feasible or not engine.available:
        wants = f"the {engine.name} engine" + (f" (missing: {engine.missing})" if engine.missing else "")
        reason = first_of(plan.shortfall or f"{engine.name} is not installed")
        raise InfeasibleError(
            f"{prepared.suite.name} cannot run here: {reason}. It needs {wants}; this machine has "
            f"{plan.resources.inventory}. `harness run quickstart` would run here, `harness plan {prepared.suite.name} "
            "--inventory 8xH100-80G` shows what this suite takes."
        )
    return plan


def _worker(
    cell: Cell, asks: CellDemand, count: int, machine: Inventory, measured: Mapping[str, float], on: Device
) -> KindPlan:
    account, own, gpus = backend_of(cell.engine).account, cell.engine_options.get("micro_tokens"), machine.gpus > 0
    most = max((n.gpu_memory * USABLE if gpus else n.memory - embedded.WORKER_BYTES) for n in machine.nodes)
    tried = [own] if own else [MICRO_TOKENS, *embedded.FEWER_TOKENS]
    sizes = {tokens: account.process_memory(asks, tokens, on).train for tokens in tried}
    tokens = next((tokens for tokens, size in sizes.items() if size <= most), tried[-1])
    seconds = measured.get(cell.kind) or account.phases(asks, on).total
    bundle = Bundle(1, 1, embedded.GPU_WORKER_BYTES, sizes[tokens])
    if not gpus:
        cores, faster = _cores(cell, asks, machine)
        bundle, seconds = Bundle(0, cores, embedded.WORKER_BYTES + sizes[tokens]), seconds / faster
    chosen = tokens if tokens != MICRO_TOKENS and not own else 0
    return KindPlan(cell.kind, count, seconds, (bundle,), micro_tokens=chosen)


def _cores(cell: Cell, asks: CellDemand, machine: Inventory) -> tuple[int, float]:
    """Of a cell, and how much faster than one they are."""
    most = max(n.cores for n in machine.nodes)
    cores = cell.engine_options.get("threads") or backend_of(cell.engine).account.cores(asks, most)
    return cores, 1 + embedded.NEXT_CORE * (cores - 1)


def _base_seconds(prepared: Prepared, base: Base, machine: Inventory, on: Device) -> float:
    """One with a supervised start is measured before it, too."""
    if base.policy.is_micro:
        return BASE_SECONDS
    cell = next(c for c in prepared.every if base.needed_by(c))
    account, gpus = backend_of(cell.engine).account, machine.gpus > 0
    asks = demand(cell)
    own = next(p for p in asks.policies if p.name == base.policy.name)
    seconds = account.phases(CellDemand((own,), asks.workload), on).evaluate
    stage0 = base.policy.stage0
    if stage0 is not None:
        work = dataclasses.replace(
            asks.workload, steps=stage0.steps or START_STEPS, prompts=START_EXAMPLES, trained=1.0
        )
        start = CellDemand((dataclasses.replace(own, rollouts=1),), work)
        seconds = 2 * seconds + account.phases(start, on).train
    return float(seconds if gpus else seconds / _cores(cell, asks, machine)[1])


def _measured(prepared: Prepared, clustered: bool) -> dict[str, float]:
    """Mean seconds of finished cells by kind: by the clock where GPUs worked, else of CPU; of policies side by side the
    slowest."""
    found: dict[str, list[float]] = {}
    for cell in prepared.done():
        from harness.store.journal import read_journal

        try:
            costs = read_journal(prepared.folder / cell.key).tables["costs"].to_pandas()
        except (StoreError, KeyError):
            continue
        if clustered:
            seconds = costs.groupby("policy")["wall_seconds"].sum().max() + START_SECONDS
        else:
            seconds = costs["wall_seconds" if costs["gpu_seconds"].sum() > 0 else "cpu_seconds"].sum()
        found.setdefault(cell.kind, []).append(float(seconds))
    return {kind: sum(seconds) / len(seconds) for kind, seconds in found.items()}
