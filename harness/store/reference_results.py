"""Reference results: finished suites of the checkout, cut to what tables need, shown as `<suite>@reference`."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.files import TEMPORARY, remove, replace_atomic, write_atomic
from harness.reading import read_bytes
from harness.store.foreign import fault, sift
from harness.store.journal import Contents
from harness.store.manifest import MARK, ORIGIN, Manifest, SuiteFile, read_sealed, write_suite
from harness.store.rows import conform

KEPT = ("steps", "samples", "curves", "costs")
ABOUT, MANIFESTS = "reference.json", "manifests"
MAX_BYTES = 1 << 30
PART = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"


class ResultsIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """reference.json, and a bundle's bundle.json. harness: the version that wrote it. cells: keys in the files' order.
    processor: where a bundle was made. files: SHA-256 by name."""

    format: Literal[1]
    suite: Annotated[str, msgspec.Meta(pattern=f"^{PART}$")]
    harness: str
    cells: tuple[str, ...] = ()
    processor: str = ""
    files: dict[Annotated[str, msgspec.Meta(pattern=f"^{PART}(/{PART})*$")], str]


@dataclass(frozen=True)
class Reference:
    manifests: dict[str, Manifest]
    cells: dict[str, Contents]


def references(results: Path) -> dict[str, Path]:
    folders = (file.parent for file in sorted(results.glob(f"{ORIGIN}/*/{ABOUT}")))
    return {f"{folder.name}{MARK}": folder for folder in folders if not folder.name.endswith(TEMPORARY)}


def meant(suite: str, known: list[str]) -> str:
    """Our own results where there are some, else the reference results."""
    return f"{suite}{MARK}" if suite not in known and f"{suite}{MARK}" in known else suite


def own(known: list[str]) -> list[str]:
    return [suite for suite in known if not suite.endswith(MARK)] or known


def read_about(folder: Path) -> ResultsIndex:
    """Raises StoreError."""
    return read_sealed(folder / ABOUT, ResultsIndex)


def read_reference(folder: Path) -> Reference:
    """Raises StoreError, also for a file that is not the one written."""
    reference = _read(folder, msgspec.json.encode(read_about(folder)))
    if isinstance(reference, StoreError):
        raise StoreError(str(reference))
    return reference


def restored(folder: Path) -> str:
    return f"git -C {shlex.quote(str(folder))} restore ."


def forget() -> None:
    _read.cache_clear()


@lru_cache(maxsize=1)
def _read(folder: Path, state: bytes) -> Reference | StoreError:
    try:
        return _read_checked(folder, msgspec.json.decode(state, type=ResultsIndex))
    except StoreError as error:
        return error


def _read_checked(folder: Path, about: ResultsIndex) -> Reference:
    import pyarrow.parquet as pq

    place = folder
    try:
        contents = {name: read_bytes(folder / name, MAX_BYTES) for name in about.files}
        for name, digest in about.files.items():
            if hashlib.sha256(contents[name]).hexdigest() != digest:
                raise StoreError(f"{folder / name}: altered (its SHA-256 is not the one in {ABOUT})")
        tables = {
            name.removesuffix(".parquet"): pq.read_table(pa.BufferReader(content))
            for name, content in contents.items()
            if name.endswith(".parquet")
        }
        manifests = _manifests(folder / f"{MANIFESTS}.parquet", tables.pop(MANIFESTS), about.cells)
        cells = {cell: Contents({}) for cell in manifests}
        for name, table in tables.items():
            place = folder / f"{name}.parquet"
            for cell, rows in _by_cell(place, name, table, manifests):
                cells[cell].tables[name] = rows
    except (OSError, KeyError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(f"{place}: not reference results: {words}") from error
    shown = {"suite": f"{folder.name}{MARK}", "origin": ORIGIN}
    return Reference({key: msgspec.structs.replace(m, **shown) for key, m in manifests.items()}, cells)


def _manifests(file: Path, table: pa.Table, cells: tuple[str, ...]) -> dict[str, Manifest]:
    if tuple(table["cell"].to_pylist()) != cells or len(set(cells)) < len(cells):
        raise StoreError(f"{file}: other cells than those of {ABOUT}")
    manifests = {}
    for cell, content in zip(cells, table["manifest"].to_pylist(), strict=True):
        try:
            manifests[cell] = msgspec.json.decode(content or "", type=Manifest)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{file}: {cell}: not a manifest: {error}") from error
        if problem := fault(manifests[cell], cell):
            raise StoreError(f"{file}: {cell}: {problem}")
    return manifests


def _by_cell(
    file: Path, name: str, table: pa.Table, manifests: Mapping[str, Manifest]
) -> Iterator[tuple[str, pa.Table]]:
    """Raises StoreError where a row breaks an import's rules, or a cell's rows are not together."""
    table.validate(full=True)
    if strange := set(table["cell"].unique().to_pylist()) - manifests.keys():
        raise StoreError(
            f"{file}: column cell: {str(min(map(str, strange)))[:200]!a} is no cell of {MANIFESTS}.parquet"
        )
    cell, rows = table["cell"].combine_chunks(), conform(name, table).combine_chunks()
    policies = {policy.name for m in manifests.values() for policy in m.policies}
    for problem, bad in sift(name, policies, rows.append_column("cell", cell))[1].items():
        raise StoreError(f"{file}: column {problem} ({bad:,} row{'s' * (bad > 1)})")
    runs = pc.run_end_encode(cell)
    if len(runs.values) > len(cell.unique()):
        raise StoreError(f"{file}: column cell: rows of one cell are not together")
    ends = runs.run_ends.to_pylist()
    for key, start, end in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False):
        yield key, rows.slice(start, end - start)


def write_reference(
    folder: Path,
    suite: SuiteFile,
    harness: str,
    manifests: Mapping[str, Manifest],
    tables: Mapping[str, Mapping[str, pa.Table]],
    tuning: bytes | None = None,
) -> None:
    """Replace `folder`. tables: by cell, then by name. Equal results are equal bytes. Raises DiskFullError,
    StoreError."""

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        write_suite(temporary, suite)
        if tuning is not None:
            write_atomic(temporary / "tuning.json", tuning)
        texts = [msgspec.json.encode(m).decode() for m in manifests.values()]
        _write(temporary, MANIFESTS, pa.table({"cell": list(manifests), "manifest": texts}))
        for name in KEPT:
            own = {key: tables[key][name] for key in manifests if name in tables[key]}
            parts = [t.add_column(0, "cell", pa.repeat(pa.scalar(k, pa.string()), t.num_rows)) for k, t in own.items()]
            if parts:
                _write(temporary, name, pa.concat_tables(parts))
        digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(temporary.iterdir())}
        about = ResultsIndex(format=1, suite=suite.name, harness=harness, cells=tuple(manifests), files=digests)
        write_atomic(temporary / ABOUT, msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")
        remove(folder)  # a rename needs a free name

    replace_atomic(folder, fill)


def _write(folder: Path, name: str, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table.combine_chunks(), folder / f"{name}.parquet", compression="zstd", compression_level=19)
