"""Answers in words, question by question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest_journals
from harness.store.journal import read_columns, write_columns
from harness.store.read import Snapshot
from harness.submission.bundle import choose_readable

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")


from drawn_pages import SUITE, html_of, page, text_of_page
from drawn_stores import DUO

from leaderboard.views import answers
from leaderboard.views.answers import LOST, SOLVED, token_view


@pytest.mark.slow
def test_of_results_that_kept_some_answers_in_words_those_are_shown_first(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    write_results(tmp_path, "few", groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=1, questions=12)
    write_results(tmp_path, "none", groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=1, questions=12)
    for file in [*tmp_path.glob("*/*/journal/*/samples-*.arrow")]:
        name, table = read_columns(file)
        kept = choose_readable(table, 10 if "few" in file.parts else 0)
        for column in ("prompt", "text"):
            emptied = pc.if_else(kept, table[column], pa.scalar("", pa.string()))
            table = table.set_column(table.schema.get_field_index(column), column, emptied)
        file.unlink()
        write_columns(file.parent, name, table)
    ingest_journals(tmp_path)
    app = page(tmp_path, "answers", "few")
    assert "the answers to 5 questions were kept in words" in text_of_page(app)
    html = html_of(app)
    assert "so it is \\boxed{" in html
    assert "not kept" not in html
    app = page(tmp_path, "answers", "few", show="all")
    assert "text not kept with these results" in html_of(app)
    app = page(tmp_path, "answers", "none")
    assert (
        "The answers' texts were not kept with these results; those of [few](answers?suite=few) were."
        in text_of_page(app)
    )


def test_questions_are_counted_once_with_one_measure_of_chance(stores: dict[str, Path]) -> None:
    """17: a sign test stood beside the interval. Ten questions, each asked of two policies in four groups, twice: not 80 or 160."""
    app = page(stores["large"], "head-to-head", a="sgt", b="independent")
    assert "Of 10 questions, each asked of 8 policies \\(80 comparisons\\), it does better on" in text_of_page(app)
    assert not [c for frame in app.dataframe for c in frame.value.columns if "test" in c]
    assert "by however little" in text_of_page(app)


def test_answers_under_two_regimes_stand_side_by_side(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's verdicts as the journals have them; what is solved by both is neither solved after sharing nor lost."""
    place = {"group": "pair-1", "regime": "sgt", "b": "independent", "seed": "1", "decoding": "greedy"}
    with Snapshot(stores["large"]) as snapshot:
        rows = snapshot.query(
            "SELECT regime, policy, task, doc_id, verdict FROM current_cells c JOIN samples USING (suite, cell) "
            "WHERE c.suite = ? AND group_name = 'pair-1' AND seed = 1 AND metric = 'greedy'",
            [SUITE],
        ).to_pylist()
    right: dict[str, set[tuple[str, str, str]]] = {}
    for row in rows:
        if row["verdict"] == "right":
            right.setdefault(row["regime"], set()).add((row["task"], row["doc_id"], row["policy"]))
    gained, lost = right["sgt"] - right["independent"], right["independent"] - right["sgt"]
    assert gained
    for show, expected in ((SOLVED, gained), (LOST, lost)):
        app = page(stores["large"], "answers", **place, show=show)
        assert f"{len({q[:2] for q in expected})} of 20 questions" in text_of_page(app)
        views = [str(e.proto.body) for e in app.get("html")]
        assert len(views) == min(5, len({q[:2] for q in expected}))
        for view in views:
            left, ours = view.partition('<p class="side"><a href="regimes?name=sgt" target="_self">sgt</a></p>')[::2]
            marks = ("✗ wrong", "✓ right") if show == SOLVED else ("✓ right", "✗ wrong")
            assert marks[0] in left
            assert marks[1] in ours
            assert "so it is \\boxed{" in ours
    assert "The download" not in text_of_page(app)
    monkeypatch.setattr(answers, "_DOWNLOAD", 15)
    assert "The download has the first 15 questions." in text_of_page(page(stores["large"], "answers", **place))


def test_answers_open_on_a_regime_that_shares(tmp_path: Path) -> None:
    better = replace(REGIMES[1], effect=0.4)
    write_results(tmp_path, groups=DUO, regimes=[REGIMES[0], better, REGIMES[4]], seeds=(1,), steps=1, questions=10)
    ingest_journals(tmp_path)
    assert page(tmp_path, "answers").selectbox(key="regime").value == "sgt"


def test_token_view_marks_common_edges_and_escapes() -> None:
    trace = {
        "peer_text": "ab<c>d", "source_pieces": [2, 3, 1], "source_logprobs": [-0.1, -2.0, -0.5], "receiver_pieces": [1, 1, 4],
        "aligned": [-0.05, -0.05, -2.5], "receiver_logprobs": [-1.0, -1.0, -1.0],
    }  # fmt: skip
    view = token_view(trace)
    assert "<c>" not in view
    assert "&lt;c&gt;" in view
    assert view.count('class="edge"') == 4, "after byte 2 and at the end, in both lines"
    assert "-2.50 (-1.00)" in view
