"""A cell's manifest: what it is, its state and origin; suites' files.

results/<suite>/suite.json                the resolved suite
results/<suite>/altered-<hash>.json       the same for a run with `--set`
results/<suite>/<cell key>/manifest.json  this struct
results/<suite>/<cell key>/journal/       `harness.store.journal`
results/<suite>/base-<hash>/              the same for an evaluated base checkpoint (kind `base`, one policy)
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from harness.errors import Fault, StoreError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.suite.cells import Identity

Struct = TypeVar("Struct", bound=msgspec.Struct)
MAX_BYTES = 4 << 20
MANIFEST = "manifest.json"
EVALUATIONS = "evaluations"
# Of reference results, and behind their suites' names
ORIGIN = "reference"
# Where a wheel has them. In a checkout it is a link to its results/, whose reference results count there alone.
PACKAGED = Path(__file__).with_name(ORIGIN)
MARK = f"@{ORIGIN}"
State = Literal["pending", "running", "cut off", "done", "failed"]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class PolicyEntry(msgspec.Struct, frozen=True):
    """start: digest of the weights that it started from (`session.policy.weights_digest`); empty where it was not noted. date:
    the day that its chat template writes, frozen at the start; empty where it writes none."""

    name: str
    model: str
    revision: str = ""
    precision: str = ""
    start: str = ""
    date: str = ""


class CarriedPrice(msgspec.Struct, frozen=True):
    """What a policy's own greedy answers cost it before the first step, carried as a peer's. nats: mean over the `compared`
    ones. noncanonical: left out, since the policy's ids are not those that its tokenizer makes of the text. why: of the price,
    or empty."""

    answers: Count
    finished: Count
    compared: Count
    noncanonical: Count
    nats: float
    why: str = ""


class StatedClaims(msgspec.Struct, frozen=True):
    """What was claimed of a suite before a cell began. digest: of the claims; empty where there were none. since: when the
    suite's file first had them, ISO 8601, UTC."""

    digest: str = ""
    since: str = ""


class StatedPool(msgspec.Struct, frozen=True):
    """Training data. overlaps: prompts left out because an evaluation set repeats them."""

    name: str
    prompts: Count
    digest: str
    overlaps: dict[str, Count] = {}
    ambiguous: Count = 0
    below_level: Count = 0

    def describe(self) -> str:
        by_set = ", ".join(f"{count} of {name}" for name, count in sorted(self.overlaps.items())) or "none"
        return (
            f"{self.name}: {self.prompts} training prompts; dropped: overlaps {by_set}, "
            f"{self.ambiguous} with several boxed answers, {self.below_level} below the level"
        )


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ISO 8601, UTC."""

    code_version: str = ""
    commit: str = ""
    dirty: bool = False
    packages: dict[str, str] = {}
    machine: dict[str, str] = {}
    environment: dict[str, str] = {}
    python: str = ""
    started: str = ""
    finished: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, or an evaluated base checkpoint (kind `base`; its `seed` is None unless each seed has its own). regime:
    the variant's name; regime_type: the registered regime. origin: a label after an import. identity: what the key
    holds besides `config`. pool: None for micro. carried: by policy, where answers travel. claims: at its first start."""

    suite: str
    key: str
    group: str
    kind: Literal["cell", "base"] = "cell"
    regime: str = ""
    regime_type: str = ""
    seed: Count | None = None
    budget: str = "1x"
    options: dict[str, Any] = {}
    engine: str = ""
    baseline: str = "independent"
    policies: tuple[PolicyEntry, ...] = ()
    config: dict[str, Any] = {}
    state: State = "pending"
    reason: str = ""
    fault: Fault | None = None
    attempts: Count = 0
    provenance: Provenance = Provenance()
    origin: str = ""
    identity: Identity = Identity()
    pool: StatedPool | None = None
    carried: dict[str, CarriedPrice] = {}
    claims: StatedClaims = StatedClaims()


class VariantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A variant as a suite's file names it. budget: rollouts as a multiple of the suite's."""

    name: str
    regime_type: str
    budget: str = "1x"
    options: dict[str, Any] = {}


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True):
    """`suite.json`. cells, bases: the keys that belong to it now (empty: all count). altered: settings other than in
    the suite as written."""

    name: str
    title: str = ""
    baseline: str = "independent"
    engine: str = ""
    variants: tuple[VariantEntry, ...] = ()
    groups: tuple[str, ...] = ()
    seeds: tuple[Count, ...] = ()
    cells: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    claims: StatedClaims = StatedClaims()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace `folder`'s manifest. Raises DiskFullError, StoreError."""
    write_atomic(folder / MANIFEST, seal_as_json(manifest))


def read_manifest(folder: Path | str) -> Manifest:
    """Read a cell's manifest. Unknown keys are ignored, and absent ones have their defaults. Raises StoreError."""
    return read_sealed(f"{folder}/{MANIFEST}", Manifest)


def read_manifests(folders: Iterable[Path]) -> Iterator[tuple[Path, Manifest]]:
    for folder in folders:
        with suppress(StoreError):
            yield folder, read_manifest(folder)


def suite_folder(results: Path, suite: str) -> Path:
    """Return where a suite's results lie. Reference results are looked for in the results folder, then in an installed wheel."""
    if not suite.endswith(MARK):
        return results / suite
    name = suite.removesuffix(MARK)
    own = results / ORIGIN / name
    packaged = PACKAGED / name
    return packaged if not own.is_dir() and is_installed() and packaged.is_dir() else own


def is_installed() -> bool:
    """Return whether the package was installed with reference results of its own, outside a checkout."""
    return PACKAGED.is_dir() and not PACKAGED.is_symlink()


def remedy_for(path: Path, removed: bool = True) -> str:
    """Return what mends a damaged cell's folder or suite's file. removed: whether it must go first."""
    first = f"remove {path} and " if removed else ""
    suite = path.parent
    if suite.name == EVALUATIONS:
        return f"{first}evaluate its checkpoint again"
    return f"remove {suite} and import it again" if "@" in suite.name else f"{first}run the suite again"


def write_suite(folder: Path, suite: SuiteFile) -> None:
    """Replace the suite's file, or the altered run's. Raises DiskFullError, StoreError."""
    write_atomic(folder / suite_file_name(suite), seal_as_json(suite))


def suite_file_name(suite: SuiteFile) -> str:
    """Return the file name of a suite's description: `suite.json`, or one for altered settings. The same settings have the
    same file."""
    if not suite.altered:
        return "suite.json"
    return (
        f"altered-{hashlib.blake2b(msgspec.json.encode(suite.config, order='sorted'), digest_size=6).hexdigest()}.json"
    )


def suite_files(folder: Path) -> list[Path]:
    """List the files that describe a suite's runs: `suite.json` if there is one, then altered runs, the newest first."""
    written = folder / "suite.json"
    altered = folder.glob("altered-*.json")
    newest = sorted(altered, key=lambda file: (-file.stat().st_mtime_ns, file.name))
    return [*([written] if written.exists() else []), *newest]


def read_suite(folder: Path, file: Path | None = None) -> SuiteFile:
    """Return the suite as written, else its newest altered run; or `file`. Raises StoreError."""
    return read_sealed(file or next(iter(suite_files(folder)), folder / "suite.json"), SuiteFile)


def seal_as_json(value: msgspec.Struct) -> bytes:
    """Write a value as JSON with a checksum in front."""
    plain = msgspec.json.encode(value)
    return msgspec.json.format(b'{"checksum":"%08x",' % zlib.crc32(plain) + plain[1:], indent=1) + b"\n"


def read_sealed(path: Path | str, kind: type[Struct], longest: int = MAX_BYTES) -> Struct:
    """Also an older file without a checksum. Raises StoreError."""
    try:
        data = read_bytes(path, longest)
        content = msgspec.json.decode(data, type=kind)
        plain = msgspec.json.decode(data)
        said = plain.pop("checksum", None)
        if said is not None and said != f"{zlib.crc32(msgspec.json.encode(plain)):08x}":
            raise StoreError(f"{path}: altered (its checksum is not that of its content)")
        return content
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        words = re.sub("(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
        raise StoreError(f"{path}: not a {words}: {error}") from error


SUBMISSION = "submission.json"
# Trained again here and compared; every answer judged again here; neither; `store.reference_results`
Badge = Literal["re-executed", "re-scored", "as reported", "reference"]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """How far another lab's results may be believed. category: whose settings the regimes have. re_executed: labels of
    cells that were trained again."""

    badge: Badge = "as reported"
    category: str = ""
    bundle: str = ""
    re_executed: tuple[str, ...] = ()

    def describe(self) -> str:
        cells = f" ({', '.join(self.re_executed)})" if self.re_executed else ""
        return f"{self.badge}{cells}; {self.category or 'settings unknown'}"


def write_submission(folder: Path, submission: Submission) -> None:
    """Into results/<suite>@<origin>. Raises DiskFullError, StoreError."""
    write_atomic(folder / SUBMISSION, msgspec.json.format(msgspec.json.encode(submission), indent=1) + b"\n")


def read_submission(folder: Path) -> Submission | None:
    """Read what is known of a checked bundle; None for our own results. Raises StoreError."""
    path = folder / SUBMISSION
    return read_sealed(path, Submission) if path.exists() else None
