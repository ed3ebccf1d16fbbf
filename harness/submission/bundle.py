"""A bundle: a finished suite's results as one uncompressed zip, without weights or paths of this machine: bundle.json
(SHA-256 of every other member), scores.json (accuracies and table), <suite>/ (its results folder, cut to what tables
need). On one kind of CPU equal results are equal bytes. Its name, `<suite>-<digest>.zip`, has 16 digits of
bundle.json's SHA-256."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

import harness
from harness.cache import PRETRAINED
from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.reading import in_words, read_bytes
from harness.session.cell.manifests import processor
from harness.session.policy import local_folder
from harness.store.ingest import ingest
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import Manifest, SuiteFile, read_manifest, read_suite, remedy, write_manifest, write_suite
from harness.store.read import Snapshot
from harness.store.reference_results import KEPT, PART, ResultsIndex
from harness.store.remarks import describe_unpaired
from harness.store.table import show_rows
from harness.store.tuning import read_tuning, write_tuning
from harness.suite.load import resolve
from harness.suite.schema import Suite

COMPACT = "compact-000001"
# Left empty in samples: the tasks have the prompts
WORDLESS = ("prompt",)
# Of a bundle; what it unpacks to is never more
MAX_BYTES = 64 << 20
MAX_MEMBERS = 20_000
ABOUT, SCORES = "bundle.json", "scores.json"
_DATE = (1980, 1, 1, 0, 0, 0)
_MEMBER = re.compile(
    rf"{ABOUT}|{SCORES}|{PART}/(suite\.json|tuning\.json|{PART}/(manifest\.json|journal/{COMPACT}/[a-z]+-[0-9a-f]{{8}}\.arrow))"
)
_BROKEN = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, struct.error, RuntimeError)


class Made(NamedTuple):
    """A bundle's path, and a line for each reason why cells of it are in no comparison."""

    path: Path
    unpaired: list[str]


def make_bundle(suite: str, results: Path, out: Path | None = None) -> Made:
    """Write the bundle of results/<suite> to `out` (a file or a folder). Raises UsageError for unfinished ones, StoreError,
    DiskFullError."""
    file, _, cells = gathered(results, suite)
    with tempfile.TemporaryDirectory(prefix="bundle-") as root:
        scratch = Path(root)
        for key, (manifest, tables) in cells.items():
            journal = scratch / suite / key / "journal" / COMPACT
            journal.mkdir(parents=True)
            for name, table in compact(tables).items():
                write_columns(journal, name, table)
            write_manifest(scratch / suite / key, manifest)
        write_suite(scratch / suite, file)
        if (tuning := read_tuning(results, suite, file)) is not None:
            write_tuning(scratch, file, tuning)
        members = [path for path in (scratch / suite).rglob("*") if path.is_file()]
        files = {path.relative_to(scratch).as_posix(): path.read_bytes() for path in members}
        files[SCORES] = _json(stated(scratch, suite))
        apart = not_paired(scratch, suite)
    name, data = pack(suite, files, harness.__version__, processor())
    target = Path(name) if out is None else out / name if out.is_dir() else out
    write_atomic(target, data)
    return Made(target, apart)


def gathered(results: Path, suite: str) -> tuple[SuiteFile, Suite, dict[str, tuple[Manifest, dict[str, pa.Table]]]]:
    """A finished suite: its file without paths of this machine, what that says, each cell and base. Raises UsageError,
    StoreError."""
    folder = results / suite
    if "@" in suite:
        raise UsageError(f"{suite}: a bundle holds results that were made here")
    if not (folder / "suite.json").is_file():
        raise UsageError(
            f"{folder}: no results of the suite as written (`harness status` lists the suites that have some)"
        )
    file = read_suite(folder, folder / "suite.json")
    resolved = resolve(file.config, (), f"{folder}/suite.json: config")
    installed(resolved)
    cells = {key: finished(folder / key) for key in (*file.cells, *file.bases)}
    return msgspec.structs.replace(file, config=_portable(file.config)), resolved, cells


def installed(suite: Suite) -> list[str]:
    """The evaluation's tasks. Raises UsageError where questions or scorers are not public."""
    for task in (suite.training.task, *suite.evaluation.tasks):
        if not isinstance(task, str) or task.startswith("lm_eval:"):
            name = task if isinstance(task, str) else task.file
            raise UsageError(
                f"{name[:200]!a}: a bundle holds tasks that are installed by name (`harness new-task` makes one)"
            )
    return [task for task in suite.evaluation.tasks if isinstance(task, str)]


def stated(results: Path, suite: str) -> dict[str, Any]:
    """scores.json, from the samples of the one suite in `results`. Raises StoreError."""
    ingest(results)
    with Snapshot(results) as snapshot:
        scores = snapshot.query(
            "SELECT cell, policy, task, metric, questions, answers, invalid, accuracy FROM scores WHERE suite = ? "
            "ORDER BY cell, policy, task, metric",
            [suite],
        )
        return {"scores": scores.to_pylist(), "rows": show_rows(snapshot, suite)}


def not_paired(results: Path, suite: str) -> list[str]:
    """Of the suite in `results`, which `stated` has read."""
    with Snapshot(results) as snapshot:
        return describe_unpaired(snapshot, suite)


def compact(tables: Mapping[str, pa.Table], wordless: Sequence[str] = WORDLESS) -> dict[str, pa.Table]:
    """A journal cut to what table and checks need. wordless: columns of samples to empty."""
    kept = {name: tables[name] for name in KEPT if name in tables}
    if (samples := kept.get("samples")) is not None:
        nothing = pa.repeat(pa.scalar("", pa.string()), samples.num_rows)
        for column in wordless:
            place = samples.schema.get_field_index(column)
            kept["samples"] = kept["samples"].set_column(place, samples.schema.field(place), nothing)
    return kept


def finished(source: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    """Of a finished cell or base, without a path of this machine. Raises UsageError, StoreError."""
    try:
        manifest = read_manifest(source)
    except StoreError as error:
        if (source / "manifest.json").exists():
            raise StoreError(f"{error}; {remedy(source, removed=False)}") from error
        raise UsageError(f"{source}: absent; run the suite to its end first") from error
    if manifest.state != "done":
        why = f" ({manifest.reason})" if manifest.reason else ""
        raise UsageError(f"{source}: {manifest.state}{why}; a bundle holds every cell of its suite, finished")
    contents = read_journal(source)
    if contents.problems:
        raise StoreError(f"{contents.problems[0]}; {remedy(source)}")
    policies = tuple(msgspec.structs.replace(entry, model=_model(entry.model)) for entry in manifest.policies)
    return msgspec.structs.replace(manifest, policies=policies, config=_portable(manifest.config)), contents.tables


def _portable(value: Any) -> Any:
    """Folders' names in the place of their paths, which no key knows."""
    if isinstance(value, dict):
        return {k: _model(v) if k == "model" and isinstance(v, str) else _portable(v) for k, v in value.items()}
    return [_portable(v) for v in value] if isinstance(value, list) else value


def _model(name: str) -> str:
    if name.startswith(PRETRAINED):  # has this name in every user's cache
        return name
    return Path(name).name if name.startswith(("/", "~", ".")) or local_folder(name) else name


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def pack(suite: str, files: Mapping[str, bytes], harness: str, processor: str) -> tuple[str, bytes]:
    """Its name and bytes. Raises UsageError where it would be too large."""
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    about = _json(ResultsIndex(format=1, suite=suite, harness=harness, processor=processor, files=digests))
    data = _zipped({**files, ABOUT: about})
    if len(files) >= MAX_MEMBERS or len(data) > MAX_BYTES:
        size = f"{len(files):,} files, {len(data):,} bytes"
        raise UsageError(f"{suite}: too large for a bundle ({size}; at most {MAX_MEMBERS:,} and {MAX_BYTES:,})")
    return _bundle_name(suite, about), data


def _zipped(members: Mapping[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members, key=lambda name: (name != ABOUT, name)):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system, member.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            file.writestr(member, members[name])
    return sink.getvalue()


def _bundle_name(suite: str, about: bytes) -> str:
    return f"{suite}-{hashlib.sha256(about).hexdigest()[:16]}.zip"


def unpack(bundle: Path, folder: Path) -> tuple[ResultsIndex, str]:
    """Judge, then write the members into the empty `folder`; returns bundle.json and the name by content. Raises
    UsageError, DiskFullError."""
    contents: dict[str, bytes] = {}
    try:
        data = read_bytes(bundle, MAX_BYTES)
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = file.infolist()
            if len(members) > MAX_MEMBERS:
                raise UsageError(f"{bundle}: {len(members):,} members; a bundle has at most {MAX_MEMBERS:,}")
            if (stated := sum(member.file_size for member in members)) > len(data):
                raise UsageError(f"{bundle}: its members state {stated:,} bytes; the whole file has {len(data):,}")
            for member in members:
                if not _MEMBER.fullmatch(name := member.orig_filename):
                    raise UsageError(f"{bundle}: {name[:200]!a}: not a path that a bundle has")
                contents[name] = file.read(member)
    except OSError as error:
        raise UsageError(f"{bundle}: cannot be read: {in_words(error)}") from None
    except _BROKEN as error:
        raise UsageError(f"{bundle}: {f'{name}: damaged' if contents else 'not a bundle'}: {error}") from None
    about = _about(bundle, contents)
    if _zipped(contents) != data:  # links, compressed or second members, bytes beside them
        raise UsageError(f"{bundle}: not packed as `harness bundle` does: each member once, as it is, and nothing else")
    for name, content in contents.items():
        target = folder / PurePosixPath(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return about, _bundle_name(about.suite, contents[ABOUT])


def _about(bundle: Path, contents: Mapping[str, bytes]) -> ResultsIndex:
    try:
        about = msgspec.json.decode(contents.get(ABOUT, b""), type=ResultsIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{bundle}: {ABOUT}: absent or not what it should be: {error}") from None
    for name in sorted((contents.keys() - {ABOUT}) | about.files.keys()):
        faults = {
            "absent": name not in contents,
            "not in bundle.json": name not in about.files,
            "inside a file": any(str(outer) in contents for outer in PurePosixPath(name).parents),
            f"not of the suite {about.suite}": name != SCORES and name.split("/")[0] != about.suite,
            "altered (its SHA-256 is not the one in bundle.json)": name in contents
            and hashlib.sha256(contents[name]).hexdigest() != about.files.get(name),
        }
        if problem := next((problem for problem, wrong in faults.items() if wrong), ""):
            raise UsageError(f"{bundle}: {name}: {problem}")
    return about
