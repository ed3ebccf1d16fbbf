"""A suite as a SLURM job: a batch script from a template, and the resolved suite beside it. @WORDS@ in a template are replaced,
quoted for the shell."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

from harness.engines.catalogue import backend_of
from harness.errors import HarnessError, SuiteError, UsageError
from harness.files import disk_errors, write_atomic
from harness.reading import in_words, read_text
from harness.session.policy import pin_commits
from harness.session.suite.files import with_files
from harness.session.suite.prepare import prepare_suite
from harness.session.suite.prepared import Prepared
from harness.session.suite.shards import paired_blocks
from harness.suite.load import load_suite, parse_suite, parse_yaml

# The signal to save comes so long before the time limit. SLURM may send it earlier, the rest is for the checkpoint
SIGNAL_SECONDS = 180
EARLY_SECONDS = 60
SUBMIT_SECONDS = 60.0
MOST_SHARDS = 10
WORDS = ("DIRECTIVES", "FOLDER", "PYTHON", "RUN", "SHARDS", "DOCTOR")
_WORD = re.compile(r"@([A-Z]+)@")
# What an option may be, and how a message says so
_FORMS = {
    "partition": (r"[\w.,-]{1,200}", "names, separated by commas"),
    "account": (r"[\w.@-]{1,200}", "a name"),
    "time": (r"\d{1,6}|\d{1,6}:\d\d(:\d\d)?|\d{1,4}-\d{1,2}(:\d\d){0,2}", "e.g. 90 (minutes), 12:00:00 or 2-00"),
}

_OPTION = (r"--?[a-zA-Z].*", "one option of sbatch, e.g. --sbatch=--qos=high")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What a job asks of SLURM; None and empty leave it to the cluster. time: the limit, in a form of sbatch. gpus, cpus: of each
    node. shards: jobs among which the cells are divided. others: further options of sbatch."""

    partition: str = ""
    account: str = ""
    time: str = ""
    nodes: int = 1
    gpus: int | None = None
    cpus: int | None = None
    shards: int | None = None
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [(f"--{name}", getattr(self, name), *form) for name, form in _FORMS.items() if getattr(self, name)]
        given += [("--sbatch", other, *_OPTION) for other in self.others]
        for option, value, form, words in given:
            if not value.isprintable() or not re.fullmatch(form, value, re.ASCII):
                raise UsageError(f"{option} {value[:80]!r}: expected {words}")
        if 0 < _seconds_of_limit(self.time) <= SIGNAL_SECONDS + EARLY_SECONDS:
            raise UsageError(
                f"--time {self.time}: the signal to save, {SIGNAL_SECONDS} s before the end, leaves no time"
            )


def _seconds_of_limit(limit: str) -> int:
    """Read a time limit of sbatch, such as 90 (minutes), 12:00:00 or 2-00, in seconds; 0 where there is none."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(part or 0) for part in rest.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(n * unit for n, unit in zip(parts, units, strict=False))


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A batch script and the suite that it runs, which lie in one folder. script, suite: their texts."""

    folder: Path
    script: str
    suite: str

    @property
    def file(self) -> Path:
        return self.folder / "job.sh"

    def write(self) -> None:
        """Write script and suite. Raises DiskFullError, StoreError."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / "suite.yaml", self.suite.encode())
        write_atomic(self.file, self.script.encode())
        self.file.chmod(0o755)

    def submit(self) -> str:
        """Hand the written script to SLURM; return what sbatch says. Raises UsageError without sbatch, HarnessError where it
        refuses or does not answer."""
        if shutil.which("sbatch") is None:
            raise UsageError("sbatch is not on this machine; `--dry-run` prints the script")
        try:
            done = subprocess.run(
                ["sbatch", str(self.file)], capture_output=True, text=True, timeout=SUBMIT_SECONDS, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"sbatch did not answer within {SUBMIT_SECONDS:g} s; the script is {self.file}"
            ) from None
        if done.returncode:
            raise HarnessError(f"sbatch refused {self.file}: {' '.join(done.stderr.split())[:300]}")
        return done.stdout.strip()


def make_job(
    prepared: Prepared,
    results: Path,
    options: Sequence[str],
    overrides: Sequence[str],
    slurm: SlurmOptions,
    template: str,
) -> SlurmJob:
    """Write a suite's batch script, with a copy of the suite beside it; nothing is submitted.

    options: further ones of `harness run`. overrides: the suite's --set, apart, so that its cells keep their keys. template: the
    script with words for what differs. Raises UsageError."""
    suite = prepared.suite
    name = prepared.suite.name
    parts = 0  # a cluster's engine places its cells itself
    if not backend_of(suite.engine).clustered:
        parts = min(slurm.shards or MOST_SHARDS, len(paired_blocks(prepared.cells)))
    text = _copy_suite(prepared)
    sets: list[str] = []
    for override in overrides:
        sets += ["--set", override]
    results = results.resolve()
    content = repr((text, options, sets, slurm, template, str(Path.cwd())))
    digest = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    folder = results / name / "slurm" / digest
    fault = _changed_by_copy(prepared, text, overrides, folder / "suite.yaml") if overrides else ""
    if fault:
        raise UsageError(
            f"--set: not the same in the job's copy of the suite ({fault}): write it into the suite's file"
        )
    harness = [sys.executable, "-m", "harness"]
    source_folder = Path(prepared.source).resolve().parent
    beside = ["--models", str(source_folder)]  # what the suite may name stays so
    run = [*harness, "run", str(folder / "suite.yaml"), "--results", str(results), *beside, *options, *sets]
    values = {
        "DIRECTIVES": "\n".join(_write_directives(name, folder, slurm, parts)),
        "FOLDER": shlex.quote(str(Path.cwd())),
        "PYTHON": shlex.quote(sys.executable),
        "RUN": shlex.join(run),
        "SHARDS": str(parts),
        "DOCTOR": shlex.join([*harness, "doctor", "--results", str(results)]),
    }
    return SlurmJob(folder, _fill_words(template, values), text)


def _copy_suite(prepared: Prepared) -> str:
    """Write the copy of a suite that its job runs, with the digests of its files and the commits of its models."""
    suite = prepared.suite
    with suppress(SuiteError):  # without --set, where it is valid without
        suite = pin_commits(with_files(load_suite(prepared.source), prepared.source), online=True)
    plain = suite.model_dump(mode="json", exclude_unset=True)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _fill_words(template: str, values: Mapping[str, str]) -> str:
    """Replace the words of a template by these values. Raises UsageError for a word that is not among them."""
    unknown = sorted(set(_WORD.findall(template)) - values.keys())
    if unknown:
        known = ", ".join(f"@{word}@" for word in WORDS)
        raise UsageError(f"template: unknown word @{unknown[0]}@; there are {known}")
    return _WORD.sub(lambda word: values[word[1]], template)


def _changed_by_copy(prepared: Prepared, text: str, overrides: Sequence[str], file: Path) -> str:
    """Say how the cells of a suite's copy, with the same overrides, would differ from the suite's own; empty where they do not.

    A job's cells must have the keys of the suite's. text: the copy. file: where it is to lie."""
    try:
        suite = parse_suite(parse_yaml(text, str(file)), [*overrides, f"engine={prepared.suite.engine}"], str(file))
        cells = prepare_suite(suite, str(file), prepared.folder.parent).all_cells
    except UsageError as error:
        return str(error)
    if [c.key for c in cells] != [c.key for c in prepared.all_cells]:
        return "other cells"
    return ""


def read_template(file: Path | None, engine: str) -> str:
    """Read the user's own template, or the one that is shipped for engines of this kind. Raises UsageError."""
    if file is None:
        kind = "openrlhf" if backend_of(engine).clustered else "embedded"
        return (resources.files("harness.clusters") / f"{kind}.sh").read_text("utf-8")
    try:
        text = read_text(file, 1 << 20)
    except OSError as error:
        raise UsageError(f"{file}: not a template that can be read: {in_words(error)}") from None
    if not text.startswith("#!"):
        raise UsageError(f"{file}: a batch script begins with #! and its shell")
    return text


def _write_directives(name: str, folder: Path, slurm: SlurmOptions, shards: int) -> list[str]:
    """Write the lines of a script that SLURM reads. name: of the job. shards: jobs of an array; 0 for a single job. Raises
    UsageError for a path that would end a line."""
    logs = str(folder).replace("%", "%%")
    asked = [
        f"--job-name={name}",
        f"--output={logs}/{'%A_%a' if shards else '%j'}.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{SIGNAL_SECONDS}",
        f"--nodes={1 if shards else slurm.nodes}",
        "--ntasks-per-node=1",
    ]
    more = {
        "array": shards and f"1-{shards}", "cpus-per-task": slurm.cpus, "gpus-per-node": slurm.gpus,
        "partition": slurm.partition, "account": slurm.account, "time": slurm.time,
    }  # fmt: skip
    asked += [f"--{option}={value}" for option, value in more.items() if value]
    if any(not one.isprintable() for one in asked):
        raise UsageError(f"{folder}: a path for SLURM has no line breaks or control characters")
    return [f"#SBATCH {shlex.quote(one)}" for one in [*asked, *slurm.others]]
