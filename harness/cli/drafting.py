"""Commands that write suites: new-suite."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError


def new_suite(
    models: Annotated[
        tuple[str, str], typer.Option("--models", metavar="A B", help="Two model folders or hub names, e.g. org/name.")
    ],
    task: Annotated[
        str, typer.Option("--task", help="What is trained on: micro, gsm8k, math, or my.jsonl:exact.")
    ] = "gsm8k",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; default A-B.yaml here.")
    ] = None,
) -> None:
    """Write a suite for two models, with settings that fit their sizes and the task, every key explained."""
    from harness.session.suite import rules
    from harness.session.suite.draft import draft
    from harness.session.suite.rules import undeclared
    from harness.suite.load import load

    file = out or Path("-".join(re.sub(r"[^\w.+-]+", "-", Path(m).name.lower()) for m in models) + ".yaml")
    if file.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"--out {file}: a suite's name ends in .yaml")
    if file.exists():
        raise UsageError(f"{file} is there already; give another name (--out FILE) or remove it")
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", file.stem).strip("-.+_")[:64] or "pair"
    text = draft(models, task, name)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from error
    suite = rules.validate(load(str(file)), str(file))
    cells = len(suite.groups) * len(suite.regimes) * len(suite.seeds)
    where = "".join(f" --models {shlex.quote(str(folder))}" for folder in undeclared(models, file))
    named = shlex.quote(str(file))
    trial = "--set training.steps=2 --set 'seeds=[1]' --set evaluation.limit=6"
    print(f"{file}: written, {cells} cells. Next:")
    print(f"  harness plan {named}{where}")
    print(f"  harness run {named}{where} {trial}    # a first try")
    print(f"  harness run {named}{where}")
    print("Look at the file: it explains every setting.", file=sys.stderr)
