"""Which engines there are and whether they can run here. Imports the doors alone, never what is behind them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from harness.engines.kind import Engines
from harness.errors import PluginError
from harness.plugins import Door

__all__ = ["EngineInfo", "engines_of", "info", "listing", "open_engines", "packages"]

# Where engines plug in.
DOOR: Door[Engines] = Door("harness.engines", "engine", Engines)  # type: ignore[type-abstract]
# Of `embedded.families`, by name, so that a suite is checked without torch.
MICRO_FAMILIES = ("llama", "qwen", "neox", "gpt2")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine."""

    name: str
    summary: str
    version: str
    available: bool
    missing: str


def listing() -> list[EngineInfo]:
    """All engines, broken ones too."""
    return [info(name) for name in DOOR.installed()]


def info(name: str) -> EngineInfo:
    """A broken plugin is listed with its error. Raises PluginError where there is none of that name."""
    if name not in DOOR.installed():
        engines_of(name)
    try:
        engine = engines_of(name)
    except PluginError as error:
        return EngineInfo(name, "", "", False, str(error))
    absent = [p for p in engine.packages if importlib.util.find_spec(p) is None]
    there = [f"{p} {next(iter(_installed(p).values()), '?')}" for p in engine.packages if p not in absent]
    missing = f"{', '.join(absent)}: {engine.advice}" if absent else ""
    return EngineInfo(name, (engine.__doc__ or "").strip().partition("\n")[0], ", ".join(there), not absent, missing)


def engines_of(name: str) -> type[Engines]:
    """Raises PluginError where there is none of that name, or it does not load."""
    return DOOR.load(name)


def open_engines(name: str, options: Mapping[str, Mapping[str, Any]], temperature: float) -> Engines:
    """Raises PluginError as `engines_of`."""
    return engines_of(name)(options, temperature)


def packages() -> dict[str, str]:
    """Installed versions by distribution of what the engines need."""
    found: dict[str, str] = {}
    for name in DOOR.installed():
        with suppress(PluginError):
            for package in engines_of(name).packages:
                found |= _installed(package)
    return found


def _installed(package: str) -> dict[str, str]:
    for distribution in (package, f"{package}-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return {distribution: metadata.version(distribution)}
    return {}
