"""What a prepared suite needs, against what a machine or cluster has. Imports without torch.

Seconds and bytes come from one account (`harness.allocation`); finished cells of the same results folder take the place of its
seconds, so that a plan gets better as a suite goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from harness.allocation import embedded
from harness.allocation import inventory as machines
from harness.allocation.cells_as_demand import Lengths, RegimeLoad, kind_of, plan_suite
from harness.allocation.chunks import MICRO_TOKENS
from harness.allocation.demand import CellDemand
from harness.allocation.estimates import Estimates
from harness.allocation.gangs import Bundle
from harness.allocation.inventory import Inventory
from harness.allocation.layout import USABLE
from harness.allocation.placement import START_SECONDS, policy_bundles
from harness.allocation.plan_text import describe, first_of
from harness.allocation.planner import KindPlan, Plan, WorkerDemand, plan_workers
from harness.allocation.size import CONTEXT_BYTES
from harness.allocation.work import device
from harness.engines import catalogue
from harness.engines.catalogue import engines_of
from harness.engines.embedded.presets import START_EXAMPLES, START_STEPS
from harness.errors import DataError, EngineError, InfeasibleError, StoreError, SuiteError
from harness.session.cell.manifests import Base
from harness.session.policy.models import at_hand, is_micro
from harness.session.suite.demands import asked, demand_of, loads
from harness.session.suite.prepare import Prepared
from harness.session.suite.room import disk_of
from harness.suite.cells import Cell
from harness.suite.schema import ModelGroup, Policy, Suite

if TYPE_CHECKING:
    import pandas as pd

BASE_SECONDS = 75.0
"""Training and evaluating a micro base checkpoint, on one core; others' are counted."""
LEAST_CALL_SECONDS, CALL_FACTOR = 1800.0, 4.0
"""One call of an engine may take so many times the longest phase that the account gives it, and no less than the engine's own
half an hour."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one job reserves, and the engine options that the plan has chosen for it, by policy."""

    bundles: tuple[Bundle, ...]
    layout: Mapping[str, Mapping[str, int | float | bool]]


def plan_for(prepared: Prepared, inventory: str | None, jobs: int | None = None, address: str | None = None) -> Plan:
    """The plan of a suite on a stated inventory, or on what there is: at `address`, a Ray cluster's. Raises UsageError."""
    engine = engines_of(prepared.suite.engine)
    machine = machines.parse(inventory) if inventory else engine.inventory(address)
    if not engine.clustered:
        return _workers(prepared, machine, jobs)
    pending = {c.key for c in prepared.left()}
    options = prepared.suite.engine_options
    plan = plan_suite(
        prepared.cells,
        machine,
        loads=loads(prepared.suite),
        asked=asked(prepared.suite.evaluation),
        pending=pending,
        devices=engine.devices(options, prepared.source),
        precision=partial(engine.precision, options=options),
        estimates=_estimates(prepared),
        lengths=partial(_lengths, prepared, {}),
        sleeps=True,
        stacks=True,
    )
    workers = min(jobs or plan.resources.workers, plan.resources.workers)
    return replace(plan, resources=replace(plan.resources, workers=workers), disk=disk_of(prepared, workers))


def place_of_cell(plan: Plan, cell: Cell) -> Place:
    """Of a pending cell."""
    name = kind_of(cell)
    kind = next(k for k in plan.kinds if k.kind == name)
    return Place(kind.bundles, _layout(kind, cell))


def place_of_base(plan: Plan, base: Base) -> Place:
    """Of a base checkpoint of a pending cell: where its policy will be."""
    kind = next(k for k in plan.kinds if k.kind.startswith(f"{base.group.name}/"))
    if kind.layout is None:
        return Place(kind.bundles, _layout(kind, base.suite))
    own = next(p for p in kind.layout.policies if p.policy == base.policy.name)
    return Place(policy_bundles(own), _layout(kind, base.suite))


def _layout(kind: KindPlan, owner: Cell | Suite) -> Mapping[str, Mapping[str, int | float | bool]]:
    """The planned options of each policy's engine; the suite's own come before them."""
    chosen: dict[str, int | float | bool]
    if kind.layout is None:
        own = {"threads": max(b.cores for b in kind.bundles)}
        own |= {"micro_tokens": kind.micro_tokens} if kind.micro_tokens else {}
        known = engines_of(owner.engine).Options.__struct_fields__
        own = {name: value for name, value in own.items() if name in known}
        return {p.name: own for group in _groups(owner) for p in group.policies}
    phases = kind.layout.phases
    longest = max(phases.evaluate, phases.curve, kind.layout.step_seconds)
    patience = min(86400.0, CALL_FACTOR * longest)
    chosen = {"share_devices": kind.layout.arrangement == "stacked"}
    chosen |= {"call_seconds": patience} if patience > LEAST_CALL_SECONDS else {}
    if engines_of(owner.engine).devices(owner.engine_options, "") is not None:
        return {p.policy: chosen for p in kind.layout.policies}
    return {p.policy: {**p.engine_options(), **chosen} for p in kind.layout.policies}


def _lengths(prepared: Prepared, known: dict[tuple[str, str], Lengths | None], cell: Cell) -> Lengths | None:
    """Of the cell's policies as their tokenizers say, None where one is not at hand. known: what was found so far.

    Raises SuiteError where a stated `max_length`, or a model, holds less.
    """
    found = []
    for policy in cell.group.policies:
        about = policy.model_dump_json(exclude={"name"}), cell.training.model_dump_json()
        if about not in known:
            known[about] = _measured_lengths(prepared, policy, cell)
        found.append(known[about])
    sure = [lengths for lengths in found if lengths is not None]
    return Lengths(*map(max, zip(*sure, strict=True))) if len(sure) == len(found) else None


def _measured_lengths(prepared: Prepared, policy: Policy, cell: Cell) -> Lengths | None:
    from harness.session.cell.questions import checked, measured

    try:
        folder = at_hand(policy)
        if folder is None:
            return None
        lengths = measured(policy, folder, cell.evaluation, cell, fetch=False)
    except DataError:
        return None
    try:
        checked(cell.engine, cell.engine_options, policy, folder, lengths)
    except EngineError as error:
        raise SuiteError(prepared.source, "", str(error)) from None
    return lengths


def _groups(owner: Cell | Suite) -> Sequence[ModelGroup]:
    return [owner.group] if isinstance(owner, Cell) else owner.groups


def describe_plan(prepared: Prepared, plan: Plan) -> str:
    """The plan for people."""
    return f"{prepared.suite.name} on the {prepared.suite.engine} engine\n{describe(plan)}"


def check_feasible(prepared: Prepared, jobs: int | None, address: str | None = None) -> Plan:
    """The plan, or a refusal in one sentence before anything is written. Raises InfeasibleError."""
    engine = catalogue.info(prepared.suite.engine)
    plan = plan_for(prepared, None, jobs, address)
    wants = f"the {engine.name} engine" + (f" (missing: {engine.missing})" if engine.missing else "")
    if not plan.feasible or not engine.available:
        reason = first_of(plan.shortfall or f"{engine.name} is not installed")
        raise InfeasibleError(
            f"{prepared.suite.name} cannot run here: {reason}. It needs {wants}; this machine has "
            f"{plan.resources.inventory}. `harness run quickstart` would run here, `harness plan {prepared.suite.name} "
            "--inventory 8xH100-80G` shows what this suite takes."
        )
    return plan


def _workers(prepared: Prepared, machine: Inventory, jobs: int | None) -> Plan:
    pending, bases = prepared.left(), prepared.missing()
    measured = _measured(prepared, prepared.done())
    on_gpu = machine.gpus > 0 and not str(prepared.suite.engine_options.get("device") or "cuda").startswith("cpu")
    variants = loads(prepared.suite)
    of_kind = {
        name: _worker(cell, variants[cell.variant.name], machine, on_gpu, measured)
        for name, cell in {kind_of(cell): cell for cell in pending}.items()
    }
    work = [dataclasses.replace(of_kind[kind_of(cell)], key=cell.key) for cell in pending]
    most = max(work, key=lambda w: (w.device, w.memory), default=None)
    first = [
        WorkerDemand(
            b.key,
            "base",
            _base_seconds(prepared, variants, b, machine, on_gpu),
            most.memory,
            most.device,
            most.busy,
            cores=most.cores,
        )
        for b in bases
        if most is not None
    ]
    plan = plan_workers(
        len(prepared.cells), work, machine if on_gpu else machine.without_gpus(), first=first, workers=jobs
    )
    return replace(plan, disk=disk_of(prepared, plan.resources.workers))


def _worker(
    cell: Cell, load: RegimeLoad, machine: Inventory, gpus: bool, measured: Mapping[str, float]
) -> WorkerDemand:
    """One cell in a process of its own, by the account; the seconds of finished cells of its kind come before it. Cells that differ
    in their seed alone ask for the same."""
    account, options = engines_of(cell.engine).account, cell.engine_options
    demanded = demand_of(cell, load)
    room = max(
        (n.gpu_memory * USABLE - CONTEXT_BYTES if gpus else n.memory - embedded.WORKER_BYTES) for n in machine.nodes
    )
    own = options.get("micro_tokens")
    tried = [own] if own else [MICRO_TOKENS, *embedded.FEWER_TOKENS]
    found = {tokens: account.process_memory(demanded, tokens, gpus) for tokens in tried}
    tokens = next((tokens for tokens, memory in found.items() if memory.train <= room), tried[-1])
    memory, chosen = found[tokens], tokens if tokens in embedded.FEWER_TOKENS and not own else 0
    on = device(next(n.gpu_kind for n in machine.nodes if n.gpus) if gpus else "CORE")
    name = kind_of(cell)
    seconds = measured.get(name) or account.phases(demanded, on, gpus).total
    if not gpus:
        cores = options.get("threads") or account.cores(demanded, max(n.cores for n in machine.nodes))
        seconds /= 1 + embedded.NEXT_CORE * (cores - 1)
        size = embedded.WORKER_BYTES + memory.train
        return WorkerDemand(cell.key, name, seconds, size, micro_tokens=chosen, cores=cores)
    size, share = embedded.device_bytes(memory), embedded.busy(demanded, on)
    half = any(p.precision == "bf16" for p in demanded.policies)
    return WorkerDemand(cell.key, name, seconds, embedded.GPU_WORKER_BYTES, size, share, chosen, half=half)


def _base_seconds(
    prepared: Prepared, variants: Mapping[str, RegimeLoad], base: Base, machine: Inventory, gpus: bool
) -> float:
    """Making a base checkpoint and measuring it; one with a supervised start is measured before it, too."""
    if is_micro(base.policy):
        return BASE_SECONDS
    cell = next(c for c in prepared.every if base.needed_by(c))
    account = engines_of(cell.engine).account
    demanded = demand_of(cell, variants[cell.variant.name])
    own = next(p for p in demanded.policies if p.name == base.policy.name)
    on = device(next(n.gpu_kind for n in machine.nodes if n.gpus) if gpus else "CORE")
    seconds = account.phases(dataclasses.replace(demanded, policies=(own,)), on, gpus).evaluate
    stage0 = base.policy.stage0
    if stage0 is not None:
        work = dataclasses.replace(
            demanded.workload, steps=stage0.steps or START_STEPS, prompts=START_EXAMPLES, trained=1.0
        )
        start = CellDemand(base.key, "start", (dataclasses.replace(own, rollouts=1),), work)
        seconds = 2 * seconds + account.phases(start, on, gpus).train
    if gpus:
        return seconds
    cores = cell.engine_options.get("threads") or account.cores(demanded, max(n.cores for n in machine.nodes))
    return float(seconds / (1 + embedded.NEXT_CORE * (cores - 1)))


def _measured(prepared: Prepared, done: list[Cell]) -> dict[str, float]:
    """Mean seconds of finished cells by kind: of CPU, by the clock where a GPU worked."""
    found: dict[str, list[float]] = {}
    for cell, costs in _costs(prepared, done):
        spent = "wall_seconds" if costs["gpu_seconds"].sum() > 0 else "cpu_seconds"
        found.setdefault(kind_of(cell), []).append(float(costs[spent].sum()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _estimates(prepared: Prepared) -> Estimates:
    """What finished cells took by the clock: their policies work side by side, so the slowest one counts."""
    estimates = Estimates()
    for cell, costs in _costs(prepared, prepared.done()):
        estimates.observe(kind_of(cell), float(costs.groupby("policy")["wall_seconds"].sum().max()) + START_SECONDS)
    return estimates


def _costs(prepared: Prepared, done: list[Cell]) -> Iterator[tuple[Cell, pd.DataFrame]]:
    """The cost ledgers of finished cells, as far as they can be read."""
    if not done:
        return
    from harness.store.journal import read_journal

    for cell in done:
        try:
            costs = read_journal(prepared.folder / cell.key).tables.get("costs")
        except StoreError:
            continue
        if costs is not None:
            yield cell, costs.to_pandas()
