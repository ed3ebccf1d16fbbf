"""A suite of real models, rehearsed: its checks in turn, with what is at fault replaced; then one tiny cell of every kind,
trained, evaluated and shown. Results lie in a folder of their own."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from harness.allocation.planner import Plan, first_of
from harness.allocation.shapes import load_config, load_shape, shipped
from harness.engines import catalogue
from harness.engines.catalogue import backend_of
from harness.errors import CellError, DataError, HarnessError, StoreError, SuiteError, UsageError
from harness.experience.answers import Prompt
from harness.rehearsal import standins
from harness.session.cell.manifests import label_of
from harness.session.cell.questions import as_asked, training_prompts
from harness.session.driver.matrix import run_matrix
from harness.session.driver.progress import Reporter, show_phases
from harness.session.policy import at_hand
from harness.session.suite.disk import check_disk, check_place
from harness.session.suite.files import check_roots
from harness.session.suite.places import faults_at, with_policies
from harness.session.suite.planning import check_feasible, plan_for
from harness.session.suite.preflight import preflight
from harness.session.suite.prepare import prepare_suite
from harness.session.suite.prepared import Prepared
from harness.store.ingest import ingest
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest, read_manifests
from harness.store.read import Snapshot
from harness.store.table import show_rows
from harness.suite.cells import select_cells
from harness.suite.load import find, load
from harness.suite.schema import LONGEST_NAME, FileTask, Policy, Suite, Variant
from harness.tasks.data import SETS, SOURCES
from harness.tasks.data import load as load_data

# Keeps the rehearsal's results apart
PREFIX = "rehearsal-"
# Made anew each time, in a folder that is the user's
TOKENIZERS, MODELS = f"{PREFIX}tokenizers", f"{PREFIX}models"
# Planned for where the full run does not fit this machine
LARGE = "8xH100-80G"
# Without progress
SECONDS = 300.0
STEPS, PROMPTS, ROLLOUTS, TOKENS, QUESTIONS = 2, 2, 4, 32, 2
SMALL_VLLM = {"rollout_memory": 0.05, "rollout_sequences": 16}
# Places of faults that a model may have and no stand-in mends
OF_A_MODEL = re.compile(r"groups\[\d+\]\.policies|(training|evaluation)\.max_new_tokens")
TASK = re.compile(r"evaluation\.tasks\[(\d+)\]")
# Of the suite's engine options; the layout is this machine's
KEPT_OPTIONS = ("dtype", "zero_stage", "gradient_checkpointing", "lora", "checkpointing")


class RehearsalFault(msgspec.Struct, frozen=True):
    """What the full run would fail with. name: of the fault. place: in the suite, or a cell."""

    name: str
    place: str
    problem: str


class Rehearsed(msgspec.Struct, frozen=True):
    cell: str
    state: str
    reason: str = ""
    received: int = 0
    refused: int = 0


class Rehearsal(msgspec.Struct, kw_only=True):
    suite: str
    engine: str
    results: str
    findings: list[RehearsalFault] = []
    models: dict[str, str] = {}
    cells: list[Rehearsed] = []
    table: list[Any] = []
    not_rehearsed: list[str] = []
    remarks: list[str] = []
    needs: Any = None


class UnrehearsableError(Exception):
    """No cell can be run, for a fault that cannot be replaced; the report names it."""

    def __init__(self, report: Rehearsal) -> None:
        report.not_rehearsed.append("any cell, for what is named above")
        self.report = report
        super().__init__(report.suite)


def name_of(suite: str) -> str:
    return f"{PREFIX}{suite}"[:LONGEST_NAME]


def examine(
    name: str, results: Path, root: Path, overrides: Sequence[str] = (), inventory: str | None = None
) -> tuple[Rehearsal, Prepared, Plan]:
    """What the full run's checks find, the suite mended, and its plan. Arguments and errors as of `rehearse`;
    UnrehearsableError for what cannot be mended."""
    source = str(find(name))
    suite = load(name, overrides)
    check_roots(suite, Path(source), overrides)
    if all(policy.is_micro for group in suite.groups for policy in group.policies):
        raise UsageError(f"{suite.name}: has only micro models, which run here without a rehearsal: harness run {name}")
    for made in (TOKENIZERS, MODELS):
        shutil.rmtree(root / made, ignore_errors=True)
    report = Rehearsal(suite=suite.name, engine=suite.engine, results=str(root / "results"))
    with show_phases("checking models, tokenizers and data"):
        suite = with_policies(suite, lambda policy, place: _with_tokenizer(policy, place, root, report))
        prepared, plan = _checked(suite, source, results, root, overrides, inventory, report)
    report.needs = msgspec.to_builtins(plan)
    _check_keys(prepared, report)
    try:
        check_place(prepared.folder)
        check_disk(prepared, plan.disk)
    except UsageError as error:
        place = str(prepared.folder)
        report.findings.append(RehearsalFault("disk", place, str(error).removeprefix(f"{place}: ")))
    return report, prepared, plan


def rehearse(
    name: str,
    results: Path,
    root: Path,
    overrides: Sequence[str] = (),
    inventory: str | None = None,
    only: Sequence[str] = (),
) -> tuple[Rehearsal, Plan | None]:
    """A report, and the full run's plan where there is one. results: of the full run, left alone. root: where the rehearsal
    writes. inventory: for the full run's plan. Raises UsageError for a suite that cannot be rehearsed, InfeasibleError where
    even tiny cells do not fit."""
    try:
        report, prepared, plan = examine(name, results, root, overrides, inventory)
    except UnrehearsableError as fault:
        return fault.report, None
    kinds = {cell.kind for cell in select_cells(prepared.every, only)}
    try:
        with show_phases("making stand-ins"):
            rehearsed = _with_standins(_scaled(prepared.suite, report), kinds, root, report)
    except CellError as error:  # a stand-in cannot be asked the suite's questions
        report.findings.append(RehearsalFault("model", prepared.suite.name, str(error)))
        return UnrehearsableError(report).report, plan
    if not rehearsed.cells:
        raise UsageError(
            f"--only {' '.join(only)}: matches none of the suite's cells that can be rehearsed (group/regime/seed)"
        )
    outcome = run_matrix(rehearsed, check_feasible(rehearsed, None), Reporter(), lambda: None, SECONDS)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.disk:
        report.findings.append(RehearsalFault("disk", str(root), outcome.disk))
    _look_at_cells(rehearsed, outcome.failed, report)
    _look_at_table(rehearsed, report)
    return report, plan


# The suite's own checks -----------------------------------------------------------------------------------------------


def _with_tokenizer(policy: Policy, place: str, root: Path, report: Rehearsal) -> Policy:
    """With another tokenizer where its own would fail."""
    own = at_hand(policy)
    if own is None or not _known_kind(policy):
        return policy
    fault = standins.fault_of(policy, own)
    if fault is not None:
        report.findings.append(RehearsalFault(fault[0], place, fault[1]))
        return _replaced(policy, root / TOKENIZERS / place)
    if policy.chat and not standins.takes_system(own):
        report.remarks.append(f"{place}.chat: the template of {policy.model} rejects a system turn; runs send none")
    return policy


def _replaced(policy: Policy, folder: Path) -> Policy:
    standins.write_tokenizer(folder, _config_of(policy), None)
    chat = policy.chat and True  # the arguments are the own template's
    return policy.model_copy(update={"model": str(folder), "revision": None, "chat": chat})


def _known_kind(policy: Policy) -> bool:
    """Whether the model's config says what transformers can build."""
    with suppress(HarnessError):
        return bool(load_shape(policy.model, policy.revision))
    return False


def _config_of(policy: Policy) -> Mapping[str, Any]:
    """The model's own without what makes it another kind, or a small published one where it has none that can be used."""
    if not _known_kind(policy):
        return min(shipped().values(), key=lambda config: config.get("hidden_size", 1 << 20))
    config = load_config(policy.model, policy.revision)
    return {name: value for name, value in config.items() if name != "quantization_config"}


def _checked(
    suite: Suite,
    source: str,
    results: Path,
    root: Path,
    overrides: Sequence[str],
    inventory: str | None,
    report: Rehearsal,
) -> tuple[Prepared, Plan]:
    """Each refusal is noted and its cause replaced, until there is none. The plan is of the given suite."""
    given = suite
    while True:
        try:
            _check_data(suite, source)
            prepared = prepare_suite(suite, source, results, overrides).with_states()
            remarks = preflight(prepared, run=False, elsewhere=True)
            plan = _plan(given, prepared, results, overrides, inventory)
            if not plan.feasible and inventory is None:
                report.not_rehearsed.append(f"a run on this machine, which is too small; the plan below is for {LARGE}")
                plan = _plan(given, prepared, results, overrides, LARGE)
        except SuiteError as error:
            mended = _mended(suite, error, root)
            if mended is None or mended[1] == suite:
                if not OF_A_MODEL.match(error.path):
                    raise
                report.findings.append(RehearsalFault("model", _place(given, suite, error.path), error.problem))
                raise UnrehearsableError(report) from None
            previous, (name, suite) = suite, mended
            report.findings.append(RehearsalFault(name, _place(given, previous, error.path), error.problem))
        else:
            if not plan.feasible:
                report.findings.append(RehearsalFault("plan", inventory or LARGE, first_of(plan.shortfall or "")))
            report.remarks += [words for words in remarks if str(root) not in words]  # of what stands in here, nothing
            return prepared, plan


def _plan(given: Suite, mended: Prepared, results: Path, overrides: Sequence[str], inventory: str | None) -> Plan:
    with suppress(UsageError):  # SuiteError, or a config that says nothing of its size
        return plan_for(prepare_suite(given, mended.source, results, overrides).with_states(), inventory)
    return plan_for(mended, inventory)


def _place(given: Suite, mended: Suite, path: str) -> str:
    """By the given suite, of whose evaluation tasks some are gone."""
    match = TASK.match(path)
    task = mended.evaluation.tasks[int(match[1])] if match else None
    if match is None or task not in given.evaluation.tasks:
        return path
    return f"evaluation.tasks[{given.evaluation.tasks.index(task)}]{path[match.end() :]}"


def _check_data(suite: Suite, source: str) -> None:
    names = {f"evaluation.tasks[{i}]": task for i, task in enumerate(suite.evaluation.tasks)}
    for place, task in {"training.task": suite.training.task, **names}.items():
        wanted = SOURCES.get(str(task), str(task)) if place == "training.task" else str(task)
        if not isinstance(task, FileTask) and wanted in SETS:
            with faults_at(source, place, DataError):
                load_data(wanted)


def _mended(suite: Suite, error: SuiteError, root: Path) -> tuple[str, Suite] | None:
    place = error.path or error.problem
    if place.startswith("engine_options.max_length"):
        options = {key: value for key, value in suite.engine_options.items() if key != "max_length"}
        return "max_length", suite.model_copy(update={"engine_options": options})
    mended: dict[str, tuple[str, dict[str, Any]]] = {
        "training.max_new_tokens": ("max_new_tokens", {"max_new_tokens": TOKENS}),
        "training.prompts": ("too few questions", {"prompts": 1}),
        "training.": (_kind_of(suite.training.task), {"task": "ladder", "min_level": None}),
    }
    for start, (name, fields) in mended.items():
        if place.startswith(start):
            return name, suite.model_copy(update={"training": suite.training.model_copy(update=fields)})
    if place.startswith("evaluation.max_new_tokens"):
        shorter = suite.evaluation.model_copy(update={"max_new_tokens": TOKENS})
        return "max_new_tokens", suite.model_copy(update={"evaluation": shorter})
    if match := TASK.match(place):
        tasks = list(suite.evaluation.tasks)
        name = _kind_of(tasks.pop(int(match[1])))
        left = {"tasks": tasks or ["ladder"], "curve_every": suite.evaluation.curve_every if tasks else 0}
        return name, suite.model_copy(update={"evaluation": suite.evaluation.model_copy(update=left)})
    if re.fullmatch(r"groups\[\d+\]\.policies", place) and any(p.rollouts for g in suite.groups for p in g.policies):
        equal = with_policies(suite, lambda policy, _: policy.model_copy(update={"rollouts": None}))
        return "unequal rollouts", equal
    match = re.fullmatch(r"(groups\[\d+\]\.policies\[\d+\])\.(model|chat)", place)
    if match and not (folder := root / TOKENIZERS / match[1]).exists():
        return "model", with_policies(suite, lambda one, at: _replaced(one, folder) if at == match[1] else one)
    return None


def _kind_of(task: str | FileTask) -> str:
    return "task" if isinstance(task, FileTask) else "dataset"


def _check_keys(prepared: Prepared, report: Rehearsal) -> None:
    """Two cells with one key, here or in the results."""
    labels: dict[str, set[str]] = {}
    for cell in prepared.every:
        labels.setdefault(cell.key, set()).add(cell.label)
    for folder, manifest in read_manifests(file.parent for file in prepared.folder.glob("*/manifest.json")):
        if folder.name in labels:
            labels[folder.name].add(label_of(manifest))
    for key, of_key in labels.items():
        if len(of_key) > 1:
            report.findings.append(
                RehearsalFault("key collision", key, f"one key of several cells: {', '.join(sorted(of_key))}")
            )


# Scaled down ----------------------------------------------------------------------------------------------------------


def _scaled(suite: Suite, report: Rehearsal) -> Suite:
    """Short runs on the engine that can be had; what is left out is noted."""
    note, training, evaluation = report.not_rehearsed.append, suite.training, suite.evaluation
    report.engine = suite.engine if catalogue.info(suite.engine).available else "embedded"
    if report.engine != suite.engine:
        lacks = catalogue.info(suite.engine).missing
        note(f"the path of the {suite.engine} engine, for want of {lacks}; cells ran on the embedded engine")
    known = backend_of(report.engine).Options.__struct_fields__
    options = {name: value for name, value in suite.engine_options.items() if name in KEPT_OPTIONS and name in known}
    if backend_of(report.engine).clustered:
        options |= SMALL_VLLM
    if suite.tune is not None:
        note("tuning")
    if len(suite.seeds) > 1:
        note(f"seeds but {suite.seeds[0]}")
    started = {p.name for g in suite.groups for p in g.policies if p.stage0 and not p.is_micro}
    if started:
        note(f"the supervised start of {', '.join(sorted(started))}")
    replayed = [variant.name for variant in suite.regimes if variant.replay]
    if replayed:
        note(f"{', '.join(replayed)}: replays a recording")
    note("the models' weights, size, memory, speed and accuracy; kill and resume")
    short = {
        "steps": STEPS, "prompts": PROMPTS, "rollouts": ROLLOUTS, "max_new_tokens": TOKENS, "checkpoint_every": 1,
        "measure_every": min(1, training.measure_every),
    }  # fmt: skip
    asked = {
        "limit": QUESTIONS, "max_new_tokens": TOKENS, "curve_prompts": QUESTIONS, "curve_every": min(1, evaluation.curve_every),
        "k": QUESTIONS if evaluation.k is None else min(QUESTIONS, evaluation.k),
    }  # fmt: skip

    def own(policy: Policy, _: str) -> Policy:
        rollouts = policy.rollouts and max(2, policy.rollouts * ROLLOUTS // training.rollouts)
        return policy if policy.is_micro else policy.model_copy(update={"rollouts": rollouts, "stage0": None})

    def variant(one: Variant) -> Variant:
        left = one.training and one.training.model_copy(
            update={name: None for name in short if hasattr(one.training, name)}
        )
        return one.model_copy(update={"training": left})

    return with_policies(suite, own).model_copy(
        update={
            "name": name_of(suite.name),
            "engine": report.engine,
            "engine_options": options,
            "regimes": [variant(one) for one in suite.regimes if one.replay is None],
            "seeds": suite.seeds[:1],
            "tune": None,
            "training": training.model_copy(update=short),
            "evaluation": evaluation.model_copy(update=asked),
        }
    )


def _with_standins(suite: Suite, kinds: set[str], root: Path, report: Rehearsal) -> Prepared:
    """Every model is a tiny one that is taught a question of each step."""
    made: dict[str, Path] = {}

    def tiny(policy: Policy, _: str) -> Policy:
        if policy.is_micro:
            return policy
        about = policy.model_dump_json(include={"model", "revision", "chat", "style"})
        if about not in made:
            folder = made[about] = root / MODELS / f"{len(made)}-{policy.name}"
            own, config = at_hand(policy), load_config(policy.model, policy.revision)
            standins.write_tokenizer(root / TOKENIZERS / folder.name, config, own)
            standins.write_model(folder, root / TOKENIZERS / folder.name)
            theirs = own is not None and not own.is_relative_to(root / TOKENIZERS)
            kind = config.get("model_type")
            report.models[policy.name] = f"{kind}, {'its own tokenizer' if theirs else 'a stand-in for its tokenizer'}"
        return policy.model_copy(update={"model": str(made[about]), "revision": None})

    def prepared() -> Prepared:
        source = str(root / "results" / tinier.name)  # not the suite's file, by which places are allowed: done
        every = prepare_suite(tinier, source, root / "results")
        return replace(every, cells=tuple(cell for cell in every.cells if cell.kind in kinds))

    named = {kind.partition("/")[0] for kind in kinds}
    tinier = with_policies(suite.model_copy(update={"groups": [g for g in suite.groups if g.name in named]}), tiny)
    asked: dict[str, tuple[Policy, dict[str, Prompt]]] = {}
    for cell in prepared().cells:
        for policy in cell.group.policies:
            _, prompts = asked.setdefault(policy.model, (policy, {}))
            for step in range(1, STEPS + 1):
                first = as_asked(training_prompts(cell, step)[:1], cell.training.task, policy)[0]
                prompts[first.id] = first
    for model, (policy, prompts) in asked.items():
        if not policy.is_micro:
            standins.teach(Path(model), policy, list(prompts.values()))
    return prepared()


# What came of it ------------------------------------------------------------------------------------------------------


def _look_at_cells(rehearsed: Prepared, failed: Mapping[str, str], report: Rehearsal) -> None:
    reasons: dict[str, list[str]] = {}
    silent = []
    for cell in rehearsed.cells:
        state, reason, _ = rehearsed.state(cell.key)
        reason = failed.get(cell.label, reason)
        received = refused = 0
        if state != "done":
            reasons.setdefault(reason or state, []).append(cell.label)
        for edge, counts in _records_heard(rehearsed.folder / cell.key).items() if state == "done" else ():
            received, refused = received + counts[""], refused + counts.total() - counts[""]
            bad = {policy.name for policy in cell.group.policies if policy.condition is not None}
            if counts.total() and not counts[""] and edge[0] not in bad:
                problem = f"all {counts.total()} records were refused, most often as {counts.most_common(1)[0][0]!r}"
                report.findings.append(RehearsalFault("peers refused", f"{cell.label}: {' -> '.join(edge)}", problem))
        if state == "done":
            report.remarks += _unlike_carried(rehearsed.folder / cell.key, report)
        if state == "done" and rehearsed.resolved.records_shared(cell) and not received + refused:
            silent.append(cell.kind)
        report.cells.append(Rehearsed(cell.label, state, reason, received, refused))
    for reason, labels in reasons.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        report.findings.append(RehearsalFault("cell", f"{labels[0]}{more}", reason))
    if silent:
        report.not_rehearsed.append(f"learning from peers in {', '.join(silent)}: none had anything to send")


def _unlike_carried(folder: Path, report: Rehearsal) -> list[str]:
    """Policies whose own answers have other ids when they are carried as a peer's. What that costs, only real weights tell."""
    prices = read_manifest(folder).carried.items()
    said = (
        f"{name}: its own answers, carried as a peer's, get other ids: {price.why}"
        for name, price in prices
        if price.why
    )
    return [words for words in said if words not in report.remarks]


def _records_heard(folder: Path) -> dict[tuple[str, str], Counter[str]]:
    """By author and receiver: records by reason of refusal; accepted ones have none."""
    ledger = read_journal(folder).tables.get("exchanges")
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for row in [] if ledger is None else ledger.to_pylist():
        reasons.setdefault((row["author"], row["receiver"]), Counter())[row["reason"]] += row["messages"]
    return reasons


def _look_at_table(rehearsed: Prepared, report: Rehearsal) -> None:
    done = {cell.variant.name for cell in rehearsed.cells if rehearsed.state(cell.key)[0] == "done"}
    if not done:
        return
    try:
        ingest(rehearsed.folder.parent)
        with Snapshot(rehearsed.folder.parent, rehearsed.suite_file()) as snapshot:
            report.table = show_rows(snapshot, rehearsed.suite.name)
    except StoreError as error:
        report.findings.append(RehearsalFault("table", rehearsed.suite.name, str(error)))
        return
    if absent := done - {row.regime for row in report.table}:
        report.findings.append(
            RehearsalFault("table", rehearsed.suite.name, f"has no row of {', '.join(sorted(absent))}")
        )
