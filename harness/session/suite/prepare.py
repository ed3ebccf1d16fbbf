"""From a suite's name to what there is to do: validated, resolved, with the state of every cell. Imports without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.engines import options
from harness.engines.catalogue import MICRO_FAMILIES, engines_of
from harness.engines.embedded.presets import PRESETS
from harness.errors import DataError, PluginError, StoreError, SuiteError, UsageError
from harness.session.cell.log import LOG
from harness.session.cell.manifests import Base, state_of, suite_file
from harness.session.policy.roots import check_file_root, check_roots
from harness.session.policy.weights import pinned
from harness.session.suite import rules
from harness.session.suite.demands import asked
from harness.session.suite.identity import Identities, forerunners, notes, why_anew
from harness.session.suite.lock import holding
from harness.store.manifest import Manifest, SuiteFile, read_suite, readable, suite_files, write_suite
from harness.store.remarks import mixed
from harness.suite import cells as suite_cells
from harness.suite.cells import Cell
from harness.suite.load import find, load, resolve
from harness.suite.schema import Evaluation, FileTask, Policy, Stage0, Suite
from harness.tasks.jsonl import pinned as pinned_file
from harness.tasks.registry import get_task, has_examples

MICRO = "micro/"


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell and where it stands: `pending`, `running`, `cut off` (it goes on from its checkpoint), `done`, or `failed` with the
    reason. log: of its newest attempt, where there is one."""

    cell: Cell
    state: str
    reason: str
    attempts: int
    log: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A suite ready to run. folder: results/<suite>. every: all its cells; cells: those that were asked for.
    altered: the settings by which it differs from the suite as written. elsewhere: keys of the bases that other shards evaluate.
    seen: (state, reason, attempts) by key at the moment of `looked`; without it every question is asked of the disk.
    damaged: what of the suite's own files could not be read then, and what to do."""

    source: str
    suite: Suite
    folder: Path
    every: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    bases: tuple[Base, ...]
    altered: tuple[str, ...]
    elsewhere: frozenset[str] = frozenset()
    seen: Mapping[str, tuple[str, str, int]] | None = None
    damaged: str = ""

    def looked(self) -> Prepared:
        """The same, with the state of its cells and bases as it is now: read from the disk once, for all that follows.

        What the table cannot read has failed, whatever its manifest says.
        """
        from harness.store.diagnosis import stored_damages

        keys = [*(c.key for c in self.cells), *(b.key for b in self.bases)]
        seen = {key: state_of(f"{self.folder}/{key}") for key in keys}
        if all(state == "pending" for state, *_ in seen.values()):
            return replace(self, seen=seen)
        damaged = stored_damages(self.folder.parent, self.file())
        seen |= {
            key: ("failed", words, seen[key][2])
            for key, words in damaged.items()
            if key in seen and seen[key][0] != "running"
        }
        return replace(self, seen=seen, damaged=damaged.get("", ""))

    def state(self, key: str) -> tuple[str, str, int]:
        """(state, reason, attempts) of a cell or base."""
        return state_of(f"{self.folder}/{key}") if self.seen is None else self.seen[key]

    def status(self) -> list[CellStatus]:
        """Every cell; a pending one that ran before under another key says why it is to be run anew."""
        going_on = holding(self.folder)
        found = [self._status(cell, cell.key in going_on) for cell in self.cells]
        if all(s.state != "pending" for s in found):
            return found
        before = forerunners(self.folder, {*(c.key for c in self.every), *self._beside()})
        return [_explained(s, before.get((s.cell.group.name, s.cell.variant.name, s.cell.seed))) for s in found]

    def _status(self, cell: Cell, going_on: bool) -> CellStatus:
        log = f"{self.folder}/{cell.key}/{LOG}"
        state, reason, attempts = self.state(cell.key)
        if state == "running" and not going_on:
            state = "cut off"  # its driver was killed and could not say so
        return CellStatus(cell, state, reason, attempts, log if os.path.exists(log) else "")

    def _beside(self) -> set[str]:
        """Keys of the cells of altered runs: they lie beside the suite's own and are no older versions of them."""
        keys = set[str]()
        for file in suite_files(self.folder):
            with suppress(StoreError):
                run = read_suite(self.folder, file)
                keys |= {*run.cells} if run.altered else set()
        return keys

    def file(self) -> SuiteFile:
        """The whole suite, for results/<suite>: whatever part of it is run."""
        return suite_file(self.suite, self.every, self.bases, self.altered)

    def record(self) -> None:
        """Say in results/<suite> whose cells these are. Raises DiskFullError, StoreError."""
        with suppress(StoreError):
            if not self.altered and read_suite(self.folder, self.folder / "suite.json") == self.file():
                return
        write_suite(self.folder, self.file())

    def pending(self) -> list[Cell]:
        """Cells that are not done, failed ones included: they are tried again."""
        return [cell for cell in self.cells if self.state(cell.key)[0] != "done"]

    def left(self) -> list[Cell]:
        """What is to be planned for: cells that are not done, and one for each start checkpoint that lacks beside done ones."""
        found = self.pending()
        for base in self.missing():
            if not any(base.group.name == cell.group.name for cell in found):
                found.append(next(cell for cell in self.cells if base.needed_by(cell)))
        return found

    def done(self) -> list[Cell]:
        """Finished cells."""
        return [cell for cell in self.cells if self.state(cell.key)[0] == "done"]

    def missing(self) -> list[Base]:
        """Start checkpoints that the cells stand beside in the table, done or not, and nobody has measured yet."""
        needed = {b.key: b for cell in self.cells for b in self.bases_of(cell)}
        return [b for b in needed.values() if self.state(b.key)[0] != "done"]

    def notes(self) -> list[str]:
        """Which models and which training pool these cells have, as far as it is known by now, and whether paired cells ran on
        unlike processors; a line each."""
        stored = [manifest for _, manifest in readable(self.folder / cell.key for cell in self.cells)]
        remark = mixed((m.group, m.seed, m.provenance.machine) for m in stored)
        return [*notes(self.suite, stored), *filter(None, [remark, self.damaged])]

    def bases_of(self, cell: Cell) -> list[Base]:
        """The start checkpoints that this run evaluates before the cell."""
        return [b for b in self.bases if b.needed_by(cell) and b.key not in self.elsewhere]

    def keys(self) -> set[str]:
        """Of all that this run may write."""
        return {c.key for c in self.cells} | {b.key for c in self.cells for b in self.bases_of(c)}


def _explained(status: CellStatus, before: Manifest | None) -> CellStatus:
    if status.state != "pending" or before is None:
        return status
    return replace(status, reason=why_anew(status.cell, before))


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count` of a suite, for as many runs side by side: whole blocks of one group and seed. The same suite and
    --only always have the same parts."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `i/n`. Raises UsageError."""
        number, _, count = text.partition("/")
        if not (number.isascii() and count.isascii() and number.isdigit() and count.isdigit() and len(text) <= 11):
            raise UsageError(f"--shard {text[:40]!r}: expected i/n, e.g. 1/4 for the first of four")
        if not 1 <= int(number) <= int(count):
            raise UsageError(f"--shard {text}: i is from 1 to n")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, prepared: Prepared) -> Prepared:
        """Its blocks (`blocks`), and of the start checkpoints those that its cells are the first to need.

        The largest block left goes to the part with the fewest cells, so that none is empty where there are blocks for all.
        """
        parts: list[list[Cell]] = [[] for _ in range(self.count)]
        for block in sorted(blocks(prepared.cells), key=len, reverse=True):
            min(parts, key=len).extend(block)
        mine = {cell.key for cell in parts[self.number - 1]}
        first = {b.key: next((c.key for c in prepared.cells if b.needed_by(c)), "") for b in prepared.bases}
        elsewhere = frozenset(base for base, cell in first.items() if cell not in mine)
        return replace(prepared, cells=tuple(c for c in prepared.cells if c.key in mine), elsewhere=elsewhere)


def blocks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells by group and seed: what is compared in pairs, and must come from one machine and one set of base checkpoints."""
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.group.name, cell.seed), []).append(cell)
    return list(found.values())


def prepare(
    name: str,
    results: Path,
    *,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    only: str | None = None,
    shard: Shard | None = None,
    online: bool = False,
) -> Prepared:
    """Load, validate and expand a suite; `online`: the hub may be asked for commits. Raises SuiteError, PluginError, UsageError,
    DataError; writes nothing to `results`."""
    if engine is not None:
        overrides = [*overrides, f"engine={engine}"]
    source = str(find(name))
    suite, written = load(name, overrides), None
    with suppress(SuiteError):  # one that is valid only with the settings given here
        written = rules.validate(load(name), source) if overrides else None
    check_roots(suite, Path(source), overrides)
    prepared = _prepare(suite, written, source, results, overrides, only, online)
    return prepared if shard is None else shard.of(prepared)


def prepare_stored(name: str, results: Path, *, overrides: Sequence[str] = ()) -> Prepared:
    """A suite by its name in the results folder, as it was run there: as written, else as its newest altered run.

    Raises as `prepare`; StoreError where the folder does not say which suite it holds.
    """
    from harness.store.diagnosis import stored_damages

    try:
        found = read_suite(results / name)
    except StoreError as error:
        raise StoreError(stored_damages(results, SuiteFile(name=name)).get("", str(error))) from error
    source = f"{results / name}"
    suite = resolve(found.config, overrides, source)
    written = rules.validate(resolve(found.config, (), source), source)
    prepared = _prepare(suite, written, source, results, overrides, None, online=False)
    return replace(prepared, altered=(*found.altered, *prepared.altered))


def prepare_suite(suite: Suite, source: str, results: Path, altered: Sequence[str] = ()) -> Prepared:
    """A suite that was derived from the one in `source`. Raises as `prepare`."""
    return _prepare(suite, None, source, results, altered, None, online=False)


def _prepare(
    suite: Suite,
    written: Suite | None,
    source: str,
    results: Path,
    overrides: Sequence[str],
    only: str | None,
    online: bool,
) -> Prepared:
    suite = rules.validate(suite, source)
    altered = tuple(overrides) if overrides and suite != written else ()
    try:
        engine = engines_of(suite.engine)
    except PluginError as error:
        raise SuiteError(source, "engine", str(error)) from None
    options.read(engine.Options, suite.engine_options, source)
    for g, group in enumerate(suite.groups):
        for p, policy in enumerate(group.policies):
            if policy.model.startswith(MICRO):
                _check_micro(policy, source, f"groups[{g}].policies[{p}]")
    suite = pinned(_with_tasks(_with_files(suite, source, overrides), source), online)
    identities = Identities(suite, source)
    _check_styles(suite, source)
    _check_length(suite, source)
    if suite.evaluation.curve_every and get_task(suite.evaluation.tasks[0]).judge is not None:
        problem = (
            f"{suite.evaluation.tasks[0]} gives no learning curve: put another task first, or evaluation.curve_every: 0"
        )
        raise SuiteError(source, "evaluation.tasks[0]", problem)
    every = suite_cells.expand(suite, identities.of_cell)
    found = suite_cells.select(every, only)
    if not found:
        raise UsageError(f"--only {only}: matches none of the suite's cells (they are named group/regime/seed)")
    bases = [
        Base(suite, group, policy, seed, identities.of_base(policy))
        for group in suite.groups
        for policy in group.policies
        for seed in (suite.seeds if policy.stage0 is not None and policy.stage0.per_seed else [None])
    ]
    return Prepared(source, suite, results / suite.name, tuple(every), tuple(found), tuple(bases), altered)


def _with_files(suite: Suite, source: str, overrides: Sequence[str]) -> Suite:
    """The suite with each task's file in its place, checked, and its SHA-256. Raises SuiteError."""

    def pin(task: str | FileTask, at: str) -> str | FileTask:
        if not isinstance(task, FileTask):
            return task
        check_file_root(task.file, Path(source), at, overrides)
        try:
            return pinned_file(task, Path(source).parent)
        except PluginError as error:
            raise SuiteError(source, f"{at}.scorer", str(error)) from None
        except DataError as error:
            raise SuiteError(source, f"{at}.file", str(error)) from None

    def of(evaluation: Evaluation, at: str) -> Evaluation:
        found = [pin(task, f"{at}.tasks[{i}]") for i, task in enumerate(evaluation.tasks)]
        for i, name in enumerate(map(str, found)):
            if name in map(str, found[:i]):
                raise SuiteError(
                    source, f"{at}.tasks[{i}]", f"the task {name!r} stands twice (a file may have a `name`)"
                )
        return evaluation.model_copy(update={"tasks": found})

    if not any(isinstance(task, FileTask) for task in _tasks_of(suite)):
        return suite
    training = suite.training.model_copy(update={"task": pin(suite.training.task, "training.task")})
    tune = suite.tune and suite.tune.model_copy(update={"evaluation": of(suite.tune.evaluation, "tune.evaluation")})
    evaluation = of(suite.evaluation, "evaluation")
    return suite.model_copy(update={"training": training, "evaluation": evaluation, "tune": tune})


def _tasks_of(suite: Suite) -> list[str | FileTask]:
    return [suite.training.task, *suite.evaluation.tasks, *(suite.tune.evaluation.tasks if suite.tune else ())]


def _with_tasks(suite: Suite, source: str) -> Suite:
    """The suite with what every supervised start is made of: the training task's examples where it does not say.

    Raises SuiteError.
    """
    groups = []
    for g, group in enumerate(suite.groups):
        policies = []
        for p, policy in enumerate(group.policies):
            stage0 = policy.stage0
            if stage0 is not None and not policy.model.startswith(MICRO):
                stage0 = stage0.model_copy(update={"task": stage0.task or str(suite.training.task)})
                _check_start(stage0, source, f"groups[{g}].policies[{p}].stage0")
            policies.append(policy.model_copy(update={"stage0": stage0}))
        groups.append(group.model_copy(update={"policies": policies}))
    return suite.model_copy(update={"groups": groups})


def _check_start(stage0: Stage0, source: str, at: str) -> None:
    if stage0.preset not in PRESETS:
        raise SuiteError(source, f"{at}.preset", f"unknown preset {stage0.preset!r}; there are {', '.join(PRESETS)}")
    task = stage0.task or ""
    try:
        get_task(task)
    except PluginError as error:
        raise SuiteError(source, f"{at}.task", str(error)) from None
    if not has_examples(task):
        problem = f"there are no examples of {task}; micro and the ladder's levels have some (e.g. ladder.add2+chain3)"
        raise SuiteError(source, f"{at}.task", problem)


def _check_styles(suite: Suite, source: str) -> None:
    """Every task can be asked in every policy's style."""
    tasks = {f"evaluation.tasks[{i}]": name for i, name in enumerate(suite.evaluation.tasks)}
    styles = {at: (name, get_task(name).styles) for at, name in {"training.task": suite.training.task, **tasks}.items()}
    for g, group in enumerate(suite.groups):
        for p, policy in enumerate(group.policies):
            for at, (name, offered) in styles.items() if policy.style else ():
                if policy.style not in offered:
                    place = f"groups[{g}].policies[{p}].style"
                    problem = f"{name} ({at}) cannot be asked {policy.style}; it offers {', '.join(offered)}"
                    raise SuiteError(source, place, problem)


def _check_length(suite: Suite, source: str) -> None:
    """A stated length has room for the longest answer; whether for its question too is seen when that is measured."""
    stated = suite.engine_options.get("max_length")
    trained = max(suite.training_of(variant).max_new_tokens for variant in suite.regimes)
    answer, at = max((asked(suite.evaluation).tokens, "evaluation"), (trained, "training"))
    if stated is not None and stated <= answer:
        problem = f"{stated:,} tokens cut an answer of {answer:,} short ({at}.max_new_tokens). Left out, it is measured"
        raise SuiteError(source, "engine_options.max_length", problem)


def _check_micro(policy: Policy, source: str, at: str) -> None:
    family, preset = policy.model.removeprefix(MICRO), (policy.stage0 or Stage0()).preset
    if family not in MICRO_FAMILIES:
        known = ", ".join(MICRO + name for name in MICRO_FAMILIES)
        raise SuiteError(source, f"{at}.model", f"unknown micro model {policy.model!r}; there are {known}")
    if preset not in PRESETS:
        raise SuiteError(source, f"{at}.stage0.preset", f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    if policy.chat:
        raise SuiteError(source, f"{at}.chat", "a micro model has no chat template")
