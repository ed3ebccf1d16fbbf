"""Bundles of versions before a bundle was a results folder: read, never written.

Such a zip holds bundle.json (SHA-256 of every other member), scores.json (the accuracies and the table as its version computed
them) and <suite>/: suite.json, tuning.json, and for each cell its manifest and an Arrow file per table. It is converted into a
results folder; scores.json is not used, since the table is computed from the rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from harness.errors import StoreError, UsageError
from harness.store.imported_results import COMPACT, ImportReport, check_manifest, check_tables
from harness.store.manifest import Manifest, read_suite
from harness.store.results_folder import PART, SUITE, TABLES, TUNING, write_results_folder

OLDER_INDEX, _SCORES = "bundle.json", "scores.json"
OLDER_MEMBER = re.compile(
    rf"{OLDER_INDEX}|{_SCORES}|"
    rf"{PART}/(suite\.json|tuning\.json|{PART}/(manifest\.json|journal/{COMPACT}/[a-z]+-[0-9a-f]{{8}}\.arrow))"
)


class _OlderIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The content of bundle.json. files: SHA-256 by path."""

    format: Literal[1]
    suite: Annotated[str, msgspec.Meta(pattern=f"^{PART}$")]
    harness: str
    files: dict[Annotated[str, msgspec.Meta(pattern=f"^{PART}(/{PART})*$")], str]


def convert_older_bundle(bundle: Path, members: Mapping[str, bytes], place: Path) -> tuple[str, Path]:
    """Write the members as a results folder below `place`; return the suite's name and the folder.

    Raises UsageError where a member is not the one that bundle.json names, or breaks a rule of an import.
    """
    index = _check_members(bundle, members)
    source = place / "older"
    for name, content in members.items():
        target = source / PurePosixPath(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    root = source / index.suite
    target = place / index.suite
    try:
        file = read_suite(root, root / SUITE)
        manifests, tables = _read_cells(index.suite, root)
        known = [key for key in (*file.cells, *file.bases) if key in manifests]
        ordered = {key: manifests[key] for key in (*known, *sorted(manifests.keys() - {*known}))}
        tuning = members.get(f"{index.suite}/{TUNING}")
        write_results_folder(target, file, index.harness, ordered, tables, tuning)
    except StoreError as error:
        raise UsageError(f"{bundle}: {str(error).replace(f'{source}/', '')}") from None
    return index.suite, target


def _check_members(bundle: Path, members: Mapping[str, bytes]) -> _OlderIndex:
    """Check that the index names every file of the bundle, that all are there and unaltered, and none lies inside another.
    Raises UsageError."""
    try:
        index = msgspec.json.decode(members[OLDER_INDEX], type=_OlderIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{bundle}: {OLDER_INDEX}: not what it should be: {error}") from None
    for name in sorted((members.keys() - {OLDER_INDEX}) | index.files.keys()):
        problem = ""
        if name not in members:
            problem = "absent"
        elif name not in index.files:
            problem = f"not in {OLDER_INDEX}"
        elif any(str(outer) in members for outer in PurePosixPath(name).parents):
            problem = "inside a file"
        elif name != _SCORES and name.split("/")[0] != index.suite:
            problem = f"not of the suite {index.suite}"
        elif hashlib.sha256(members[name]).hexdigest() != index.files[name]:
            problem = f"altered (its SHA-256 is not the one in {OLDER_INDEX})"
        if problem:
            raise UsageError(f"{bundle}: {name}: {problem}")
    return index


def _read_cells(suite: str, root: Path) -> tuple[dict[str, Manifest], dict[str, dict[str, pa.Table]]]:
    """Return manifests and tables by key. Raises StoreError where any of them is refused."""
    manifests: dict[str, Manifest] = {}
    tables: dict[str, dict[str, pa.Table]] = {}
    for file in sorted(root.glob("*/manifest.json")):
        folder = file.parent
        report = ImportReport()
        manifest = check_manifest(suite, folder)
        if manifest.suite != suite or manifest.origin:
            raise StoreError(f"{file}: suite: of another suite, or imported")
        try:
            tables[folder.name] = check_tables(manifest, folder, report)
        except StoreError as error:
            report.refused.append(str(error))  # behind what caused it
        if report.refused:
            raise StoreError(report.refused[0])
        unknown = sorted(tables[folder.name].keys() - {*TABLES})
        if unknown:
            raise StoreError(f"{folder}: {unknown[0]}: no table that a bundle has")
        manifests[folder.name] = manifest
    return manifests, tables
