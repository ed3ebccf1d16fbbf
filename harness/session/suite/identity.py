"""What keys hold besides the configuration, and why a stored cell is another one. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.engines.catalogue import PLUGINS, backend_of
from harness.learning import registry
from harness.session.policy.models import COMMIT, identity_of, local_folder, on_hub, unpinned
from harness.store.manifest import Manifest, readable
from harness.suite.cells import Cell, Identity
from harness.suite.schema import ModelGroup, Policy, Suite, Variant
from harness.tasks.registry import get_task, results_versions, training_source
from harness.versions import BASE, CELL, versions

_SHOWN = 4
"""Differences that one line names."""


class Identities:
    """Each model folder is read once. Raises PluginError, DataError."""

    def __init__(self, suite: Suite) -> None:
        training, tasks = suite.training.task, suite.evaluation.tasks
        self._evaluation = {str(name): get_task(name).checksum or "" for name in tasks}
        self._asked = {package: version for name in tasks for package, version in results_versions(name).items()}
        self._pool, self._trained = training_source(training).pool_digest(), results_versions(training)
        models = {(p.model, p.revision): p for group in suite.groups for p in group.policies}
        self._models = {name: identity_of(policy) for name, policy in models.items()}
        self._engine = dict([PLUGINS.results_version(suite.engine)])
        half = "" if suite.engine_options.get("dtype") else backend_of(suite.engine).half_precision
        self._precision = {"dtype of half-precision models": half} if half else {}

    def of_cell(self, group: ModelGroup, variant: Variant) -> Identity:
        regime, version = registry.PLUGINS.results_version(variant.regime)
        return self._identity(group.policies, CELL, self._pool, {**self._trained, regime: version})

    def of_base(self, policy: Policy) -> Identity:
        return self._identity([policy], BASE, "", {})

    def _identity(
        self, policies: Sequence[Policy], packages: Sequence[str], pool: str, also: Mapping[str, str]
    ) -> Identity:
        stage0 = ["stage0"] if any(p.is_micro or p.stage0 is not None for p in policies) else []
        if not all(p.is_micro for p in policies):
            also = {**also, **self._precision}
        return Identity(
            models={p.name: self._models[p.model, p.revision] for p in policies},
            pool=pool,
            evaluation=self._evaluation,
            versions={**versions([*packages, *stage0]), **self._engine, **self._asked, **also},
        )


def notes(suite: Suite, stored: Iterable[Manifest]) -> list[str]:
    """On models, and on the training pool once a cell has run on it."""
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
    models = dict.fromkeys(p.model for group in suite.groups for p in group.policies if unpinned(p))
    return [f"{m}: neither a download nor the hub tells its commit; the one that is loaded is noted" for m in models]


def forerunners(folder: Path, keys: set[str]) -> dict[tuple[str, str, int | None], Manifest]:
    """The newest stored cell of each label that is not in `keys`."""
    found: dict[tuple[str, str, int | None], Manifest] = {}
    for _, manifest in readable(f.parent for f in folder.glob("*/manifest.json") if f.parent.name not in keys):
        if manifest.kind == "cell":
            label = manifest.group, manifest.regime, manifest.seed
            if label not in found or found[label].provenance.started < manifest.provenance.started:
                found[label] = manifest
    return found


def why_anew(cell: Cell, before: Manifest) -> str:
    found = list(_differences(cell, before))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"to be run anew: {', '.join(found[:_SHOWN])}{more} (was {before.key})"


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
    """Every leaf with its path as in YAML."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{i}]")
    elif value not in (None, {}, []):
        yield path, value
