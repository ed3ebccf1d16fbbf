"""Why a stored cell is another one than a suite's cell today: what differs between their configurations and identities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.store.manifest import Manifest, read_manifests
from harness.suite.cells import Cell, Identity

_SHOWN = 4


def read_forerunners(folder: Path, keys: set[str]) -> dict[tuple[str, str, int | None], Manifest]:
    """Return, by group, regime and seed, the newest stored cell that has none of `keys`."""
    stored = read_manifests(file.parent for file in folder.glob("*/manifest.json") if file.parent.name not in keys)
    by_age = sorted((manifest for _, manifest in stored), key=lambda manifest: manifest.provenance.started)
    return {(m.group, m.regime, m.seed): m for m in by_age if m.kind == "cell"}


def describe_changes(cell: Cell, before: Manifest) -> str:
    """Say in a sentence why a cell is run anew although `before` was stored."""
    changed = [*_changes_of_identity(cell.identity, before.identity), *_changes_of_settings(cell, before)]
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"to be run anew: {', '.join(changed[:_SHOWN])}{more} (was {before.key})"


def _changes_of_identity(new: Identity, old: Identity) -> Iterator[str]:
    """Yield changes of results versions, models, training pool and evaluation sets. A result from before there were results
    versions notes none of these."""
    if not old.versions:
        yield "its result is older than results versions"
        return
    for package in sorted({*old.versions, *new.versions}):
        was = old.versions.get(package, "none")
        now = new.versions.get(package, "none")
        if was != now:
            yield f"results version of {package} {was} -> {now}"
    for policy, model in new.models.items():
        was = old.models.get(policy, "none")
        if was != model:
            both_folders = was.startswith("content ") and model.startswith("content ")
            yield f"model {policy}: {'its folder changed' if both_folders else f'{was} -> {model}'}"
    if old.pool != new.pool:
        yield "the training pool changed"
    for task in sorted(old.evaluation.keys() & new.evaluation.keys()):
        if old.evaluation[task] != new.evaluation[task]:
            yield f"the evaluation set {task} changed"


def _changes_of_settings(cell: Cell, before: Manifest) -> Iterator[str]:
    """Yield changes of all settings but the models' names, which the identity tells."""
    was_set = dict(_flatten_settings(before.config))
    now_set = dict(_flatten_settings(cell.config()))
    for option in sorted({*was_set, *now_set}):
        if was_set.get(option) != now_set.get(option) and not option.endswith((".model", ".revision")):
            yield f"option {option} {was_set.get(option)} -> {now_set.get(option)}"


def _flatten_settings(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with their whole path, such as `training.steps`; what is absent or empty is left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten_settings(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for i, inner in enumerate(value):
            yield from _flatten_settings(inner, f"{path}[{i}]")
    elif value not in (None, {}, []):
        yield path, value
