"""All commands of `harness`, one module per kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import harness
from harness.cli import listing, making, results, running, sharing

app = typer.Typer(
    name="harness",
    help="Compare experience-sharing regimes: train every cell of regime x group of policies x seed, evaluate, store, show.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"harness {harness.__version__}")
        raise typer.Exit


@app.callback()
def shared(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Compare experience-sharing regimes: train every cell of regime x group of policies x seed, evaluate, store, show."""


COMMANDS: dict[str, Callable[..., None]] = {
    "run": running.run,
    "plan": running.plan,
    "submit": running.submit,
    "status": results.status,
    "logs": results.logs,
    "show": results.show,
    "regimes": listing.regimes,
    "tasks": listing.tasks,
    "engines": listing.engines,
    "data": listing.data,
    "eval": running.evaluate,
    "convert": making.convert,
    "rescore": results.rescore,
    "sql": results.sql,
    "new-suite": making.new_suite,
    "bandit": running.bandit,
    "new-regime": making.new_regime,
    "new-task": making.new_task,
    "new-engine": making.new_engine,
    "export": results.export,
    "import": sharing.import_,
    "bundle": sharing.bundle,
    "submit-check": sharing.submit_check,
    "track": sharing.track,
    "doctor": listing.doctor,
    "leaderboard": results.leaderboard,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
