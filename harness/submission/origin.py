"""What the bundle says it is: schema, suite, completeness, keys, provenance, and that taking it over changes nothing here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import PluginError, SuiteError, UsageError
from harness.session.cell.manifests import cell_manifest, suite_file
from harness.session.suite import rules
from harness.store.journal import read_journal
from harness.store.manifest import Manifest
from harness.store.text import visible
from harness.submission.bundle import compact, installed
from harness.submission.container import BundleError
from harness.submission.evidence import Evidence, named, plain
from harness.suite.cells import digest
from harness.suite.load import load, shipped
from harness.suite.schema import Suite
from harness.tasks.registry import get_task
from harness.tuning.derived import tuned_from
from harness.versions import recorded

_COMMIT = re.compile(r"([0-9a-f]{40})?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,40}\+([0-9a-f]{12})")
_MARKUP = re.compile(r"<[A-Za-z/!?]")
_SAID_OF_A_CELL = (
    "suite",
    "key",
    "group",
    "regime",
    "regime_type",
    "seed",
    "budget",
    "options",
    "engine",
    "baseline",
    "config",
)
CLOCKS = timedelta(days=1)
"""How far clocks of two labs may be apart."""


def schema(e: Evidence) -> str:
    """Every file and every row, by the rules of `harness import`; nothing lies in the bundle that belongs to no cell."""
    e.take()
    for key, manifest in e.manifests.items():
        if manifest.suite != e.suite or manifest.origin:
            raise BundleError("schema", e.place(f"{key}/manifest.json: suite"), "of another suite, or imported")
    if stray := sorted(e.manifests.keys() ^ {*e.file.cells, *e.file.bases}):
        problem = "no cell of the suite" if stray[0] in e.manifests else "absent, though suite.json counts it"
        raise BundleError("schema", e.place(f"{e.suite}/{stray[0]}"), problem)
    return f"{len(e.cells)} cells and {len(e.bases)} base checkpoints, every row in its bounds"


def suite(e: Evidence) -> str:
    """suite.json agrees with itself, and with the suite of that name that is shipped here."""
    found, place = e.resolved, f"{e.suite}/suite.json"
    try:
        installed(found)
    except UsageError as error:
        raise BundleError("suite", e.place(place, "config"), str(error)) from None
    if e.file.altered:
        raise BundleError("suite", e.place(place, "altered"), "a run with --set; a bundle holds a suite as written")
    with suppress(PluginError):
        try:
            if rules.validate(found, place) != found:
                raise BundleError("suite", e.place(place, "config.regimes"), "options that are not resolved")
        except SuiteError as error:
            if not isinstance(error.__cause__, PluginError) and "unknown regime" not in error.problem:
                raise BundleError("suite", e.place(f"{place}: {error.path}"), error.problem) from None
    said = suite_file(found, [], [])
    for name in ("name", "title", "baseline", "engine", "variants", "groups", "seeds"):
        if getattr(said, name) != getattr(e.file, name):
            raise BundleError("suite", e.place(place, name), "is not what its config says")
    if e.suite != found.name:
        raise BundleError("suite", e.place(place, "name"), f"{found.name!r} in the folder of {e.suite!r}")
    if e.suite in shipped():
        ours = rules.validate(load(e.suite), place)
        theirs = found.model_copy(
            update={"regimes": [v for v in found.regimes if not _is_tuned(v.name, found.regimes)]}
        )
        if path := first_difference(_written(theirs), _written(ours)):
            problem = f"altered: {path[1]} where the shipped suite has {path[2]}; a suite of another content has a name of its own"
            raise BundleError("suite", e.place(place, f"config.{path[0]}"), problem)
        return f"{e.suite}, as it is shipped"
    return f"{e.suite}, a suite of its own"


def _written(suite: Suite) -> Any:
    """As plain data, without what resolving adds: commits of models, where they lie, the task of a start's examples."""
    plain_ = plain(suite.model_dump(mode="json"))
    for group in plain_["groups"]:
        for policy in group["policies"]:
            policy["model"] = Path(policy["model"]).name
            policy.pop("revision", None)
            (policy.get("stage0") or {}).pop("task", None)
    return plain_


def _is_tuned(name: str, variants: list[Any]) -> bool:
    return tuned_from(name, [v.name for v in variants]) is not None


def seeds(e: Evidence) -> str:
    """Every regime on every group with every seed: nobody left a bad one out."""
    suite = e.resolved
    wanted = [(g.name, v.name, s) for g in suite.groups for s in suite.seeds for v in suite.regimes]
    for label in wanted:
        if label not in e.cells:
            raise BundleError(
                "seeds", e.place(e.suite), f"{named(label)} is missing; a bundle holds every cell of its suite"
            )
    if more := sorted(e.cells.keys() - set(wanted)):
        raise BundleError("seeds", e.place(e.suite), f"{named(more[0])} is no cell of the suite")
    for base, manifest in e.derived_bases():
        if manifest is None:
            at = f"{base.group.name}/{base.policy.name}" + (f"/{base.seed}" if base.seed is not None else "")
            raise BundleError("seeds", e.place(e.suite), f"the base checkpoint {at} is missing")
    return f"all of {len(suite.seeds)} seeds x {len(suite.regimes)} regimes x {len(suite.groups)} groups"


def keys(e: Evidence) -> str:
    """Each cell's key derived again from the suite; configuration and identity are what the key hashes."""
    for cell in e.derived:
        found = e.cells[cell.group.name, cell.variant.name, cell.seed]
        place = e.place(f"{e.suite}/{found.key}/manifest.json")
        said, right = (plain({f: getattr(m, f) for f in _SAID_OF_A_CELL}) for m in (found, cell_manifest(cell)))
        _same_identity(cell.identity, found, place)
        if difference := first_difference(said, right):
            problem = f"{difference[1]} where the suite gives {difference[2]} for {cell.label}"
            raise BundleError("keys", f"{place}: {difference[0]}", problem)
        entries = [(p.name, p.model) for p in found.policies]
        if entries != [(p.name, p.model) for p in cell.group.policies] or found.identity.models.keys() != {
            n for n, _ in entries
        }:
            raise BundleError("keys", f"{place}: policies", "are not the group's")
        _evaluated_alike(found, place)
    for base, manifest in e.derived_bases():
        if manifest is None or manifest.key != base.key:
            at = manifest.key if manifest else ""
            raise BundleError("keys", e.place(f"{e.suite}/{at}/manifest.json: key"), f"the suite gives {base.key}")
    ours = {name: str(entry.version) for name, entry in recorded().items()}
    theirs = {k: v for m in e.manifests.values() for k, v in m.identity.versions.items()}
    other = sorted(f"{k} {v} (here {ours[k]})" for k, v in theirs.items() if k in ours and ours[k] != v)
    remark = f"; computed by other results versions: {', '.join(other)}" if other else ""
    return f"{len(e.manifests)} derived again from the suite{remark}"


def _same_identity(stated: Any, found: Manifest, place: str) -> None:
    """All seeds of a regime were computed by the same code from the same models."""
    if difference := first_difference(plain(found.identity), plain(stated)):
        problem = f"{difference[1]}, in another seed of the same regime {difference[2]}"
        raise BundleError("keys", f"{place}: identity.{difference[0]}", problem)


def _evaluated_alike(found: Manifest, place: str) -> None:
    """On the evaluation sets that everybody has."""
    for task, checksum in found.identity.evaluation.items():
        with suppress(PluginError):
            if (get_task(task).checksum or "") != checksum:
                raise BundleError("keys", f"{place}: identity.evaluation.{task}", "another evaluation set than ours")


def provenance(e: Evidence) -> str:
    """Dates, commits, versions and costs that can be true together."""
    commits, dirty = set(), 0
    for key, manifest in e.manifests.items():
        said, place = manifest.provenance, e.place(f"{e.suite}/{key}/manifest.json: provenance")
        version = _VERSION.fullmatch(said.code_version)
        if version is None or version[1] != digest(dict(manifest.identity.versions))[:12]:
            problem = f"{said.code_version[:60]!a} is not of the results versions that the key holds"
            raise BundleError("provenance", f"{place}.code_version", problem)
        if not _COMMIT.fullmatch(said.commit):
            raise BundleError("provenance", f"{place}.commit", f"not a commit: {said.commit[:60]!a}")
        elapsed = _elapsed(said.started, said.finished, place)
        if manifest.engine == "embedded":
            if not said.packages.get("torch"):
                raise BundleError(
                    "provenance", f"{place}.packages", "without torch, which the embedded engine trains by"
                )
            _affordable(e, key, elapsed, said.machine.get("cores", ""), place)
        commits.add(said.commit)
        dirty += said.dirty
    words = f"commit {', '.join(sorted(c[:12] or 'unknown' for c in commits))}"
    return words + (f"; {dirty} of {len(e.manifests)} cells by a changed checkout" if dirty else "")


def _elapsed(started: str, finished: str, place: str) -> timedelta:
    try:
        begin, end = datetime.fromisoformat(started), datetime.fromisoformat(finished)
        if not timedelta(0) <= end - begin or end > datetime.now(UTC) + CLOCKS:
            raise ValueError
    except (ValueError, TypeError):
        problem = f"{started[:40]!a} to {finished[:40]!a}: not a time that has passed"
        raise BundleError("provenance", f"{place}.started", problem) from None
    return end - begin


def _affordable(e: Evidence, key: str, elapsed: timedelta, cores: str, place: str) -> None:
    """No more CPU time than the machine's cores had in that time."""
    costs = e.tables(key).get("costs")
    spent = sum(v or 0.0 for v in costs["cpu_seconds"].to_pylist()) if costs is not None else 0.0
    if not cores.isascii() or not cores.isdigit() or spent > int(cores) * (elapsed.total_seconds() + 60):
        problem = f"{spent:,.0f} CPU-seconds in {elapsed.total_seconds():,.0f} s on {cores[:20]!a} cores"
        raise BundleError("provenance", f"{place}.machine", problem)


def text(e: Evidence) -> str:
    """Names and remarks hold no markup and no control characters; what models wrote may, and is shown as text."""
    for name, value in [("suite.json", e.file), *((f"{k}/manifest.json", m) for k, m in e.manifests.items())]:
        for path, word in _strings(plain(value)):
            markup = not path.startswith(("config.engine_options", "engine_options")) and _MARKUP.search(word)
            if markup or visible(word) != word or "\n" in word:
                problem = f"{'markup' if markup else 'a control character'} in {word[:60]!a}"
                raise BundleError("text", e.place(f"{e.suite}/{name}: {path}"), problem)
    for key in e.manifests:
        tables = e.tables(key)
        for table, columns in (("samples", ("policy", "task", "doc_id", "reason")), ("costs", ("phase",))):
            for column in columns if table in tables else ():
                for word in tables[table][column].unique().to_pylist():
                    if _MARKUP.search(word) or visible(word) != word or "\n" in word:
                        raise BundleError(
                            "text", e.place(f"{e.suite}/{key}: {table}.{column}"), f"markup in {word[:60]!a}"
                        )
    return "no markup or escapes in any name"


def foreign(e: Evidence, results: Path, target: Path | None = None) -> str:
    """No cell that is here already would be another one. target: the folder of our results that it would go to."""
    known = 0
    folders = [target] if target is not None else sorted(results.glob(f"{e.suite}@*")) if results.is_dir() else []
    for folder in folders:
        for key in e.manifests:
            if not (folder / key / "manifest.json").is_file():
                continue
            known += 1
            if target is not None and not _same_rows(e.tables(key), read_journal(folder / key).tables):
                raise BundleError("foreign", folder / key, "is here already with other rows; give another --origin")
    return f"changes nothing in {results}" + (f"; {known} of its cells are there" if known else "")


def _same_rows(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    mine = compact(ours)
    return theirs.keys() == mine.keys() and all(theirs[name].equals(mine[name]) for name in theirs)


def first_difference(left: Any, right: Any, path: str = "") -> tuple[str, str, str] | None:
    """Path and both values, shortened, of the first place where two plain values differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            at = f"{path}.{key}" if path else str(key)
            if (key in left) != (key in right):
                return (at, _short(left.get(key, "nothing")), _short(right.get(key, "nothing")))
            if found := first_difference(left[key], right[key], at):
                return found
        return None
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return next((f for i, (a, b) in pairs if (f := first_difference(a, b, f"{path}[{i}]"))), None)
    return None if left == right and type(left) is type(right) else (path, _short(left), _short(right))


def _short(value: Any) -> str:
    words = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return words if len(words) <= 80 else f"{words[:77]}..."


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            at = f"{path}.{key}" if path else key
            yield at[:200], key
            yield from _strings(inner, at)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{i}]")
    elif isinstance(value, str):
        yield path[:200], value
