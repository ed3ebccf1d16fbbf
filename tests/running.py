"""Cells and commands run by tests, in this process and in others, and what they leave behind, comparable."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file

from harness.cli import main
from harness.session.cell.manifests import suite_file
from harness.session.driver.jobs import job_of, run_job
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import write_suite
from harness.store.read import Snapshot
from harness.store.rows import SCHEMAS
from harness.suite.cells import Cell
from harness.verification.verifier import Verifier

SECRETS = {
    "HF_TOKEN": "hf_zZ9secretQ1", "AWS_SECRET_ACCESS_KEY": "aws+zZ9secretQ2", "WANDB_API_KEY": "zZ9secretQ3",
    "PASSWORD": "zZ9secretQ4", "DATABASE_URL": "postgres://me:zZ9secretQ5@db",
    "HARNESS_OWN_TOKEN": "zZ9secretQ6", "OMP_DISPLAY_SECRET": "zZ9secretQ7",
}  # fmt: skip
"""In the environment of the lab's run."""
SLOWEST = 0.14
"""CPU-seconds of `within`'s loop on an EPYC 7003 at rest."""
Run = tuple[int, str, str]
"""Exit code, stdout, stderr."""


def start(*arguments: object, env: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from harness.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )  # type: ignore[call-overload]


def harness(*arguments: object, env: Mapping[str, str] | None = None, timeout: float = 240) -> Run:
    """env: what is to be set for it; a process of its own sees packages that are installed there."""
    if env is None and arguments[0] != "run":
        return here(*arguments)
    process = start(*arguments, env=env)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def here(*arguments: object) -> Run:
    before, out, err = signal.getsignal(signal.SIGTERM), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
    signal.signal(signal.SIGTERM, before)
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def ok(*arguments: object) -> str:
    """What a command that succeeds prints."""
    code, out, err = harness(*arguments)
    assert code == 0, err
    return out


@contextmanager
def ingested(results: Path) -> Iterator[Snapshot]:
    """The store, brought up to date."""
    ingest_journals(results)
    with Snapshot(results) as snapshot:
        yield snapshot


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = 180) -> None:
    """Fails when the process ends or the time is over before `holds` does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, process and process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def within(spent: float, seconds: float) -> bool:
    """CPU-seconds against a bound that holds on the slowest processor seen so far; one that is slower yet has more."""
    if spent < seconds:
        return True
    began, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number * number % 7
    return spent < seconds * (time.process_time() - began) / SLOWEST


def installed(folder: Path, package: str, source: str, regimes: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a package of one module with these regimes, classes by name, is installed in `folder`."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {package}:{kind}\n" for name, kind in regimes.items())
    (info / "entry_points.txt").write_text(f"[harness.regimes]\n{lines}")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


def said(results: Path, words: str) -> list[Path]:
    """The logs of cells and bases that hold these words."""
    return [log for log in results.glob("*/*/log") if words in log.read_text(errors="replace")]


def arrow_bomb(samples: Path) -> None:
    """In the place of a table of samples one of some hundred KB, with its checksum, that unpacks to 4 GB."""
    rows = 1 << 18
    zeros = pa.array(np.zeros(rows, np.int64))
    columns = [zeros if f.name in ("checkpoint_step", "repeat") else pa.nulls(rows, f.type) for f in SCHEMAS["samples"]]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["samples"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(200):
            writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    samples.with_name(f"samples-{zlib.crc32(content):08x}.arrow").write_bytes(content)
    samples.unlink()


TIMES = {"generate_seconds", "verify_seconds", "exchange_seconds", "score_seconds", "train_seconds"}


def run(
    file: Path, results: Path, overrides: Sequence[str] = (), only: str | None = None, stop_after: int | None = None
) -> Prepared:
    """Every cell of the suite, one after another; `stop_after` steps each asks to stop."""
    prepared = prepare_named(str(file), results, overrides=overrides, only=[only] if only else ())
    write_suite(prepared.folder, suite_file(prepared.suite, list(prepared.cells)))
    verifier = Verifier(workers=1)
    try:
        for cell in prepared.cells:
            steps = [0]

            def observe(done: float, total: float, words: str, steps: list[int] = steps) -> None:
                steps[0] = int(done)

            stopped: Callable[[], bool] = lambda steps=steps: stop_after is not None and steps[0] + 1 >= stop_after  # noqa: E731
            run_job(job_of(cell, prepared.folder / cell.key), verifier, observe, stopped)
    finally:
        verifier.close()
    return prepared


def rows(prepared: Prepared, cell: Cell, table: str) -> list[dict[str, Any]]:
    """A journal table as plain rows, times left out, NaN as None."""
    data = read_journal(prepared.folder / cell.key).tables.get(table)
    records = data.to_pylist() if data is not None else []
    return [{k: None if v != v else v for k, v in row.items() if k not in TIMES} for row in records]


def cell(prepared: Prepared, regime: str) -> Cell:
    return next(c for c in prepared.cells if c.variant.name == regime)


TABLES = ("steps", "terms", "exchanges", "curves", "samples")


def weights(prepared: Prepared, regime: str, policies: str = "ab") -> dict[str, bytes]:
    """The last ones of a finished cell, by policy and name."""
    folder = prepared.folder / cell(prepared, regime).key / "checkpoint"
    return {f"{p}.{k}": v.tobytes() for p in policies for k, v in load_file(folder / p / "model.safetensors").items()}


def with_condition(suite_file: Path, condition: str) -> Path:
    """Its policy b is a bad peer."""
    suite_file.write_text(suite_file.read_text().replace("{name: b,", f"{{name: b, condition: {condition},"))
    return suite_file


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches SIGKILL."""
