"""Where the store's file lies: by the kind of mount, by HARNESS_STORE, never in a folder of somebody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import StoreError
from harness.store import database
from harness.store.database import kind_of_mount, store_path
from harness.store.ingest import ingest_journals

MOUNTS = [
    ("/", "ext4"), ("/home", "nfs4"), ("/home/local disk", "xfs"), ("/scratch", "lustre"), ("/fuse", "fuse.sshfs"),
    ("/over", "fuse.fuse-overlayfs"), ("/ntfs", "fuseblk"), ("/win", "cifs"), ("/cover", "nfs"), ("/cover", "tmpfs"),
]  # fmt: skip


@pytest.fixture
def mounted(monkeypatch):
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in MOUNTS]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    monkeypatch.delenv("HARNESS_STORE", raising=False)


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/results", "ext4", False), ("/home/me/results", "nfs4", True), ("/home/local disk/results", "xfs", False),
        ("/homes/me", "ext4", False), ("/scratch", "lustre", True), ("/fuse/x", "fuse.sshfs", True),
        ("/over/x", "fuse.fuse-overlayfs", False),
        ("/ntfs/x", "fuseblk", False), ("/win/x", "cifs", True), ("/cover/x", "tmpfs", False),
    ],
)  # fmt: skip
def test_kinds(mounted, path, kind, network):
    assert (kind_of_mount(Path(path)), database.on_network(Path(path))) == (kind, network)


def test_the_file_is_local_whatever_lies_on_the_network(mounted, monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_CACHE", "/results/cache")
    assert store_path(Path("/results")) == Path("/results/harness.duckdb")
    mine, yours = (store_path(Path(f"/home/{name}/results")) for name in ("me", "you"))
    assert Path("/results/cache/stores") in mine.parents
    assert mine != yours
    monkeypatch.setenv("HARNESS_CACHE", "/home/me/.cache")
    monkeypatch.setattr(database.tempfile, "gettempdir", lambda: str(tmp_path))
    assert store_path(Path("/home/me/results")).is_relative_to(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o77 == 0
    kept.rmdir()
    kept.symlink_to("/somewhere")
    with pytest.raises(StoreError, match="HARNESS_STORE"):
        store_path(Path("/home/me/results"))


def test_the_variable_comes_first_and_a_store_is_built_there(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_STORE", str(tmp_path / "stores"))
    results = tmp_path / "results"
    results.mkdir()
    ingest_journals(results)
    assert store_path(results) in (tmp_path / "stores").rglob("*")
    assert not [*results.iterdir()]


def test_results_that_may_only_be_read_have_their_store_in_the_cache(mounted, monkeypatch, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    assert store_path(results).parent == results
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(database.os, "access", lambda path, mode: path != results)  # root may write anywhere
    ingest_journals(results)
    assert store_path(results) in (tmp_path / "cache" / "stores").rglob("*")
    assert not [*results.iterdir()]


def test_this_machines_own_mounts_are_read():
    assert kind_of_mount(Path("/proc/self")) == "proc"
