"""`harness export`: one HTML file with the ranking, to send or to archive. No server, no script, nothing loaded."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import PluginError, StoreError
from harness.files import write_atomic
from harness.statistics import MARGIN
from harness.store.ranking import Ranking, in_pairs
from harness.store.read import Snapshot
from harness.store.remarks import Missing, counted, noted
from harness.store.sentences import doubt, explained, sentence
from harness.store.statistic import Statistic, shown
from harness.store.table import MEAN, seed_rows, show_rows, suites
from harness.store.text import visible
from leaderboard.charts import LEGEND, Figure
from leaderboard.frames import panel, ranking_frame, readable, show_frame, telling
from leaderboard.overview import BEST, KEY, Outcome, answer, first_metric, overview

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


def export_report(results: Path, target: Path, only: str | None = None) -> int:
    """Write the report of all suites (or of one) to `target`; returns how many suites it holds.

    Raises StoreError (no results, unknown suite), PluginError (the `leaderboard` extra is missing), DiskFullError.
    """
    from harness.session.suite.lacking import lacking  # takes long to import

    with Snapshot(results) as snapshot:
        names = suites(snapshot)
        if only is not None:
            if only not in names:
                raise StoreError(f"{results}: no results of a suite {only!r}")
            names = [only]
        lacks = {name: lacking(snapshot, results, name)[0] for name in names}
        sections = [_suite(snapshot, name, lacks[name]) for name in names]
        found = {name: _answer(snapshot, name) for name in names}
        states = {name: counted(snapshot, name, lacks[name]) for name in names}
        all_suites = _grid(overview(names, found.get, _link, states.__getitem__), "All suites", "Suite")
    body = "\n".join([f"{all_suites}<p>{BEST}</p>"] * (len(names) > 1) + sections)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>Experience-sharing results</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        "<h1>Does sharing experience help?</h1>\n"
        f"{body}\n</main>\n<footer><p>Gains are paired by seed with the baseline at the same rollout budget; "
        f"intervals are Student t over seeds. {KEY} Marks: {LEGEND} {explained(MARGIN)} "
        "Bold: cannot be told from the best.</p></footer>\n"
        "</body>\n</html>\n"
    )
    write_atomic(target, page.encode())
    return len(names)


def _suite(snapshot: Snapshot, suite: str, lacks: Sequence[Missing]) -> str:
    table, seeds = show_frame(show_rows(snapshot, suite)), seed_rows(snapshot, suite)
    about = snapshot.query("SELECT title FROM suites WHERE suite = ?", [suite]).to_pylist()
    title = _text(about[0]["title"]) if about and about[0]["title"] else ""
    head = f"<section>\n<h2 id={_anchor(suite)}>{_text(suite)}</h2>\n" + (
        f'<p class="soft">{title}</p>\n' if title else ""
    )
    for what, lines in noted(lacks).items():
        head += f"<p>{_text(what)}</p>\n<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>\n"
    if table.empty:
        return head + f"<p>No cell has finished. Its cells: {counted(snapshot, suite, lacks)}.</p>\n</section>"
    parts = [head]
    policy = MEAN if (table["policy"] == MEAN).any() else table["policy"].iloc[0]
    pairs = in_pairs(snapshot, suite)
    for metric in dict.fromkeys(table["metric"]):
        rows = table[(table["metric"] == metric) & (table["policy"] == policy)]
        said = answer(rows, [r for r in seeds if r.metric == metric], policy, pairs, MARGIN)
        found = said.found
        order = list(dict.fromkeys([*(r.regime for r in found.ranks), *rows["regime"]]))
        figures = [
            panel(part, f"{group}: {task}", "gain", order, MARGIN)
            for (group, task), part in rows.groupby(["group", "task"], sort=False)
        ]
        if len(figures) > 1 and found.ranks:
            figures.insert(0, panel(ranking_frame(found, rows), "mean of all panels", "gain", order, MARGIN))
        parts.append(
            f'<h3>{_text(metric)}</h3>\n<p class="note">{_text(sentence(found))}</p>\n'
            f"{_grid(said.lines(), f'{suite}, {metric}: answers')}{_doubt(found)}"
            f'<div class="panels">\n{_figures(figures)}</div>\n'
        )
        parts.append(_table(readable(rows, order, MARGIN), f"{suite}, {metric}: numbers"))
    return "".join(parts) + _provenance(snapshot, suite) + "</section>"


def _answer(snapshot: Snapshot, suite: str) -> Outcome | None:
    table, seeds = show_frame(show_rows(snapshot, suite)), seed_rows(snapshot, suite)
    return first_metric(table, seeds, in_pairs(snapshot, suite), MARGIN)


def _link(suite: str) -> str:
    return f"<a href=#{_anchor(suite)}>{_text(suite)}</a>"


def _anchor(suite: str) -> str:
    return "suite-" + suite.encode().hex()


def _doubt(found: Ranking) -> str:
    unsettled = doubt(found)
    return f"<p><b>What would change my mind:</b> {_text(unsettled)}</p>\n" if unsettled else ""


def _grid(rows: pd.DataFrame, name: str, ready: str = "") -> str:
    """A table of words that fold. ready: the column that is HTML already."""
    if rows.empty:
        return ""
    heads = "".join(f'<th class=t scope="col">{_text(column)}</th>' for column in rows)
    lines = [
        "".join(f"<td class=t>{value if column == ready else _text(value)}</td>" for column, value in row.items())
        for row in rows.to_dict("records")
    ]
    return _scrolled("answers", heads, [f"<tr>{line}</tr>" for line in lines], name)


def _scrolled(kind: str, heads: str, lines: Sequence[str], name: str) -> str:
    body = "\n".join(lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(name)}"><table class="{kind}">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _figures(figures: Sequence[Figure]) -> str:
    try:
        from leaderboard.figures import to_page_svg
    except ImportError as error:
        raise PluginError(
            f"harness export needs the leaderboard extra (pip install 'experience-sharing-harness[leaderboard]'): {error}"
        ) from error
    return "".join(f"<figure>{to_page_svg(figure, width=400)}</figure>\n" for figure in figures)


def _table(rows: pd.DataFrame, name: str) -> str:
    names = telling(rows)
    places = {k: v for k, v in {"regime": "Regime", "group": "Group", "task": "Benchmark"}.items() if k in names}
    columns = [s for s in shown("page") if s.head in names]
    heads = [f'<th class=t scope="col">{title}</th>' for title in places.values()]
    heads += [
        f'<th{"" if s.numeric else " class=t"} scope="col" title="{_text(s.help)}">{_text(s.full_title)}</th>'
        for s in columns
    ]
    lines = []
    for row in rows.to_dict("records"):
        best = ' class="t best"' if row["best"] else ' class="t"'
        cells = [f"<td{best if key == 'regime' else ' class=t'}>{_text(row[key])}</td>" for key in places]
        cells += [f"<td{'' if s.numeric else ' class=t'}>{_cell(s, row[s.head])}</td>" for s in columns]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return _scrolled("numbers", "".join(heads), lines, name)


def _cell(column: Statistic, value: Any) -> str:
    """A value of `readable`, which is in its unit already."""
    if column.numeric:
        return replace(column.unit, factor=1.0).text(value, mark=False)
    return _text(value) if isinstance(value, str) else "–"


def _provenance(snapshot: Snapshot, suite: str) -> str:
    rows = snapshot.query(
        "SELECT count(*) AS cells, min(started) AS first, max(finished) AS last, list(DISTINCT code_version) AS code, "
        "list(DISTINCT commit_hash) AS commits, bool_or(dirty) AS dirty, "
        "list(DISTINCT engine) AS engines, list(DISTINCT origin) AS origins "
        "FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'",
        [suite],
    ).to_pylist()[0]
    notes = [c[:12] for c in rows["commits"] or [] if c] + (["with local changes"] if rows["dirty"] else [])
    code = ", ".join(c for c in rows["code"] or [] if c) + (f" ({', '.join(notes)})" if notes else "")
    parts = [
        f"{rows['cells']} finished cells, {rows['first']} to {rows['last']}",
        f"engine {', '.join(e for e in rows['engines'] or [] if e)}",
        f"code {code}",
        *(f"origin {o}" for o in rows["origins"] or [] if o),
    ]
    return f'<p class="soft">{_text("; ".join(parts))}</p>\n'


def _text(value: str) -> str:
    return html.escape(visible(value, 2000))
