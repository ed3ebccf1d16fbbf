"""Bundles taken apart, changed and put together again with every digest right."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from harness.store.journal import read_columns, write_columns
from harness.store.manifest import Manifest, SuiteFile, read_manifest, read_suite, write_manifest, write_suite
from harness.store.reference_results import ResultsIndex
from harness.submission.bundle import ABOUT, SCORES, pack, stated


class Forgery:
    """A bundle's members in a folder. Where samples or costs are changed, scores.json becomes what these give."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.root = folder
        with zipfile.ZipFile(bundle) as file:
            file.extractall(folder)
        self.about = msgspec.json.decode((folder / ABOUT).read_bytes(), type=ResultsIndex)
        self.folder = folder / self.about.suite
        self.restated = False

    def cell(self, regime: str, seed: int) -> Path:
        folders = sorted(m.parent for m in self.folder.glob("*/manifest.json"))
        return next(m for m in folders if (read_manifest(m).regime, read_manifest(m).seed) == (regime, seed))

    def manifest(self, cell: Path, change: Callable[[Manifest], Manifest]) -> None:
        write_manifest(cell, change(read_manifest(cell)))

    def suite(self, change: Callable[[SuiteFile], SuiteFile]) -> None:
        write_suite(self.folder, change(read_suite(self.folder)))

    def table(self, cell: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
        file = next(cell.glob(f"journal/*/{name}-*.arrow"))
        self.restated |= name in ("samples", "costs")
        data = change(read_columns(file)[1])
        file.unlink()
        write_columns(file.parent, name, data)

    def pack(self, out: Path) -> Path:
        if self.restated:
            (self.root / SCORES).write_bytes(msgspec.json.encode(stated(self.root, self.about.suite)))
        files = {
            p.relative_to(self.root).as_posix(): p.read_bytes()
            for p in sorted(self.root.rglob("*"))
            if p.is_file() and p.name != ABOUT and p.name[0] != "." and "duckdb" not in p.name
        }
        name, data = pack(self.about.suite, files, self.about.harness, self.about.processor)
        (out / name).write_bytes(data)
        return out / name


def column(data: pa.Table, name: str, change: Callable[[dict[str, object]], object]) -> pa.Table:
    """The table with one column computed anew from each row."""
    kind = data.schema.field(name)
    return data.set_column(
        data.schema.get_field_index(name), kind, pa.array([change(r) for r in data.to_pylist()], kind.type)
    )
