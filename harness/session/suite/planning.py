"""The plan of a prepared suite, with finished cells' seconds where there are some, and what it takes on the disk. No torch."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from harness.allocation import embedded
from harness.allocation import inventory as machines
from harness.allocation.calibration import measured_device
from harness.allocation.cost_model import (
    CORE,
    MEAN_ANSWER,
    USABLE,
    CellDemand,
    Device,
    Lengths,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
    device,
)
from harness.allocation.inventory import LOGICAL, Bundle, Inventory
from harness.allocation.layout import START_SECONDS
from harness.allocation.planner import Disk, KindPlan, Plan, Request, first_of, plan_cells, plan_workers, timetable
from harness.allocation.shapes import MICRO_TOKENS, load_shape
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.engines import catalogue
from harness.engines.catalogue import backend_of
from harness.engines.embedded.presets import SHIPPED, START_EXAMPLES, START_STEPS
from harness.errors import DataError, EngineError, InfeasibleError, StoreError, UsageError
from harness.experience.records import AnswerRecord
from harness.learning import registry
from harness.learning.regime import Need
from harness.session.cell.manifests import Base
from harness.session.policy import MICRO, WEIGHTS, at_hand
from harness.session.suite.prepare import Prepared
from harness.session.suite.rules import asked, at
from harness.store.journal import read_journal
from harness.suite.cells import Cell
from harness.suite.schema import FileTask, Stage0, Suite
from harness.tasks.registry import source_of

# Longest prompt without a tokenizer: a prior, never a limit
PROMPT_TOKENS = 1024
# Of the micro task, by style; a chat template adds some
MICRO_PROMPT_TOKENS = {None: 24, "raw": 24, "zero-shot": 96, "few-shot": 320}
# Of the ladder, through chat templates with a system turn
LADDER_PROMPT_TOKENS = 96
# Second-round answers per own rollout: a prior (at most one)
HINTED = 0.25
# Rollouts of dynamic sampling per kept one, as 67.9 GPU-hours to 29.9 in arXiv 2609.37868, table 5: a prior (at most `rounds`)
REPLACED = 1.3
# Training and evaluating a micro base checkpoint, on one core
BASE_SECONDS = 75.0
# Of the longest predicted phase, at least half an hour: an engine's deadline
LEAST_CALL_SECONDS, CALL_FACTOR = 1800.0, 4.0
# Bytes of a finished journal: schemas, and per row without texts and lists; measured on micro cells
_TABLES = {
    "samples": (4200, 72),
    "steps": (9600, 140),
    "terms": (2700, 52),
    "curves": (1350, 13),
    "costs": (2030, 24),
    "exchanges": (4200, 33),
    "traces": (4000, 60),
}
_COSTS_A_CHECKPOINT = 7
_TRACES_A_STEP = 2
_MANIFEST = 3300

Options = Mapping[str, int | float | bool]


# A cell in figures ------------------------------------------------------------------------------------------------------


def prior_lengths(cell: Cell) -> Lengths:
    task = cell.training.task.partition(".")[0] if isinstance(cell.training.task, str) else ""
    by_style = {"micro": MICRO_PROMPT_TOKENS, "ladder": dict.fromkeys(MICRO_PROMPT_TOKENS, LADDER_PROMPT_TOKENS)}
    styles = (policy.style for policy in cell.group.policies)
    prompt = max(by_style.get(task, {}).get(style, PROMPT_TOKENS) for style in styles)
    answer = max(cell.training.max_new_tokens, asked(cell.evaluation).tokens)
    longest = min(prompt + answer, cell.engine_options.get("max_length") or prompt + answer)
    return Lengths(max(1, longest - answer), longest)


def demand(cell: Cell, devices: int | None = None, lengths: Lengths | None = None) -> CellDemand:
    """devices: per policy, where the suite has chosen the layout. Raises UsageError."""
    training, evaluation, options = cell.training, cell.evaluation, cell.engine_options
    regime, evaluated = registry.build(cell.variant.regime, cell.variant.options), asked(evaluation)
    prompt, longest = lengths or prior_lengths(cell)
    names = [policy.name for policy in cell.group.policies]
    directed = cell.sharing.direction in {"strong_to_weak", "weak_to_strong"}
    # Authors per receiver, on average; strength is seen at the start.
    peers = (len(names) - 1) / 2 if directed else len(cell.sharing.among(names)) / len(names)
    again = HINTED if regime.hint_tokens else 0.0
    dynamic = cell.variant.dynamic_sampling
    sampled_again = again + (min(REPLACED, dynamic.rounds) if dynamic else 0.0)
    # By the regime's declarations: an upper bound for regimes that select [our reading].
    shared = regime.peer_share * any(issubclass(kind, AnswerRecord) for kind in regime.shares)
    policies = tuple(
        PolicyDemand(
            policy.name,
            load_shape(policy.model, policy.revision),
            cell.rollouts(policy),
            backend_of(cell.engine).precision(policy, options),
            reference=bool(training.kl or training.measure_every) or directed or Need.START_SCORES in regime.needs,
            penalised=training.kl > 0,
            measured=training.measure_every > 0 or Need.GRADIENTS in regime.needs,
            devices=devices,
            lora=int((options.get("lora") or {}).get("rank", 0)),
            checkpointing=bool(options.get("checkpointing")),
        )
        for policy in cell.group.policies
    )
    curves = 1 + -(-training.steps // evaluation.curve_every) if evaluation.curve_every else 0
    work = Workload(
        steps=training.steps,
        prompts=training.prompts if cell.variant.sampling == "all" else -(-training.prompts // len(names)),
        prompt_tokens=prompt,
        answer_tokens=training.max_new_tokens,
        longest=longest,
        trained=1.0 + again + peers * shared + (training.kl > 0),
        scored=peers * float(len(regime.needs & {Need.RECEIVER_OLD, Need.SCORES, Need.START_SCORES}))
        + (Need.START_SCORES in regime.needs),
        again=sampled_again,
        measured=training.steps // training.measure_every if training.measure_every else 0,
        evaluated=evaluated.answers,
        evaluation_tokens=evaluated.tokens,
        curves=curves,
        curve=curves * evaluation.curve_prompts,
        saves=-(-training.steps // training.checkpoint_every),
    )
    return CellDemand(policies, work, options.get("share_devices"))


# The plan ---------------------------------------------------------------------------------------------------------------


def plan_for(
    prepared: Prepared,
    inventory: str | None,
    jobs: int | None = None,
    address: str | None = None,
    calibration: Path | None = None,
) -> Plan:
    """On a stated inventory, else on what there is: at `address`, a Ray cluster's. calibration: a hardware record. Raises
    UsageError."""
    engine, options = backend_of(prepared.suite.engine), prepared.suite.engine_options
    machine = engine.inventory(address) if inventory is None else machines.parse(inventory)
    pending = in_run_order(prepared.left())
    counts = Counter(cell.kind for cell in pending)
    of_kind = {cell.kind: cell for cell in reversed(pending)}
    if not engine.clustered and str(options.get("device") or "cuda").startswith("cpu"):
        machine = machine.without_gpus()
    measured = _measured(prepared, engine.clustered) if inventory is None else {}  # of this machine
    stands = LOGICAL if engine.clustered else CORE  # for a GPU, where there is none
    replaced = measured_device(calibration, machine, stands) if calibration else None
    if engine.clustered:
        devices, known = engine.devices(options, prepared.source), dict[tuple[str, str], Lengths | None]()
        asks = {name: demand(cell, devices, _lengths(prepared.source, cell, known)) for name, cell in of_kind.items()}
        kinds = {name: (asks[name], counts[name]) for name in counts}
        plan = _with_bases(prepared, plan_cells(len(prepared.cells), kinds, machine, measured, replaced, jobs))
    else:
        on = replaced or device(next((n.gpu_kind for n in machine.nodes if n.gpus), CORE))
        if options.get("numerics") == "portable" and not on.gpu:
            on = embedded.portable(on)
        asks = {name: demand(cell) for name, cell in of_kind.items()}
        left = len(pending) if jobs is None else min(jobs, len(pending))
        work = [_worker(of_kind[name], asks[name], counts[name], machine, measured, on, left) for name in counts]
        most = max(work, key=lambda kind: (kind.bundles[0].gpu_memory, kind.bundles[0].memory), default=None)
        first = [
            replace(
                most,
                kind="base",
                cells=1,
                seconds=_base_seconds(prepared, base, machine, on, most.bundles[0].cores),
                bundles=_for_start(base, most.bundles),
                micro_tokens=0,
            )
            for base in prepared.missing()
            if most
        ]
        busy = max((embedded.busy(one, on) for one in asks.values()), default=1.0) if machine.gpus else 1.0
        half = any(policy.precision == "bf16" for one in asks.values() for policy in one.policies)
        plan = plan_workers(len(prepared.cells), work, machine, first, jobs, busy, half)
    return replace(plan, disk=disk_of(prepared, plan.resources.workers))


def in_run_order(cells: Iterable[Cell]) -> list[Cell]:
    """Seed by seed, and of each group the baseline first: so that after two cells there is something to compare."""
    groups: dict[str, int] = {}
    listed = list(cells)
    for cell in listed:
        groups.setdefault(cell.group.name, len(groups))
    return sorted(listed, key=lambda cell: (cell.seed, groups[cell.group.name], cell.variant.name != cell.baseline))


def place_of(plan: Plan, work: Cell | Base, turn: int = 0) -> Request:
    """A base is where its policy will be. turn: of its start."""
    if isinstance(work, Cell):
        kind = next(k for k in plan.kinds if k.kind == work.kind)
        layout = _layout(kind, work, [p.name for p in work.group.policies])
        return Request(work.key, kind.bundles, kind.seconds, layout, turn)
    kind = next(k for k in plan.kinds if k.kind.startswith(f"{work.group.name}/"))
    own = [_for_start(work, kind.bundles)]
    if kind.layout:
        own = [p.bundles for p in kind.layout.policies if p.policy == work.policy.name]
    seconds = kind.layout.phases.start + kind.layout.phases.evaluate if kind.layout else 0.0
    return Request(work.key, own[0], seconds, _layout(kind, work.suite, [work.policy.name]), turn)


def _for_start(base: Base, bundles: tuple[Bundle, ...]) -> tuple[Bundle, ...]:
    """A supervised start trains all weights."""
    policy, engine = base.policy, backend_of(base.suite.engine)
    if policy.is_micro or policy.stage0 is None or bundles[0].gpus:
        return bundles
    shape, precision = load_shape(policy.model, policy.revision), engine.precision(policy, base.suite.engine_options)
    work = Workload(1, START_EXAMPLES, LADDER_PROMPT_TOKENS, LADDER_PROMPT_TOKENS, 2 * LADDER_PROMPT_TOKENS)
    memory = engine.account.process_memory(CellDemand((PolicyDemand(policy.name, shape, 1, precision),), work)).train
    least = embedded.WORKER_BYTES + memory
    return tuple(dataclasses.replace(bundle, memory=max(bundle.memory, least)) for bundle in bundles)


def _with_bases(prepared: Prepared, plan: Plan) -> Plan:
    """Missing bases are evaluated before any cell starts."""
    asked = [place_of(plan, base) for base in prepared.missing() if plan.feasible]
    run, cells = timetable(asked, Inventory(plan.resources.nodes)), plan.predicted
    both = replace(
        cells,
        cpu_seconds=cells.cpu_seconds + run.core_seconds,
        gpu_seconds=cells.gpu_seconds + run.gpu_seconds,
        wall_seconds=cells.wall_seconds + run.seconds,
        wall_bound=cells.wall_bound + run.bound,
    )
    return replace(plan, predicted=both)


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
    """None without a tokenizer at hand. Raises SuiteError where a stated `max_length`, or a model, holds less."""
    from harness.session.cell.questions import checked, measured

    by_policy = []
    for policy in cell.group.policies:
        about = policy.model_dump_json(exclude={"name"}), cell.training.model_dump_json()
        if about not in known:
            known[about] = None
            with suppress(DataError), at(source, "", EngineError):
                if folder := at_hand(policy):
                    known[about] = lengths = measured(policy, folder, cell.evaluation, cell, fetch=False)
                    checked(cell.engine, cell.engine_options, policy, folder, lengths)
        by_policy.append(known[about])
    return None if None in by_policy else Lengths(*map(max, zip(*filter(None, by_policy), strict=True)))


def check_feasible(prepared: Prepared, jobs: int | None, address: str | None = None) -> Plan:
    """Raises InfeasibleError, in one sentence."""
    engine = catalogue.info(prepared.suite.engine)
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


def _worker(
    cell: Cell, asks: CellDemand, count: int, machine: Inventory, measured: Mapping[str, float], on: Device, left: int
) -> KindPlan:
    """count: of the kind; left: of all, at most `jobs`."""
    account, own, gpus = backend_of(cell.engine).account, cell.engine_options.get("micro_tokens"), machine.gpus > 0
    most = max((n.gpu_memory * USABLE if gpus else n.memory - embedded.WORKER_BYTES) for n in machine.nodes)
    tried = [own] if own else [MICRO_TOKENS, *embedded.FEWER_TOKENS]
    sizes = {tokens: account.process_memory(asks, tokens, on).train for tokens in tried}
    tokens = next((tokens for tokens, size in sizes.items() if size <= most), tried[-1])
    seconds = measured.get(cell.kind) or account.phases(asks, on).total
    bundle = Bundle(1, 1, embedded.GPU_WORKER_BYTES, sizes[tokens])
    if not gpus:
        memory, node = embedded.WORKER_BYTES + sizes[tokens], max(machine.nodes, key=lambda n: n.cores)
        beside = max(1, min(node.cores, node.memory // memory, left))  # processes do more than as many threads
        idle = 1 if cell.engine_options.get("numerics") == "portable" else node.cores // beside
        cores = cell.engine_options.get("threads") or account.cores(asks, idle)
        bundle, seconds = Bundle(0, cores, memory), seconds / _faster(cores)
    chosen = tokens if tokens != MICRO_TOKENS and not own else 0
    return KindPlan(cell.kind, count, seconds, (bundle,), micro_tokens=chosen)


def _faster(cores: int) -> float:
    return 1 + embedded.NEXT_CORE * (cores - 1)


def _base_seconds(prepared: Prepared, base: Base, machine: Inventory, on: Device, cores: int) -> float:
    cell = next(c for c in prepared.every if base.needed_by(c))
    account, gpus = backend_of(cell.engine).account, machine.gpus > 0
    asks = demand(cell)
    own = next(p for p in asks.policies if p.name == base.policy.name)
    seconds = account.phases(CellDemand((own,), asks.workload), on).evaluate
    stage0 = base.policy.stage0
    if base.policy.is_micro:
        return seconds if _ships(base) else BASE_SECONDS
    if stage0 is not None:
        work = dataclasses.replace(
            asks.workload, steps=stage0.steps or START_STEPS, prompts=START_EXAMPLES, trained=1.0
        )
        start = CellDemand((dataclasses.replace(own, rollouts=1),), work)
        seconds = 2 * seconds + account.phases(start, on).train
    return float(seconds if gpus else seconds / _faster(cores))


def _ships(base: Base) -> bool:
    policy, start = base.policy, base.policy.stage0 or Stage0()
    name = f"{policy.model.removeprefix(MICRO)}-{start.strong}-{start.preset}-{start.seed_of(base.seed or 0)}-*"
    return any(SHIPPED.glob(name))


def _measured(prepared: Prepared, clustered: bool) -> dict[str, float]:
    """Mean seconds of finished cells by kind, of the slowest policy: by the clock on GPUs, else of CPU."""
    by_kind: dict[str, list[float]] = {}
    for cell in prepared.done():
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


# The disk -------------------------------------------------------------------------------------------------------------


def _text(task: str | FileTask) -> tuple[float, float]:
    """Bytes under lz4 per token of an answer's text, and of a trace's lists, on micro."""
    return (0.3, 4.0) if source_of(task).generated else (2.2, 32.0)


def disk_of(prepared: Prepared, workers: int) -> Disk:
    """workers: cells side by side. Raises UsageError for a model of unknown size."""
    pending = prepared.left()
    of_kind = {cell.kind: cell_disk(cell) for cell in {cell.kind: cell for cell in pending}.values()}
    cells = [of_kind[cell.kind] for cell in pending]
    answers, tokens = asked(prepared.suite.evaluation)
    header, row = _TABLES["samples"]
    evaluated = 2000 + _MANIFEST // 3 + header
    evaluated += int(answers * (row + _text(prepared.suite.training.task)[0] * MEAN_ANSWER * tokens))
    kept = sum(c.kept for c in cells) + len(prepared.missing()) * evaluated
    most = sorted((c.running - c.kept for c in cells), reverse=True)[: max(1, workers)]
    return Disk(kept, kept + sum(most), sum(size for _, size in _caches(prepared)))


def cell_disk(cell: Cell) -> Disk:
    asks, (answer, trace) = demand(cell), _text(cell.training.task)
    work, policies, penalised = asks.workload, len(asks.policies), cell.training.kl > 0
    shared = work.trained - 1.0 - penalised
    own = sum(p.rollouts for p in asks.policies) * work.prompts * work.steps
    rows = {
        "samples": policies * work.evaluated,
        "steps": policies * work.steps,
        "terms": policies * work.steps * ((2 if shared else 1) + penalised),
        "curves": policies * work.curves,
        "costs": policies * _COSTS_A_CHECKPOINT * work.saves,
        "exchanges": int(own * shared),
        "traces": policies * work.steps * _TRACES_A_STEP if shared else 0,
    }
    texts = rows["samples"] * answer * work.evaluation_tokens + rows["traces"] * trace * work.answer_tokens
    tables = sum(_TABLES[name][0] + _TABLES[name][1] * count for name, count in rows.items() if count)
    journal = _MANIFEST + int(MEAN_ANSWER * texts) + tables
    saved = [
        checkpoint_bytes(p.model, p.precision, _tokenizer(model_folder(policy.model)), p.adapters)
        for p, policy in zip(asks.policies, cell.group.policies, strict=True)
    ]
    weights, whole = sum(c.kept for c in saved), sum(c.whole for c in saved)
    kept = journal + (0 if cell.keep == "none" else weights)
    best = 2 * weights + max(c.optimiser for c in saved) if cell.keep == "best" else 0
    return Disk(kept, max(kept, journal + min(2, max(1, work.saves)) * whole + best))


def check_place(folder: Path) -> None:
    """Before anything slow. Raises UsageError."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):  # permissions do not tell of read-only mounts and root's limits
            pass
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}" if existing.is_dir() else "is a file, not a folder"
        raise UsageError(f"{folder}: {existing} {why}") from None


def check_disk(prepared: Prepared, disk: Disk) -> None:
    """Raises UsageError for what the disks cannot hold."""
    folder = prepared.folder
    there = sum(_size(folder / cell.key) for cell in prepared.left())
    needs = [(folder, "the results", max(0, disk.running - there))]
    needs += [(place, "the models", size) for place, size in _caches(prepared)]
    by_device: dict[int, list[tuple[Path, str, int]]] = {}
    for need in needs:
        by_device.setdefault(_existing(need[0]).stat().st_dev, []).append(need)
    for items in by_device.values():
        place, needed = items[0][0], sum(size for *_, size in items)
        free = shutil.disk_usage(_existing(place)).free
        if needed > free:
            words = " and ".join(dict.fromkeys(what for _, what, size in items if size))
            raise UsageError(
                f"{place}: {words} need about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on this disk "
                "(`keep: none` in the suite needs less: docs/suites.md)"
            )


def _caches(prepared: Prepared) -> Iterator[tuple[Path, int]]:
    bases = {b.key: b for cell in prepared.left() for b in prepared.bases_of(cell)}.values()
    todo, suite = {b.key for b in prepared.missing()}, prepared.suite
    for base in {(b.policy.model, b.policy.revision, b.policy.stage0, b.seed): b for b in bases}.values():
        policy = base.policy
        if policy.is_micro or (policy.stage0 is not None and base.key in todo):  # its supervised start
            precision = "fp32" if policy.is_micro else backend_of(suite.engine).precision(policy, suite.engine_options)
            yield cache_folder(), checkpoint_bytes(load_shape(policy.model, policy.revision), precision).kept
    for model, revision in {(b.policy.model, b.policy.revision): b for b in bases if not b.policy.is_micro}:
        shape = load_shape(model, revision)
        if not model.startswith(PRETRAINED) and not model_folder(model).is_dir():
            place, whole = hub_cache(model), checkpoint_bytes(shape, "bf16").kept
            if _size(place / "blobs") < whole // 2:
                yield place.parent, whole


def _tokenizer(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file() and p.suffix not in WEIGHTS)


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0
