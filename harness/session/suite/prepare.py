"""From a suite's name, or its stored file, to its cells with their keys. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.errors import StoreError, SuiteError
from harness.session.cell.manifests import bases_of
from harness.session.policy import pin_commits
from harness.session.suite.files import check_roots
from harness.session.suite.identity import identity_maker
from harness.session.suite.prepared import Prepared
from harness.session.suite.resolved import resolve_suite
from harness.session.suite.shards import Shard
from harness.session.suite.validation import validate_suite
from harness.store.manifest import read_suite, remedy_for, suite_files
from harness.suite import cells as suite_cells
from harness.suite.load import find_suite, load_suite, parse_suite, placed_in
from harness.suite.schema import Suite


def prepare_named(
    name: str,
    results: Path,
    *,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    only: Sequence[str] = (),
    shard: Shard | None = None,
    online: bool = False,
) -> Prepared:
    """Prepare a suite by its file or shipped name. overrides: `key=value` settings. only: patterns of cells. online: the hub may
    be asked for commits. Raises SuiteError, PluginError, UsageError, DataError."""
    if engine is not None:
        overrides = [*overrides, f"engine={engine}"]
    source = str(find_suite(name))
    suite = load_suite(name, overrides)
    written = None
    if overrides:
        with suppress(SuiteError):  # one that is valid only with the settings given here
            written = validate_suite(load_suite(name), source)
    check_roots(suite, Path(source), overrides)
    prepared = prepare_suite(suite, source, results, overrides, written=written, only=only, online=online)
    return prepared if shard is None else shard.select_from(prepared)


def prepare_stored(name: str, results: Path, *, overrides: Sequence[str] = ()) -> Prepared:
    """Prepare a suite from its stored file: as written, else its newest altered run. Raises as `prepare_named`; StoreError."""
    folder = results / name
    try:
        stored = read_suite(folder)
    except StoreError as error:
        files = suite_files(folder)
        raise StoreError(f"{error}; {remedy_for(files[0])}" if files else str(error)) from error
    source = str(folder)
    suite = parse_suite(stored.config, overrides, source)
    written = validate_suite(parse_suite(stored.config, (), source), source)
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
    """Prepare a suite that was read from `source`, or derived from one that was. altered: the settings that made it of the suite
    `written`. Raises as `prepare_named`."""
    with placed_in(altered):
        suite = validate_suite(suite, source)
        settings = tuple(altered) if suite != written else ()
        resolved = resolve_suite(suite, source)
        suite = pin_commits(resolved.suite, online)
    resolved = resolved.with_suite(suite)
    identity = identity_maker(resolved)
    every = suite_cells.expand_cells(suite, lambda group, variant: identity(group.policies, variant))
    chosen = suite_cells.select_cells(every, only)
    bases = bases_of(suite, lambda _group, policy, _seed: identity([policy], None))
    return Prepared(resolved, results / suite.name, tuple(every), tuple(chosen), tuple(bases), settings)
