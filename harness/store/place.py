"""Where the store's DuckDB file lies: in the results folder, or in the cache where that is on the network or may only be read.

DuckDB maps its file into memory and locks it, which network file systems do not hold to. The file is a cache of the journals, so
each machine builds its own, and so does whoever may only read the results.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.cache import cache_folder
from harness.errors import StoreError

STORE = "harness.duckdb"
VARIABLE = "HARNESS_STORE"
NETWORK = {
    "nfs", "nfs3", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "afs", "9p",
    "virtiofs", "wekafs", "panfs", "orangefs", "pvfs2", "gfs2", "ocfs2", "fuse",
}  # fmt: skip
"""Kinds of file systems that several machines may have mounted; every `fuse.*` too, but those of LOCAL_FUSE."""
LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.portal", "fuse.lxcfs"}
_ESCAPED = re.compile(r"\\([0-7]{3})")


def store_path(results: Path) -> Path:
    """The file of these results: in the one that HARNESS_STORE names, else beside the journals, else in the cache, on a local disk.

    Raises StoreError where the folder for it in the machine's temporary folder is somebody else's.
    """
    if forced := os.environ.get(VARIABLE):
        return Path(forced).expanduser() / _name(results) / STORE
    read_only = results.is_dir() and not os.access(results, os.W_OK)
    if not (read_only or on_network(results)):
        return results / STORE
    if not on_network(cache_folder()):
        return cache_folder() / "stores" / _name(results) / STORE
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"experience-sharing-harness-{user}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    if place.is_symlink() or place.stat().st_uid != user:
        raise StoreError(f"{place}: belongs to somebody else; {VARIABLE} names another folder for the store")
    return place / _name(results) / STORE


def _name(results: Path) -> str:
    """One folder for each results folder, whatever path leads there on this machine."""
    path = results.resolve()
    return f"{path.name or 'results'}-{hashlib.blake2b(bytes(path), digest_size=6).hexdigest()}"


def on_network(path: Path) -> bool:
    """Whether `path`, or what of it exists, lies on a file system that other machines may have mounted too."""
    kind = kind_of_mount(path)
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def kind_of_mount(path: Path) -> str:
    """The kind of file system, as the system calls it; empty where it does not say."""
    path = path.resolve()
    best, found = -1, ""
    for point, kind in _mounts():
        if path.is_relative_to(point) and len(point.parts) >= best:  # of two at one place the later hides the earlier
            best, found = len(point.parts), kind
    return found


def _mounts() -> Iterator[tuple[Path, str]]:
    """Mount points and kinds: see proc(5), mountinfo."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        yield Path(_ESCAPED.sub(lambda m: chr(int(m[1], 8)), before.split()[4])), after.split()[0]
