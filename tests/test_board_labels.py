"""The board's accuracy of two regimes by what questions are labelled with."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_results import write_rows

from harness.store.ingest import ingest_journals
from harness.store.manifest import PolicyEntry
from harness.store.rows import SampleRow

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

from streamlit.testing.v1 import AppTest


def draw(results: str) -> None:
    """The page as an app of its own."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.page import draw_page
    from leaderboard.views import PAGES

    draw_page(next(page for page in PAGES if page.slug == "answers"), open_store(Path(results)), "hand")


def write_cell(results: Path, regime: str, seed: int, verdicts: dict[str, list[str]]) -> None:
    """A finished cell of one policy. verdicts: of the answers at the end, by the question's level."""
    rows = [
        SampleRow(
            policy="a", checkpoint_step=step, task="sums", metric="sampled", doc_id=f"{level}-{place}", verdict=verdict,
            labels={"level": level},
        )
        for level, own in verdicts.items()
        for place, verdict in enumerate(own)
        for step, verdict in ((0, "right"), (9, verdict))
    ]  # fmt: skip
    policies = (PolicyEntry(name="a", model="micro/llama"),)
    write_rows(results, rows, f"{regime}-{seed}", regime=regime, regime_type=regime, seed=seed, policies=policies)


def test_two_regimes_are_compared_by_level_over_their_common_seeds(tmp_path: Path) -> None:
    alone = {"2": ["right", "wrong"], "10": ["wrong", "wrong", "invalid"]}
    shared = {"2": ["right", "right"], "10": ["right", "wrong", "invalid"]}
    for seed in (1, 2):
        write_cell(tmp_path, "independent", seed, alone)
        write_cell(tmp_path, "sgt", seed, shared)
    write_cell(tmp_path, "sgt", 3, {"2": ["wrong"] * 50})
    ingest_journals(tmp_path)
    app = AppTest.from_function(draw, args=(str(tmp_path),), default_timeout=60)
    for name, value in {"regime": "sgt", "b": "independent", "part": "By label"}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    assert not app.error
    (table,) = [frame.value for frame in app.dataframe]
    assert table.drop(columns=["task", "metric", "policy"]).to_numpy().tolist() == [
        # the last checkpoint alone; an answer that could not be judged counts nowhere; levels by number
        ["level", "2", 0.5, 1.0, 50.0, 8],
        ["level", "10", 0.0, 0.5, 50.0, 8],
    ]
