"""A results folder: the one format in which finished results are given and taken.

    reference.json     the index: suite, keys in the files' order, SHA-256 of every other file
    suite.json         the resolved suite
    tuning.json        which trials were chosen, of a tuned suite
    manifests.parquet  a cell's key and its manifest as JSON
    steps.parquet      rows of all cells, with a column `cell`; those of one cell stand together
    samples.parquet, curves.parquet, costs.parquet    the same

Reference results of the checkout are such folders (`store.reference_results`), a bundle is one as a zip
(`submission.bundle`), and `harness import` reads one (`store.imported_results`). A folder is read completely or refused: every
manifest and row satisfies `store.validation`. Other tables (exchanges, terms, traces) stay where they were made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.files import remove_path, replace_atomic, write_atomic
from harness.reading import read_bytes
from harness.store.journal import Contents
from harness.store.manifest import Manifest, SuiteFile, read_sealed, write_suite
from harness.store.rows import conform_table
from harness.store.validation import find_manifest_fault, sift_rows

# Of a cell's tables, those that are given
TABLES = ("steps", "samples", "curves", "costs")
INDEX = "reference.json"
MANIFESTS = "manifests"
SUITE, TUNING = "suite.json", "tuning.json"
FILES = (INDEX, SUITE, TUNING, *(f"{name}.parquet" for name in (MANIFESTS, *TABLES)))
"""Every file that a results folder may have, besides what is said of it where it lies (`submission.json`)."""
# One part of a path that an index may name
PART = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"
_MAX_FILE = 1 << 30


class ResultsIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `reference.json`. harness: the version that wrote it. cells: keys in the files' order. files: SHA-256
    by name."""

    format: Literal[1]
    suite: Annotated[str, msgspec.Meta(pattern=f"^{PART}$")]
    harness: str
    cells: tuple[str, ...] = ()
    files: dict[Annotated[str, msgspec.Meta(pattern=f"^{PART}(/{PART})*$")], str]


@dataclass(frozen=True)
class ResultsFolder:
    """What a results folder holds, cells and base checkpoints by key."""

    index: ResultsIndex
    manifests: dict[str, Manifest]
    cells: dict[str, Contents]


def read_index(folder: Path) -> ResultsIndex:
    """Read the index alone. Raises StoreError."""
    return read_sealed(folder / INDEX, ResultsIndex)


def read_results_folder(folder: Path) -> ResultsFolder:
    """Read and check all of a folder; its files are those that the index has the digests of. Raises StoreError, with the place."""
    index = read_index(folder)
    contents = _read_files(folder, index)
    tables: dict[str, pa.Table] = {}
    for name in (MANIFESTS, *TABLES):
        if f"{name}.parquet" in contents:
            tables[name] = _parse_table(folder / f"{name}.parquet", contents[f"{name}.parquet"])
    for name in (SUITE, f"{MANIFESTS}.parquet"):
        if name not in contents:
            raise StoreError(f"{folder / INDEX}: names no {name}")
    manifests = _parse_manifests(folder / f"{MANIFESTS}.parquet", tables.pop(MANIFESTS), index.cells)
    cells = {key: Contents({}) for key in manifests}
    for name, table in tables.items():
        file = folder / f"{name}.parquet"
        try:
            for key, rows in _split_by_cell(file, name, table, manifests):
                cells[key].tables[name] = rows
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"{file}: cannot be read: {_first_line(error)}") from error
    return ResultsFolder(index, manifests, cells)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read_files(folder: Path, index: ResultsIndex) -> dict[str, bytes]:
    """Read the files that an index names. Raises StoreError where one is absent, altered, or none that such a folder has."""
    contents: dict[str, bytes] = {}
    for name, digest in index.files.items():
        if name not in FILES:
            raise StoreError(f"{folder / INDEX}: {name[:200]!a} is no file of a results folder")
        try:
            contents[name] = read_bytes(folder / name, _MAX_FILE)
        except OSError as error:
            raise StoreError(f"{folder / name}: cannot be read: {_first_line(error)}") from error
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise StoreError(f"{folder / name}: altered (its SHA-256 is not the one in {INDEX})")
    return contents


def _parse_table(file: Path, content: bytes) -> pa.Table:
    """Read a Parquet table that has a column of cells. Raises StoreError."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"{file}: cannot be read: {_first_line(error)}") from error
    cell = table.schema.get_field_index("cell")
    if cell < 0 or table.schema.field(cell).type != pa.string():
        raise StoreError(f"{file}: has no column `cell` of text")
    return table


def _parse_manifests(file: Path, table: pa.Table, cells: tuple[str, ...]) -> dict[str, Manifest]:
    """Read the manifests of the cells that the index names, in its order. Raises StoreError where one breaks a rule."""
    if tuple(table["cell"].to_pylist()) != cells or len(set(cells)) < len(cells):
        raise StoreError(f"{file}: other cells than those of {INDEX}")
    if "manifest" not in table.schema.names:
        raise StoreError(f"{file}: has no column `manifest`")
    manifests = {}
    for key, content in zip(cells, table["manifest"].to_pylist(), strict=True):
        try:
            manifest = msgspec.json.decode(content or "", type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError) as error:
            raise StoreError(f"{file}: {key}: not a manifest: {error}") from error
        problem = find_manifest_fault(manifest, key)
        if problem:
            raise StoreError(f"{file}: {key}: {problem}")
        manifests[key] = manifest
    return manifests


def _split_by_cell(
    file: Path, name: str, table: pa.Table, manifests: Mapping[str, Manifest]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and rows of each cell. Raises StoreError where a row breaks a rule, or a cell's rows are not together."""
    known = set(table["cell"].unique().to_pylist())
    strange = known - manifests.keys()
    if strange:
        first = min(map(str, strange))
        raise StoreError(f"{file}: column cell: {first[:200]!a} is no cell of {MANIFESTS}.parquet")
    cell = table["cell"].combine_chunks()
    rows = conform_table(name, table).combine_chunks()
    policies = set[str]()
    for manifest in manifests.values():
        policies.update(policy.name for policy in manifest.policies)
    _, refused = sift_rows(name, policies, rows.append_column("cell", cell))
    for problem, count in refused.items():
        plural = "s" if count > 1 else ""
        raise StoreError(f"{file}: column {problem} ({count:,} row{plural})")
    runs = pc.run_end_encode(cell)
    if len(runs.values) > len(cell.unique()):
        raise StoreError(f"{file}: column cell: rows of one cell are not together")
    ends = runs.run_ends.to_pylist()
    for key, start, end in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False):
        own = rows.slice(start, end - start)
        # The rules above know the policies of all cells; a cost that no policy caused has an empty name
        of_cell = {policy.name for policy in manifests[key].policies}
        strangers = set(own["policy"].unique().to_pylist()) - of_cell - {""}
        if strangers:
            raise StoreError(f"{file}: {key}: column policy: not a policy of the cell: {min(strangers)[:200]!a}")
        yield key, own


def write_results_folder(
    folder: Path,
    suite: SuiteFile,
    harness: str,
    manifests: Mapping[str, Manifest],
    tables: Mapping[str, Mapping[str, pa.Table]],
    tuning: bytes | None = None,
) -> None:
    """Write a results folder in the place of `folder`, completely or not at all. Equal results are equal bytes.

    harness: the version that writes. tables: by cell, then by name; those of TABLES are written. tuning: the content of
    tuning.json. Raises DiskFullError, StoreError.
    """

    def fill(temporary: Path) -> None:
        """Write all files into a folder that takes the other's place when it is whole; the index last, with the digests of
        the others."""
        temporary.mkdir(parents=True)
        write_suite(temporary, suite)
        if tuning is not None:
            write_atomic(temporary / TUNING, tuning)
        texts = [msgspec.json.encode(manifest).decode() for manifest in manifests.values()]
        _write_table(temporary, MANIFESTS, pa.table({"cell": list(manifests), "manifest": texts}))
        for name in TABLES:
            parts = []
            for key in manifests:
                own = tables[key].get(name)
                if own is not None:
                    keys = pa.repeat(pa.scalar(key, pa.string()), own.num_rows)
                    parts.append(own.add_column(0, "cell", keys))
            if parts:
                _write_table(temporary, name, pa.concat_tables(parts))
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(temporary.iterdir())}
        index = ResultsIndex(format=1, suite=suite.name, harness=harness, cells=tuple(manifests), files=digests)
        encoded = msgspec.json.encode(index)
        write_atomic(temporary / INDEX, msgspec.json.format(encoded, indent=1) + b"\n")
        remove_path(folder)  # a rename needs a free name

    replace_atomic(folder, fill)


def _write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a table as Parquet. The bytes of floats are stored by their place in the number (`BYTE_STREAM_SPLIT`): the first ones
    are alike from row to row, which makes a folder a fifth smaller."""
    import pyarrow.parquet as pq

    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    pq.write_table(
        table.combine_chunks(),
        folder / f"{name}.parquet",
        compression="zstd",
        compression_level=19,
        use_dictionary=[column for column in table.schema.names if column not in floats],
        use_byte_stream_split=floats,
    )
