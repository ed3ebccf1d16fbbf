"""Commands that compute."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import msgspec
import typer

from harness.allocation.plan_text import describe_plan, format_duration
from harness.allocation.planner import Plan
from harness.allocation.shapes import read_config
from harness.cache import expand_user
from harness.cli import refuse
from harness.cli.arguments import (
    RESULTS,
    Address,
    DataDir,
    Engine,
    Json,
    Models,
    Only,
    Results,
    Set,
    SuiteName,
    fold_text,
    print_json,
    print_report,
    print_table,
    results_option,
)
from harness.cli.tables import settings_of, show_snapshot
from harness.clusters import slurm as jobs
from harness.engines.catalogue import backend_of
from harness.errors import EngineError, HarnessError, StoreError, UsageError
from harness.evaluation import Backend
from harness.limits import UNUSED, without_collection
from harness.session.driver.matrix import SILENCE_SECONDS, RunSummary, run_matrix
from harness.session.driver.progress import Reporter, show_phases
from harness.session.suite.disk import check_disk, check_place
from harness.session.suite.identity import unknown_commits
from harness.session.suite.planning import check_feasible, plan_for
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named, prepare_suite
from harness.session.suite.prepared import Prepared
from harness.session.suite.resolved import list_remarks
from harness.session.suite.shards import Shard
from harness.store.database import store_path
from harness.store.diagnosis import summarise_training
from harness.store.expected_power import describe_power, recall_spreads
from harness.store.finished import read_finished
from harness.store.ingest import ingest_journals
from harness.store.manifest import suite_files
from harness.store.read import Snapshot
from harness.store.statistic import PERCENT
from harness.store.table import MEAN
from harness.tasks.registry import get_task, task_of_text
from harness.tuning.derived import check_variants, count_runs, faults_in_tune, foreseen_suites
from harness.tuning.stages import TuningStages

if TYPE_CHECKING:
    from harness.rehearsal.rehearse import Rehearsal

Jobs = Annotated[int | None, typer.Option("--jobs", min=1, max=1024, help="Worker processes; default as many as fit.")]
Silence = Annotated[
    float | None,
    typer.Option(
        "--silence", min=1, envvar="HARNESS_SILENCE", metavar="SECONDS",
        help="Kill a worker that makes no progress for this long; default half an hour.",
    ),
]  # fmt: skip
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Part I of N, of whole groups and seeds; parts may run at the same time, on any machines.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print phases and steps of every cell on stderr.")]
Inventory = Annotated[
    str | None, typer.Option("--inventory", metavar="SPEC", help="Plan for e.g. 8xH100-80G instead of this machine.")
]


def run(
    suite: SuiteName,
    engine: Engine = None,
    results: Results = RESULTS,
    jobs: Jobs = None,
    address: Address = None,
    only: Only = None,
    shard: ShardOf = None,
    set_: Set = None,
    data_dir: DataDir = None,
    models: Models = None,
    silence: Silence = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run what is missing of a suite, resume what was cut off, and print the table."""
    began = time.monotonic()
    part = None if shard is None else Shard.parse(shard)
    prepare_again = partial(
        prepare_named, suite, results, overrides=set_ or (), engine=engine, only=only or (), shard=part
    )
    prepared = prepare_again(online=True).with_states()
    if unknown_commits(prepared.suite) and prepared.cells_to_run():
        _fetch_models(prepared, results)
        prepared = prepare_again().with_states()

    def run_prepared(prepared: Prepared) -> RunSummary:
        """Check, plan and run a suite, or one stage of its tuning."""
        check_place(prepared.folder)
        with show_phases("checking models, tokenizers and data"):
            remarks = check_before_run(prepared, about_to_run=True)
        with show_phases("planning"):
            plan = check_feasible(prepared, jobs, address)
        check_disk(prepared, plan.disk)
        _say_scope(prepared, only, part)
        for remark in [*remarks, *list_remarks(prepared.resolved), *unknown_commits(prepared.suite)]:
            print(f"note: {remark}", file=sys.stderr)
        fresh = len(prepared.cells_to_run()) == len(prepared.cells)
        reporter = Reporter()
        first = FirstComparison(results, prepared.suite.name, began, reporter.message, said=not fresh)
        return run_matrix(prepared, plan, reporter, first.refresh_store, silence or SILENCE_SECONDS, verbose, address)

    outcome = None
    if prepared.suite.tune is not None:
        _refuse_parts(only, part)
        prepared, outcome = _run_tuning(prepared, results, run_prepared)
    if outcome is None and prepared.cells_to_run():
        outcome = run_prepared(prepared)
    elif outcome is None:
        _say_scope(prepared, only, part)
        words = f"all {len(prepared.cells)} cells are done" if prepared.cells else "this part has no cells"
        print(f"{prepared.suite.name}: nothing left to do, {words}.", file=sys.stderr)
    _end_run(outcome, prepared, results, json, time.monotonic() - began)


def _refuse_parts(only: Sequence[str] | None, part: Shard | None) -> None:
    """Refuse to run a part of a suite with `tune`. Raises UsageError, which names the option."""
    if only or (part and part.count > 1):
        option = "--only" if only else "--shard"
        raise UsageError(f"{option}: a suite with `tune` cannot run in parts: each trial depends on all earlier ones")


def _fetch_models(prepared: Prepared, results: Path) -> None:
    """Fetch the models of a suite whose commits the hub did not tell in time: what is fetched tells them."""
    with show_phases("checking models, tokenizers and data"):
        check_before_run(prepared, about_to_run=True)
        if prepared.suite.tune is None:
            return
        trials = foreseen_suites(prepared.suite)[0]
        with faults_in_tune(trials):
            of_trials = prepare_suite(trials, prepared.source, results, prepared.altered)
            check_before_run(of_trials.with_states(), about_to_run=True)


def _run_tuning(
    prepared: Prepared, results: Path, run_prepared: Callable[[Prepared], RunSummary]
) -> tuple[Prepared, RunSummary | None]:
    """Run the trials of a suite with `tune`. Returns the suite of the table and None, or the stage that ended early and how."""
    stages = TuningStages(prepared, results)
    for stage in stages:
        current = stage.prepared.with_states()
        if stage.last:
            return current, None
        if not current.cells_to_run():
            continue
        print(f"{prepared.suite.name}: {stage.words}", file=sys.stderr)
        with faults_in_tune(current.suite):
            outcome = run_prepared(current)
        if outcome.interrupted or outcome.disk or not stages.is_over(stage):
            return current, outcome
        for label, reason in outcome.failed.items():
            print(f"note: {label} failed and is excluded from the choice: {reason}", file=sys.stderr)
    raise AssertionError("tuning has no table")


def _end_run(outcome: RunSummary | None, prepared: Prepared, results: Path, json: bool, seconds: float) -> NoReturn:
    """Print the table at the run's end. outcome: None where nothing was left to do. seconds: that the run took, by the clock."""
    for label, reason in outcome.failed.items() if outcome else ():
        print(f"harness: {label} failed: {reason}", file=sys.stderr)
    if outcome and outcome.disk:
        again = "finished work is intact, run the same command again once there is room"
        refuse(f"the disk is full ({outcome.disk}); {again}", outcome.exit_code)
    if outcome and outcome.interrupted:
        refuse("interrupted; the same command goes on from here", outcome.exit_code)
    in_store = outcome is None and prepared.stored is not None and prepared.stored.in_store
    if outcome is None and prepared.write_suite_file():
        in_store = False
    if not in_store:
        ingest_journals(results)
    if prepared.cells:
        _show_run(prepared, results, json)
        if outcome:
            cells = "1 cell" if outcome.done == 1 else f"{outcome.done} cells"
            print(f"\n{cells} in {format_duration(seconds)}.", file=sys.stderr)
    elif json:
        print_json({"suite": prepared.suite.name, "rows": []})
    raise typer.Exit(outcome.exit_code if outcome else 0)


def _show_run(prepared: Prepared, results: Path, json: bool) -> None:
    """Print the run's table, on stderr how its policies trained, and what to do next."""
    suite = prepared.suite.name
    with Snapshot(results, prepared.suite_file()) as snapshot:
        show_snapshot(snapshot, suite, results, "json" if json else "table", prepared=prepared)
        lines = summarise_training(snapshot, suite)
    if lines:
        head = "\nHealth, over the last quarter of the steps (`harness doctor` says it per cell):"
        print("\n".join([head, *map(fold_text, lines)]), file=sys.stderr)
    if not json:
        here = results_option(results)
        shown = f"{suite}{settings_of(prepared)}{here}"
        print(
            f"\nNext: `harness show {shown} --format markdown`, `harness status {shown}`, "
            f"`harness leaderboard{here}`, or a suite of your own (docs/suites.md).",
            file=sys.stderr,
        )


@dataclass(slots=True)
class FirstComparison:
    """Tells what the first two cells say that can be compared, as the whole table may take hours.

    suite: its name. began: when the command began, by the monotonic clock. tell: prints a line. said: nothing is left to be told.
    """

    results: Path
    suite: str
    began: float
    tell: Callable[[str], None]
    said: bool = False

    def refresh_store(self) -> None:
        """Bring the store up to date after a finished cell. Where that fails, it is tried again after the next cell."""
        try:
            ingest_journals(self.results, deadline=2.0)
            if not self.said:
                self._compare_first_cells()
        except HarnessError as error:
            self.tell(f"harness: the store was not refreshed: {error}")

    def _compare_first_cells(self) -> None:
        """Tell one gain over the baseline, as soon as the store has one."""
        with Snapshot(self.results) as snapshot:
            rows = read_finished(snapshot, self.suite).rows
        compared = [row for row in rows if row.policy == MEAN and row.gain is not None]
        if not compared:
            return
        row = min(compared, key=lambda row: row.metric == "greedy")  # sampled answers, where there are any
        where = f"{row.group}, {row.task}, {row.metric}, seed {row.seed}"
        seconds = format_duration(time.monotonic() - self.began)
        points = 100 * (row.gain or 0)
        self.tell(
            f"first comparison, after {seconds}: {row.regime} {points:+.1f} points over {row.baseline} "
            f"({where}; one seed has no interval)"
        )
        self.said = True


def _say_scope(prepared: Prepared, only: Sequence[str] | None, shard: Shard | None) -> None:
    """Say on stderr how this run differs from the whole suite as it is written."""
    name = prepared.suite.name
    here = len(prepared.cells)
    every = len(prepared.all_cells)
    if prepared.altered:
        settings = " ".join(f"--set {shlex.quote(setting)}" for setting in prepared.altered)
        words = "its cells are stored under their own keys; the suite as written is unchanged"
        print(f"{name}: altered by {settings}: {words}", file=sys.stderr)
    if here < every:
        options = [f"--only {pattern}" for pattern in only or ()]
        if shard:
            options.append(f"--shard {shard}")
        print(f"{name}: a part of the suite: {here} of {every} cells ({' '.join(options)})", file=sys.stderr)


OnSlurm = Annotated[bool, typer.Option("--slurm", help="Submit to SLURM with sbatch, the only scheduler so far.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the script; write and submit nothing.")]
Template = Annotated[
    Path | None, typer.Option("--template", metavar="FILE", help="A batch script of your own (docs/clusters.md).")
]
Partition = Annotated[
    str, typer.Option("--partition", help="Partitions to run in, as SLURM names them, separated by commas.")
]
Account = Annotated[str, typer.Option("--account", help="Account to charge, as SLURM names it.")]
TimeLimit = Annotated[
    str,
    typer.Option("--time", metavar="H:MM:SS", help="Time limit of one start, e.g. 12:00:00; the job is then requeued."),
]
JobNodes = Annotated[
    int, typer.Option("--nodes", min=1, max=10_000, help="Nodes of the job, for a suite on the OpenRLHF engine.")
]
GpusOfNode = Annotated[int | None, typer.Option("--gpus", min=1, max=1024, help="GPUs of each node.")]
CpusOfNode = Annotated[int | None, typer.Option("--cpus", min=1, max=4096, help="CPU cores of each node or part.")]
Shards = Annotated[
    int | None,
    typer.Option("--shards", min=1, max=1000, help="Parts of a suite on the embedded engine; default 10 at most."),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="OPTION", help="Another option of sbatch: --sbatch=--qos=high"),
]


def submit(
    suite: SuiteName,
    slurm: OnSlurm = False,
    dry_run: DryRun = False,
    template: Template = None,
    partition: Partition = "",
    account: Account = "",
    time: TimeLimit = "",
    nodes: JobNodes = 1,
    gpus: GpusOfNode = None,
    cpus: CpusOfNode = None,
    shards: Shards = None,
    sbatch: SbatchOptions = None,
    engine: Engine = None,
    results: Results = RESULTS,
    only: Only = None,
    set_: Set = None,
    data_dir: DataDir = None,
    models: Models = None,
) -> None:
    """Write a suite's batch script and submit it; the job requeues itself until the suite is done."""
    if not slurm:
        raise UsageError("submit: name a scheduler: --slurm")
    prepared = prepare_named(suite, results, overrides=set_ or (), engine=engine, only=only or (), online=True)
    is_clustered = backend_of(prepared.suite.engine).clustered
    idle = None  # an option that the engine would not heed
    if shards and is_clustered:
        idle = "shards"
    elif nodes > 1 and not is_clustered:
        idle = "nodes"
    if idle:
        raise UsageError(f"--{idle}: has no effect on the {prepared.suite.engine} engine")
    if prepared.suite.tune is not None:
        if only or (shards or 1) > 1:
            raise UsageError("submit: a suite with `tune` cannot run in parts (--only, --shards)")
        check_variants(prepared.suite, prepared.source)
        shards = 1
    asked = jobs.SlurmOptions(partition, account, time, nodes, gpus, cpus, shards, tuple(sbatch or ()))
    for remark in check_before_run(prepared, about_to_run=False):
        print(f"note: {remark}", file=sys.stderr)
    options = _options_of_run(engine, only or (), data_dir, models or ())
    text = jobs.read_template(template, prepared.suite.engine)
    job = jobs.make_job(prepared, results, options, set_ or (), asked, text)
    if dry_run:
        sys.stdout.write(job.script)
        print(f"not submitted; this would be {job.file}", file=sys.stderr)
        return
    job.write()
    print(job.submit())
    folders = "".join(f" --models {shlex.quote(str(folder))}" for folder in models or ())
    options_to_follow = f"{settings_of(prepared)}{folders}{results_option(results)}"
    print(f"{job.file}: logs beside it; `harness status {shlex.quote(suite)}{options_to_follow}`", file=sys.stderr)


def _options_of_run(
    engine: str | None, only: Sequence[str], data_dir: Path | None, models: Sequence[Path]
) -> list[str]:
    """Return the words of `harness run` that a job hands on, with whole paths."""
    given = [("--engine", engine)] if engine else []
    given += [("--only", pattern) for pattern in only]
    folders = [("--data-dir", data_dir)] if data_dir else []
    folders += [("--models", folder) for folder in models]
    given += [(option, str(expand_user(folder).resolve())) for option, folder in folders]
    words: list[str] = []
    for option, value in given:
        words += [option, value]
    return words


Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Plan with a hardware record of `make gpu-check`."),
]
Price = Annotated[
    float | None,
    typer.Option("--price", metavar="PRICE", min=0, help="Of a GPU-hour, in any currency: adds what the run costs."),
]


def plan(
    suite: SuiteName,
    inventory: Inventory = None,
    address: Address = None,
    engine: Engine = None,
    results: Results = RESULTS,
    only: Only = None,
    set_: Set = None,
    data_dir: DataDir = None,
    models: Models = None,
    calibration: Calibration = None,
    price: Price = None,
    json: Json = False,
) -> None:
    """Print a suite's memory, layout and time; exit code 1 if it does not fit."""
    if inventory and address:
        raise UsageError("--address: works only without --inventory")
    if price is not None and not math.isfinite(price):
        raise UsageError(f"--price {price}: must be a finite number")
    prepared = prepare_named(suite, results, overrides=set_ or (), engine=engine, only=only or ()).with_states()
    for remark in check_before_run(prepared, about_to_run=False, elsewhere=inventory is not None):
        print(f"note: {remark}", file=sys.stderr)
    planned = partial(plan_for, inventory=inventory, address=address, calibration=calibration)
    if prepared.suite.tune is not None:
        _say_tuning(prepared, planned)
    made = planned(prepared)
    words = f"{prepared.suite.name} on the {prepared.suite.engine} engine\n{describe_plan(made)}"
    document: object = made
    if price is not None:
        words += f"\n{_describe_price(made, price)}"
        document = {**msgspec.to_builtins(made), "price": _find_prices(made, price)}
    print_report(words, document, json)
    if not json:
        _say_power(results, len(prepared.suite.seeds))
    raise typer.Exit(0 if made.feasible else 1)


def _find_prices(plan: Plan, price: float) -> dict[str, float]:
    """Return what a plan costs at the price of a GPU-hour: `reserved`, for the GPUs that its cells hold while they hold them;
    `machine`, for all GPUs of the inventory until the run ends."""
    hours = plan.predicted.gpu_seconds / 3600
    machine = plan.resources.gpus * plan.predicted.wall_seconds / 3600
    return {"reserved": price * hours, "machine": price * machine}


def _describe_price(plan: Plan, price: float) -> str:
    """Return the plan's line on money. price: of a GPU-hour."""
    if not plan.resources.gpus:
        return "price      none: the plan uses no GPU"
    prices = _find_prices(plan, price)
    reserved = f"{prices['reserved']:,.2f}"
    machine = f"{prices['machine']:,.2f}"
    gpus = plan.resources.gpus
    return f"price      {reserved} at {price:g} a GPU-hour; {machine} if all {gpus} GPUs are paid for until the end"


def _say_power(results: Path, seeds: int) -> None:
    """Print what so many seeds are likely to find, from the spreads of stored results; nothing where there is no store. The
    first time it reads them all, so it comes after the plan."""
    if seeds < 2 or not store_path(results).is_file():
        return
    with suppress(StoreError):
        power = describe_power(recall_spreads(results), seeds)
        if power:
            print(f"power      {power.removeprefix('Power ')}")


def _say_tuning(prepared: Prepared, planned: Callable[[Prepared], Plan]) -> None:
    """Say on stderr what a suite with `tune` runs besides its own cells, and how long all of it takes at most. planned: makes the
    plan of a prepared suite."""
    check_variants(prepared.suite, prepared.source)
    plans = []
    nothing = Path(os.devnull)  # in the place of results: as if none of it had been run
    for suite in foreseen_suites(prepared.suite):
        with faults_in_tune(suite):
            foreseen = prepare_suite(suite, prepared.source, nothing, prepared.altered)
            plans.append(planned(foreseen))
    wall = sum(plan.predicted.wall_seconds for plan in plans)
    cpu = sum(plan.predicted.cpu_seconds for plan in plans)
    takes = ""
    if wall:
        takes = f"; from nothing to the table at most {format_duration(wall)}, {format_duration(cpu)} of CPU"
    trials = count_runs(prepared.suite)
    tuned_cells = plans[-1].cells - len(prepared.all_cells)
    print(
        f"note: before these come {trials} runs of trials, on other groups (docs/tuning.md), and up to "
        f"{tuned_cells} cells with tuned settings stand beside these{takes}",
        file=sys.stderr,
    )


Kept = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", help="Keep what the rehearsal makes here; default a temporary folder."),
]


def rehearse(
    suite: SuiteName,
    results: Kept = None,
    only: Only = None,
    inventory: Inventory = None,
    engine: Engine = None,
    set_: Set = None,
    data_dir: DataDir = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Run one tiny cell of every kind from start to table, and list the faults of a full run; exit code 1 if there are any."""
    with without_collection(*UNUSED):
        from harness.rehearsal import rehearse as way

    settings = list(set_ or ())
    if engine:
        settings.append(f"engine={engine}")
    with ExitStack() as stack:
        root = results or Path(stack.enter_context(TemporaryDirectory(prefix="harness-rehearsal-")))
        folders = [*root.glob("*"), *root.glob("results/*")]
        suites = [folder.name for folder in folders if suite_files(folder)]
        if any(not name.startswith(way.PREFIX) for name in suites):
            raise UsageError(f"--results {root}: has results of real runs; give a rehearsal another folder")
        report, plan = way.rehearse_suite(suite, RESULTS, root, settings, inventory, only or ())
        if json:
            print_json(report)
        else:
            _say_rehearsed(report)
            if plan is not None:
                print(f"\nThe full run needs\n{describe_plan(plan)}")
            if results:
                name = way.name_of(report.suite)
                place = shlex.quote(report.results)
                print(f"the table: harness show {name} --results {place}", file=sys.stderr)
    raise typer.Exit(1 if report.findings else 0)


def _say_rehearsed(report: Rehearsal) -> None:
    """Print what a rehearsal found, in parts with a title each; a part without lines is left out."""
    done = [cell for cell in report.cells if cell.state == "done"]
    print(f"{report.suite}: {len(done)} of {len(report.cells)} kinds of cells rehearsed on the {report.engine} engine")
    faults = [f"{finding.name}: {finding.place}: {finding.problem}" for finding in report.findings]
    models = [f"{name}: {what}" for name, what in report.models.items()]
    parts = {
        "Would fail": faults or ["nothing that was found"],
        "Models": models,
        "Not rehearsed": report.not_rehearsed,
        "Remarks": report.remarks,
    }
    for title, lines in parts.items():
        if lines:
            print("\n".join(["", title, *map(fold_text, lines)]))


Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A Hugging Face folder.")]
TaskNames = Annotated[str, typer.Option("--tasks", help="Names or JSONL files (my.jsonl:exact), separated by commas.")]
QuestionLimit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Questions of each task, evenly over its skills, levels and subjects."),
]
SamplesOfQuestion = Annotated[
    int, typer.Option("--k", min=0, max=1024, help="Samples per question for avg@k; 0: greedy only.")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.01, max=10, help="Temperature of the samples.")]
TopP = Annotated[
    float, typer.Option("--top-p", min=0.01, max=1, help="Sample among the likeliest tokens with this probability.")
]
SampleSeed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the sampled answers.")]
LongestAnswer = Annotated[
    int | None, typer.Option("--max-new-tokens", min=1, help="Longest answer in tokens; default each task's own.")
]
ChatTemplate = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Ask through the tokenizer's chat template; default where it has one."),
]
FewShot = Annotated[
    bool, typer.Option("--few-shot", help="Ask after worked examples, as a base model wants; default without.")
]
BackendName = Annotated[str, typer.Option("--backend", help="embedded, hf or vllm.")]


def evaluate(
    checkpoint: Checkpoint,
    tasks: TaskNames = "micro",
    limit: QuestionLimit = None,
    k: SamplesOfQuestion = 4,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: SampleSeed = 0,
    max_new_tokens: LongestAnswer = None,
    chat: ChatTemplate = None,
    few_shot: FewShot = False,
    backend: BackendName = "embedded",
    data_dir: DataDir = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Have a checkpoint answer tasks; samples are stored like any other."""
    if not checkpoint.is_dir():
        raise UsageError(f"{checkpoint}: no such folder")
    read_config(checkpoint / "config.json")  # before slow imports
    names = tasks.split(",")
    _check_evaluation(checkpoint, names, backend, data_dir)
    with show_phases("importing torch"):
        with without_collection(*UNUSED):
            from harness.session.single.standalone import evaluate_checkpoint

        measured = evaluate_checkpoint(
            checkpoint,
            names,
            limit=limit,
            k=k,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            backend=backend,
            max_new_tokens=max_new_tokens,
            chat=chat,
            few_shot=few_shot,
            data_dir=data_dir,
            results=results,
            remark=lambda words: print(f"note: {words}", file=sys.stderr),
        )
    rows = []
    for metric in measured.metrics:
        counts = [str(metric.documents), str(metric.samples), str(metric.invalid)]
        rows.append([metric.task, metric.name, PERCENT.text(metric.value), *counts])
    columns = ["task", "metric", "accuracy", "questions", "answers", "invalid"]
    print_table(f"{checkpoint}; accuracy in %", columns, rows, columns[2:], json=measured if json else None)
    if not json:
        print(f"\nall answers: {measured.answers}")
        print(f"stored in {measured.folder}", file=sys.stderr)


def _check_evaluation(checkpoint: Path, tasks: list[str], backend: str, data_dir: Path | None) -> None:
    """Check what `harness eval` was asked for, before slow imports. Raises UsageError, DataError, PluginError."""
    from harness.engines.checkpoint import weight_files

    if backend not in get_args(Backend):
        raise UsageError(f"--backend {backend}: one of {', '.join(get_args(Backend))}")
    names: list[str] = []
    for name in tasks:
        if not name.startswith("lm_eval:"):  # lm-eval alone knows its names
            task = get_task(task_of_text(name))
            task.documents(data_dir)
            name = task.name
        names.append(name)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"--tasks: the task {twice[0]!r} occurs twice")
    if backend == "embedded":
        try:
            weight_files(checkpoint)
        except EngineError as error:
            raise UsageError(str(error)) from error


def bandit(suite: SuiteName, results: Results = RESULTS, json: Json = False) -> None:
    """The exact bandit laboratory: bias, variance and support of each regime's real code, by enumeration."""
    from harness.bandit import run_bandit

    report = run_bandit(suite, results)
    print_report(report.describe(), report.as_json(), json)
