"""Who helps whom, what was refused, and what a page lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from synthetic_results import REGIMES, write_cell, write_results, write_rows

from harness.store.ingest import ingest_journals
from harness.store.manifest import PolicyEntry
from harness.store.read import Snapshot
from harness.store.rows import ExchangeRow, Row, SampleRow, StepRow
from harness.store.statistic import POINTS

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")


from drawn_pages import SUITE, page, text_of_page

from leaderboard.data import open_store
from leaderboard.views import exchange, stability


def test_what_was_all_refused_is_not_shown_as_nothing_refused() -> None:
    steps = "(VALUES (0, 1.0), (0, NULL)) t(peer_received, refused_share)"
    value = stability._write_sql("refused")
    assert duckdb.sql(f"SELECT {value} FROM {steps}").fetchall() == [(1.0,)]
    assert duckdb.sql(f"SELECT {value} FROM {steps} WHERE refused_share IS NULL").fetchall() == [(0.0,)]


def test_the_authors_of_a_replay_are_in_the_picture() -> None:
    totals = pd.DataFrame({"regime": ["r"], "policy": ["llama"], "received": [3.0], "used": [3.0]})
    flows = pd.DataFrame({"regime": ["r"], "author": ["old"], "receiver": ["llama"], "records": [4.0], "used": [3.0]})
    gains = pd.DataFrame(columns=["variant", "policy", "gain", "verdict"])
    assert "old to llama: 4 sent, 3 used" in exchange._chart_network("r", flows, totals, gains)["description"]


@pytest.mark.slow
def test_residuals_are_means_over_the_records_that_have_them(tmp_path: Path) -> None:
    """One of texts alone counted as 0 in the others' means, and by itself as no text."""
    policies = tuple(PolicyEntry(name, f"micro/{name}") for name in "ab")
    sent: dict[str, dict[str, float]] = {
        "hacpo": {"residual_boundary": 0.2, "residual_canonical": 0.5},
        "copd": {"residual_boundary": 0.4},
        "sgt": {},
    }
    for regime, residuals in sent.items():
        row = ExchangeRow(step=1, author="a", receiver="b", kind=regime, residual_text=0.1, **residuals)
        step = StepRow(policy="b", step=1, peer_received=1)
        write_rows(tmp_path, [row, step], regime, regime=regime, regime_type=regime, seed=1, policies=policies)
    ingest_journals(tmp_path)
    residuals = page(tmp_path, "exchange", "hand", regime="all").dataframe[0].value.iloc[0]
    assert [residuals[name] for name in ("text", "boundary", "canonical", "records")] == pytest.approx(
        [0.1, 0.3, 0.5, 3]
    )
    assert page(tmp_path, "exchange", "hand", regime="sgt").dataframe[0].value["text"].tolist() == [0.1]


def test_who_helps_whom_is_a_picture_of_any_group(tmp_path: Path) -> None:
    """With the sender of each answer where the results kept it; of reference results from what each policy received."""
    groups = {"duo": ("llama", "qwen"), "trio": ("llama", "qwen", "gpt2")}
    write_results(tmp_path, groups=groups, regimes=[REGIMES[0], REGIMES[2]], seeds=(1, 2), steps=3, questions=10)
    write_results(tmp_path, "kept", groups, [REGIMES[0], REGIMES[2]], (1, 2), steps=3, questions=10, exchanges=0)
    ingest_journals(tmp_path)
    pictures = {}
    for suite in (SUITE, "kept"):
        for group in groups:
            app = page(tmp_path, "exchange", suite, group=group)
            pictures[suite, group] = json.loads(
                (app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart"))[0].proto.spec
            )["description"]
            if suite == "kept":
                shown = open_store(tmp_path).show_table(suite)
                here = shown.query("group == @group and regime == 'prp' and metric == @shown.metric[0]")
                gains = dict(zip(here["policy"], here["gain"], strict=True))
                assert all(f"{p}: {POINTS.text(gains[p])}" in pictures[suite, group] for p in groups[group])
    assert re.search(r"llama to qwen: \d+ sent, \d+ used; qwen to llama: \d+ sent", pictures[SUITE, "duo"])
    with Snapshot(tmp_path) as snapshot:
        ((received, used),) = (row.values() for row in snapshot.query(_RECEIVED).to_pylist())
    assert f"llama to qwen: {received:,.0f} received, {used:,.0f} used" in pictures["kept", "duo"]
    assert "gpt2 to llama: not kept; gpt2 to qwen: not kept" in pictures["kept", "trio"]


_RECEIVED = """
SELECT sum(peer_received) AS received, sum(peer_used) AS used FROM current_cells JOIN totals USING (suite, cell)
WHERE suite = 'kept' AND group_name = 'duo' AND policy = 'qwen'
"""


@pytest.mark.slow
def test_what_a_page_lacks_is_said_truly(tmp_path: Path) -> None:
    """One of three policies receives nothing; each regime has finished on another group."""
    policies = tuple(PolicyEntry(name, f"micro/{name}") for name in "abc")
    for regime, received in (("independent", 0), ("prp", 10)):
        rows: list[Row] = []
        for policy in "abc":
            sent = 0 if policy == "c" else received
            rows.append(StepRow(policy=policy, step=1, entropy=0.5, peer_received=sent, peer_used=sent // 2))
            rows.append(
                SampleRow(policy=policy, checkpoint_step=1, task="t", metric="greedy", doc_id="1", verdict="right")
            )
        write_rows(tmp_path, rows, regime, regime=regime, regime_type=regime, seed=1, policies=policies)
    for i, regime in enumerate(REGIMES[:4]):
        write_cell(tmp_path, "apart", f"g{i}", "ab"[: 1 + (i < 3)], regime, 1, 1, 4, 0, ("t",), 0)
    ingest_journals(tmp_path)
    app = page(tmp_path, "exchange", "hand")
    (picture,) = app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart")
    told = json.loads(picture.proto.spec)["description"]
    assert [word in told for word in ("10 received, 5 used", "\nnothing received", "nan")] == [True, True, False]
    assert "No policy has both" in text_of_page(page(tmp_path, "stability", "hand", x="entropy", y="kl-base"))
    assert page(tmp_path, "curves", "hand").code[0].value == "harness status hand", "its cells have run"
    assert "Nothing to draw" in text_of_page(page(tmp_path, "ranking", "apart")), (
        "no regime beside a baseline: no empty axis"
    )
    app = page(tmp_path, "ranking", "apart")
    app.multiselect(key="group").select("g3").run()
    assert "choose its policy" in text_of_page(app)
