"""`harness export`: one HTML file, without server and script."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import PluginError, StoreError
from harness.files import write_atomic
from harness.statistics import MARGIN
from harness.store.remarks import noted
from harness.store.sentences import doubt, explained, sentence
from harness.store.statistic import Statistic, shown
from harness.store.table import suites
from harness.store.text import visible
from leaderboard.charts import LEGEND, to_page_svg
from leaderboard.data import Store, open_store
from leaderboard.frames import BEST, INTERVALS, KEY, opening, overview, panels, readable, telling

_STYLE = """
:root {color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --page: #ffffff; --line: #d1d9e0; --note: #eef6ff}
@media (prefers-color-scheme: dark) {:root {--ink: #e6e4e0; --soft: #a9a5a0; --page: #171614; --line: #3d3a36; --note: #1e2a3d}}
body {font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
margin: 0 auto; max-width: 72rem; padding: 1rem}
h1 {font-size: 1.9rem} .note {background: var(--note); border-radius: .5rem; padding: .8rem 1rem}
figure {margin: 0; color: var(--ink); border-radius: .4rem; padding: .4rem; overflow-x: auto}
figure svg {max-width: 100%; height: auto}
.panels {display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; margin: 1rem 0}
.scroll {overflow-x: auto} table {border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem}
th, td {padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap}
.answers td, .answers th {white-space: normal; padding: .3rem .4rem; vertical-align: top}
th {color: var(--soft); font-weight: 600} td.t, th.t {text-align: left} .best {font-weight: 700} footer, .soft {color: var(--soft)}
"""
_PROVENANCE = """
SELECT count(*) AS cells, min(started) AS first, max(finished) AS last, list(DISTINCT code_version ORDER BY code_version) AS code,
    list(DISTINCT commit_hash ORDER BY commit_hash) AS commits, bool_or(dirty) AS dirty,
    list(DISTINCT engine ORDER BY engine) AS engines, list(DISTINCT origin ORDER BY origin) AS origins
FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'
"""


def export_report(results: Path, target: Path, only: str | None = None) -> int:
    """Write all suites (or one) to `target`; returns how many. Raises StoreError (no results, unknown suite), PluginError (no
    `leaderboard` extra), DiskFullError."""
    store = open_store(results)
    names = suites(store.snapshot)
    if only is not None:
        if only not in names:
            raise StoreError(f"{results}: no results of a suite {only!r}")
        names = [only]
    try:
        sections = [_suite(store, name) for name in names]
    except ImportError as error:
        needs = "harness export needs the leaderboard extra (pip install 'experience-sharing-harness[leaderboard]')"
        raise PluginError(f"{needs}: {error}") from error
    if len(names) > 1:
        every = overview(
            names, store.headline, lambda suite: f"<a href=#{_anchor(suite)}>{_text(suite)}</a>", store.states
        )
        sections.insert(0, f"{_grid(every, 'All suites', ready={'Suite'})}<p>{BEST}</p>")
    body = "\n".join(sections)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>Experience-sharing results</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        "<h1>Does sharing experience help?</h1>\n"
        f"{body}\n</main>\n<footer><p>Gains are paired by seed with the baseline at the same rollout budget; "
        f"intervals are Student t over seeds. {INTERVALS} {KEY} Marks: {LEGEND} {explained(MARGIN)} "
        "Bold: cannot be told from the best.</p></footer>\n"
        "</body>\n</html>\n"
    )
    write_atomic(target, page.encode())
    return len(names)


def _suite(store: Store, suite: str) -> str:
    table = store.show(suite)
    titles = store.suites().set_index("name")["title"]
    parts = [f"<section>\n<h2 id={_anchor(suite)}>{_text(suite)}</h2>\n", _paragraph(titles.get(suite, ""), "soft")]
    for what, lines in noted(store.missing(suite)).items():
        parts.append(f"{_paragraph(what)}<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>\n")
    parts.append(_paragraph(store.processors(suite)))
    if table.empty:
        return "".join([*parts, _paragraph(f"No cell has finished. Its cells: {store.states(suite)}."), "</section>"])
    for metric in dict.fromkeys(table["metric"]):
        choice = opening(table, metric)
        said = store.answer(suite, choice)
        rows = choice.table(table)
        order = list(dict.fromkeys([*(r.regime for r in said.found.ranks), *rows["regime"]]))
        figures = panels(choice, table, said, "gain", order, "mean of all panels")
        drawn = "".join(f"<figure>{to_page_svg(figure, width=400)}</figure>\n" for figure in figures)
        unsettled = doubt(said.found)
        change = f"<p><b>What would change my mind:</b> {_text(unsettled)}</p>\n" if unsettled else ""
        parts.append(
            f"<h3>{_text(metric)}</h3>\n{_paragraph(sentence(said.found), 'note')}"
            f"{_grid(said.lines(), f'{suite}, {metric}: answers')}{change}"
            f'<div class="panels">\n{drawn}</div>\n'
            f"{_numbers(readable(rows, order, MARGIN), f'{suite}, {metric}: numbers')}"
        )
    return "".join([*parts, _paragraph(_provenance(store, suite), "soft"), "</section>"])


def _anchor(suite: str) -> str:
    return "suite-" + suite.encode().hex()


def _paragraph(words: str, style: str = "") -> str:
    return f"<p{f' class={style}' if style else ''}>{_text(words)}</p>\n" if words else ""


def _numbers(rows: pd.DataFrame, name: str) -> str:
    columns = {s.head: s for s in shown("page")}
    titles = {
        "regime": "Regime",
        "group": "Group",
        "task": "Benchmark",
        **{h: s.full_title for h, s in columns.items()},
    }
    texts = pd.DataFrame({c: [_cell(columns.get(c), v) for v in rows[c]] for c in telling(rows)})
    helps = {titles[head]: s.help for head, s in columns.items()}
    numeric = {titles[head] for head, s in columns.items() if s.numeric}
    return _grid(texts.rename(columns=titles), name, "numbers", numeric, helps, list(rows["best"]))


def _cell(column: Statistic | None, value: Any) -> str:
    if column is not None and column.numeric:
        return replace(column.unit, factor=1.0).text(value, mark=False)
    return value if isinstance(value, str) else "–"


def _grid(
    rows: pd.DataFrame,
    name: str,
    kind: str = "answers",
    numeric: Collection[str] = (),
    helps: dict[str, str] | None = None,
    best: Sequence[bool] = (),
    ready: Collection[str] = (),
) -> str:
    """numeric: columns to the right. helps: by column. best: rows whose first cell is bold. ready: columns that are HTML."""
    if rows.empty:
        return ""
    left = {c: "" if c in numeric else " class=t" for c in rows}
    titles = {c: f' title="{_text(helps[c])}"' if helps and c in helps else "" for c in rows}
    heads = "".join(f'<th{left[c]} scope="col"{titles[c]}>{_text(c)}</th>' for c in rows)
    lines = []
    for i, row in enumerate(rows.to_dict("records")):
        style = {**left, rows.columns[0]: ' class="t best"'} if best and best[i] else left
        cells = (f"<td{style[c]}>{value if c in ready else _text(value)}</td>" for c, value in row.items())
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(name)}"><table class="{kind}">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def _provenance(store: Store, suite: str) -> str:
    rows = store.snapshot.query(_PROVENANCE, [suite]).to_pylist()[0]
    known = {name: [value for value in rows[name] or [] if value] for name in ("code", "commits", "engines", "origins")}
    notes = [c[:12] for c in known["commits"]] + (["with local changes"] if rows["dirty"] else [])
    code = ", ".join(known["code"]) + (f" ({', '.join(notes)})" if notes else "")
    made = f"{rows['cells']} finished cells, {rows['first']} to {rows['last']}; engine {', '.join(known['engines'])}; code {code}"
    return "; ".join([made, *(f"origin {o}" for o in known["origins"])])


def _text(value: str) -> str:
    return html.escape(visible(value, 2000))
