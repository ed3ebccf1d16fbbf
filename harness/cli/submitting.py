"""Commands for machines that others share: submit."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import RESULTS, DataDir, Engine, Only, Results, Set, SuiteName
from harness.errors import UsageError


def submit(
    suite: SuiteName,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="To SLURM, by sbatch; there is no other scheduler yet.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; write and submit nothing.")] = False,
    template: Annotated[
        Path | None, typer.Option("--template", metavar="FILE", help="A batch script of your own (docs/clusters.md).")
    ] = None,
    partition: Annotated[str, typer.Option("--partition", help="SLURM's partitions.")] = "",
    account: Annotated[str, typer.Option("--account", help="Who pays.")] = "",
    time: Annotated[str, typer.Option("--time", help="Limit of one start, e.g. 12:00:00; it is requeued then.")] = "",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=10_000, help="Of a suite on the OpenRLHF engine.")] = 1,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, max=1024, help="GPUs of each node.")] = None,
    cpus: Annotated[int | None, typer.Option("--cpus", min=1, max=4096, help="Cores of each node or part.")] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, max=1000, help="Parts of a suite on the embedded engine; default 10 at most."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="Another option of sbatch: --sbatch=--qos=high"),
    ] = None,
    engine: Engine = None,
    results: Results = RESULTS,
    only: Only = None,
    set_: Set = None,
    data_dir: DataDir = None,
) -> None:
    """Write a suite's batch script and submit it; the job goes on by itself until the suite is done."""
    from harness.clusters import slurm as jobs
    from harness.session.suite.preflight import preflight
    from harness.session.suite.prepare import prepare

    if not slurm:
        raise UsageError("submit: say where to: --slurm")
    prepared = prepare(suite, results, overrides=set_ or (), engine=engine, only=only, online=True)
    if prepared.suite.tune is not None:
        if only or (shards or 1) > 1:
            raise UsageError("submit: a suite with `tune` is run whole: neither --only nor --shards")
        shards = 1
    asked = jobs.SlurmOptions(partition, account, time, nodes, gpus, cpus, shards, tuple(sbatch or ()))
    for remark in preflight(prepared, run=False):
        print(f"note: {remark}", file=sys.stderr)
    options = ["--only", only] if only else []
    options += ["--engine", engine] if engine else []
    options += ["--data-dir", str(data_dir.resolve())] if data_dir else []
    text = jobs.read_template(template, prepared.suite.engine)
    job = jobs.job(prepared, results, options, set_ or (), asked, text)
    if dry_run:
        sys.stdout.write(job.script)
        print(f"not submitted; this would be {job.file}", file=sys.stderr)
        return
    job.write()
    print(job.submit())
    follow = shlex.join(["harness", "status", prepared.suite.name, "--results", str(results)])
    print(f"{job.file}: logs beside it; `{follow}`", file=sys.stderr)
