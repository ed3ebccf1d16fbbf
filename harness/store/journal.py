"""A cell's journal: rows appended while it runs, committed in parts, compacted to Arrow files when it ends.

    journal/part-000007-000045.rows   one commit: number 7, highest step 45
    journal/compact-000012/           all up to number 12: per table an Arrow IPC file with its checksum, steps-1a2b3c4d.arrow

A part appears by a rename. A compact folder supersedes everything of a lower number, so a crash while compacting leaves no
row twice. Parts are msgpack, ten times cheaper to write.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from harness.errors import StoreError
from harness.files import (
    TEMPORARY,
    about_to_change,
    disk_errors,
    flush_to_disk,
    remove_path,
    replace_atomic,
    write_atomic,
)
from harness.reading import read_bytes
from harness.store.manifest import remedy_for
from harness.store.rows import TABLE_OF, TABLES, Row, conform_table, to_arrow, up_to

# Of one file: all samples of a cell are one part
MAX_BYTES = 16 << 30
_MAGIC = b"XSJ1"
_NAME = re.compile(r"part-(\d{6,})-(\d{6,})\.rows|compact-(\d{6,})")
_COLUMNS = re.compile(r"([a-z_]+)-([0-9a-f]{8})\.arrow")
_encoder = msgspec.msgpack.Encoder()
_decoders = {name: msgspec.msgpack.Decoder(list[row]) for name, row in TABLES.items()}  # type: ignore[valid-type]
_raw_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal holds: its tables, and a line on each part that could not be read."""

    tables: dict[str, pa.Table]
    problems: list[str] = field(default_factory=list)


class Journal:
    """The one writer of a cell's journal. A resumed cell calls `rewind(step)` first."""

    def __init__(self, folder: Path) -> None:
        """Open a cell's journal, and remove leftovers of an interrupted writer. Raises DiskFullError, StoreError."""
        self.folder = folder / "journal"
        self._buffer: dict[str, list[Row]] = {}
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()

    def append(self, rows: Row | Iterable[Row]) -> None:
        """Keep rows for the next commit. Raises KeyError for another type."""
        for row in (rows,) if isinstance(rows, Row) else rows:
            self._buffer.setdefault(TABLE_OF[type(row)], []).append(row)

    def commit(self, step: int) -> None:
        """Write what was appended as one part. Raises DiskFullError, StoreError; the rows then stay in memory."""
        if not self._buffer:
            return
        highest = max([step, *(row.at or 0 for rows in self._buffer.values() for row in rows)])
        payload = _encoder.encode(self._buffer)
        data = _MAGIC + zlib.crc32(payload).to_bytes(4, "little") + payload
        write_atomic(self.folder / f"part-{self._next_part():06d}-{highest:06d}.rows", data)
        self._buffer = {}

    def rewind(self, step: int) -> None:
        """Go back to the checkpoint of `step`: drop later rows and its evaluation. Costs stay, for they were spent. -1
        drops all else. Raises DiskFullError, StoreError."""
        for table, rows in list(self._buffer.items()):
            kept = [row for row in rows if row.at is None or row.at <= step]
            if kept:
                self._buffer[table] = kept
            else:
                del self._buffer[table]
        compacts, parts = _list_files(self.folder)
        if compacts or any(highest > step for _, highest, _ in parts):
            self._rewrite_tables(step)

    def compact(self) -> None:
        """Rewrite the journal as one Arrow file per table. Raises DiskFullError, StoreError."""
        if _list_files(self.folder)[1]:
            self._rewrite_tables(None)

    def _rewrite_tables(self, step: int | None) -> None:
        """Write all that the journal holds into one part, and remove the parts before. step: the last one that is kept, None
        for all.

        Raises StoreError where a part cannot be read, which would be lost.
        """
        contents = read_journal(self.folder.parent)
        if contents.problems:
            raise StoreError(f"{contents.problems[0]}; {remedy_for(self.folder.parent)}")

        def fill(temporary: Path) -> None:
            """Write the tables into a folder that takes its place when it is whole."""
            temporary.mkdir()
            for table, data in contents.tables.items():
                kept = data if step is None else up_to(table, data, step)
                if kept.num_rows:
                    write_columns(temporary, table, kept)
            flush_to_disk(temporary)

        replace_atomic(self.folder / f"compact-{self._next_part():06d}", fill)
        self._remove_leftovers()

    def _next_part(self) -> int:
        compacts, parts = _list_files(self.folder)
        return max([0, *(number for number, *_ in compacts), *(number for number, *_ in parts)]) + 1

    def _remove_leftovers(self) -> None:
        """Remove parts that a newer compact part has replaced, and files of an interrupted writer. Others' files stay."""
        with about_to_change(self.folder):
            compacts, parts = _list_files(self.folder)
            keep = {path for *_, path in (*compacts[-1:], *parts)}
            for path in self.folder.iterdir():
                if path not in keep and (_NAME.fullmatch(path.name) or path.name.endswith(TEMPORARY)):
                    remove_path(path)


def _list_files(folder: Path) -> tuple[list[tuple[int, Path]], list[tuple[int, int, Path]]]:
    """Return the compact parts, oldest first, and the parts that are newer than the last of them.

    A compact part is its number and path; another one has also the highest step in it.
    """
    compacts: list[tuple[int, Path]] = []
    parts: list[tuple[int, int, Path]] = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = _NAME.fullmatch(name)
        if match:
            path = folder / name
            number, highest, compact = match.groups()
            if compact is not None:
                compacts.append((int(compact), path))
            else:
                parts.append((int(number), int(highest), path))
    compacts.sort()
    floor = compacts[-1][0] if compacts else 0
    return compacts, sorted(part for part in parts if part[0] > floor)


def read_journal(folder: Path, attempts: int = 5) -> Contents:
    """Return a cell's journal, also while its writer goes on. Unreadable files are named in `problems`."""
    for _ in range(attempts):
        try:
            return _read_once(folder / "journal")
        except FileNotFoundError:  # compacted or rewound between listing and reading
            continue
        except OSError as error:
            raise StoreError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    raise StoreError(f"{folder}: the journal changes too fast to be read")


def _read_once(folder: Path) -> Contents:
    """Read the last compact part and the parts behind it. A part that cannot be read is named, and the others are read."""
    compacts, parts = _list_files(folder)
    blocks: dict[str, list[pa.Table]] = {}
    problems: list[str] = []
    for _, path in compacts[-1:]:
        for name in sorted(os.listdir(path)):
            try:
                table, data = read_columns(path / name)
            except StoreError as error:
                problems.append(str(error))
            else:
                blocks.setdefault(table, []).append(data)
    rows: dict[str, list[Row]] = {}
    for *_, path in parts:
        try:
            for table, part in read_part(path).items():
                rows.setdefault(table, []).extend(part)
        except StoreError as error:
            problems.append(str(error))
    for table, collected in rows.items():
        try:
            blocks.setdefault(table, []).append(to_arrow(table, collected))
        except (pa.ArrowException, ValueError, OverflowError) as error:
            problems.append(f"{folder}: {table}: {str(error).splitlines()[0]}")
    return Contents({table: pa.concat_tables(blocks[table]) for table in TABLES if blocks.get(table)}, problems)


def write_columns(folder: Path, table: str, data: pa.Table) -> None:
    """Write one table of a compact folder to the disk."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_file(sink, data.schema, options=options) as writer:
        writer.write_table(data.combine_chunks())
    content = sink.getvalue()
    path = folder / f"{table}-{zlib.crc32(content):08x}.arrow"
    path.write_bytes(content)
    flush_to_disk(path)


def read_columns(path: Path) -> tuple[str, pa.Table]:
    """Name and rows of one table of a compact folder. Raises StoreError where it is torn or altered, FileNotFoundError."""
    match = _COLUMNS.fullmatch(path.name)
    if match is None or match[1] not in TABLES:
        raise StoreError(f"{path}: not a table of a journal")
    content = _read_content(path)
    if zlib.crc32(content) != int(match[2], 16):
        raise StoreError(f"{path}: torn or altered (checksum)")
    try:
        options = pa.ipc.IpcReadOptions(use_threads=False)
        data = pa.ipc.open_file(pa.py_buffer(content), options=options).read_all()
        data.validate(full=True)  # offsets of others are not believed
        return match[1], conform_table(match[1], data)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise StoreError(f"{path}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def _read_content(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def read_part(path: Path) -> dict[str, Sequence[Row]]:
    """Return the rows of one part by table. Raises StoreError where it is torn or altered, FileNotFoundError."""
    data = _read_content(path)
    payload = data[8:]
    if data[:4] != _MAGIC or zlib.crc32(payload).to_bytes(4, "little") != data[4:8]:
        raise StoreError(f"{path}: torn or altered (checksum)")
    try:
        tables = _raw_decoder.decode(payload)
        return {name: _decoders[name].decode(tables[name]) for name in TABLES if name in tables}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: not a journal part: {error}") from error
