"""A bundle: a finished suite's results folder (`store.results_folder`) as one zip, without weights or paths of this machine.

Its members are `<suite>/<file>`, uncompressed, for the tables inside are compressed already. On one kind of CPU equal results
are equal bytes. Its name, `<suite>-<digest>.zip`, has 16 digits of the SHA-256 of `reference.json`, which has the digest of
every other member. `submission.older_bundle` reads bundles of versions before this format.
"""

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
import pyarrow.compute as pc

import harness
from harness.cache import PRETRAINED
from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.reading import in_words, read_bytes
from harness.session.policy import local_folder
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import MARK, ORIGIN, Manifest, SuiteFile, read_manifest, read_suite, remedy_for
from harness.store.read import Snapshot
from harness.store.remarks import describe_unpaired
from harness.store.results_folder import FILES, INDEX, PART, SUITE, TABLES, read_index, write_results_folder
from harness.store.table import show_rows
from harness.store.tuning import tuning_path
from harness.submission.older_bundle import OLDER_INDEX, OLDER_MEMBER, convert_older_bundle
from harness.suite.load import parse_suite
from harness.suite.schema import Suite

# Left empty in samples: the tasks have the prompts
WORDLESS = ("prompt",)
MAX_BYTES = 64 << 20
# What the tables of a bundle may be in memory: who checks it puts a ceiling on that (`submission.check`)
MAX_UNPACKED = 256 << 20
# Of a bundle of an older version, with some files for each cell
MAX_MEMBERS = 20_000
_DATE = (1980, 1, 1, 0, 0, 0)
_MEMBER = re.compile(rf"({PART})/({'|'.join(map(re.escape, FILES))})")
# What Python's zipfile raises for files that are no zips, or damaged ones
_BROKEN = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, struct.error, RuntimeError)


class MadeBundle(NamedTuple):
    """A bundle's path, and a line for each reason why cells of it are in no comparison."""

    path: Path
    unpaired: list[str]


class OpenedBundle(NamedTuple):
    """A bundle whose members lie in `folder`, a results folder. name: by its content. older: it had the format of an older
    version."""

    folder: Path
    name: str
    older: bool


class FinishedSuite(NamedTuple):
    """What is finished of a suite in a results folder of one's own. file: without paths of this machine. cells: manifest and tables
    of each finished cell and base checkpoint by key. unfinished: keys of the others."""

    file: SuiteFile
    resolved: Suite
    cells: dict[str, tuple[Manifest, dict[str, pa.Table]]]
    unfinished: tuple[str, ...] = ()


# Making ---------------------------------------------------------------------------------------------------------------


def make_bundle(suite: str, results: Path, out: Path | None = None) -> MadeBundle:
    """Write the bundle of results/<suite> to `out` (a file or a folder, by default this one).

    Raises UsageError for unfinished or too large results, StoreError, DiskFullError.
    """
    finished = gather_suite(results, suite)
    tables = {key: select_tables(own) for key, (_, own) in finished.cells.items()}
    size = sum(table.nbytes for own in tables.values() for table in own.values())
    if size > MAX_UNPACKED:
        raise UsageError(f"{suite}: too large for a bundle ({size:,} bytes unpacked; at most {MAX_UNPACKED:,})")
    with tempfile.TemporaryDirectory(prefix="bundle-") as place:
        root = Path(place)
        folder = root / ORIGIN / suite
        write_suite_folder(folder, finished, tables, tuning_path(results, finished.file))
        name, data = pack_folder(suite, folder)
        apart = compute_table(root, suite).unpaired
    target = out or Path(name)
    if target.is_dir():
        target /= name
    write_atomic(target, data)
    return MadeBundle(target, apart)


def write_suite_folder(
    folder: Path, finished: FinishedSuite, tables: Mapping[str, Mapping[str, pa.Table]], tuning: Path
) -> None:
    """Write the suite's results folder. tables: by cell. tuning: the path of tuning.json, which need not exist. Raises
    DiskFullError, StoreError."""
    manifests = {key: manifest for key, (manifest, _) in finished.cells.items()}
    content = tuning.read_bytes() if tuning.is_file() else None
    write_results_folder(folder, finished.file, harness.__version__, manifests, tables, content)


def gather_suite(results: Path, suite: str, *, partly: bool = False) -> FinishedSuite:
    """Read a suite's cells and base checkpoints, without paths of this machine.

    partly: leave out those that are not finished. Raises UsageError where one is not finished, and `partly` is not set or none is;
    StoreError.
    """
    folder = results / suite
    if "@" in suite:
        raise UsageError(f"{suite}: a bundle holds results that were made here")
    if not (folder / SUITE).is_file():
        raise UsageError(
            f"{folder}: no results of the suite as written (`harness status` lists the suites that have some)"
        )
    file = read_suite(folder, folder / SUITE)
    resolved = parse_suite(file.config, (), f"{folder}/{SUITE}: config")
    list_public_tasks(resolved)
    known = (*file.cells, *file.bases)
    finished = [key for key in known if not partly or _is_finished(folder / key)]
    if not finished:
        raise UsageError(f"{folder}: no cell of the suite is finished")
    cells = {key: read_finished_cell(folder / key) for key in finished}
    unfinished = tuple(key for key in known if key not in cells)
    return FinishedSuite(msgspec.structs.replace(file, config=_without_paths(file.config)), resolved, cells, unfinished)


def _is_finished(source: Path) -> bool:
    """Return whether a cell's folder is there and says that it is done; a damaged manifest raises StoreError."""
    return (source / "manifest.json").exists() and read_manifest(source).state == "done"


def list_public_tasks(suite: Suite) -> list[str]:
    """Return the evaluation's tasks. Raises UsageError where questions or scorers are not public."""
    for task in (*suite.training.tasks, *suite.evaluation.tasks):
        if not isinstance(task, str) or task.startswith("lm_eval:"):
            name = task if isinstance(task, str) else task.file
            raise UsageError(
                f"{name[:200]!a}: a bundle holds tasks that are installed by name (`harness new-task` makes one)"
            )
    return [task for task in suite.evaluation.tasks if isinstance(task, str)]


def select_tables(
    tables: Mapping[str, pa.Table], wordless: Sequence[str] = WORDLESS, readable: int = 0
) -> dict[str, pa.Table]:
    """Return a journal's tables that are given to others.

    wordless: columns of samples to empty, but for those of about `readable` answers (`choose_readable`).
    """
    selected = {name: tables[name] for name in TABLES if name in tables}
    samples = selected.get("samples")
    if samples is not None:
        kept = choose_readable(samples, readable)
        for column in wordless:
            place = samples.schema.get_field_index(column)
            emptied = pc.if_else(kept, samples.column(place), pa.scalar("", pa.string()))
            samples = samples.set_column(place, samples.schema.field(place), emptied)
        selected["samples"] = samples
    return selected


def choose_readable(samples: pa.Table, most: int) -> pa.Array:
    """Mark the answers of a cell that a reader shall see in words: true in at most `most` rows, or in one of each policy.

    They are answers of the last checkpoint, sampled ones where there are some, the first to each question. The questions lie
    evenly over the evaluation set and depend on nothing else, so that cells on the same set show the same ones.
    """
    if most < 1 or not samples.num_rows:
        return pa.array([False] * samples.num_rows, pa.bool_())
    metric = "sampled" if "sampled" in samples["metric"].to_pylist() else "greedy"
    last = pc.equal(samples["checkpoint_step"], pc.max(samples["checkpoint_step"]))
    first = pc.and_(pc.equal(samples["metric"], metric), pc.equal(samples["repeat"], 0))
    candidates = pc.and_(last, first)
    asked = list(dict.fromkeys(_questions_of(samples.filter(candidates))))
    policies = len(samples["policy"].unique())
    count = min(len(asked), max(1, most // policies))
    chosen = {asked[(2 * place + 1) * len(asked) // (2 * count)] for place in range(count)}
    is_chosen = pa.array([question in chosen for question in _questions_of(samples)], pa.bool_())
    return pc.and_(candidates, is_chosen).combine_chunks()


def _questions_of(samples: pa.Table) -> list[tuple[str, str]]:
    """Return task and question of each row."""
    return list(zip(samples["task"].to_pylist(), samples["doc_id"].to_pylist(), strict=True))


def read_finished_cell(source: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    """Read a finished cell or base checkpoint, without a path of this machine. Raises UsageError where it is not finished,
    StoreError where it is damaged."""
    try:
        manifest = read_manifest(source)
    except StoreError as error:
        if (source / "manifest.json").exists():
            raise StoreError(f"{error}; {remedy_for(source, removed=False)}") from error
        raise UsageError(f"{source}: absent; run the suite to its end first") from error
    if manifest.state != "done":
        why = f" ({manifest.reason})" if manifest.reason else ""
        raise UsageError(f"{source}: {manifest.state}{why}; a bundle holds every cell of its suite, finished")
    contents = read_journal(source)
    if contents.problems:
        raise StoreError(f"{contents.problems[0]}; {remedy_for(source)}")
    policies = tuple(msgspec.structs.replace(entry, model=_name_model(entry.model)) for entry in manifest.policies)
    portable = msgspec.structs.replace(manifest, policies=policies, config=_without_paths(manifest.config))
    return portable, contents.tables


def _without_paths(value: Any) -> Any:
    """Return the configuration with folders' names in the place of their paths, which no key knows."""
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _name_model(part) if key == "model" and isinstance(part, str) else _without_paths(part)
        for key, part in value.items()
    }


def _name_model(name: str) -> str:
    if name.startswith(PRETRAINED):  # has this name in every user's cache
        return name
    if name.startswith(("/", "~", ".")) or local_folder(name):
        return Path(name).name
    return name


class ComputedTable(NamedTuple):
    """What `harness show` would print of a results folder: accuracies, rows, and lines on cells that are in no comparison."""

    scores: int
    rows: int
    unpaired: list[str]


def compute_table(root: Path, suite: str) -> ComputedTable:
    """Compute the table from the rows of the results folder root/reference/<suite>. Raises StoreError."""
    ingest_journals(root)
    name = f"{suite}{MARK}"
    with Snapshot(root) as snapshot:
        scores = snapshot.query("SELECT count(*) AS n FROM scores WHERE suite = ?", [name])["n"][0].as_py()
        return ComputedTable(int(scores), len(show_rows(snapshot, name)), describe_unpaired(snapshot, name))


def pack_folder(suite: str, folder: Path) -> tuple[str, bytes]:
    """Return the name and the bytes of the bundle of a results folder. Raises UsageError where it would be too large."""
    files = {f"{suite}/{file.name}": file.read_bytes() for file in sorted(folder.iterdir()) if file.name in FILES}
    index = f"{suite}/{INDEX}"
    data = _zip_members(files, index)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{suite}: too large for a bundle ({len(data):,} bytes; at most {MAX_BYTES:,})")
    return _name_bundle(suite, files[index]), data


def _zip_members(members: Mapping[str, bytes], first: str) -> bytes:
    """Return the zip of the members, `first` before the others; the same members are the same bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members, key=lambda name: (name != first, name)):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system = 3  # Unix
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            file.writestr(member, members[name])
    return sink.getvalue()


def _name_bundle(suite: str, index: bytes) -> str:
    return f"{suite}-{hashlib.sha256(index).hexdigest()[:16]}.zip"


# Opening --------------------------------------------------------------------------------------------------------------


def open_bundle(bundle: Path, place: Path) -> OpenedBundle:
    """Check a bundle's container, and write its members as a results folder below the empty folder `place`.

    Rows are not read yet, except of a bundle of an older version. Raises UsageError, DiskFullError.
    """
    data, members = _read_members(bundle)
    older = OLDER_INDEX in members
    first = OLDER_INDEX if older else next((name for name in members if name.endswith(f"/{INDEX}")), "")
    for name in members:
        if not (OLDER_MEMBER if older else _MEMBER).fullmatch(name):
            raise UsageError(f"{bundle}: {name[:200]!a}: not a path that a bundle has")
    if not first:
        raise UsageError(f"{bundle}: holds no <suite>/{INDEX}: not a bundle")
    if _zip_members(members, first) != data:  # links, compressed or doubled members, bytes beside them
        raise UsageError(f"{bundle}: not packed as `harness bundle` does: each member once, as it is, and nothing else")
    if older:
        suite, folder = convert_older_bundle(bundle, members, place)
    else:
        suite = first.removesuffix(f"/{INDEX}")
        folder = place / suite
        _write_members(bundle, members, suite, folder)
    return OpenedBundle(folder, _name_bundle(suite, members[first]), older)


def _read_members(bundle: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the bundle's bytes and its members by name, which are never more bytes than the bundle. Raises UsageError."""
    members: dict[str, bytes] = {}
    name = ""
    try:
        data = read_bytes(bundle, MAX_BYTES)
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            entries = file.infolist()
            if len(entries) > MAX_MEMBERS:
                raise UsageError(f"{bundle}: {len(entries):,} members; a bundle has at most {MAX_MEMBERS:,}")
            stated = sum(entry.file_size for entry in entries)
            if stated > len(data):
                raise UsageError(f"{bundle}: its members state {stated:,} bytes; the whole file has {len(data):,}")
            for entry in entries:
                name = entry.orig_filename
                members[name] = file.read(entry)
    except OSError as error:
        raise UsageError(f"{bundle}: cannot be read: {in_words(error)}") from None
    except _BROKEN as error:
        raise UsageError(f"{bundle}: {f'{name[:200]!a}: damaged' if name else 'not a bundle'}: {error}") from None
    return data, members


def _write_members(bundle: Path, members: Mapping[str, bytes], suite: str, folder: Path) -> None:
    """Write the members, which are all of one suite and named by its index. Their digests are checked when they are read."""
    folder.mkdir()
    for name, content in members.items():
        path = PurePosixPath(name)
        if path.parent.name != suite:
            raise UsageError(f"{bundle}: {name}: not of the suite {suite}")
        (folder / path.name).write_bytes(content)
    try:
        index = read_index(folder)
    except StoreError as error:
        raise UsageError(f"{bundle}: {str(error).replace(f'{folder.parent}/', '')}") from None
    if index.suite != suite:
        raise UsageError(f"{bundle}: {suite}/{INDEX}: suite: {index.suite!r} in the folder of {suite!r}")
    named = {f"{suite}/{name}" for name in index.files} | {f"{suite}/{INDEX}"}
    strange = sorted(named ^ members.keys())
    if strange:
        problem = "absent" if strange[0] in named else f"not in {INDEX}"
        raise UsageError(f"{bundle}: {strange[0]}: {problem}")
