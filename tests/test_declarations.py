"""One declaration adds a statistic to every view of the table, one file adds a page to the leaderboard."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest_journals
from harness.store.statistic import STATISTICS, select_columns

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")
ROOT = Path(__file__).parents[1]
DRAW = """
from pathlib import Path
from leaderboard.data import open_store
from leaderboard.page import draw_page
from leaderboard.views import PAGES
draw_page(next(p for p in PAGES if p.slug == "ranking"), open_store(Path({!r})), "synthetic-small")
"""
DECLARATION = (
    f"DRAW = {DRAW!r}"
    + '''
import json
from pathlib import Path
from harness.store.statistic import PERCENT, TableRow, statistic, to_number

@statistic("Standard error", PERCENT, head="error", better="lower")
def standard_error(row: TableRow) -> float | None:
    """Of the mean accuracy over seeds."""
    return to_number(row.comparison.own.error[row.place])

def show(form):
    import contextlib, io
    from harness.cli.tables import show_suite
    with contextlib.redirect_stdout(io.StringIO()) as said:
        show_suite("synthetic-small", Path(RESULTS), form, full=True)
    return said.getvalue()

def page():
    from streamlit.testing.v1 import AppTest
    app = AppTest.from_string(DRAW.format(RESULTS), default_timeout=60)
    app.query_params["part"] = "Table"
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    table = app.dataframe[0]
    return f"{table.value.to_csv(index=False)}\\n{table.proto.columns}"

from leaderboard.report import export_report
export_report(Path(RESULTS), Path(RESULTS) / "report.html")
said = {form: show(form) for form in ("json", "table", "markdown", "csv")} | {"page": page()}
print(json.dumps(said | {"report": (Path(RESULTS) / "report.html").read_text()}))
'''
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder, groups={"duo": ("llama", "qwen")}, regimes=REGIMES[:2], steps=2, questions=10)
    ingest_journals(folder)
    return folder


def python(results: Path, code: str, *, place: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": str(place), "COLUMNS": "200", "HARNESS_RESULTS": str(results)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, cwd=place
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_statistic_is_one_declaration(results: Path) -> None:
    said = json.loads(python(results, f"RESULTS = {str(results)!r}\n{DECLARATION}"))
    row = next(r for r in json.loads(said["json"])["rows"] if r["policy"] == "*")
    value = row["standard_error"]
    assert 0 < value < 0.2
    shown_as = f"{100 * value:.1f}"
    assert re.search(rf"(?m)^ *regime +policy .* error\n(.*\n)*? *{row['regime']} .* {shown_as}$", said["table"])
    assert re.match(rf"\|.*\| error \|\n\|.*\| ---: \|\n\|.*\| {shown_as} \|\n", said["markdown"])
    first, drawn = (next(csv.DictReader(io.StringIO(said[form]))) for form in ("csv", "page"))
    assert float(first["standard_error"]) == value
    for words in ("Standard error, %", "Of the mean accuracy over seeds. Lower is better."):
        assert words in said["page"]
    assert 'title="Of the mean accuracy over seeds.">Standard error, %</th>' in said["report"]
    assert f"<td>{float(drawn['error']):.1f}</td>" in said["report"]


def test_every_statistic_says_what_it_is() -> None:
    for s in STATISTICS.values():
        assert s.title, s.name
        assert s.help.endswith("."), s.name
        assert not s.interval_of or s.interval_of in STATISTICS, s.name
    for view in ("terminal", "markdown", "page"):
        columns = select_columns(view)
        assert len({s.head for s in columns}) == len(columns) > 5


PAGE = """
import streamlit as st
from leaderboard.page import Page

def draw(store, suite):
    st.write(f"{len(store.show_table(suite))} lines of {suite}")

PAGE = Page("lines", "How many lines", ":material/tag:", "Counted.", draw, order=15, figures=False)
"""
DRAW = """
from pathlib import Path
from leaderboard.data import open_store
from leaderboard.page import draw_page
from leaderboard.views import PAGES
draw_page(next(p for p in PAGES if p.slug == "lines"), open_store(Path({results!r})), "synthetic-small")
"""


@pytest.mark.slow
def test_a_page_is_one_file(results: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "leaderboard", tmp_path / "leaderboard")
    listed = "from leaderboard.views import PAGES; print(*(page.slug for page in PAGES))"
    (tmp_path / "leaderboard" / "views" / "lines.py").write_text(PAGE)
    assert python(results, listed, place=tmp_path).split()[2] == "lines", "in the order that it asks for"
    drawn = python(
        results,
        f"""
from streamlit.testing.v1 import AppTest
app = AppTest.from_string({DRAW.format(results=str(results))!r}, default_timeout=60).run()
assert not app.exception, app.exception[0].stack_trace
print(app.title[0].value, *(m.value for m in app.markdown), sep="|")
app = AppTest.from_file("leaderboard/app.py", default_timeout=60).run()
assert not app.exception, app.exception[0].stack_trace
""",
        place=tmp_path,
    )
    assert drawn.strip() == "How many lines|Counted.|24 lines of synthetic-small"
