"""What a model is, whatever it is called: the commit of a hub name, the content of a local folder. Imports without torch."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import DataError, DiskFullError, StoreError
from harness.files import write_atomic
from harness.reading import open_regular
from harness.suite.schema import Policy, Suite

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_SECONDS = 4.0
MAX_FILES = 10_000
"""Of a model's folder."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REMEMBERED_BYTES = 1 << 20
"""Smaller files are read each time."""
_SETTLED_NS = 2_000_000_000
"""A file changed more recently than this may change again without another time stamp."""
_ANNOUNCED_BYTES = 2 << 30


class _Seen(msgspec.Struct, frozen=True):
    """A file's digest, and what tells that it is still the same file."""

    stamp: tuple[int, int, int, int]
    digest: str


def local_folder(model: str) -> Path | None:
    """The folder that a suite's `model` names, if it does."""
    folder = model_folder(model)
    return folder if not model.startswith("micro/") and folder.is_dir() else None


def pinned(suite: Suite, online: bool) -> Suite:
    """The suite with each hub model's commit as its revision, where it is known here or, `online`, the hub says it in time."""
    found: dict[tuple[str, str | None], str | None] = {}

    def pin(policy: Policy) -> Policy:
        if not on_hub(policy) or (policy.revision and COMMIT.fullmatch(policy.revision)):
            return policy
        name = policy.model, policy.revision
        if name not in found:
            found[name] = commit_of(policy.model, policy.revision or "main", online)
        return policy.model_copy(update={"revision": found[name] or policy.revision})

    groups = [g.model_copy(update={"policies": [pin(p) for p in g.policies]}) for g in suite.groups]
    return suite.model_copy(update={"groups": groups})


def is_micro(policy: Policy) -> bool:
    """Whether the policy is one of our own tiny models."""
    return policy.model.startswith("micro/")


def on_hub(policy: Policy) -> bool:
    """Whether the policy's model would come from the hub."""
    named = policy.model.startswith(PRETRAINED) or local_folder(policy.model) is not None
    return not is_micro(policy) and not named and _HUB_NAME.fullmatch(policy.model) is not None


def unpinned(policy: Policy) -> bool:
    """A hub model whose commit is not known."""
    return on_hub(policy) and not COMMIT.fullmatch(policy.revision or "")


def identity_of(policy: Policy) -> str:
    """What stands for the model in a key. Raises DataError for a folder that cannot be read."""
    folder = local_folder(policy.model)
    if folder is not None:
        return f"content {content_digest(folder)}"
    return policy.model if is_micro(policy) else f"{policy.model}@{policy.revision or 'main'}"


def loaded_commit(base: Path) -> str:
    """The commit of the hub snapshot that was opened; empty for another folder."""
    return base.name if base.parent.name == "snapshots" and COMMIT.fullmatch(base.name) else ""


def commit_of(model: str, revision: str, online: bool) -> str | None:
    """The commit behind a hub name's branch or tag: as downloaded here, as noted by an earlier run, or as the hub says now."""
    from huggingface_hub import constants

    ref = hub_cache(model) / "refs" / revision
    note = _cache() / "commits" / hashlib.blake2b(f"{model}@{revision}".encode(), digest_size=16).hexdigest()
    for place in (ref, note):
        with suppress(OSError, UnicodeDecodeError):
            if COMMIT.fullmatch(known := place.read_text("ascii").strip()):
                return known
    commit = _asked(model, revision) if online and not constants.HF_HUB_OFFLINE else None
    if commit is not None:
        _remember(note, commit.encode())
    return commit


def _asked(model: str, revision: str) -> str | None:
    """The hub's word, within HUB_SECONDS. A thread asks, because name resolution knows no time-out."""
    said: list[str] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        with suppress(Exception):  # no network, no such model, no access: all leave the commit unknown
            said.append(str(HfApi().model_info(model, revision=revision, timeout=HUB_SECONDS).sha))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return said[0] if said and COMMIT.fullmatch(said[0]) else None


def content_digest(folder: Path) -> str:
    """Digest of a model folder: names and bytes of all its files, links followed; hidden ones and *.md say nothing.

    What was read once is remembered in the cache folder by path, size, times and inode.

    Raises
    ------
    DataError
        A file cannot be read.
    """
    try:
        found = list(itertools.islice(folder.rglob("*"), MAX_FILES + 1))
        if len(found) > MAX_FILES:
            raise DataError(f"{folder}: more than {MAX_FILES:,} files: not a model's folder")
        paths = [p for p in sorted(found) if _counts(p.relative_to(folder)) and not p.is_dir()]
        stamps = [_stamp(path) for path in paths]
        note = _cache() / "folders" / f"{hashlib.blake2b(bytes(folder.resolve()), digest_size=16).hexdigest()}.json"
        seen = _recall(note)
        names = [path.relative_to(folder).as_posix() for path in paths]
        old = [n in seen and seen[n].stamp == s for n, s in zip(names, stamps, strict=True)]
        _announce(folder, sum(s[0] for s, known in zip(stamps, old, strict=True) if not known))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            digests = list(
                pool.map(lambda n, p, known: seen[n].digest if known else _file_digest(p), names, paths, old)
            )
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None
    settled = time.time_ns() - _SETTLED_NS
    kept = {
        name: _Seen(stamp, digest)
        for name, stamp, digest in zip(names, stamps, digests, strict=True)
        if stamp[0] >= _REMEMBERED_BYTES and max(stamp[1:3]) < settled
    }
    if kept and kept != seen:
        _remember(note, msgspec.json.encode(kept))
    whole = hashlib.blake2b(digest_size=16)
    for name, digest in zip(names, digests, strict=True):
        whole.update(f"{name}\0{digest}\0".encode())
    return whole.hexdigest()


def _counts(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts) and path.suffix.lower() != ".md"


def _stamp(path: Path) -> tuple[int, int, int, int]:
    """Size, time of the content, time of the inode, inode. The inode's time shows a content that was given its old time back."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _file_digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _announce(folder: Path, unread: int) -> None:
    if unread >= _ANNOUNCED_BYTES:
        print(f"{folder}: reading {unread / 1e9:.0f} GB once, to know which weights these are", file=sys.stderr)


def _recall(note: Path) -> dict[str, _Seen]:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(note.read_bytes(), type=dict[str, _Seen])
    return {}


def _remember(note: Path, content: bytes) -> None:
    with suppress(OSError, StoreError, DiskFullError):  # a cache that cannot be written costs time, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, content)


def _cache() -> Path:
    return cache_folder() / "models"
