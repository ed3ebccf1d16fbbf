"""The rows of `harness show` as text: for people, programs and papers."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter

import msgspec
from rich.cells import cell_len, chop_cells

from harness.errors import UsageError
from harness.statistics.comparison import GAINS, LOSES
from harness.store.ranking import MIN_RUNS, Aggregate, Head
from harness.store.remarks import AS_PUBLISHED, STARTED, STRICT, Stage, noted
from harness.store.sentences import explained
from harness.store.statistic import PERCENT, SHARE, Pair, Statistic, shown
from harness.store.table import MEAN, ShowRow
from harness.store.text import visible

Rows = Sequence[ShowRow]
Cell = tuple[str, str]
"""A text and its style."""
_LEAST = 3
"""Columns of a terminal, however narrow: the first, as they stand in order of weight."""
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32}
_COLOURS = {GAINS: "green", LOSES: "red"}


def render(
    suite: str, rows: Rows, form: str = "table", width: int = 120, colour: bool = False, head: Head | None = None
) -> str:
    """`form`: table, json, csv, markdown or latex; `width` and `colour` are for `table`. Raises UsageError."""
    head = head or Head()
    if form == "table":
        return _Terminal(width, colour).table(suite, rows, head)
    if form == "json":
        return msgspec.json.encode({"suite": suite, **msgspec.structs.asdict(head), "rows": list(rows)}).decode()
    if form not in _FORMS:
        raise UsageError(f"unknown format {form!r} (table, json, {', '.join(_FORMS)})")
    return _FORMS[form](suite, rows, head)


def overview(heads: Mapping[str, Head], width: int = 120, colour: bool = False) -> str:
    """What `show` of each suite opens with, without its table; for a terminal."""
    parts = []
    for suite, head in heads.items():
        said = next((f"{h.metric}: {h.sentence}" for h in head.sentences), "no cell has finished")
        parts += _Terminal(width, colour).folded(visible(suite), "bold")
        for line in (said, *noted(head.missing)):
            parts += textwrap.wrap(visible(line), width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(parts) + "\n"


class _Terminal:
    """Parts of a page, as lists of lines."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = width, colour

    def table(self, suite: str, rows: Rows, head: Head) -> str:
        if not rows:
            return "\n".join(["no finished cells yet", *self._not_there(head)]) + "\n"
        parts = self.folded(visible(f"{suite}: {head.submission}")) if head.submission else []
        opening = [h for h in head.sentences if (h.policy, h.task) == (head.sentences[0].policy, MEAN)]
        if opening:
            parts += self.folded(visible(suite), "bold")
            for headline in opening:
                parts += self.folded(visible(f"{headline.metric}: {headline.sentence}"))
            parts.append("")
        columns = self._fitting(rows, head.margin)
        heads = ("regime", "policy", *(s.head for s in columns))
        for (group, task, metric), members in groupby(rows, key=attrgetter("group", "task", "metric")):
            title = f"{group}: {task}, {metric}; accuracy in %, gain in points, 95 % intervals"
            parts += self._section(title, heads, (_cells(row, columns, head.margin) for row in members))
        for metric, found in head.across.items():
            parts += self._across(metric, found)
        for (group, task, metric), stages in groupby(head.starts, key=attrgetter("group", "task", "metric")):
            title = f"{group}: {task}, {metric}; before the supervised start, after it, and after RL; accuracy in %"
            heads = ("policy", "when", "strict", "lenient", "answers", "seeds")
            parts += self._section(title, heads, map(_stage_cells, stages), STRICT)
        parts += self._not_there(head)
        parts += [*self.folded(visible(head.processors)), ""] if head.processors else []
        about = (
            "gain: paired by seed with the baseline at the same rollout budget (Student t). used: share of received peer answers "
            f"that gave a gradient. {explained(head.margin)}"
        )
        return "\n".join([*parts, *self.folded(about, "dim")]) + "\n"

    def folded(self, text: str, style: str = "") -> list[str]:
        return [self._styled(line, style) for line in textwrap.wrap(text, self.width)]

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and style and text else text

    def _fitting(self, rows: Rows, margin: float) -> Sequence[Statistic]:
        """As many columns as leave room for names."""
        columns = shown("terminal")
        lines = [["regime", "policy", *(s.head for s in columns)]]
        lines += [[text for text, _ in _cells(row, columns, margin)] for row in rows]
        ends = accumulate(2 + max(map(cell_len, texts)) for texts in zip(*lines, strict=True))
        return columns[: max(_LEAST, sum(end <= self.width for end in ends) - 2)]

    def _not_there(self, head: Head) -> list[str]:
        """What is part of no number above, or of other settings."""
        parts = []
        for title, lines in noted(head.missing).items():
            wrapped = (textwrap.wrap(visible(f"- {line}"), self.width, subsequent_indent="  ") for line in lines)
            parts += [title, *(part for each in wrapped for part in each), ""]
        return parts

    def _across(self, metric: str, found: Sequence[Aggregate]) -> list[str]:
        title = (
            f"all {found[0].tasks} panels, {metric}: interquartile mean in %, how often a run beats one of the baseline"
        )
        note = "95 % stratified bootstrap intervals over seeds"
        note += "" if any(a.iqm_interval for a in found) else f" from {MIN_RUNS} seeds on"
        lines = []
        for a in found:
            better = f"{SHARE.text(a.better)} {PERCENT.interval(a.better_interval)}".rstrip()
            texts = (visible(a.regime), str(a.seeds), PERCENT.with_interval(a.iqm, a.iqm_interval), better)
            lines.append([(text, "") for text in texts])
        return self._section(title, ("regime", "seeds", "IQM", "better than baseline"), lines, note)

    def _section(self, title: str, heads: Iterable[str], rows: Iterable[Sequence[Cell]], note: str = "") -> list[str]:
        """The first two columns to the left and folded where they leave no room, numbers to the right and never cut.

        By hand, because a general layout takes longer than all the statistics.
        """
        lines = [[(head, "dim") for head in heads], *rows]
        widths = [max(cell_len(line[i][0]) for line in lines) for i in range(len(lines[0]))]
        room = max(8, self.width - sum(widths[2:]) - 2 * len(widths))
        widths[1] = min(widths[1], max(4, room - widths[0], room // 2))
        widths[0] = min(widths[0], max(4, room - widths[1]))
        out = self.folded(visible(title), "bold")
        for line in lines:
            names = [
                chop_cells(text.replace("\n", " "), size) for (text, _), size in zip(line[:2], widths, strict=False)
            ]
            for i in range(max(1, *(len(name) for name in names))):
                texts = [name[i] if i < len(name) else "" for name in names]
                texts += [text if i == 0 else "" for text, _ in line[2:]]
                padded = []
                for place, (text, (_, style), size) in enumerate(zip(texts, line, widths, strict=True)):
                    styled, space = self._styled(text, style), " " * (size - cell_len(text))
                    padded.append(styled + space if place < 2 else space + styled)
                out.append(f" {'  '.join(padded)}".rstrip())
        return [*out, *(self.folded(note, "dim") if note else []), ""]


def _cells(row: ShowRow, columns: Sequence[Statistic], margin: float) -> list[Cell]:
    style = _COLOURS.get(row.verdict, "")
    return [
        (visible(row.regime) if row.policy == MEAN else "", "bold" if row.best else ""),
        ("mean" if row.policy == MEAN else visible(row.policy), ""),
        *((_text(row, s, margin), style if s.tinted else "") for s in columns),
    ]


def _text(row: ShowRow, column: Statistic, margin: float) -> str:
    value, beside = getattr(row, column.name), column.interval
    return column.unit.with_interval(value, getattr(row, beside.name)) if beside else column.text(value, margin)


def _stage_cells(stage: Stage) -> list[Cell]:
    when = stage.moment if stage.moment in (AS_PUBLISHED, STARTED) else f"RL: {stage.moment}"
    name = visible(stage.policy) if stage.moment == AS_PUBLISHED else ""
    return [(text, "") for text in (name, visible(when), *_stage_numbers(stage))]


def _stage_numbers(stage: Stage) -> tuple[str, ...]:
    return PERCENT.text(stage.strict), PERCENT.text(stage.lenient), f"{stage.answers:,}", str(stage.seeds)


def _csv(suite: str, rows: Rows, head: Head) -> str:
    """Rows only; an interval in two columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = {name: (f"{name}_low", f"{name}_high") for name in ShowRow.__struct_fields__ if name.endswith("interval")}
    writer.writerow(["suite", *(part for name in ShowRow.__struct_fields__ for part in ends.get(name, (name,)))])
    for row in rows:
        values: list[object] = [suite]
        for name, value in msgspec.structs.asdict(row).items():
            values += (value or (None, None)) if name in ends else [_harmless(value)]
        writer.writerow(values)
    return out.getvalue()


def _harmless(value: object) -> object:
    """A spreadsheet takes a cell that begins so for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") and value != MEAN else value


def _markdown(suite: str, rows: Rows, head: Head) -> str:
    columns = shown("markdown")
    lines = []
    for row in rows:
        regime = _cell(row.regime)
        names = [_cell(row.group), _cell(row.task), row.metric, f"**{regime}**" if row.best else regime]
        names.append("mean" if row.policy == MEAN else _cell(row.policy))
        texts = ((s, _text(row, s, head.margin)) for s in columns)
        lines.append([*names, *(text if s.numeric or s.interval_of else _cell(text) for s, text in texts)])
    rules = ["---"] * 5 + ["---:" if s.numeric or s.interval_of else "---" for s in columns]
    text = _piped([["group", "task", "metric", "regime", "policy", *(s.head for s in columns)], rules, *lines])
    if head.starts:
        heads = ["group", "task", "metric", "policy", "when", "strict", "lenient", "answers", "seeds"]
        moments = [
            [_cell(m.group), _cell(m.task), m.metric, _cell(m.policy), _cell(m.moment), *_stage_numbers(m)]
            for m in head.starts
        ]
        text += "\nBefore the supervised start, after it, and after RL:\n\n"
        text += _piped([heads, ["---"] * 5 + ["---:"] * 4, *moments])
    for title, missing in noted(head.missing).items():
        text += f"\n{title}:\n\n" + "".join(f"- {_cell(line)}\n" for line in missing)
    return text + (f"\n{_cell(head.processors)}\n" if head.processors else "")


def _piped(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#+!|~$"} | {"\n": " ", "\r": " ", "\t": " "})


def _cell(text: str) -> str:
    return visible(text).translate(_MARKDOWN)


def _latex(suite: str, rows: Rows, head: Head) -> str:
    """A booktabs table per task and metric: regimes down, groups and policies across."""
    parts = ["% needs \\usepackage{booktabs}"]
    panel = attrgetter("task", "metric")
    for (task, metric), members in groupby(sorted(rows, key=panel), key=panel):
        part = list(members)
        columns = list(dict.fromkeys((r.group, r.policy) for r in part))
        found = {(r.regime, r.group, r.policy): r for r in part}
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(suite)}: {_tex(task)}, {_tex(metric)}. Accuracy in \\% with gain in points over the baseline at the "
            "same rollout budget, paired by seed; 95\\,\\% Student $t$ intervals. Bold: cannot be told from the best.}",
            f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
            "\\toprule",
            "regime & " + " & ".join(f"{_tex(g)}, {'mean' if p == MEAN else _tex(p)}" for g, p in columns) + " \\\\",
            "\\midrule",
        ]
        for regime in dict.fromkeys(r.regime for r in part):
            cells = [_latex_cell(found.get((regime, group, policy))) for group, policy in columns]
            lines.append(f"{_tex(regime)} & " + " & ".join(cells) + " \\\\")
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]))
    remarks = [f"{title}: {line}" for title, missing in noted(head.missing).items() for line in missing]
    remarks += [head.processors] if head.processors else []
    return "\n\n".join(parts) + "\n" + "".join(f"% {visible(line).translate(_TEX)}\n" for line in remarks)


def _latex_cell(row: ShowRow | None) -> str:
    if row is None:
        return "--"
    value = f"{100 * row.accuracy:.1f}"
    value = f"\\textbf{{{value}}}" if row.best else value
    if row.gain is None:
        return value if row.interval is None else f"{value} ${_tex_bounds(row.interval)}$"
    interval = "" if row.gain_interval is None else f"\\,{_tex_bounds(row.gain_interval)}"
    return f"{value} (${100 * row.gain:+z.1f}{interval}$)"


def _tex_bounds(interval: Pair) -> str:
    return f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}"}
)


def _tex(text: str) -> str:
    return visible(text).replace("\n", " ").translate(_TEX)


_FORMS: dict[str, Callable[[str, Rows, Head], str]] = {"csv": _csv, "markdown": _markdown, "latex": _latex}
