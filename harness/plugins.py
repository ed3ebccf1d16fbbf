"""Plugins by entry points: listed without import, loaded when used."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import decode_source
from pathlib import Path
from typing import Generic, TypeVar

from harness.errors import HarnessError, PluginError
from harness.versions import ROOT, owner_of, recorded_versions, syntax_digest

__all__ = ["PluginRegistry", "blame_plugin"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginRegistry(Generic[T]):
    """One group of entry points. noun: of messages. kind: their base class, whose `results_version` goes into cells' keys
    (docs/versions.md)."""

    group: str
    noun: str
    kind: type[T]

    def installed(self) -> dict[str, EntryPoint]:
        """By name, not imported."""
        return {
            e.name: e for e in sorted(_select_entry_points(_search_places())(group=self.group), key=lambda e: e.name)
        }

    def load(self, name: str) -> type[T]:
        """Raises PluginError, with the nearest name or the import's error."""
        return _load_class(self, name)

    def make(self, name: str, *arguments: object) -> T:
        """Raises PluginError, or the HarnessError of its making."""
        with blame_plugin(f"{self.noun} {name!r} cannot be made"):
            return self.load(name)(*arguments)

    def origin(self, name: str) -> str:
        """Package, version and place."""
        entry = self.installed()[name]
        return f"{f'{entry.dist.name} {entry.dist.version}' if entry.dist else '?'} ({entry.value})"

    def results_version(self, name: str) -> tuple[str, str]:
        """Name and version in keys: ours, a plugin's own, or its syntax digest. Raises PluginError."""
        plugin = self.load(name)
        spec = importlib.util.find_spec(plugin.__module__)
        file = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        own = owner_of(file) if file is not None and file.is_relative_to(ROOT) else None
        if own in recorded_versions():
            return str(own), str(recorded_versions()[str(own)].version)
        called = f"{self.noun} {name}"
        version = getattr(plugin, "results_version", None)
        if version is not None:
            return called, str(version)
        if file is None:
            return called, "unknown"
        files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        with blame_plugin(f"{called} has no `results_version`, and no source that can be read instead"):
            sources = {f.relative_to(file.parent).as_posix(): decode_source(f.read_bytes()) for f in files}
            return called, f"syntax {syntax_digest(sources)}"


@contextmanager
def blame_plugin(called: str) -> Iterator[None]:
    """What a plugin's own code raises, as PluginError."""
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:  # whatever it raises is its error, not ours
        raise PluginError(f"{called}: {type(error).__name__}: {error}") from error


def _search_places() -> tuple[tuple[str, int], ...]:
    """What is installed there later changes a time."""
    return tuple((place, os.stat(place).st_mtime_ns) for place in (p or "." for p in sys.path) if os.path.exists(place))


@lru_cache(maxsize=1)
def _select_entry_points(places: tuple[tuple[str, int], ...]) -> Callable[..., EntryPoints]:
    """Of entry points by group. A hundred distributions take 20 ms."""
    return entry_points().select


@contextmanager
def _without_folder(module: str) -> Iterator[None]:
    """A folder of the module's name is no module, though workers look here first."""
    spec = None if module in sys.modules else importlib.util.find_spec(module)
    if spec is None or spec.origin is not None:
        yield
        return
    before = sys.path[:]
    sys.path[:] = [place for place in before if Path(place or ".").resolve() != Path.cwd()]
    try:
        yield
    finally:
        sys.path[:] = before


@cache
def _load_class(plugins: PluginRegistry[T], name: str) -> type[T]:
    known = plugins.installed()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"unknown {plugins.noun} {name!r}{meant} (installed: {', '.join(known)})")
    rivals = {
        e.value: e.dist.name if e.dist else "?"
        for e in _select_entry_points(_search_places())(group=plugins.group, name=name)
    }
    if len(rivals) > 1:
        packages = ", ".join(f"{package} ({value})" for value, package in sorted(rivals.items()))
        raise PluginError(f"{plugins.noun} {name!r} is of several packages: {packages}; uninstall all but one")
    called = f"{plugins.noun} {name!r} ({known[name].value})"
    try:
        with _without_folder(known[name].module.partition(".")[0]):
            plugin = known[name].load()
    except (Exception, SystemExit) as error:  # whatever a plugin's import raises is this plugin's error, not ours
        raise PluginError(f"{called} does not load: {type(error).__name__}: {error}") from error
    if not (isinstance(plugin, type) and issubclass(plugin, plugins.kind)):
        raise PluginError(f"{called} is not a subclass of {plugins.kind.__module__}.{plugins.kind.__name__}")
    return plugin


# Earlier names, which packages of others may import
blamed = blame_plugin
