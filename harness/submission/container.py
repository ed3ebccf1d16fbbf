"""A bundle's file: a zip whose members are stored, not compressed, so that nothing in it can unpack to more than the file is.

    bundle.json     what it is, and the SHA-256 of every other member
    scores.json     the accuracies and the table that its samples give
    <suite>/...     a suite's results folder (`store.manifest`), cut to what tables need

Members stand in order of name with one date, so equal results are equal bytes. The name is `<suite>-<digest>.zip`, the digest
the first 16 digits of bundle.json's SHA-256: it names the whole content.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from harness.errors import UsageError
from harness.reading import in_words, open_regular, read_bytes

MAX_BYTES = 64 << 20
"""Of a bundle; what it unpacks to is never more."""
MAX_MEMBERS = 20_000
MAX_DIRECTORY = 4 << 20
"""Of the list of members, which is read into memory as a whole."""
ABOUT, SCORES = "bundle.json", "scores.json"
FORMAT = 1
_DATE = (1980, 1, 1, 0, 0, 0)
_END = struct.Struct("<4s4H2LH")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"
_MEMBER = re.compile(
    rf"{ABOUT}|{SCORES}|{_NAME}/(suite\.json|tuning\.json|{_NAME}/(manifest\.json|journal/compact-000001/[a-z]+-[0-9a-f]{{8}}\.arrow))"
)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """bundle.json. files: SHA-256 by member. processor: of the machine on which the bundle was made."""

    format: int
    suite: str
    harness: str
    processor: str = ""
    files: dict[str, str]


class BundleError(UsageError):
    """A bundle is refused. check: the word for what it failed, e.g. `container`; path: the place of the fault."""

    def __init__(self, check: str, path: object, problem: str) -> None:
        self.check, self.path, self.problem = check, str(path), problem
        super().__init__(f"{path}: {problem}")


def pack(suite: str, files: Mapping[str, bytes], harness: str, processor: str) -> tuple[str, bytes]:
    """Name and bytes of the bundle of these members. Raises UsageError where it would be too large to be taken."""
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    about = About(format=FORMAT, suite=suite, harness=harness, processor=processor, files=digests)
    head = msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as file:
        for name in [ABOUT, *sorted(files)]:
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system, member.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            file.writestr(member, head if name == ABOUT else files[name])
    if len(files) >= MAX_MEMBERS or sink.tell() > MAX_BYTES:
        size = f"{len(files):,} files, {sink.tell():,} bytes"
        raise UsageError(f"{suite}: too large for a bundle ({size}; at most {MAX_MEMBERS:,} and {MAX_BYTES:,})")
    return bundle_name(suite, head), sink.getvalue()


def bundle_name(suite: str, about: bytes) -> str:
    """From a bundle's bundle.json."""
    return f"{suite}-{hashlib.sha256(about).hexdigest()[:16]}.zip"


def unpack(bundle: Path, folder: Path) -> tuple[About, str]:
    """Write the members into `folder`, which is empty; gives what bundle.json says, and the name that the content has.

    Sizes, kinds and names are judged before anything is written, digests before anybody reads it.
    Raises BundleError, DiskFullError.
    """
    data = _read(bundle)
    with _opened(bundle, data) as file:
        members = _checked_members(bundle, file, len(data))
        contents = {name: _content(bundle, file, member) for name, member in members.items()}
    about = _about(bundle, contents)
    for name, content in contents.items():
        target = folder / PurePosixPath(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return about, bundle_name(about.suite, contents[ABOUT])


def _read(bundle: Path) -> bytes:
    try:
        with open_regular(bundle) as file:
            size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise BundleError("container", bundle, f"{size:,} bytes; a bundle has at most {MAX_BYTES:,}")
        return read_bytes(bundle, MAX_BYTES)
    except OSError as error:
        raise BundleError("container", bundle, f"cannot be read: {in_words(error)}") from None


def _opened(bundle: Path, data: bytes) -> zipfile.ZipFile:
    """The zip, once its list of members is known to be small: `zipfile` reads whatever length the end of the file states."""
    if len(data) < _END.size or data[-_END.size : -_END.size + 4] != b"PK\5\6":
        raise BundleError("container", bundle, "not a bundle (no zip, or something behind its end)")
    _, *_, count, size, _, _ = _END.unpack(data[-_END.size :])
    if count > MAX_MEMBERS or size > MAX_DIRECTORY or b"PK\6\7" in data[-_END.size - 20 : -_END.size]:
        problem = f"its list of members is too long ({count:,} members, {size:,} bytes)"
        raise BundleError("container", bundle, problem)
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise BundleError("container", bundle, f"not a zip: {error}") from None


def _checked_members(bundle: Path, file: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for member in file.infolist():
        name = member.orig_filename
        place = f"{bundle}: {name[:200]!a}"
        kind = stat.S_IFMT(member.external_attr >> 16)
        total += member.compress_size
        if kind not in (0, stat.S_IFREG):
            raise BundleError("container", place, "a link" if kind == stat.S_IFLNK else "not a regular file")
        if not _MEMBER.fullmatch(name):
            raise BundleError("container", place, "not a path that a bundle has")
        if name in found:
            raise BundleError("container", place, "stands twice")
        if member.file_size > MAX_BYTES or total > size:
            raise BundleError("container", place, f"states {member.file_size:,} bytes; the whole file has {size:,}")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise BundleError("container", place, "compressed; members of a bundle are stored as they are")
        if member.flag_bits & 1:
            raise BundleError("container", place, "encrypted")
        found[name] = member
    return found


def _content(bundle: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        return file.read(member)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, struct.error, RuntimeError) as error:
        raise BundleError("container", f"{bundle}: {member.filename}", f"damaged: {error}") from None


def _about(bundle: Path, contents: Mapping[str, bytes]) -> About:
    try:
        about = msgspec.json.decode(contents.get(ABOUT, b""), type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError("container", f"{bundle}: {ABOUT}", f"absent or not what it should be: {error}") from None
    if about.format != FORMAT:
        raise BundleError("container", f"{bundle}: {ABOUT}", f"format {about.format}; this version reads {FORMAT}")
    if not re.fullmatch(_NAME, about.suite):
        raise BundleError("container", f"{bundle}: {ABOUT}: suite", f"not a suite's name: {about.suite[:80]!a}")
    for name in sorted((contents.keys() - {ABOUT}) ^ about.files.keys()):
        raise BundleError("container", f"{bundle}: {name}", "absent" if name in about.files else "not in bundle.json")
    for name, digest in about.files.items():
        if name not in (SCORES,) and name.split("/")[0] != about.suite:
            raise BundleError("container", f"{bundle}: {name}", f"not of the suite {about.suite}")
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise BundleError("container", f"{bundle}: {name}", "altered (its SHA-256 is not the one in bundle.json)")
    return about
