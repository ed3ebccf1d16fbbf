"""Commands that make something new."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.engines import catalogue
from harness.errors import UsageError
from harness.learning import registry
from harness.plugins import PluginRegistry
from harness.scaffold import list_flavours, write_package
from harness.tasks import registry as task_registry

Into = Annotated[Path, typer.Option("--into", help="Parent folder of the new package.")]


TwoModels = Annotated[
    tuple[str, str], typer.Option("--models", metavar="A B", help="Two model folders or hub names, e.g. org/name.")
]
TrainingTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="Training task: gsm8k, math, ladder, micro, countdown, gym.NAME or 'gym.*', or my.jsonl:exact; default gsm8k, or "
        "ladder without its data.",
    ),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; default A-B.yaml here.")
]
Minutes = Annotated[
    float,
    typer.Option("--minutes", min=1, help="Time for the whole suite on this machine, in minutes; decides the steps."),
]
WithTrial = Annotated[bool, typer.Option("--trial/--no-trial", help="Sample a few dozen answers of each model first.")]


def new_suite(
    context: typer.Context,
    models: TwoModels,
    task: TrainingTask = None,
    out: OutFile = None,
    minutes: Minutes = 30,
    trial: WithTrial = True,
) -> None:
    """Write a suite for two models. It samples a few dozen answers of each, and picks the level, lengths and steps from them."""
    from harness.session.suite.draft import USUAL, draft_by_trial
    from harness.session.suite.draft_text import write_draft
    from harness.session.suite.validation import validate_suite
    from harness.suite.load import load_suite

    if not trial and "COMMANDLINE" in str(context.get_parameter_source("minutes")):
        raise UsageError("--minutes: works only with a trial")
    file = out or _usual_file(models)
    _check_new_file(file)
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", file.stem).strip("-.+_")[:64] or "pair"
    if not trial and "*" in (task or ""):
        raise UsageError(f"--task {task}: which puzzles fit is found by a trial; leave --no-trial out, or name one")
    text = "" if trial else write_draft(models, task or USUAL, name, file=file)
    if trial:
        text = draft_by_trial(models, task, name, file, minutes)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from error
    suite = validate_suite(load_suite(str(file)), str(file))
    cells = len(suite.groups) * len(suite.regimes) * len(suite.seeds)  # a drafted variant runs in every group
    named = shlex.quote(str(file))
    first = "--set training.steps=2 --set 'seeds=[1]' --set evaluation.limit=6"
    print(
        f"{file}: written, {cells} cells. Next:\n"
        f"  harness plan {named}\n"
        f"  harness run {named} {first}    # a first try\n"
        f"  harness run {named}"
    )
    print("Look at the file: it explains every setting.", file=sys.stderr)


def _usual_file(models: Sequence[str]) -> Path:
    """Return a suite's file in this folder, by the names of its models."""
    names = [Path(model).resolve().name.lower() for model in models]
    plain = [re.sub(r"[^\w.+-]+", "-", name) for name in names]
    return Path("-".join(plain) + ".yaml")


def _check_new_file(file: Path) -> None:
    """Require a name of a suite in a folder that is there, which nothing has. Raises UsageError."""
    if file.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"--out {file}: a suite's name ends in .yaml")
    if not file.parent.is_dir():
        raise UsageError(f"--out {file}: there is no folder {file.parent}")
    if file.exists():
        raise UsageError(f"{file} exists already; give another name (--out FILE) or remove it")


RegimeName = Annotated[str, typer.Argument(help="The regime's name, e.g. best-of-peers.")]
RegimeKind = Annotated[str, typer.Option("--kind", help="What it learns from: peers' answers, their scores or hints.")]


def new_regime(
    name: RegimeName,
    into: Into = Path(),
    kind: RegimeKind = "answers",
) -> None:
    """Scaffold a plugin package for a new regime, with its conformance test."""
    known = ["answers", *list_flavours(registry.PLUGINS)]
    if kind not in known:
        raise UsageError(f"--kind {kind}: one of {', '.join(known)}")
    _scaffold(registry.PLUGINS, name, into, "harness regimes", kind if kind != "answers" else "")


TaskName = Annotated[str, typer.Argument(help="The task's name, e.g. near-sums.")]


def new_task(name: TaskName, into: Into = Path()) -> None:
    """Scaffold a plugin package for a new task and its scorer, with conformance tests."""
    _scaffold(task_registry.PLUGINS, name, into, "harness tasks")


EngineName = Annotated[str, typer.Argument(help="The engine's name, e.g. plain-torch.")]


def new_engine(name: EngineName, into: Into = Path()) -> None:
    """Scaffold a plugin package for a new engine, with its conformance test."""
    _scaffold(catalogue.PLUGINS, name, into, "harness engines")


def _scaffold(plugins: PluginRegistry[Any], name: str, into: Path, listing: str, flavour: str = "") -> None:
    """Write a plug-in's package and print what to do with it. listing: the command that lists such plug-ins. flavour: of the
    template, empty for the plain one."""
    folder = write_package(plugins, name, into, flavour)
    with_tests = shlex.quote(f"{folder}[test]")  # the environment of `make run` has no pytest
    print(f"{folder}: written. Next:\n  pip install -e {with_tests}\n  pytest {shlex.quote(str(folder))}\n  {listing}")
