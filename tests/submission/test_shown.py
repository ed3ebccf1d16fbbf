"""How far another lab's results were checked, and whose settings they have, on the leaderboard and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest_journals
from harness.store.manifest import Submission, read_submission, write_submission
from harness.submission.check import describe_settings, mark_reported
from harness.suite.load import load_suite
from leaderboard import RESULTS_VARIABLE

APP = Path(__file__).parents[2] / "leaderboard" / "app.py"


def test_results_without_a_suite_file_have_a_badge_too(tmp_path: Path) -> None:
    write_results(tmp_path, "s@lab-b", regimes=REGIMES[:1], seeds=(1,), steps=1, questions=4, exchanges=0)
    (tmp_path / "s@lab-b" / "suite.json").unlink()
    mark_reported(tmp_path, "lab-b")
    submission = read_submission(tmp_path / "s@lab-b")
    assert submission is not None
    assert submission.describe() == "as reported; settings unknown"


def test_the_badge_stands_below_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path, "s@lab-b", regimes=REGIMES[:2], seeds=(1, 2), steps=1, questions=4, exchanges=0)
    write_submission(tmp_path / "s@lab-b", Submission(badge="re-scored", category="<b>published</b> defaults"))
    ingest_journals(tmp_path)
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path))
    app = AppTest.from_file(str(APP), default_timeout=60).run()
    assert not app.exception
    assert r"re\-scored; \<b\>published\</b\> defaults" in [caption.value for caption in app.sidebar.caption]


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ("elicit", "the baseline alone"),
        ("quickstart", "published defaults: sgt, hacpo; unpublished defaults: prp, xgrpo"),
        (
            "beyond",
            "published defaults: sapo, luffy; unpublished defaults: prp, xgrpo, chord, rlccf, grafted, copd, score-then-rl, core; "
            "settings of their own: luffy-weight, chord-phi, graft-sgt, graft-hacpo",
        ),
        ("controls", "unpublished defaults: naive; settings of their own: sgt-1, hacpo-wide"),
    ],
)
def test_published_defaults_stand_on_published_regimes_alone(suite: str, words: str) -> None:
    """The badge stood on naive pooling, F-TIS as we read it, and the baseline."""
    assert describe_settings(load_suite(suite)) == words
