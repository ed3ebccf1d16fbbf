"""All commands of `harness`, one module per kind."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

import harness
from harness.limits import keep_arrow_from_pandas

# By heading and name: function and module, imported when called; what it does; an example
COMMANDS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Run": {
        "run": (
            "running:run", "Run what is missing of a suite; print its table.",
            "run mine.yaml --only 'pair/sgt/*' --set training.steps=20",
        ),
        "plan": ("running:plan", "Memory, disk and time that a suite needs.", "plan cross_family --inventory 8xH100-80G"),
        "rehearse": ("running:rehearse", "A suite of real models with tiny ones: what would fail.", "rehearse cross_family"),
        "submit": ("running:submit", "A suite as a SLURM job.", "submit mine.yaml --slurm --time 12:00:00"),
        "status": ("results:status", "How far suites are, and why cells failed.", "status quickstart"),
        "logs": ("results:logs", "The end of a cell's log.", "logs llama-qwen/sgt/11 quickstart"),
        "eval": ("running:evaluate", "Evaluate a checkpoint on tasks.", "eval ./model --tasks gsm8k --limit 100 --seed 1"),
        "doctor": ("listing:doctor", "What this machine can do, or what went wrong in a run.", "doctor quickstart"),
    },
    "Look": {
        "show": ("results:show", "A suite's table.", "show mine --against hacpo2026"),
        "leaderboard": ("results:leaderboard", "All results in a browser.", "leaderboard --port 8502"),
        "sql": ("results:sql", "A read-only query on the store.", "sql 'SELECT suite, count(*) FROM cells GROUP BY suite'"),
        "regimes": ("listing:regimes", "Installed regimes.", "regimes sgt"),
        "tasks": ("listing:tasks", "Evaluation tasks; accuracy of models by level.", "tasks --calibrate ./model --task ladder"),
        "engines": ("listing:engines", "Engines, and whether they can run here.", "engines"),
        "data": ("listing:data", "Benchmark sets, and where they come from.", "data --data-dir ./benchmarks"),
        "rescore": ("results:rescore", "Verify stored samples again.", "rescore quickstart"),
        "bandit": ("running:bandit", "Bias, variance and support of regimes, exactly.", "bandit bandit"),
    },
    "Extend": {
        "new-suite": ("making:new_suite", "A suite for two models.", "new-suite --models ./model-a ./model-b --task micro"),
        "new-regime": ("making:new_regime", "A package for a new regime.", "new-regime best-of-peers"),
        "new-task": ("making:new_task", "A package for a new task.", "new-task near-sums"),
        "new-engine": ("making:new_engine", "A package for a new engine.", "new-engine plain-torch"),
    },
    "Share": {
        "export": ("results:export", "A report, or results in other formats.", "export quickstart --format parquet"),
        "bundle": ("sharing:bundle", "A finished suite's results as one file.", "bundle mine"),
        "submit-check": ("sharing:submit_check", "Check a bundle.", "submit-check mine.zip --re-execute 1"),
        "import": ("sharing:import_", "Take over another lab's results.", "import mine.zip --origin lab-b"),
        "track": ("sharing:track", "A run in TensorBoard, Trackio or W&B.", "track quickstart --to tensorboard --live"),
    },
}  # fmt: skip


class _Commands(UserDict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        place, _, example = self.data[name]
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        function = resolve_name(f"harness.cli.{place}")  # imports what the command needs
        keep_arrow_from_pandas()
        alone.command(name, epilog=f"Example: harness {example}")(function)
        command = typer.main.get_command(alone)
        _name_values(command)
        return command


# What an option's value is called in help where the option says nothing itself, by the type of its value
_VALUES = {Path: "PATH", int: "N", float: "NUMBER", str: "NAME"}


def _name_values(command: Any) -> None:
    """Write the values of a command's options as people write them, `N` and `NAME`."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.metavar is None and not parameter.is_flag:
            kinds = {parameter.type_descriptor.annotation, *get_args(parameter.type_descriptor.annotation)}
            parameter.metavar = next((word for kind, word in _VALUES.items() if kind in kinds), None)


class _Program(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({name: c for named in COMMANDS.values() for name, c in named.items()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for title, named in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), short) for name, (_, short, _) in named.items()])


app = typer.Typer(
    name="harness",
    cls=_Program,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compare experience-sharing regimes: train every cell of regime x group of policies x seed, evaluate, store, show."""
