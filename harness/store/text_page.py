"""A page of text: sentences and tables for a terminal or in Markdown."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.store.text import visible

Cell = str | Text


class TextPage:
    """A page of text that is written from top to bottom, as tables for a terminal or as Markdown."""

    def __init__(self, form: str, width: int, colour: bool) -> None:
        """Begin an empty page. form: `table` or `markdown`. width: characters of a terminal's line. colour: with a terminal's
        colours."""
        self.in_markdown = form == "markdown"
        self.width = 1 << 20 if self.in_markdown else width  # Markdown is not broken into lines
        self._file = io.StringIO()
        self._console = Console(
            file=self._file,
            width=self.width,
            force_terminal=colour,
            highlight=False,
            color_system="standard" if colour else None,
            markup=False,
            emoji=False,
        )

    def say(self, text: str, style: str = "", indent: int = 0) -> None:
        """Print a sentence, or an empty line."""
        shown = escape_cell(text) if self.in_markdown else visible(text)
        words = " ".join(shown.split())
        if not words:
            self._console.print("")
            return
        padded = Padding(Text(words, style), (0, 0, 0, indent), expand=False)
        self._console.print(padded)

    def print_as_it_is(self, text: str) -> None:
        """Print lines that are in the page's form already."""
        self._console.print(text, end="")

    def print_table(
        self, title: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], note: str = "", names: int = 2
    ) -> None:
        """Print a table. note: below it. names: how many of the first columns are words, which may be broken into lines."""
        if self.in_markdown:
            cells = [_escape_cells(row) for row in rows]
            table_text = make_pipe_table(heads, cells, 2)
            self._console.print(f"**{escape_cell(title)}**\n\n{table_text}")
            return
        lines = [_style_cells(row) for row in rows]
        table = Table(box=None, header_style="dim")
        for place, head in enumerate(heads):
            lengths = [row[place].cell_len for row in lines]
            widest = max([cell_len(head), *lengths])
            if place < names:
                table.add_column(head, overflow="fold", min_width=min(4, widest))
            else:
                table.add_column(head, justify="right", no_wrap=True, min_width=widest)
        for row in lines:
            table.add_row(*row)
        self.say(title, "bold")
        self._console.print(table)
        if note:
            self.say(note, "dim")
        self.say("")

    def get_text(self) -> str:
        """Return the page, without blanks at the ends of its lines."""
        lines = [line.rstrip() for line in self._file.getvalue().splitlines()]
        return "\n".join(lines) + "\n"

    def count_fitting(self, lines: Sequence[Sequence[Cell]], least: int) -> int:
        """Return how many of the first columns fit beside each other on the page, and at least so many."""
        widths = measure_widths(lines)
        fitting = sum(width <= self.width for width in widths)
        return max(least, fitting)


def make_pipe_table(heads: Sequence[str], lines: Sequence[Sequence[str]], names: int, words: Sequence[int] = ()) -> str:
    """Write a table in Markdown, numbers to the right: all but the first `names` columns and those of `words`."""
    rules = ["---" if place < names or place in words else "---:" for place in range(len(heads))]
    written = []
    for line in (heads, rules, *lines):
        cells = " | ".join(line)
        written.append(f"| {cells} |\n")
    return "".join(written)


def measure_widths(lines: Sequence[Sequence[Cell]]) -> list[int]:
    """Return, for each number of first columns, how many characters they take beside each other, two between each."""
    widths = []
    for column in zip(*lines, strict=True):
        widest = max(cell_len(str(cell)) for cell in column)
        widths.append(2 + widest)
    return list(accumulate(widths))


def drop_empty_columns(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines without columns that say nothing of any row; the first line has the heads."""
    kept = []
    for place, (_, *texts) in enumerate(zip(*lines, strict=True)):
        if set(texts) - {"–", ""}:
            kept.append(place)
    return [[line[place] for place in kept] for line in lines]


def _escape_cells(row: Sequence[Cell]) -> list[str]:
    return [escape_cell(str(cell)) for cell in row]


def _style_cells(row: Sequence[Cell]) -> list[Text]:
    """Return a row's cells as texts with their styles; plain words get none."""
    return [Text(visible(cell)) if isinstance(cell, str) else cell for cell in row]


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#+!|~$"} | {"\n": " ", "\r": " ", "\t": " "})


def escape_cell(text: str) -> str:
    """Write others' words so that Markdown shows them as they are, in one line."""
    return visible(text).translate(_MARKDOWN)
