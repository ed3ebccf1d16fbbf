"""Which engines there are and whether they can run here. Imports what engines declare, never their code."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from harness.engines.backend import Backend
from harness.errors import PluginError
from harness.plugins import PluginRegistry

__all__ = ["EngineInfo", "backend_of", "engine_info", "list_engines", "open_backend", "packages_of_engines"]

PLUGINS: PluginRegistry[Backend] = PluginRegistry("harness.engines", "engine", Backend)  # type: ignore[type-abstract]
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


def list_engines() -> list[EngineInfo]:
    """Return all engines, broken ones too."""
    return [engine_info(name) for name in PLUGINS.installed()]


def engine_info(name: str) -> EngineInfo:
    """Describe an engine; a broken plugin's description has its error. Raises PluginError for an unknown name."""
    if name not in PLUGINS.installed():
        backend_of(name)
    try:
        engine = backend_of(name)
    except PluginError as error:
        return EngineInfo(name, "", "", False, str(error))
    absent = [p for p in engine.packages if not _is_importable(p)]
    there = [f"{p} {next(iter(_read_installed_versions(p).values()), '?')}" for p in engine.packages if p not in absent]
    missing = f"{', '.join(absent)}: {engine.advice}" if absent else ""
    return EngineInfo(name, (engine.__doc__ or "").strip().partition("\n")[0], ", ".join(there), not absent, missing)


def _is_importable(package: str) -> bool:
    """Whether a package can be imported here, without importing it."""
    with suppress(ModuleNotFoundError):  # of its parent
        return importlib.util.find_spec(package) is not None
    return False


def backend_of(name: str) -> type[Backend]:
    """Return the class of an engine by its name. Raises PluginError where it is unknown or does not load."""
    return PLUGINS.load(name)


def open_backend(
    name: str, options: Mapping[str, Mapping[str, Any]], temperature: float, ends_are_one: bool = True
) -> Backend:
    """Make a back end that has opened no policy yet. ends_are_one: as `Backend.ends_are_one`. Raises PluginError as
    `backend_of`."""
    backend = backend_of(name)(options, temperature)
    backend.ends_are_one = ends_are_one
    return backend


def packages_of_engines() -> dict[str, str]:
    """Return the installed versions of engines' packages, by distribution."""
    versions: dict[str, str] = {}
    for name in PLUGINS.installed():
        with suppress(PluginError):
            for package in backend_of(name).packages:
                versions |= _read_installed_versions(package)
    return versions


def _read_installed_versions(package: str) -> dict[str, str]:
    """Return the installed versions of a package, empty where it is not installed."""
    for distribution in (package, f"{package}-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return {distribution: metadata.version(distribution)}
    return {}


# Earlier names, which packages of others may import
listing = list_engines
info = engine_info
packages = packages_of_engines
