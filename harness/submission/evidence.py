"""A bundle unpacked, and the checks of what it says it is: schema, suite, completeness, keys, provenance, text.

A check returns one line on what it read, and raises UsageError with the place of the fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness.errors import PluginError, StoreError, SuiteError, UsageError
from harness.session.cell.manifests import Base, cell_manifest, suite_file
from harness.session.suite import rules
from harness.store.foreign import import_results
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, SuiteFile, read_manifest, read_suite
from harness.store.text import visible
from harness.submission.bundle import BundleAbout, installed, unpack
from harness.suite.cells import NO_IDENTITY, Cell, Identity, digest, expand
from harness.suite.load import load, resolve, shipped
from harness.suite.schema import ModelGroup, Suite, Variant
from harness.tasks.registry import get_task
from harness.tuning.derived import tuned_from
from harness.versions import recorded

Label = tuple[str, str, int]
CLOCKS = timedelta(days=1)
"""How far clocks of two labs may be apart."""
_COMMIT = re.compile(r"([0-9a-f]{40})?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,40}\+([0-9a-f]{12})")
_MARKUP = re.compile(r"<[A-Za-z/!?]")
_NAMES = {"samples": ("policy", "task", "doc_id", "reason"), "costs": ("phase",)}
"""Columns that hold no text of models."""
_SAID_OF_A_CELL = (
    "suite", "key", "group", "regime", "regime_type", "seed", "budget", "options", "engine", "baseline", "config",
)  # fmt: skip


@dataclass
class Evidence:
    """A bundle that is being checked. bundle: the file. results: our own. folder: a temporary one, empty at first. root: its
    members. about, name: what bundle.json says, and the name that the content has."""

    bundle: Path
    results: Path
    folder: Path
    about: BundleAbout = field(init=False)
    name: str = field(init=False)

    @property
    def root(self) -> Path:
        return self.folder / "bundle"

    @property
    def suite(self) -> str:
        return self.about.suite

    def place(self, *parts: str) -> str:
        """Where in the bundle something stands, for messages."""
        return ": ".join([str(self.bundle), *parts])

    def fault(self, problem: object, *parts: str) -> UsageError:
        """What to raise: the place, and the problem there."""
        return UsageError(f"{self.place(*parts)}: {problem}")

    def container(self) -> str:
        """The file, unpacked into `root`."""
        self.root.mkdir()
        self.about, self.name = unpack(self.bundle, self.root)
        size = f"{self.bundle.stat().st_size:,} bytes, {len(self.about.files)} files"
        return f"{size}, all as stated; content {self.name}"

    @cached_property
    def file(self) -> SuiteFile:
        try:
            return read_suite(self.root / self.suite, self.root / self.suite / "suite.json")
        except StoreError as error:
            raise self.fault(str(error).replace(f"{self.root}/", "")) from None

    @cached_property
    def resolved(self) -> Suite:
        """The suite of `suite.json`, validated as any other."""
        try:
            return resolve(self.file.config, (), self.place(f"{self.suite}/suite.json: config"))
        except SuiteError as error:
            raise self.fault(error.problem, f"{self.suite}/suite.json: config.{error.path}") from None

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """By folder."""
        files = sorted((self.root / self.suite).glob("*/manifest.json"))
        return {file.parent.name: read_manifest(file.parent) for file in files}

    @cached_property
    def cells(self) -> dict[Label, Manifest]:
        """By what they say they are. Raises UsageError where two say the same."""
        cells: dict[Label, Manifest] = {}
        for key, manifest in self.manifests.items():
            if manifest.kind == "cell":
                label = manifest.group, manifest.regime, manifest.seed or 0
                if label in cells:
                    raise self.fault(f"a second cell {named(label)}", f"{key}/manifest.json")
                cells[label] = manifest
        return cells

    @cached_property
    def derived(self) -> list[Cell]:
        """The suite's cells with their keys, under the identities that the manifests state."""
        first = {(group, regime): manifest.identity for (group, regime, _), manifest in reversed(self.cells.items())}

        def identity(group: ModelGroup, variant: Variant) -> Identity:
            return first.get((group.name, variant.name), NO_IDENTITY)

        return expand(self.resolved, identity)

    def derived_bases(self) -> Iterator[tuple[Base, Manifest | None]]:
        """Every base checkpoint of the suite, and the manifest that says it is that one."""
        suite = self.resolved
        stated = {(m.group, m.policies[0].name, m.seed): m for m in self.manifests.values() if m.kind == "base"}
        for group in suite.groups:
            for policy in group.policies:
                for seed in suite.seeds if policy.stage0 is not None and policy.stage0.per_seed else [None]:
                    manifest = stated.get((group.name, policy.name, seed))
                    yield Base(suite, group, policy, seed, manifest.identity if manifest else NO_IDENTITY), manifest

    def tables(self, key: str) -> dict[str, pa.Table]:
        """A cell's journal."""
        return read_journal(self.root / self.suite / key).tables


def named(label: Label) -> str:
    """As `--only` matches it."""
    return "/".join(map(str, label))


def schema(e: Evidence) -> str:
    """Every file and every row, by the rules of `harness import`; nothing lies in the bundle that belongs to no cell."""
    report = import_results(e.root, e.folder / "imported", "submitted")
    if report.refused:
        raise e.fault(report.refused[0].replace(f"{e.root}/", ""))
    for key, manifest in e.manifests.items():
        if manifest.suite != e.suite or manifest.origin:
            raise e.fault("of another suite, or imported", f"{key}/manifest.json: suite")
    if stray := sorted(e.manifests.keys() ^ {*e.file.cells, *e.file.bases}):
        problem = "no cell of the suite" if stray[0] in e.manifests else "absent, though suite.json counts it"
        raise e.fault(problem, f"{e.suite}/{stray[0]}")
    bases = len(e.manifests) - len(e.cells)
    return f"{len(e.cells)} cells and {bases} base checkpoints, every row in its bounds"


def suite(e: Evidence) -> str:
    """suite.json agrees with itself, and with the suite of that name that is shipped here."""
    theirs, place = e.resolved, f"{e.suite}/suite.json"
    try:
        installed(theirs)
    except UsageError as error:
        raise e.fault(error, place, "config") from None
    if e.file.altered:
        raise e.fault("a run with --set; a bundle holds a suite as written", place, "altered")
    with suppress(PluginError):
        try:
            if rules.validate(theirs, place) != theirs:
                raise e.fault("options that are not resolved", place, "config.regimes")
        except SuiteError as error:
            if not isinstance(error.__cause__, PluginError) and "unknown regime" not in error.problem:
                raise e.fault(error.problem, f"{place}: {error.path}") from None
    said = suite_file(theirs, [], [])
    for name in ("name", "title", "baseline", "engine", "variants", "groups", "seeds"):
        if getattr(said, name) != getattr(e.file, name):
            raise e.fault("is not what its config says", place, name)
    if e.suite != theirs.name:
        raise e.fault(f"{theirs.name!r} in the folder of {e.suite!r}", place, "name")
    if e.suite not in shipped():
        return f"{e.suite}, a suite of its own"
    names = [v.name for v in theirs.regimes]
    untuned = [v for v in theirs.regimes if tuned_from(v.name, names) is None]
    ours = rules.validate(load(e.suite), place)
    if path := first_difference(_written(theirs.model_copy(update={"regimes": untuned})), _written(ours)):
        problem = f"altered: {path[1]} where the shipped suite has {path[2]}; a suite of another content has a name of its own"
        raise e.fault(problem, place, f"config.{path[0]}")
    return f"{e.suite}, as it is shipped"


def _written(suite: Suite) -> Any:
    """Without what resolving adds: commits and folders of models, the task of a start's examples."""
    written = suite.model_dump(mode="json")
    for group in written["groups"]:
        for policy in group["policies"]:
            policy["model"] = Path(policy["model"]).name
            policy.pop("revision", None)
            (policy.get("stage0") or {}).pop("task", None)
    return written


def seeds(e: Evidence) -> str:
    """Every regime on every group with every seed: nobody left a bad one out."""
    suite = e.resolved
    wanted = [(g.name, v.name, s) for g in suite.groups for s in suite.seeds for v in suite.regimes]
    if missing := [label for label in wanted if label not in e.cells]:
        raise e.fault(f"{named(missing[0])} is missing; a bundle holds every cell of its suite", e.suite)
    if more := sorted(e.cells.keys() - set(wanted)):
        raise e.fault(f"{named(more[0])} is no cell of the suite", e.suite)
    for base, manifest in e.derived_bases():
        if manifest is None:
            at = f"{base.group.name}/{base.policy.name}" + (f"/{base.seed}" if base.seed is not None else "")
            raise e.fault(f"the base checkpoint {at} is missing", e.suite)
    return f"all of {len(suite.seeds)} seeds x {len(suite.regimes)} regimes x {len(suite.groups)} groups"


def keys(e: Evidence) -> str:
    """Each cell's key derived again from the suite. All seeds of a regime have one identity, with our evaluation sets."""
    for cell in e.derived:
        stated = e.cells[cell.group.name, cell.variant.name, cell.seed]
        place = f"{e.suite}/{stated.key}/manifest.json"
        if difference := first_difference(plain(stated.identity), plain(cell.identity)):
            problem = f"{difference[1]}, in another seed of the same regime {difference[2]}"
            raise e.fault(problem, f"{place}: identity.{difference[0]}")
        said, right = (plain({f: getattr(m, f) for f in _SAID_OF_A_CELL}) for m in (stated, cell_manifest(cell)))
        if difference := first_difference(said, right):
            problem = f"{difference[1]} where the suite gives {difference[2]} for {cell.label}"
            raise e.fault(problem, f"{place}: {difference[0]}")
        policies = [(p.name, p.model) for p in cell.group.policies]
        if [(p.name, p.model) for p in stated.policies] != policies or stated.identity.models.keys() != {
            *dict(policies)
        }:
            raise e.fault("are not the group's", f"{place}: policies")
        for task, checksum in stated.identity.evaluation.items():
            with suppress(PluginError):
                if (get_task(task).checksum or "") != checksum:
                    raise e.fault("another evaluation set than ours", f"{place}: identity.evaluation.{task}")
    for base, manifest in e.derived_bases():
        if manifest is None or manifest.key != base.key:
            at = manifest.key if manifest else ""
            raise e.fault(f"the suite gives {base.key}", f"{e.suite}/{at}/manifest.json: key")
    ours = {name: str(entry.version) for name, entry in recorded().items()}
    theirs = {k: v for m in e.manifests.values() for k, v in m.identity.versions.items()}
    other = sorted(f"{k} {v} (here {ours[k]})" for k, v in theirs.items() if k in ours and ours[k] != v)
    remark = f"; computed by other results versions: {', '.join(other)}" if other else ""
    return f"{len(e.manifests)} derived again from the suite{remark}"


def provenance(e: Evidence) -> str:
    """Dates, commits, versions and costs that can be true together: no more CPU time than the machine's cores had in that time."""
    for key, manifest in e.manifests.items():
        said, place = manifest.provenance, f"{e.suite}/{key}/manifest.json: provenance"
        version = _VERSION.fullmatch(said.code_version)
        if version is None or version[1] != digest(dict(manifest.identity.versions))[:12]:
            problem = f"{said.code_version[:60]!a} is not of the results versions that the key holds"
            raise e.fault(problem, f"{place}.code_version")
        if not _COMMIT.fullmatch(said.commit):
            raise e.fault(f"not a commit: {said.commit[:60]!a}", f"{place}.commit")
        try:
            begin, end = datetime.fromisoformat(said.started), datetime.fromisoformat(said.finished)
            seconds = (end - begin).total_seconds()
            if seconds < 0 or end > datetime.now(UTC) + CLOCKS:
                raise ValueError
        except (ValueError, TypeError):
            problem = f"{said.started[:40]!a} to {said.finished[:40]!a}: not a time that has passed"
            raise e.fault(problem, f"{place}.started") from None
        if manifest.engine != "embedded":
            continue
        if not said.packages.get("torch"):
            raise e.fault("without torch, which the embedded engine trains by", f"{place}.packages")
        costs, cores = e.tables(key).get("costs"), said.machine.get("cores", "")
        spent = sum(v or 0.0 for v in costs["cpu_seconds"].to_pylist()) if costs is not None else 0.0
        if not cores.isascii() or not cores.isdigit() or spent > int(cores) * (seconds + 60):
            raise e.fault(f"{spent:,.0f} CPU-seconds in {seconds:,.0f} s on {cores[:20]!a} cores", f"{place}.machine")
    commits = sorted({m.provenance.commit[:12] or "unknown" for m in e.manifests.values()})
    dirty = sum(m.provenance.dirty for m in e.manifests.values())
    words = f"commit {', '.join(commits)}"
    return words + (f"; {dirty} of {len(e.manifests)} cells by a changed checkout" if dirty else "")


def text(e: Evidence) -> str:
    """Names and remarks hold no markup and no control characters; what models wrote may, and is shown as text."""
    for place, word in _names(e):
        free = place.split(": ")[1].startswith(("config.engine_options", "engine_options"))
        markup = not free and _MARKUP.search(word)
        if markup or visible(word) != word or "\n" in word:
            raise e.fault(f"{'markup' if markup else 'a control character'} in {word[:60]!a}", place)
    return "no markup or escapes in any name"


def _names(e: Evidence) -> Iterator[tuple[str, str]]:
    """What people of the other lab wrote, by its place."""
    for name, value in [("suite.json", e.file), *((f"{key}/manifest.json", m) for key, m in e.manifests.items())]:
        for path, leaf in _leaves(plain(value)):
            for word in (*path, leaf):
                if isinstance(word, str):
                    yield f"{e.suite}/{name}: {_words(path)[:200]}", word
    for key in e.manifests:
        for table, data in e.tables(key).items():
            for column in _NAMES.get(table, ()):
                for word in data[column].unique().to_pylist():
                    yield f"{e.suite}/{key}: {table}.{column}", word


def foreign(e: Evidence) -> str:
    """How many of its cells are here already."""
    folders = sorted(e.results.glob(f"{e.suite}@*")) if e.results.is_dir() else []
    known = sum((folder / key / "manifest.json").is_file() for folder in folders for key in e.manifests)
    return f"changes nothing in {e.results}" + (f"; {known} of its cells are there" if known else "")


def first_difference(left: Any, right: Any, rounding: float = 0.0) -> tuple[str, str, str] | None:
    """Path and both values, shortened, of the first place where two plain values differ by more than the rounding of numbers."""
    theirs, ours = dict(_leaves(left)), dict(_leaves(right))
    for path in {**theirs, **ours}:
        a, b = theirs.get(path, "nothing"), ours.get(path, "nothing")
        if isinstance(a, float) and isinstance(b, float) and abs(a - b) <= rounding * max(1.0, abs(b)):
            continue
        if type(a) is not type(b) or a != b or (path in theirs) != (path in ours):
            return _words(path), _short(a), _short(b)
    return None


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """What in plain data holds no more data, by its path of keys and indices."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, inner in sorted(value.items()) if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*path, key))


def _words(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _short(value: Any) -> str:
    words = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return words if len(words) <= 80 else f"{words[:77]}..."


def plain(value: object) -> Any:
    """Structs as what JSON makes of them, for comparisons."""
    return msgspec.json.decode(msgspec.json.encode(value))
