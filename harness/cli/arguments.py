"""Options and output that commands share."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from harness.errors import UsageError
from harness.store.text import visible

SuiteName = Annotated[str, typer.Argument(metavar="SUITE", help="A YAML file, or the name of a shipped suite.")]
Finished = Annotated[str, typer.Argument(metavar="SUITE", help="A YAML file, or the name of a suite with results.")]
MaybeSuite = Annotated[str | None, typer.Argument(metavar="[SUITE]", help="A YAML file, or the name of a suite.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Engine = Annotated[str | None, typer.Option("--engine", help="embedded or openrlhf, instead of the suite's.")]
Only = Annotated[str | None, typer.Option("--only", metavar="GLOB", help="Cells whose group/regime/seed matches.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the suite.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT", help="Ray cluster to join; default RAY_ADDRESS, else one of its own."
    ),
]

RESULTS = Path("results")


def _is_there(folder: Path) -> None:
    if not folder.expanduser().is_dir():
        raise typer.BadParameter(f"{folder}: no such folder")


def _use_results(folder: Path) -> Path:
    """Refuse what can be no folder. Raises UsageError."""
    if too_long(folder):
        raise UsageError(f"--results {str(folder)[:40]}...: longer than a folder's name can be")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--results {folder}: is a file, not a folder")
    return folder


Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", callback=_use_results, help="Where results are kept.")
]


def _use_data(folder: Path | None) -> Path | None:
    """`--data-dir` is HARNESS_DATA for one command: for this process and for the workers that it starts."""
    if folder is not None:
        _is_there(folder)
        os.environ["HARNESS_DATA"] = str(folder.expanduser().resolve())
    return folder


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", callback=_use_data, help="Folder of benchmark JSONL files (HARNESS_DATA).")
]


def _use_models(folders: list[Path] | None) -> list[Path] | None:
    """`--models` adds to HARNESS_MODELS for one command."""
    if folders:
        for folder in folders:
            _is_there(folder)
        named = [str(folder.expanduser().resolve()) for folder in folders]
        os.environ["HARNESS_MODELS"] = os.pathsep.join(filter(None, [os.environ.get("HARNESS_MODELS", ""), *named]))
    return folders


Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--models", metavar="DIR", callback=_use_models,
        help="A folder whose models a suite may name besides its own folder and this one (HARNESS_MODELS).",
    ),
]  # fmt: skip


LONGEST_NAME = 255
"""Bytes of a file's name: what no file system of ours exceeds."""


def too_long(path: str | Path) -> bool:
    """Whether a part of the path is longer than a file's name can be."""
    return any(len(os.fsencode(part)) > LONGEST_NAME for part in str(path).split(os.sep))


def is_file(given: str) -> bool:
    """Whether a SUITE argument means a file rather than a name. Raises UsageError for what can be neither."""
    if given in {"", ".", ".."}:
        raise UsageError(f"{given!r}: not the name of a suite")
    if too_long(given):
        raise UsageError(f"{given[:40]}...: longer than a suite's name can be")
    return given.endswith((".yaml", ".yml")) or "/" in given


def suite_name(given: str) -> str:
    """The name under which a SUITE's results lie: a file's own, else the word itself. Raises UsageError as `is_file`."""
    if not is_file(given):
        return given
    from harness.errors import SuiteError
    from harness.suite.load import load

    with suppress(SuiteError):
        return load(given).name
    return Path(given).stem


def fold(text: str) -> str:
    """A sentence below a heading: as wide as the terminal, folded between words only."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        visible(text),
        width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_json(value: Any) -> None:
    """Any plain data, dataclass or msgspec struct; NaN as null."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(text.decode() + "\n")


MANY = 200
"""Rows from which on a table is plain lines: laying them out for a terminal costs more than finding them."""


def print_table(title: str, columns: list[str], rows: list[list[str]], right: frozenset[str] = frozenset()) -> None:
    """A plain table on stdout; markup in values is shown, not obeyed. One of very many rows is not folded to the terminal."""
    if len(rows) > MANY:
        _print_lines(title, [columns, *rows], [column in right for column in columns])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_plain(v) for v in row))
    Console(highlight=False, soft_wrap=False).print(table)


def _print_lines(title: str, rows: list[list[str]], right: list[bool]) -> None:
    cells = [[visible(value).replace("\n", " ") for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    )
    print("\n".join([title, *lines] if title else lines))


def _plain(value: str) -> Any:
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c == "\n" else "?" for c in value))
