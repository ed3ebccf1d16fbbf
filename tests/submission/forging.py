"""Bundles taken apart, changed and put together again with every digest right."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa

from harness.session.cell.manifests import label_of
from harness.store.manifest import Manifest, SuiteFile, read_suite
from harness.store.results_folder import read_results_folder, write_results_folder
from harness.submission.bundle import _name_bundle, _zip_members, pack_folder
from harness.submission.older_bundle import OLDER_INDEX
from harness.submission.rerun import RerunRequest


class Forgery:
    """A bundle's content: file, and manifests and tables by key."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        with zipfile.ZipFile(bundle) as file:
            file.extractall(folder)
        self.root = folder
        source = next(folder.iterdir())
        self.content = read_results_folder(source)
        self.file: SuiteFile = read_suite(source)
        self.manifests: dict[str, Manifest] = dict(self.content.manifests)
        self.tables = {key: dict(cell.tables) for key, cell in self.content.cells.items()}

    def cell(self, regime: str, seed: int) -> str:
        return next(key for key, m in self.manifests.items() if (m.regime, m.seed) == (regime, seed))

    def manifest(self, key: str, change: Callable[[Manifest], Manifest]) -> None:
        self.manifests[key] = change(self.manifests[key])

    def suite(self, change: Callable[[SuiteFile], SuiteFile]) -> None:
        self.file = change(self.file)

    def table(self, key: str, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
        self.tables[key][name] = change(self.tables[key][name])

    def write(self) -> Path:
        """As a results folder."""
        folder = self.root / "again" / self.file.name
        write_results_folder(folder, self.file, self.content.index.harness, self.manifests, self.tables)
        return folder

    def pack(self, out: Path) -> Path:
        name, data = pack_folder(self.file.name, self.write())
        (out / name).write_bytes(data)
        return out / name


def column(data: pa.Table, name: str, change: Callable[[dict[str, object]], object]) -> pa.Table:
    """The table with one column computed anew from each row."""
    kind = data.schema.field(name)
    return data.set_column(
        data.schema.get_field_index(name), kind, pa.array([change(r) for r in data.to_pylist()], kind.type)
    )


def request_for(forgery: Forgery, label: str) -> RerunRequest:
    """Train one cell again, by a seed that draws this one."""
    labels = sorted(label_of(manifest) for manifest in forgery.manifests.values() if manifest.kind == "cell")
    seed = next(seed for seed in range(10_000) if Random(seed).sample(labels, 1) == [label])
    return RerunRequest(1, seed=seed)


def forge_older(bundle: Path, out: Path, change: Callable[[dict[str, bytes]], None], restate: bool = True) -> Path:
    """A bundle of the older format with other members. restate: with their digests."""
    with zipfile.ZipFile(bundle) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    index = json.loads(members[OLDER_INDEX])
    if restate:
        index["files"] = {
            name: hashlib.sha256(content).hexdigest() for name, content in members.items() if name != OLDER_INDEX
        }
    members[OLDER_INDEX] = json.dumps(index).encode()
    path = out / _name_bundle(index["suite"], members[OLDER_INDEX])
    path.write_bytes(_zip_members(members, OLDER_INDEX))
    return path
