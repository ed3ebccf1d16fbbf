"""All commands of `harness`, one module per kind."""

from __future__ import annotations

import typer

from harness.cli import listing, reading, running

app = typer.Typer(
    name="harness",
    help="Compare experience-sharing regimes: train every cell of regime x group of policies x seed, evaluate, store, show.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for command in (running.run, running.plan, running.status, running.bandit):
    app.command()(command)
app.command("eval")(running.evaluate)
for command in (reading.show, reading.sql, reading.export, reading.leaderboard, reading.rescore):
    app.command()(command)
app.command("import")(reading.import_)
for command in (listing.regimes, listing.tasks, listing.engines, listing.data, listing.doctor):
    app.command()(command)
app.command("new-regime")(listing.new_regime)
