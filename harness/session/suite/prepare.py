"""From a suite's name to what there is to do: keys, states, and why a stored cell is another one. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.catalogue import PLUGINS, backend_of
from harness.errors import HarnessError, StoreError, SuiteError, UsageError
from harness.learning import registry
from harness.plugins import blamed
from harness.session.cell.log import LOG
from harness.session.cell.manifests import Base, bases_of, state_of, suite_file
from harness.session.policy import COMMIT, identity_of, local_folder, on_hub, pinned, unpinned
from harness.session.suite import rules
from harness.session.suite.lock import holding
from harness.store.diagnosis import stored_damages
from harness.store.manifest import Manifest, SuiteFile, read_suite, readable, suite_files, write_suite
from harness.store.read import Snapshot
from harness.store.remarks import STALE, Missing, missing, mixed
from harness.store.starts import UNPAIRED
from harness.suite import cells as suite_cells
from harness.suite.cells import Cell, Identity
from harness.suite.load import find, load, placed_in, resolve
from harness.suite.schema import Policy, Suite, Variant
from harness.tasks.registry import get_task, results_versions, training_source
from harness.versions import BASE, CELL, versions

_SHOWN = 4


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """reason: of a failure, or why the cell is run anew. log: of its newest attempt."""

    key: str
    regime: str
    group: str
    seed: int | None
    state: str
    reason: str
    attempts: int
    suite: str
    log: str
    identity: Identity | None = None

    @property
    def label(self) -> str:
        seed = "" if self.seed is None else f"/{self.seed}"
        return f"{self.group}/{self.regime}{seed}" if self.regime else f"{self.group}{seed}" or self.key


@dataclass(frozen=True, slots=True)
class Prepared:
    """cells: asked for; altered: settings other than as written; elsewhere: bases of other shards; seen, read: states, manifests at
    `looked`; damaged: of the suite's files."""

    source: str
    suite: Suite
    folder: Path
    every: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    bases: tuple[Base, ...]
    altered: tuple[str, ...]
    elsewhere: frozenset[str] = frozenset()
    seen: Mapping[str, tuple[str, str, int]] | None = None
    read: Mapping[str, Manifest] | None = None
    damaged: str = ""

    def looked(self) -> Prepared:
        """With states. What the table cannot read has failed."""
        keys = (*(cell.key for cell in self.cells), *(base.key for base in self.bases))
        read = {folder.name: manifest for folder, manifest in readable(self.folder / key for key in keys)}
        seen: dict[str, tuple[str, str, int]] = {key: (m.state, m.reason, m.attempts) for key, m in read.items()}
        seen |= {key: state_of(f"{self.folder}/{key}") for key in keys if key not in read}
        looked = replace(self, seen=seen, read=read)
        if all(state == "pending" for state, *_ in seen.values()):
            return looked
        damaged = stored_damages(self.folder.parent, self.file())
        for key in seen.keys() & damaged.keys():
            if seen[key][0] != "running":
                seen[key] = "failed", damaged[key], seen[key][2]
        return replace(looked, damaged=damaged.get("", ""))

    def state(self, key: str) -> tuple[str, str, int]:
        return state_of(f"{self.folder}/{key}") if self.seen is None else self.seen[key]

    def status(self) -> list[CellStatus]:
        """A pending cell that ran under another key says why it is to be run anew."""
        going_on, states = holding(self.folder), {cell.key: self.state(cell.key) for cell in self.cells}
        before: Mapping[tuple[str, str, int | None], Manifest] = {}
        if any(state == "pending" for state, *_ in states.values()):
            beside = set[str]()  # altered runs are no older versions
            for file in suite_files(self.folder):
                with suppress(StoreError):
                    altered = read_suite(self.folder, file)
                    beside |= {*altered.cells} if altered.altered else set()
            before = forerunners(self.folder, {*(c.key for c in self.every), *beside})
        statuses = []
        for cell in self.cells:
            group, regime, log = cell.group.name, cell.variant.name, f"{self.folder}/{cell.key}/{LOG}"
            state, reason, attempts = states[cell.key]
            if state == "running" and cell.key not in going_on:
                state = "cut off"  # its driver was killed
            if state == "pending" and (older := before.get((group, regime, cell.seed))) is not None:
                reason = why_anew(cell, older)
            statuses.append(
                CellStatus(
                    key=cell.key, regime=regime, group=group, seed=cell.seed, state=state, reason=reason, attempts=attempts,
                    suite=cell.suite, log=log if os.path.exists(log) else "", identity=cell.identity,
                )
            )  # fmt: skip
        return statuses

    def file(self) -> SuiteFile:
        return suite_file(self.suite, self.every, self.bases, self.altered)

    def record(self) -> None:
        """Raises DiskFullError, StoreError."""
        with suppress(StoreError):
            if not self.altered and read_suite(self.folder, self.folder / "suite.json") == self.file():
                return
        write_suite(self.folder, self.file())

    def pending(self) -> list[Cell]:
        """Not done; failed ones are tried again."""
        return [cell for cell in self.cells if self.state(cell.key)[0] != "done"]

    def done(self) -> list[Cell]:
        return [cell for cell in self.cells if self.state(cell.key)[0] == "done"]

    def missing(self) -> list[Base]:
        """Needed by a cell, done or not, and not measured yet."""
        needed = {b.key: b for cell in self.cells for b in self.bases_of(cell)}
        return [b for b in needed.values() if self.state(b.key)[0] != "done"]

    def left(self) -> list[Cell]:
        """Pending cells, and one for each missing base beside done ones."""
        remaining = self.pending()
        for base in self.missing():
            if not any(base.group.name == cell.group.name for cell in remaining):
                remaining.append(next(cell for cell in self.cells if base.needed_by(cell)))
        return remaining

    def notes(self) -> list[str]:
        if self.read is None:
            return self.looked().notes()
        stored = [self.read[cell.key] for cell in self.cells if cell.key in self.read]
        portable = self.suite.engine_options.get("numerics") == "portable"
        remark = mixed((m.group, m.seed, m.provenance.machine) for m in stored if not portable)
        return [*model_notes(self.suite, stored), *filter(None, [remark, self.damaged])]

    def bases_of(self, cell: Cell) -> list[Base]:
        return [b for b in self.bases if b.needed_by(cell) and b.key not in self.elsewhere]

    def keys(self) -> set[str]:
        return {c.key for c in self.cells} | {b.key for c in self.cells for b in self.bases_of(c)}


@dataclass(frozen=True, slots=True)
class Shard:
    """Whole blocks of one group and seed."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `i/n`. Raises UsageError."""
        if len(text) > 11 or not (match := re.fullmatch(r"([0-9]+)/([0-9]+)", text)):
            raise UsageError(f"--shard {text[:40]!r}: expected i/n, e.g. 1/4 for the first of four")
        shard = cls(int(match[1]), int(match[2]))
        if not 1 <= shard.number <= shard.count:
            raise UsageError(f"--shard {text}: i is from 1 to n")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, prepared: Prepared) -> Prepared:
        """Bases go to the first cell that needs them."""
        parts: list[list[Cell]] = [[] for _ in range(self.count)]
        for block in sorted(blocks(prepared.cells), key=len, reverse=True):
            min(parts, key=len).extend(block)
        mine = {cell.key for cell in parts[self.number - 1]}
        first = {b.key: next((c.key for c in prepared.cells if b.needed_by(c)), "") for b in prepared.bases}
        elsewhere = frozenset(base for base, cell in first.items() if cell not in mine)
        return replace(prepared, cells=tuple(c for c in prepared.cells if c.key in mine), elsewhere=elsewhere)


def blocks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """What is compared in pairs: by group and seed."""
    return [list(block) for _, block in groupby(cells, key=lambda cell: (cell.group.name, cell.seed))]


def prepare(
    name: str,
    results: Path,
    *,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    only: Sequence[str] = (),
    shard: Shard | None = None,
    online: bool = False,
) -> Prepared:
    """online: the hub may be asked for commits. Raises SuiteError, PluginError, UsageError, DataError."""
    if engine is not None:
        overrides = [*overrides, f"engine={engine}"]
    source = str(find(name))
    suite, written = load(name, overrides), None
    with suppress(SuiteError):  # one that is valid only with the settings given here
        written = rules.validate(load(name), source) if overrides else None
    rules.check_roots(suite, Path(source), overrides)
    prepared = prepare_suite(suite, source, results, overrides, written=written, only=only, online=online)
    return prepared if shard is None else shard.of(prepared)


def prepare_stored(name: str, results: Path, *, overrides: Sequence[str] = ()) -> Prepared:
    """As written, else its newest altered run. Raises as `prepare`; StoreError."""
    try:
        stored = read_suite(results / name)
    except StoreError as error:
        raise StoreError(stored_damages(results, SuiteFile(name=name)).get("", str(error))) from error
    source = f"{results / name}"
    suite = resolve(stored.config, overrides, source)
    written = rules.validate(resolve(stored.config, (), source), source)
    prepared = prepare_suite(suite, source, results, overrides, written=written)
    return replace(prepared, altered=(*stored.altered, *prepared.altered))


def prepare_suite(
    suite: Suite,
    source: str,
    results: Path,
    altered: Sequence[str] = (),
    *,
    written: Suite | None = None,
    only: Sequence[str] = (),
    online: bool = False,
) -> Prepared:
    """Of `source`, or derived from it. altered: the settings that made it of the suite `written`. Raises as `prepare`."""
    with placed_in(altered):
        suite = rules.validate(suite, source)
        settings = tuple(altered) if suite != written else ()
        suite = pinned(rules.resolved(suite, source), online)
    identity = identities(suite)
    every = suite_cells.expand(suite, lambda group, variant: identity(group.policies, variant))
    chosen = suite_cells.select(every, only)
    bases = bases_of(suite, lambda _group, policy, _seed: identity([policy], None))
    return Prepared(source, suite, results / suite.name, tuple(every), tuple(chosen), tuple(bases), settings)


def lacking(
    snapshot: Snapshot, results: Path, suite: str, file: Path | None = None, prepared: Prepared | None = None
) -> tuple[list[Missing], str]:
    """The cells that the table lacks, or has from other settings or code than `prepared`, `file`, or the suite as run;
    else what is stored alone, and why."""
    stored = missing(snapshot, suite)
    if prepared is None and "@" not in suite and (file is not None or suite_files(results / suite)):
        try:
            prepared = prepare_stored(suite, results) if file is None else prepare(str(file), results)
        except HarnessError as error:
            return stored, f"whether its cells are of today's settings and code cannot be told: {error}"
    return (stored if prepared is None else _compared(snapshot, suite, stored, prepared)), ""


def _compared(snapshot: Snapshot, suite: str, stored: list[Missing], prepared: Prepared) -> list[Missing]:
    known = {m.cell: m for m in stored}
    rows = snapshot.query(
        "SELECT group_name || '/' || regime || '/' || seed AS label, cell FROM current_cells "
        "WHERE suite = ? AND kind = 'cell' AND state = 'done'",
        [suite],
    )
    shown = dict(zip(rows["label"].to_pylist(), rows["cell"].to_pylist(), strict=True))
    gaps = []
    others = tuple(c for c in prepared.every if shown.get(c.label) != c.key)
    old = {label: shown[label] for label in shown.keys() - {c.label for c in prepared.every}}
    for status in replace(prepared, cells=others, seen=None).status():
        label, key, state, reason = status.label, status.key, status.state, status.reason
        before, there = known.pop(label, None), shown.get(label)
        if there is not None:
            why = reason.removesuffix(f" (was {there})") or f"{state}, but shown is {there}"
            gaps.append(Missing(cell=label, key=key, state=STALE, reason=why))
        elif before is not None and before.key == key and (state == "done" or before.fault):
            gaps.append(before)  # damaged, or says why it failed
        else:
            gaps.append(Missing(cell=label, key=key, state=state, reason=reason))
    if prepared.suite.tune is not None:  # what its search chose stands beside it in what is stored
        return [*gaps, *known.values()]
    return [
        *gaps,
        *(m for m in known.values() if m.state == UNPAIRED),
        *(Missing(cell=c, key=k, state=STALE, reason="no longer in the suite") for c, k in sorted(old.items())),
    ]


# Keys, and why they differ ---------------------------------------------------------------------------------------------


def identities(suite: Suite) -> Callable[[Sequence[Policy], Variant | None], Identity]:
    """Of a cell, or a base's policy. Raises PluginError, DataError."""
    training, tasks = suite.training.task, suite.evaluation.tasks
    evaluation = {str(name): get_task(name).checksum or "" for name in tasks}
    shared = dict([PLUGINS.results_version(suite.engine)])
    shared |= {package: version for name in tasks for package, version in results_versions(name).items()}
    with blamed(f"task {training}"):
        pool, trained = training_source(training).pool_digest(), results_versions(training)
    models = {(p.model, p.revision): p for group in suite.groups for p in group.policies}
    known = {name: identity_of(policy) for name, policy in models.items()}
    asked, half = suite.engine_options.get("dtype"), backend_of(suite.engine).half_precision

    def identity(policies: Sequence[Policy], variant: Variant | None) -> Identity:
        packages = [*(BASE if variant is None else CELL)]
        packages += ["stage0"] if any(p.is_micro or p.stage0 is not None for p in policies) else []
        own = {} if variant is None else {**trained, **dict([registry.PLUGINS.results_version(variant.regime)])}
        pretrained = [p for p in policies if not p.is_micro]
        if half and pretrained and not asked:
            own["dtype of half-precision models"] = half
        if asked != "fp32" and ((half and (asked or pretrained)) or any(p.stage0 for p in pretrained)):
            own["rounding to bf16"] = "dithered"
        return Identity(
            models={p.name: known[p.model, p.revision] for p in policies},
            pool="" if variant is None else pool,
            evaluation=evaluation,
            versions={**versions(packages), **shared, **own},
        )

    return identity


def model_notes(suite: Suite, stored: Iterable[Manifest]) -> list[str]:
    """On models, and on the training pool once it was used."""
    policies = {p.name: p for group in suite.groups for p in group.policies if not p.is_micro}
    lines = {name: f"model {name}: {policy.model}, {_which(policy)}" for name, policy in policies.items()}
    pools: dict[str, None] = {}
    for manifest in stored:
        for entry in manifest.policies:
            if entry.name in policies and unpinned(policies[entry.name]) and COMMIT.fullmatch(entry.revision):
                lines[entry.name] = f"model {entry.name}: {entry.model}, commit {entry.revision} was loaded"
        if manifest.pool is not None:
            pools[f"training pool {manifest.pool.describe()} (digest {manifest.pool.digest})"] = None
    return [*lines.values(), *pools]


def _which(policy: Policy) -> str:
    if unpinned(policy):
        return "its commit is not known here; `harness run` asks the hub, and notes the one it loads"
    if local_folder(policy.model):
        return identity_of(policy)
    return f"commit {policy.revision}" if on_hub(policy) else "there is no such folder"


def unknown_commits(suite: Suite) -> list[str]:
    groups = [*suite.groups, *(suite.tune.groups if suite.tune else [])]
    models = dict.fromkeys(p.model for group in groups for p in group.policies if unpinned(p))
    return [f"{m}: neither a download nor the hub tells its commit; the one that is loaded is noted" for m in models]


def forerunners(folder: Path, keys: set[str]) -> dict[tuple[str, str, int | None], Manifest]:
    """The newest of each label, not in `keys`."""
    stored = readable(f.parent for f in folder.glob("*/manifest.json") if f.parent.name not in keys)
    by_age = sorted((m for _, m in stored), key=lambda m: m.provenance.started)
    return {(m.group, m.regime, m.seed): m for m in by_age if m.kind == "cell"}


def why_anew(cell: Cell, before: Manifest) -> str:
    changed = list(_differences(cell, before))
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"to be run anew: {', '.join(changed[:_SHOWN])}{more} (was {before.key})"


def _differences(cell: Cell, before: Manifest) -> Iterator[str]:
    old, new = before.identity, cell.identity
    if not old.versions:
        yield "its result is older than results versions"
    else:
        for package in sorted({*old.versions, *new.versions}):
            was, now = (each.versions.get(package, "none") for each in (old, new))
            if was != now:
                yield f"results version of {package} {was} -> {now}"
        for policy, model in new.models.items():
            if (was := old.models.get(policy, "none")) != model:
                both = was.startswith("content ") and model.startswith("content ")
                yield f"model {policy}: {'its folder changed' if both else f'{was} -> {model}'}"
        if old.pool != new.pool:
            yield "the training pool changed"
        for task in sorted(old.evaluation.keys() & new.evaluation.keys()):
            if old.evaluation[task] != new.evaluation[task]:
                yield f"the evaluation set {task} changed"
    was_set, now_set = dict(_flat(before.config)), dict(_flat(cell.config()))
    for option in sorted({*was_set, *now_set}):
        if was_set.get(option) != now_set.get(option) and not option.endswith((".model", ".revision")):
            yield f"option {option} {was_set.get(option)} -> {now_set.get(option)}"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{i}]")
    elif value not in (None, {}, []):
        yield path, value
