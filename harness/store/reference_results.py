"""Reference results: finished suites that come with the checkout or the wheel, as results folders, shown as
`<suite>@reference`."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path

import msgspec

from harness.errors import StoreError
from harness.files import TEMPORARY
from harness.store.manifest import MARK, ORIGIN, PACKAGED, is_installed
from harness.store.results_folder import INDEX, ResultsFolder, ResultsIndex, read_index, read_results_folder

__all__ = [
    "INDEX",
    "choose_suite",
    "command_to_restore",
    "forget_last_folder",
    "list_own",
    "list_references",
    "read_index",
    "read_reference",
]


def list_references(results: Path) -> dict[str, Path]:
    """Return the folders of reference results by the name of their suite in tables."""
    roots = [results / ORIGIN]
    if is_installed():
        roots.insert(0, PACKAGED)  # first, so that those of the results folder replace them
    folders = {f"{file.parent.name}{MARK}": file.parent for root in roots for file in sorted(root.glob(f"*/{INDEX}"))}
    return {name: folder for name, folder in folders.items() if not folder.name.endswith(TEMPORARY)}


def choose_suite(suite: str, known: list[str]) -> str:
    """Return which suite of `known` is meant: our own results where there are some, else the reference results."""
    if suite not in known and f"{suite}{MARK}" in known:
        return f"{suite}{MARK}"
    return suite


def list_own(known: list[str]) -> list[str]:
    """Return the suites that are not reference results, or all where there is no other."""
    return [suite for suite in known if not suite.endswith(MARK)] or known


def read_reference(folder: Path) -> ResultsFolder:
    """Read reference results, their manifests under the name and origin that tables show. Raises StoreError, also for a file
    that is not the one written."""
    content = _read_once(folder, msgspec.json.encode(read_index(folder)))
    if isinstance(content, StoreError):
        raise StoreError(str(content))
    return content


def command_to_restore(folder: Path) -> str:
    """Return the command that restores a damaged folder."""
    if folder.is_relative_to(PACKAGED) and is_installed():
        return "pip install --force-reinstall --no-deps experience-sharing-harness"
    return f"git -C {shlex.quote(str(folder))} restore ."


def forget_last_folder() -> None:
    """Forget the folder that was read last."""
    _read_once.cache_clear()


# The store reads a folder cell by cell, which must not read all of it each time
@lru_cache(maxsize=1)
def _read_once(folder: Path, state: bytes) -> ResultsFolder | StoreError:
    """Read a folder of reference results, once for each `state`: the index, by which a folder that was written again is
    another one."""
    try:
        content = read_results_folder(folder)
    except StoreError as error:
        return error
    if content.index != msgspec.json.decode(state, type=ResultsIndex):
        return StoreError(f"{folder}: was written again meanwhile; read it again")
    shown = {"suite": f"{folder.name}{MARK}", "origin": ORIGIN}
    manifests = {key: msgspec.structs.replace(manifest, **shown) for key, manifest in content.manifests.items()}
    return ResultsFolder(content.index, manifests, content.cells)
