"""Claims are answered from the first seeds in order, corrected among themselves, and rarely falsely."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paced_results import Line, write_paced
from running import ingested

from harness.statistics import mean_interval
from harness.statistics.claims import (
    INTERIM,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    UNIDENTIFIED,
    Bounds,
    MeasuredClaim,
    answer_claims,
    level_of_look,
)
from harness.store.claims import ClaimAnswer, answer_suite_claims
from harness.store.ranking import make_heading
from harness.store.render import render_rows
from harness.store.table import show_rows

LINES = (
    Line("independent"),
    Line("independent-2x", pace=1.1, budget="2x", trained=2000),
    Line("hacpo", "hacpo", pace=1.25),
    Line("sgt", "sgt", end=0.08),
)
# A copy of oneself as the peer: no faster
SELF = (Line("independent"), Line("hacpo", "hacpo", pace=1.0))


def claim(name: str, statistic: str, relation: str, bound: float, regime: str = "hacpo", **more: Any) -> dict[str, Any]:
    said = {
        "name": name,
        "group": "pair",
        "regime": regime,
        "statistic": statistic,
        "relation": relation,
        "bound": bound,
    }
    return {"over": None, "against": None, "seeds": None, **said, **more}


def answers_of(results: Path, *claims: dict[str, Any], **written: Any) -> dict[str, ClaimAnswer]:
    write_paced(results, LINES, claims=claims, groups=[("self", SELF)], noise=0.004, **written)
    with ingested(results) as snapshot:
        return {one.claim.name: one for one in answer_suite_claims(snapshot, "paced", 0.02)}


def test_each_kind_of_claim_has_the_answer_that_the_rows_were_made_with(tmp_path: Path) -> None:
    found = answers_of(
        tmp_path,
        claim("faster", "kappa", "above", 1.0),
        claim("slower", "kappa", "below", 1.0),
        claim("alike", "reach", "within", 2.0),
        claim("higher", "reach", "within", 2.0, "sgt"),
        claim("gains", "gain", "above", 2.0, "sgt"),
        claim("than-2x", "kappa", "above", 1.0, over="independent-2x"),
        claim("than-a-copy", "kappa", "above", 0.05, against={"group": "self", "regime": None}),
        claim("same", "kappa", "within", 0.1, "sgt"),
    )
    assert {name: one.answer for name, one in found.items()} == {
        "faster": SUPPORTED,
        "slower": REFUTED,
        "alike": SUPPORTED,
        "higher": REFUTED,
        "gains": SUPPORTED,
        "than-2x": SUPPORTED,
        "than-a-copy": SUPPORTED,
        "same": SUPPORTED,
    }
    assert found["faster"].value == pytest.approx(1.25, abs=0.03)
    assert found["than-2x"].value == pytest.approx(1.25 / 1.1, abs=0.03)
    assert found["than-a-copy"].value == pytest.approx(0.25, abs=0.04)
    assert found["higher"].value == pytest.approx(0.08, abs=0.01)
    assert found["than-a-copy"].words == "kappa of hacpo on pair, less that on self, is above 0.05"
    assert found["alike"].words == "reach of hacpo on pair is within 2 points of 0"


def test_claims_are_answered_first_in_every_text_and_in_json(tmp_path: Path) -> None:
    answers_of(tmp_path, claim("faster", "kappa", "above", 1.0))
    with ingested(tmp_path) as snapshot:
        rows, head = show_rows(snapshot, "paced"), make_heading(snapshot, "paced", said="nothing")
        opening = make_heading(snapshot, "paced")
    assert render_rows("paced", rows, "markdown", head=head).startswith("**Claimed before it ran**")
    assert render_rows("paced", rows, head=opening, brief=True).startswith("Claimed before it ran")
    document = json.loads(render_rows("paced", rows, "json", head=opening))
    assert [one["answer"] for one in document["claims"]] == [SUPPORTED]


def test_seeds_count_in_order_and_an_early_look_has_a_small_level(tmp_path: Path) -> None:
    claims = [claim("all", "gain", "above", 2.0, "sgt"), claim("first", "gain", "above", 2.0, "sgt", seeds=4)]
    write_paced(tmp_path, LINES, claims=claims, seeds=[5, 3, 9, 1, 7, 8])
    lacking = tmp_path / "paced" / "pair-sgt-7" / "manifest.json"
    lacking.write_text(lacking.read_text().replace('"done"', '"failed"'))
    with ingested(tmp_path) as snapshot:
        found = {one.claim.name: one for one in answer_suite_claims(snapshot, "paced", 0.02)}
    assert (found["all"].done, found["all"].planned) == (4, 6), "the seed behind the lacking one does not count"
    assert (found["first"].done, found["first"].planned) == (4, 4)
    assert found["all"].p is not None
    assert found["first"].p is not None
    assert found["all"].p > found["first"].p


def test_what_cannot_be_identified_is_no_answer(tmp_path: Path) -> None:
    write_paced(tmp_path, LINES, claims=[claim("faster", "kappa", "above", 1.0)], noise=0.2)
    with ingested(tmp_path) as snapshot:
        (found,) = answer_suite_claims(snapshot, "paced", 0.02)
    assert (found.answer, found.value, found.p) == (UNIDENTIFIED, None, None)
    assert found.reason


def test_answers_by_hand() -> None:
    def answer(value: float, bounds: Bounds, error: float = 1.0) -> str:
        return answer_claims([MeasuredClaim(value, error, 9)], [bounds], [0.05])[0].answer

    # Student t with nine degrees of freedom exceeds 2.262 in 5 % of both tails together
    above = Bounds(1.0, inf)
    assert [answer(v, above) for v in (3.3, 3.2, -1.2, -1.3)] == [SUPPORTED, UNDECIDED, UNDECIDED, REFUTED]
    within = Bounds(-3.0, 3.0)
    assert [answer(v, within) for v in (0.7, 0.8, 5.2, 5.3, -5.3)] == [
        SUPPORTED,
        UNDECIDED,
        UNDECIDED,
        REFUTED,
        REFUTED,
    ]
    both = answer_claims([MeasuredClaim(3.3, 1, 9), MeasuredClaim(9, 1, 9)], [above, above], [0.05, 0.05])
    assert [one.answer for one in both] == [SUPPORTED, SUPPORTED], "Holm: the second is tested at the whole level"
    twice = answer_claims([MeasuredClaim(3.3, 1, 9), MeasuredClaim(3.3, 1, 9)], [above, above], [0.05, 0.05])
    assert [one.answer for one in twice] == [UNDECIDED, UNDECIDED]


def test_levels_of_all_looks_together_are_five_percent() -> None:
    for planned in (5, 10):
        assert sum(level_of_look(done, planned) for done in range(3, planned + 1)) == pytest.approx(0.05)
    assert level_of_look(4, 5) == INTERIM


def test_of_twenty_suites_one_at_most_has_a_false_answer() -> None:
    """Four claims at their bounds, looked at after every seed."""
    rng = np.random.default_rng(2)
    suites, false = 1500, 0
    for _ in range(suites):
        seeds = rng.standard_normal((4, 8))
        said = set()
        for done in range(3, 9):
            means = mean_interval(seeds[:, :done])
            measured = [
                MeasuredClaim(float(m), float(e), done - 1) for m, e in zip(means.mean, means.error, strict=True)
            ]
            told = answer_claims(measured, [Bounds(0.0, inf)] * 4, [level_of_look(done, 8)] * 4)
            said |= {one.answer for one in told}
        false += bool(said & {SUPPORTED, REFUTED})
    assert false / suites <= 0.05 + 2 * (0.05 * 0.95 / suites) ** 0.5
