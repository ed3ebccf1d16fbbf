"""All commands of `harness`, one module per kind."""

from __future__ import annotations

from typing import Annotated

import typer

import harness
from harness.cli import drafting, listing, models, results, running, sharing, standing, submitting

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


app.command("run")(running.run)
app.command("plan")(running.plan)
app.command("submit")(submitting.submit)
app.command("status")(standing.status)
app.command("logs")(standing.logs)
app.command("show")(results.show)
app.command("regimes")(listing.regimes)
app.command("tasks")(listing.tasks)
app.command("engines")(listing.engines)
app.command("data")(listing.data)
app.command("eval")(running.evaluate)
app.command("convert")(models.convert)
app.command("rescore")(results.rescore)
app.command("sql")(results.sql)
app.command("new-suite")(drafting.new_suite)
app.command("bandit")(running.bandit)
app.command("new-regime")(listing.new_regime)
app.command("new-task")(listing.new_task)
app.command("new-engine")(listing.new_engine)
app.command("export")(results.export)
app.command("import")(sharing.import_)
app.command("bundle")(sharing.bundle)
app.command("submit-check")(sharing.submit_check)
app.command("track")(sharing.track)
app.command("doctor")(listing.doctor)
app.command("leaderboard")(results.leaderboard)
