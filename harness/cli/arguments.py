"""Options and output that commands share."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cache import expand_user
from harness.errors import SuiteError, UsageError
from harness.store.text import visible
from harness.suite.load import load_suite

SuiteName = Annotated[str, typer.Argument(metavar="SUITE", help="A YAML file, or the name of a shipped suite.")]
Finished = Annotated[str, typer.Argument(metavar="SUITE", help="A YAML file, or the name of a suite with results.")]
MaybeSuite = Annotated[str | None, typer.Argument(metavar="[SUITE]", help="A YAML file, or the name of a suite.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Engine = Annotated[str | None, typer.Option("--engine", help="An installed engine, instead of the suite's.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="GLOB", help="Cells whose group/regime/seed matches; repeatable.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the suite.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT", help="Ray cluster to join; default RAY_ADDRESS, else one of its own."
    ),
]

RESULTS = Path("results")


def _use_results(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--results {folder}: is a file, not a folder")
    return folder


Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", callback=_use_results, help="Where results are kept.")
]


def results_option(results: Path) -> str:
    """The option, for a command that is printed."""
    return "" if results == RESULTS else f" --results {shlex.quote(str(results))}"


def _use_data(folder: Path | None) -> Path | None:
    if folder is not None:
        os.environ["HARNESS_DATA"] = _resolved(folder)
    return folder


def _resolved(folder: Path) -> str:
    if not expand_user(folder).is_dir():
        raise typer.BadParameter(f"{folder}: no such folder")
    return str(expand_user(folder).resolve())


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", callback=_use_data, help="Folder of benchmark JSONL files (HARNESS_DATA).")
]


def _use_models(folders: list[Path] | None) -> list[Path] | None:
    if folders:
        named = [os.environ.get("HARNESS_MODELS", ""), *map(_resolved, folders)]
        os.environ["HARNESS_MODELS"] = os.pathsep.join(filter(None, named))
    return folders


Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--models", metavar="DIR", callback=_use_models,
        help="A folder whose models a suite may name besides its own folder and this one (HARNESS_MODELS).",
    ),
]  # fmt: skip


def check_target(target: Path, format_: str, one: bool) -> None:
    """one: a file, not a folder of files. Raises UsageError."""
    if any(len(os.fsencode(part)) > 255 for part in target.parts):
        raise UsageError(f"--out {str(target)[:40]}...: longer than a file's name can be")
    whole = target.absolute()
    place = next(folder for folder in (*([] if one else [whole]), *whole.parents, whole) if os.path.exists(folder))
    faults = {
        f"a folder; {format_} is one file": one and whole.is_dir(),
        f"a file; {format_} is a folder of files": not one and whole.exists() and not whole.is_dir(),
        f"{place} is no folder": not place.is_dir(),
        f"nothing can be written to {place}": not os.access(place, os.W_OK),
    }
    for problem, wrong in faults.items():
        if wrong:
            raise UsageError(f"--out {target}: {problem}")


def is_file(given: str) -> bool:
    """Whether SUITE means a file rather than a name. Raises UsageError."""
    if given in {"", ".", ".."}:
        raise UsageError(f"{given!r}: not the name of a suite")
    return given.endswith((".yaml", ".yml")) or "/" in given


def suite_name(given: str) -> str:
    """A file's own name, else the word itself. Raises UsageError."""
    if not is_file(given):
        return given
    with suppress(SuiteError):
        return load_suite(given).name
    return Path(given).stem


def fold_text(text: str, further: str = "    ") -> str:
    """As wide as the terminal, folded between words. further: before lines but the first."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        visible(text), width, initial_indent="  ", subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def print_json(value: Any) -> None:
    """Any plain data, dataclass or msgspec struct; NaN as null."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_table(
    title: str, columns: list[str], rows: list[list[str]], right: Iterable[str] = (), json: object = None
) -> None:
    """Rows, or the document `json`. More than 200 are not folded, which is slow."""
    if json is not None:
        print_json(json)
    elif len(rows) > 200:
        cells = [[visible(value).replace("\n", " ") for value in row] for row in [columns, *rows]]
        sides = [">" if column in right else "<" for column in columns]
        form = "  ".join(f"{{:{s}{max(map(len, c))}}}" for s, c in zip(sides, zip(*cells, strict=True), strict=True))
        print("\n".join([*([title] if title else []), *(form.format(*row).rstrip() for row in cells)]))
    else:
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text("".join(c if c.isprintable() or c == "\n" else "?" for c in v)) for v in row))
        Console(highlight=False, soft_wrap=False).print(table)


def print_report(words: str, document: object, json: bool) -> None:
    if json:
        print_json(document)
    else:
        print(words)
