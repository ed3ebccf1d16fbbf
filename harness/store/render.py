"""The rows of `harness show` as text: for people, programs and papers."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby

import msgspec
from rich.cells import cell_len, chop_cells

from harness.errors import UsageError
from harness.statistics.judgement import GAINS, LOSES
from harness.store.missing import Missing, noted
from harness.store.ranking import MIN_RUNS, Aggregate, Head
from harness.store.sentences import explained
from harness.store.statistic import PERCENT, SHARE, Pair, Statistic, Unit, shown
from harness.store.supervised_start import AS_PUBLISHED, STARTED, STRICT, Stage
from harness.store.table import MEAN, ShowRow
from harness.store.text import visible

Rows = Sequence[ShowRow]


def render(
    suite: str, rows: Rows, form: str = "table", width: int = 120, colour: bool = False, head: Head | None = None
) -> str:
    """`form`: table, json, csv, markdown or latex; `width` and `colour` are for `table`. Raises UsageError."""
    head = head or Head()
    if form == "table":
        return _table(suite, rows, width, colour, head)
    if form == "json":
        return msgspec.json.encode({"suite": suite, **msgspec.structs.asdict(head), "rows": list(rows)}).decode()
    try:
        own = _markdown_starts(head.starts) if form == "markdown" else ""
        return (
            _FORMS[form](suite, rows, head.margin)
            + own
            + _left_out(form, head.missing)
            + _remarked(form, head.processors)
        )
    except KeyError:
        raise UsageError(f"unknown format {form!r} (table, json, {', '.join(_FORMS)})") from None


def overview(heads: Mapping[str, Head], width: int = 120, colour: bool = False) -> str:
    """What `show` of each suite opens with, without its table; for a terminal."""
    parts = []
    for suite, head in heads.items():
        said = next((f"{h.metric}: {h.sentence}" for h in head.sentences), "no cell has finished")
        parts += _folded(visible(suite), width, "bold", colour)
        for line in (said, *noted(head.missing)):
            parts += textwrap.wrap(visible(line), width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(parts) + "\n"


def _with(unit: Unit, value: float | None, interval: Pair | None) -> str:
    return f"{unit.text(value)} {unit.interval(interval)}".rstrip()


_LEAST = 3
"""Columns of a terminal, however narrow: the first, as they stand in order of weight."""


def _table(suite: str, rows: Rows, width: int, colour: bool, head: Head) -> str:
    if not rows:
        return "\n".join(["no finished cells yet", *_not_there(head.missing, width)]) + "\n"
    columns = _fitting(rows, shown("terminal"), head.margin, width)
    parts = _folded(visible(f"{suite}: {head.submission}"), width, "", colour) if head.submission else []
    opening = [h for h in head.sentences if (h.policy, h.task) == (head.sentences[0].policy, MEAN)]
    if opening:
        parts += _folded(visible(suite), width, "bold", colour)
        for headline in opening:
            parts += _folded(visible(f"{headline.metric}: {headline.sentence}"), width, "", colour)
        parts.append("")
    for (group, task, metric), members in groupby(rows, key=lambda r: (r.group, r.task, r.metric)):
        title = visible(f"{group}: {task}, {metric}; accuracy in %, gain in points, 95 % intervals")
        lines = [[(name, "dim") for name in ("regime", "policy", *(s.head for s in columns))]]
        lines += [_cells(row, columns, head.margin) for row in members]
        parts += [*_folded(title, width, "bold", colour), *_aligned(lines, width, colour), ""]
    for metric, found in head.across.items():
        parts += [*_across(metric, found, width, colour), ""]
    parts += _starts(head.starts, width, colour)
    about = (
        "gain: paired by seed with the baseline at the same rollout budget (Student t). used: share of received peer answers "
        f"that gave a gradient. {explained(head.margin)}"
    )
    remark = [*_folded(visible(head.processors), width, "", colour), ""] if head.processors else []
    return "\n".join([*parts, *_not_there(head.missing, width), *remark, *_folded(about, width, "dim", colour)]) + "\n"


def _fitting(rows: Rows, columns: Sequence[Statistic], margin: float, width: int) -> Sequence[Statistic]:
    """As many as leave room for names."""
    lines = [["regime", "policy", *(s.head for s in columns)]]
    lines += [[text for text, _ in _cells(row, columns, margin)] for row in rows]
    ends = accumulate(2 + max(map(cell_len, texts)) for texts in zip(*lines, strict=True))
    return columns[: max(_LEAST, sum(end <= width for end in ends) - 2)]


def _not_there(missing: Sequence[Missing], width: int) -> list[str]:
    """What is part of no number above, or of other settings."""
    parts = []
    for head, lines in noted(missing).items():
        parts += [
            head,
            *(part for line in lines for part in textwrap.wrap(visible(f"- {line}"), width, subsequent_indent="  ")),
            "",
        ]
    return parts


def _left_out(form: str, missing: Sequence[Missing]) -> str:
    """The same for papers; a CSV has rows only."""
    if form == "csv":
        return ""
    if form == "latex":
        lines = [f"{head}: {line}" for head, each in noted(missing).items() for line in each]
        return "".join(f"% {visible(line).translate(_TEX)}\n" for line in lines)
    listed = {head: "".join(f"- {_cell(line)}\n" for line in lines) for head, lines in noted(missing).items()}
    return "".join(f"\n{head}:\n\n{lines}" for head, lines in listed.items())


def _remarked(form: str, remark: str) -> str:
    """A remark on the whole table, for papers."""
    return (
        {"latex": f"% {visible(remark).translate(_TEX)}\n", "markdown": f"\n{_cell(remark)}\n"}.get(form, "")
        if remark
        else ""
    )


def _across(metric: str, found: Sequence[Aggregate], width: int, colour: bool) -> list[str]:
    title = f"all {found[0].tasks} panels, {metric}: interquartile mean in %, how often a run beats one of the baseline"
    lines = [[("regime", "dim"), ("seeds", "dim"), ("IQM", "dim"), ("better than baseline", "dim")]]
    for a in found:
        better = f"{SHARE.text(a.better)} {PERCENT.interval(a.better_interval)}".rstrip()
        lines.append(
            [(visible(a.regime), ""), (str(a.seeds), ""), (_with(PERCENT, a.iqm, a.iqm_interval), ""), (better, "")]
        )
    note = "95 % stratified bootstrap intervals over seeds" + (
        "" if any(a.iqm_interval for a in found) else f" from {MIN_RUNS} seeds on"
    )
    return [
        *_folded(title, width, "bold", colour),
        *_aligned(lines, width, colour),
        *_folded(note, width, "dim", colour),
    ]


def _starts(moments: Sequence[Stage], width: int, colour: bool) -> list[str]:
    """What a start and RL after it have changed, form and skill apart."""
    parts: list[str] = []
    for (group, task, metric), members in groupby(moments, key=lambda m: (m.group, m.task, m.metric)):
        title = visible(
            f"{group}: {task}, {metric}; before the supervised start, after it, and after RL; accuracy in %"
        )
        lines: list[list[Cell]] = [
            [(name, "dim") for name in ("policy", "when", "strict", "lenient", "answers", "seeds")]
        ]
        for m in members:
            when = m.moment if m.moment in (AS_PUBLISHED, STARTED) else f"RL: {m.moment}"
            name = visible(m.policy) if m.moment == AS_PUBLISHED else ""
            numbers = (PERCENT.text(m.strict), PERCENT.text(m.lenient), f"{m.answers:,}", str(m.seeds))
            lines.append([(name, ""), (visible(when), ""), *((number, "") for number in numbers)])
        parts += [*_folded(title, width, "bold", colour), *_aligned(lines, width, colour)]
        parts += [*_folded(STRICT, width, "dim", colour), ""]
    return parts


Cell = tuple[str, str]
"""A text and its style."""
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32}
_COLOURS = {GAINS: "green", LOSES: "red"}


def _cells(row: ShowRow, columns: Sequence[Statistic], margin: float) -> list[Cell]:
    style = _COLOURS.get(row.verdict, "")
    return [
        (visible(row.regime) if row.policy == MEAN else "", "bold" if row.best else ""),
        ("mean" if row.policy == MEAN else visible(row.policy), ""),
        *((_text(row, s, margin), style if s.tinted else "") for s in columns),
    ]


def _text(row: ShowRow, column: Statistic, margin: float) -> str:
    value, beside = getattr(row, column.name), column.interval
    return _with(column.unit, value, getattr(row, beside.name)) if beside else column.text(value, margin)


def _aligned(lines: Sequence[Sequence[Cell]], width: int, colour: bool) -> list[str]:
    """Regime and policy to the left and folded where they leave no room, numbers to the right and never cut.

    By hand, because a general layout takes longer than all the statistics.
    """
    widths = [max(cell_len(line[i][0]) for line in lines) for i in range(len(lines[0]))]
    room = max(8, width - sum(widths[2:]) - 2 * len(widths))
    widths[1] = min(widths[1], max(4, room - widths[0], room // 2))
    widths[0] = min(widths[0], max(4, room - widths[1]))
    out = []
    for line in lines:
        names = [chop_cells(text.replace("\n", " "), size) for (text, _), size in zip(line[:2], widths, strict=False)]
        for i in range(max(1, *(len(name) for name in names))):
            texts = [name[i] if i < len(name) else "" for name in names] + [
                text if i == 0 else "" for text, _ in line[2:]
            ]
            padded = [
                " " * (size - cell_len(text)) * (place > 1) + _styled(text, style, colour)
                + " " * (size - cell_len(text)) * (place < 2)
                for place, (text, (_, style), size) in enumerate(zip(texts, line, widths, strict=True))
            ]  # fmt: skip
            out.append(f" {'  '.join(padded)}".rstrip())
    return out


def _folded(text: str, width: int, style: str, colour: bool) -> list[str]:
    return [_styled(line, style, colour) for line in textwrap.wrap(text, width)]


def _styled(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colour and style and text else text


def _csv(suite: str, rows: Rows, margin: float) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["suite", *(_flat_names())])
    for row in rows:
        writer.writerow([suite, *(_flat(row))])
    return out.getvalue()


def _flat_names() -> list[str]:
    names: list[str] = []
    for name in ShowRow.__struct_fields__:
        names += [f"{name}_low", f"{name}_high"] if name.endswith("interval") else [name]
    return names


def _flat(row: ShowRow) -> list[object]:
    values: list[object] = []
    for name in ShowRow.__struct_fields__:
        value = getattr(row, name)
        if name.endswith("interval"):
            values += value or (None, None)
        else:
            values.append(_harmless(value) if isinstance(value, str) else value)
    return values


def _harmless(text: str) -> str:
    """A spreadsheet takes a cell that begins so for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text != MEAN else text


def _markdown(suite: str, rows: Rows, margin: float) -> str:
    columns = shown("markdown")
    heads = ["group", "task", "metric", "regime", "policy", *(s.head for s in columns)]
    rules = ["---"] * 5 + ["---:" if s.numeric or s.interval_of else "---" for s in columns]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(rules)} |"]
    for row in rows:
        regime = _cell(row.regime)
        where = [_cell(row.group), _cell(row.task), row.metric, f"**{regime}**" if row.best else regime]
        where.append("mean" if row.policy == MEAN else _cell(row.policy))
        texts = [(s, _text(row, s, margin)) for s in columns]
        lines.append(
            f"| {' | '.join([*where, *(text if s.numeric or s.interval_of else _cell(text) for s, text in texts)])} |"
        )
    return "\n".join(lines) + "\n"


def _markdown_starts(moments: Sequence[Stage]) -> str:
    if not moments:
        return ""
    lines = [
        "| group | task | metric | policy | when | strict | lenient | answers | seeds |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for m in moments:
        names = (_cell(m.group), _cell(m.task), m.metric, _cell(m.policy), _cell(m.moment))
        lines.append(
            f"| {' | '.join((*names, PERCENT.text(m.strict), PERCENT.text(m.lenient), f'{m.answers:,}', str(m.seeds)))} |"
        )
    return "\n".join(["", "Before the supervised start, after it, and after RL:", "", *lines]) + "\n"


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#+!|~$"} | {"\n": " ", "\r": " ", "\t": " "})


def _cell(text: str) -> str:
    return visible(text).translate(_MARKDOWN)


def _latex(suite: str, rows: Rows, margin: float) -> str:
    """A booktabs table per task and metric: regimes down, groups and policies across."""
    parts = ["% needs \\usepackage{booktabs}"]
    for (task, metric), members in groupby(
        sorted(rows, key=lambda r: (r.task, r.metric)), key=lambda r: (r.task, r.metric)
    ):
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
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


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


_FORMS: dict[str, Callable[[str, Rows, float], str]] = {"csv": _csv, "markdown": _markdown, "latex": _latex}
