"""`harness bandit`: a file in, the plane and the facts out, stored."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest

from harness.bandit import run_bandit
from harness.errors import SuiteError

SUITE = """
bandits:
  - {name: tiny, logits: [[0.5, 0.0, -1.0], [0.0, 0.2, 1.0]], rewards: [0, 0, 1], rollouts: 2}
regimes: [independent, prp, sgt, hacpo, graft]
"""


@pytest.fixture
def suite(tmp_path):
    def write(text):
        file = tmp_path / "tiny.yaml"
        file.write_text(text)
        return str(file)

    return write


def test_points_facts_and_file(suite, tmp_path):
    report = run_bandit(suite(SUITE), tmp_path)
    points = {p.regime: p for p in report.points}
    assert list(points) == ["independent", "prp", "sgt", "hacpo", "graft"]
    assert points["independent"].bias == pytest.approx(0, abs=1e-12)
    assert points["independent"].support == points["independent"].fires == 0
    assert points["prp"].fires == pytest.approx(1)
    assert 0 < points["sgt"].fires < 1
    assert points["sgt"].support == pytest.approx(points["sgt"].fires)
    # Imitation weighs every answer alike, and GRAFT takes nothing over on a single prompt.
    with_weight = {name for name, p in points.items() if p.weight_second_moment is not None}
    assert with_weight == {"prp", "sgt", "hacpo"}
    assert points["sgt"].weight_second_moment == pytest.approx(1)
    stored = msgspec.json.decode(report.folder.read_bytes())
    assert [p["regime"] for p in stored["points"]] == list(points)
    assert report.folder == tmp_path / "tiny" / "bandit.json"
    assert {f["holds"] for f in stored["facts"]} == {True, None}
    text = report.describe()
    assert "NO " not in text
    assert "-- tiny" in text.replace("  ", " ")
    assert all(len(line) < 140 for line in text.splitlines())


def test_the_second_moment_of_ratios_is_the_exact_one(suite, tmp_path):
    """PRP's ratio of a peer's answer is p / q; it learns from the draws whose rewards are not all alike."""
    (prp,) = [point for point in run_bandit(suite(SUITE), tmp_path).points if point.regime == "prp"]
    odds = np.exp([[0.5, 0.0, -1.0], [0.0, 0.2, 1.0]])
    p, q = odds / odds.sum(axis=1, keepdims=True)
    squared = mass = 0.0
    for own in product(range(3), repeat=2):
        for peers in product(range(3), repeat=2):
            if len({answer == 2 for answer in (*own, *peers)}) == 1:
                continue
            probability = p[list(own)].prod() * q[list(peers)].prod()
            squared += probability * float(((p / q)[list(peers)] ** 2).mean())
            mass += probability
    assert prp.weight_second_moment == pytest.approx(squared / mass, rel=1e-9)


def test_an_answer_without_a_gradient_is_no_support(suite, tmp_path):
    """HACPO's ratio lies below its window: answers that it may take have advantages, and no gradient."""
    far = SUITE.replace("[0.5, 0.0, -1.0], [0.0, 0.2, 1.0]", "[2.0, 0.5, -3.0], [0.0, 1.0, 1.5]")
    points = {p.regime: p for p in run_bandit(suite(far), tmp_path).points}
    assert points["hacpo"].fires > 0.5
    assert points["hacpo"].support == 0
    assert points["sgt"].support == pytest.approx(points["sgt"].fires)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("rewards: [0, 0, 1]", "rewards: [0, 1]", "bandits\\[0\\]"),
        ("rewards: [0, 0, 1]", "rewards: [0, 0, 0]", "bandits\\[0\\]: its policy gradient is 0"),
        ("rollouts: 2", "rollouts: 9", "bandits\\[0\\].rollouts"),
        ("[0.0, 0.2, 1.0]]", "[0.0, 0.2, 1.0], [0, 0, 0], [0, 0, 0]]", "outcomes are more than|bandits"),
        ("prp", "prq", "regimes\\[1\\].*did you mean 'prp'"),
        ("sgt", "{regime: sgt, lamda: 1}", "regimes\\[2\\].*lamda"),
        ("bandits:", "bandit:", "bandit"),
        ("[0.0, 0.2, 1.0]]", "[0.0, 0.2]]", "bandits"),
    ],
)
def test_bad_files_are_refused_by_place(suite, tmp_path, old, new, place):
    text = SUITE.replace(old, new)
    if "[0, 0, 0]" in new:
        text = text.replace("rollouts: 2", "rollouts: 6")
    with pytest.raises(SuiteError, match=place):
        run_bandit(suite(text), tmp_path)
