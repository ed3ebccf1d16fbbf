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
from harness.cli.document import write_document
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
    """Return the folder itself. Raises UsageError for a file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--results {folder}: is a file, not a folder")
    return folder


Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", callback=_use_results, help="Where results are kept.")
]


def results_option(results: Path) -> str:
    """Write the option `--results`, for a command that is printed."""
    return "" if results == RESULTS else f" --results {shlex.quote(str(results))}"


def _use_data(folder: Path | None) -> Path | None:
    """Hand the folder on to worker processes, which read it from their environment."""
    if folder is not None:
        os.environ["HARNESS_DATA"] = _resolved(folder)
    return folder


def _resolved(folder: Path) -> str:
    """Return the whole path of a folder that is there. Raises typer.BadParameter."""
    place = expand_user(folder)
    if not place.is_dir():
        raise typer.BadParameter(f"{folder}: no such folder")
    return str(place.resolve())


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", callback=_use_data, help="Folder of benchmark JSONL files (HARNESS_DATA).")
]


def _use_models(folders: list[Path] | None) -> list[Path] | None:
    """Hand the folders on to worker processes, beside those of the environment."""
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
    """Require that something can be written to a place. one: a file, not a folder of files. Raises UsageError."""
    if any(len(os.fsencode(part)) > 255 for part in target.parts):
        raise UsageError(f"--out {str(target)[:40]}...: longer than a file's name can be")
    whole = target.absolute()
    tried = [*whole.parents, whole] if one else [whole, *whole.parents]
    place = next(folder for folder in tried if os.path.exists(folder))
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
    """Return the name that a suite's file states, else the word itself. Raises UsageError."""
    if not is_file(given):
        return given
    with suppress(SuiteError):
        return load_suite(given).name
    return Path(given).stem


def fold_text(text: str, further: str = "    ") -> str:
    """Fold a text as wide as the terminal, folded between words. further: before lines but the first."""
    return textwrap.fill(
        visible(text),
        shutil.get_terminal_size().columns,
        initial_indent="  ",
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_json(value: Any) -> None:
    """Print any plain data, dataclass or msgspec struct; NaN as null."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    write_document(text.decode() + "\n")


def print_table(
    title: str, columns: list[str], rows: list[list[str]], right: Iterable[str] = (), json: object = None
) -> None:
    """Print rows, or the document `json`. right: columns of numbers. Cells are folded to the terminal's width; where there is no
    terminal they are not, so that a key can be searched and copied, nor are more than 200 rows, which is slow."""
    if json is not None:
        print_json(json)
    elif len(rows) > 200 or not sys.stdout.isatty():
        _print_unfolded(title, columns, rows, right)
    else:
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(_replace_unprintable(value)) for value in row))
        Console(highlight=False, soft_wrap=False).print(table)


def _print_unfolded(title: str, columns: list[str], rows: list[list[str]], right: Iterable[str]) -> None:
    """Print rows a line each, in columns as wide as their widest value."""
    lines = [[visible(value).replace("\n", " ") for value in row] for row in [columns, *rows]]
    fields = []
    for column, values in zip(columns, zip(*lines, strict=True), strict=True):
        side = ">" if column in right else "<"
        widest = max(map(len, values))
        fields.append(f"{{:{side}{widest}}}")
    form = "  ".join(fields)
    if title:
        print(title)
    print("\n".join(form.format(*line).rstrip() for line in lines))


def _replace_unprintable(text: str) -> str:
    """Return a text without what a terminal would obey: a question mark for each sign that is not printed, line ends apart."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def print_report(words: str, document: object, json: bool) -> None:
    """Print the words, or with `--json` the document."""
    if json:
        print_json(document)
    else:
        print(words)
