"""From a suite's `model` to a folder, and what a model is. No torch."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness import phases
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import DataError, DiskFullError, StoreError
from harness.files import write_atomic
from harness.reading import open_regular
from harness.suite.schema import ModelGroup, Policy, Stage0, Suite

if TYPE_CHECKING:
    from harness.engines.embedded.numerics import Numerics
    from harness.engines.embedded.warmup import MicroSpec

MICRO = "micro/"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_SECONDS = 4.0
MAX_FILES = 10_000
# Suffixes of files with weights
WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt", ".pth"}
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
# As HF_ENDPOINT may have
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_LEAST_REMEMBERED_BYTES = 1 << 20
# A file changed more recently may change again with the same time stamp
_SETTLED_NS = 2_000_000_000
_ANNOUNCED_BYTES = 2 << 30
# (share done, a few words)
Progress = Callable[[float, str], None]


class _Seen(msgspec.Struct, frozen=True):
    """stamp: size, times of content and inode, inode."""

    stamp: tuple[int, int, int, int]
    digest: str


def local_folder(model: str) -> Path | None:
    folder = model_folder(model)
    return folder if not model.startswith(MICRO) and folder.is_dir() else None


def required_folder(policy: Policy) -> Path | None:
    """Find a model's folder; None for a hub name. Raises DataError."""
    folder = local_folder(policy.model)
    if folder is None and policy.model.startswith(PRETRAINED):
        place = model_folder(policy.model)
        raise DataError(f"{policy.model} is not in the cache ({place}): `make pretrained` fetches and converts it")
    if folder is None and not HUB_NAME.fullmatch(policy.model):
        raise DataError(f"no such folder: {policy.model}")
    return folder


def on_hub(policy: Policy) -> bool:
    named = policy.model.startswith(PRETRAINED) or local_folder(policy.model) is not None
    return not policy.is_micro and not named and HUB_NAME.fullmatch(policy.model) is not None


def has_unknown_commit(policy: Policy) -> bool:
    """Whether a policy is a hub model whose commit is not known."""
    return on_hub(policy) and not COMMIT.fullmatch(policy.revision or "")


def with_template_date(policy: Policy, day: str) -> Policy:
    """Give a policy this day for its chat template, unless the suite names one. day: ISO 8601."""
    if not policy.chat:
        return policy
    own = policy.chat if isinstance(policy.chat, dict) else {}
    return policy.model_copy(update={"chat": {"date": day, **own}})


# From a model to its folder -------------------------------------------------------------------------------------------


def base_folder(policy: Policy, seed: int, progress: Progress | None = None, options: Mapping[str, Any] = {}) -> Path:
    """Find or make the policy's start weights. options: the embedded engine's. Raises CellError for a base too weak for RL,
    DataError."""
    if policy.is_micro:
        from harness.engines.embedded.warmup import base_checkpoint

        return base_checkpoint(micro_spec(policy, seed, options.get("numerics")), progress)
    folder = raw_folder(policy)
    stage0 = policy.stage0
    if stage0 is None:
        return folder
    from harness.engines.embedded.warmup import Warmup, warmup_checkpoint

    stated = stage0.model_dump(exclude_none=True, exclude={"seed", "per_seed"})
    warmup = Warmup(
        name=policy.name, content=identity_of(policy), chat=policy.chat, seed=stage0.seed_of(seed), **stated
    )
    device = {name: options[name] for name in ("device", "dtype", "threads", "numerics") if name in options}
    return warmup_checkpoint(warmup, folder, progress, **device)


def micro_spec(policy: Policy, seed: int, numerics: Numerics | None = None) -> MicroSpec:
    """Describe the base checkpoint of a micro policy. numerics: None is the package's own base where it has one, else fast."""
    from harness.engines.embedded.warmup import MicroSpec, is_shipped

    stage0 = policy.stage0 or Stage0()
    family = policy.model.removeprefix(MICRO)
    spec = MicroSpec(
        family=family,
        preset=stage0.preset,
        strong=stage0.strong,
        seed=stage0.seed_of(seed),
        numerics=numerics or "portable",
        weak_cot=stage0.weak_cot,
    )
    return spec if numerics or is_shipped(spec) else replace(spec, numerics="fast")


def raw_folder(policy: Policy) -> Path:
    """Find the folder of a model as it was published. Raises DataError."""
    return required_folder(policy) or _download_snapshot(policy)


def hub_folder(policy: Policy, fetch: bool) -> Path:
    """Find a hub model's folder in this machine's cache, perhaps without weights. Raises DataError."""
    if fetch:
        return _download_snapshot(policy, allow_patterns=SMALL_FILES)
    if not hub_cache(policy.model).is_dir():
        raise DataError(f"model {policy.model!r}: not in this machine's cache")
    return _download_snapshot(policy, local_files_only=True)


def at_hand(policy: Policy) -> Path | None:
    """Find the folder with a tokenizer, where it is here."""
    if policy.is_micro:
        return None
    with suppress(DataError):
        folder = required_folder(policy) or hub_folder(policy, fetch=False)
        return folder if (folder / "tokenizer_config.json").is_file() else None
    return None


def _download_snapshot(policy: Policy, local_files_only: bool = False, **options: Any) -> Path:
    """Fetch a hub model's files, or find them in the cache where the hub is not to be asked or does not answer. Raises
    DataError."""
    from huggingface_hub import is_offline_mode, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import tqdm

    class HeartbeatTqdm(tqdm):
        def update(self, n: float | None = 1) -> Any:
            phases.report_progress()
            return super().update(n)

    offline = is_offline_mode()
    failures = []
    for cached in [True] if offline or local_files_only else [False, True]:
        try:
            return Path(
                snapshot_download(
                    policy.model, revision=policy.revision, etag_timeout=10, tqdm_class=HeartbeatTqdm,
                    local_files_only=cached, **options,
                )
            )  # fmt: skip
        except Exception as error:  # the hub's, its HTTP client's and the disk's have no common base
            failures.append(error)
    cause = "HF_HUB_OFFLINE is set" if offline else "the hub does not answer"
    absent = isinstance(failures[0], LocalEntryNotFoundError)
    said = _CREDENTIALS.sub("//", " ".join(str(failures[0]).split()))[:200]
    reason = f"not in this machine's cache, and {cause}" if absent else said
    raise DataError(f"model {policy.model!r}: not a local folder, and not available from the hub ({reason})")


# What a model is ------------------------------------------------------------------------------------------------------


def pin_commits(suite: Suite, online: bool) -> Suite:
    """Write into a suite's policies hub commits as revisions, where known or, `online`, said in time."""
    commit = functools.cache(functools.partial(_commit_of, online=online))

    def pin(policy: Policy) -> Policy:
        revision = commit(policy.model, policy.revision or "main") if has_unknown_commit(policy) else None
        return policy.model_copy(update={"revision": revision}) if revision else policy

    def pin_all(groups: Sequence[ModelGroup]) -> list[ModelGroup]:
        return [g.model_copy(update={"policies": [pin(p) for p in g.policies]}) for g in groups]

    tune = suite.tune and suite.tune.model_copy(update={"groups": pin_all(suite.tune.groups)})
    return suite.model_copy(update={"groups": pin_all(suite.groups), "tune": tune})


def identity_of(policy: Policy) -> str:
    """Describe a model as keys have it. Raises DataError for a folder that cannot be read."""
    folder = local_folder(policy.model)
    if folder is not None:
        return f"content {content_digest(folder)}"
    if policy.is_micro:
        return policy.model
    return f"{policy.model}@{policy.revision or 'main'}"


def loaded_commit(base: Path) -> str:
    """Empty for another folder than a hub snapshot."""
    if base.parent.name == "snapshots" and COMMIT.fullmatch(base.name):
        return base.name
    return ""


def _commit_of(model: str, revision: str, online: bool) -> str | None:
    """Find a hub model's commit, as downloaded, noted earlier, or said within HUB_SECONDS, in a thread: name resolution has no
    time-out."""
    from huggingface_hub import constants

    ref = hub_cache(model) / "refs" / revision
    name = hashlib.blake2b(f"{model}@{revision}".encode(), digest_size=16).hexdigest()
    note = cache_folder() / "models" / "commits" / name
    for place in (ref, note):
        with suppress(OSError, UnicodeDecodeError):
            if COMMIT.fullmatch(known := place.read_text("ascii").strip()):
                return known
    said: list[str] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        with suppress(Exception):  # no network, no such model, no access: all leave the commit unknown
            said.append(str(HfApi().model_info(model, revision=revision, timeout=HUB_SECONDS).sha))

    if online and not constants.HF_HUB_OFFLINE:
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(HUB_SECONDS)
    if not said or not COMMIT.fullmatch(said[0]):
        return None
    _write_note(note, said[0].encode())
    return said[0]


def content_digest(folder: Path) -> str:
    """Digest all files of a folder but hidden ones and *.md, links followed. Raises DataError."""
    return _digest_of(folder, lambda path: path.suffix.lower() != ".md")


def weights_digest(folder: Path) -> str:
    """Digest the files with weights alone, links followed: what a cell started from, whatever its tokenizer's files say of their
    library's version. Raises DataError."""
    return _digest_of(folder, lambda path: path.suffix.lower() in WEIGHTS)


def _digest_of(folder: Path, wanted: Callable[[Path], bool]) -> str:
    """Digest the names and contents of those files of a folder that are wanted and not hidden. Large files that did not change
    are not read again. Raises DataError."""
    try:
        files = _visible_files(folder, wanted)
        stamps = {name: _stamp_of(path) for name, path in files.items()}
        note = _note_of(folder)
        seen = _read_note(note)
        unread = [name for name in files if name not in seen or seen[name].stamp != stamps[name]]
        size = sum(stamps[name][0] for name in unread)
        if size >= _ANNOUNCED_BYTES:
            print(f"{folder}: reading {size / 1e9:.0f} GB once, to know which weights these are", file=sys.stderr)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            digests_read = pool.map(_file_digest, [files[name] for name in unread])
            read = dict(zip(unread, digests_read, strict=True))
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None
    digests = {name: read.get(name) or seen[name].digest for name in files}
    settled = time.time_ns() - _SETTLED_NS
    kept: dict[str, _Seen] = {}
    for name, stamp in stamps.items():
        size, modified, changed, _ = stamp
        # A file that was just written may be written again within the clock's resolution.
        if size >= _LEAST_REMEMBERED_BYTES and max(modified, changed) < settled:
            kept[name] = _Seen(stamp, digests[name])
    if not kept.items() <= seen.items():
        _write_note(note, msgspec.json.encode({**seen, **kept}))
    whole = hashlib.blake2b(digest_size=16)
    for name, digest in digests.items():
        whole.update(f"{name}\0{digest}\0".encode())
    return whole.hexdigest()


def _visible_files(folder: Path, wanted: Callable[[Path], bool]) -> dict[str, Path]:
    """List the wanted files of a folder and of those in it, by name in order; what is hidden, or lies in a hidden folder, is left
    out. Raises DataError where there are too many."""
    listed = list(itertools.islice(folder.rglob("*"), MAX_FILES + 1))
    if len(listed) > MAX_FILES:
        raise DataError(f"{folder}: more than {MAX_FILES:,} files: not a model's folder")
    files = {}
    for path in sorted(listed):
        if not wanted(path) or path.is_dir():
            continue
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts):
            files[name.as_posix()] = path
    return files


def _stamp_of(path: Path) -> tuple[int, int, int, int]:
    """Return the bytes, times of the content's and the entry's last change in ns, and number of a file, by which another one is
    known."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _file_digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _note_of(folder: Path) -> Path:
    """Return where the cache notes the digests of a folder's files."""
    resolved = hashlib.blake2b(bytes(folder.resolve()), digest_size=16).hexdigest()
    return cache_folder() / "models" / "folders" / f"{resolved}.json"


def _read_note(note: Path) -> dict[str, _Seen]:
    """Return what is noted of files that were read before, by name; nothing where there is no note, or it cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(note.read_bytes(), type=dict[str, _Seen])
    return {}


def _write_note(note: Path, content: bytes) -> None:
    with suppress(OSError, StoreError, DiskFullError):  # a cache that cannot be written costs time, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, content)
