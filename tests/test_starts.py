"""Accuracy before a start, after it and after RL, strict and lenient, from records made by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from running import ingested

from harness.store.journal import Journal
from harness.store.manifest import Manifest, PolicyEntry, write_manifest
from harness.store.ranking import make_heading
from harness.store.remarks import read_moments
from harness.store.render import render_rows
from harness.store.rows import SampleRow
from harness.store.table import show_rows
from harness.verification.verdict import RIGHT_AS_IT_STANDS

BOXED, BARE, LAST, CUT, WRONG, NONE = (
    (r"so \boxed{1,234}", "right", True),
    ("it is 1234", "right", True),
    (r"\boxed{5} or 1234", "wrong", True),
    (r"\boxed{1234} and then", "right", False),
    (r"\boxed{5}", "wrong", True),
    ("", "wrong", True),
)
INVALID = ("1234", "invalid", True)
STANDS = (r"\boxed{1234}, and 7 of", RIGHT_AS_IT_STANDS, False)


def cell(
    results: Path, name: str, kind: str, seed: int | None, answers: dict[int, list[tuple[str, str, bool]]]
) -> None:
    folder = results / "hand" / name
    manifest = Manifest(
        suite="hand", key=name, kind=kind, group="pair", regime="" if kind == "base" else "sgt", regime_type="sgt", seed=seed,  # type: ignore[arg-type]
        state="done", policies=(PolicyEntry("g", "pretrained/g"),), attempts=1,
    )  # fmt: skip
    write_manifest(folder, msgspec.structs.replace(manifest))
    journal = Journal(folder)
    for step, every in answers.items():
        for doc, (text, verdict, finished) in enumerate(every):
            row = SampleRow(policy="g", checkpoint_step=step, task="t", metric="greedy", doc_id=str(doc), text=text, gold="1234",
                            verdict="wrong" if verdict == RIGHT_AS_IT_STANDS else verdict,
                            reason=verdict if verdict == RIGHT_AS_IT_STANDS else "", finished=finished)  # fmt: skip
            journal.append(row)
    journal.commit(max(answers) + 1)


def test_by_hand(tmp_path: Path) -> None:
    cell(tmp_path, "base-g", "base", None, {-1: [BARE, LAST, CUT, NONE], 0: [BOXED, WRONG, INVALID, BARE]})
    cell(tmp_path, "one", "cell", 1, {30: [BOXED, BOXED, WRONG, WRONG]})
    cell(tmp_path, "two", "cell", 2, {30: [BOXED, BOXED, BOXED, BOXED]})
    with ingested(tmp_path) as snapshot:
        measured = read_moments(snapshot, "hand")
        rows, head = show_rows(snapshot, "hand"), make_heading(snapshot, "hand")
        assert read_moments(snapshot, "other") == []
    assert [(m.moment, m.strict, round(m.lenient, 3), m.answers, m.seeds) for m in measured] == [
        ("before its start", 0.0, 0.75, 4, 1),
        ("after its start", 1 / 3, 0.667, 3, 1),
        ("sgt", 0.75, 0.75, 8, 2),
    ]
    assert rows[0].base == pytest.approx(2 / 3)  # the newest of the base's own: its start
    shown = render_rows("hand", rows, head=head)
    assert "before its start" in shown
    assert "RL: sgt" in shown
    assert "RL: sgt" not in render_rows("hand", rows, head=msgspec.structs.replace(head, starts=[]))
    assert render_rows("hand", rows, "markdown", head=head).count("before its start") == 1


def test_what_was_cut_off_is_right_in_the_lenient_share_alone(tmp_path: Path) -> None:
    cell(tmp_path, "base-g", "base", None, {-1: [STANDS, WRONG], 0: [STANDS, BOXED, STANDS, NONE]})
    with ingested(tmp_path) as snapshot:
        measured = read_moments(snapshot, "hand")
    assert [(m.moment, m.strict, m.lenient) for m in measured] == [
        ("before its start", 0.0, 0.5),
        ("after its start", 0.25, 0.75),
    ]
