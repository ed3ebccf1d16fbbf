"""Retention: what training leaves of tasks that a suite names as not trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from paced_results import Line, write_paced
from pydantic import ValidationError
from running import ingested

from harness.store.ranking import make_heading
from harness.store.render import render_rows
from harness.store.table import MEAN, show_rows
from harness.suite.schema import Suite

BEFORE = {"a": 0.5, "b": 0.5}
LINES = (Line("independent", untrained=0.5), Line("naive", "naive", end=0.1, untrained=0.25))


def test_a_task_that_was_not_trained_has_a_table_of_its_own(tmp_path: Path) -> None:
    write_paced(tmp_path, LINES, bases=BEFORE, retention=["other"])
    with ingested(tmp_path) as snapshot:
        rows = show_rows(snapshot, "paced")
        head = make_heading(snapshot, "paced")
    assert {row.task for row in rows} == {"made-up"}, "no gain, mean or verdict counts it"
    kept = {(row.regime, row.policy): row for row in head.retention if row.metric == "avg@4"}
    naive, independent = kept["naive", MEAN], kept["independent", MEAN]
    assert independent.change == pytest.approx(0.0, abs=0.01)
    assert independent.over_baseline is None
    assert naive.change == pytest.approx(-0.25, abs=0.03)
    assert naive.over_baseline == pytest.approx(naive.change - independent.change)
    assert naive.change_interval is not None
    assert naive.change_interval[1] < 0
    assert naive.change_interval[0] < naive.change, "equal seeds are no certainty: sampling has a share"
    assert {policy for _, policy in kept} == {MEAN, "a", "b"}
    said = render_rows("paced", rows, head=head)
    assert "pair: other, which was not trained" in said


def test_naming_it_changes_no_other_number(tmp_path: Path) -> None:
    asked_too = [Line("independent"), Line("naive", "naive", end=0.1)]
    write_paced(tmp_path / "one", asked_too, bases=BEFORE)
    write_paced(tmp_path / "two", LINES, bases=BEFORE, retention=["other"])
    tables = []
    for name in ("one", "two"):
        with ingested(tmp_path / name) as snapshot:
            tables.append([row for row in show_rows(snapshot, "paced") if row.task == "made-up"])
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("measured", "trained", "named", "said"),
    [
        (
            ["micro", "ladder.add1"],
            "micro",
            ["ladder.add2"],
            r"retention\[0\]: 'ladder.add2' is not among evaluation.tasks",
        ),
        (["micro", "ladder"], "ladder.add1", ["ladder"], r"retention\[0\]: 'ladder' is trained"),
        (["micro", "ladder.add1+sub2"], "ladder.sub2+mul1x1", ["ladder.add1+sub2"], "is trained"),
        (["micro", "ladder"], "countdown", ["ladder", "micro"], r"retention\[1\]: 'micro' is the first"),
        (["micro", "ladder"], "countdown", ["ladder", "ladder"], "twice"),
    ],
)
def test_a_task_that_cannot_be_retained_is_refused(
    measured: list[str], trained: str, named: list[str], said: str
) -> None:
    fields = {
        "name": "one",
        "groups": [{"name": "pair", "policies": [{"name": p, "model": f"micro/{p}"} for p in ("neox", "qwen")]}],
        "regimes": ["independent"],
        "seeds": [1],
        "training": {"task": trained},
        "evaluation": {"tasks": measured},
        "retention": named,
    }
    with pytest.raises(ValidationError, match=said):
        Suite.model_validate(fields)
    Suite.model_validate(fields | {"retention": [], "training": {"task": "micro"}})
