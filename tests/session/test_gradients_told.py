"""A regime that asks for its gradients is told of every step's, and goes on from a checkpoint with what it made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.learning.conformance import check_regime
from harness.learning.regime import Measured
from harness.phases import Interrupted

from .running import cell, rows, run

GAUGE = Path(__file__).parents[2] / "examples" / "gauge"
SETTINGS = ("training.steps=5", "training.measure_every=0", "evaluation.curve_every=0", "training.prompts=16")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "gauge-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gauge\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[harness.regimes]\ngauge = gauge:Gauge\n")
    for place in (GAUGE, tmp_path):
        monkeypatch.syspath_prepend(str(place))


@pytest.mark.slow_but("one")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("teach", ["one", "group"])
def test_told_of_every_step_and_the_same_after_a_break(suite_file: Path, tmp_path: Path, teach: str) -> None:
    settings = [*SETTINGS, f"regimes=[independent, {{regime: gauge, teach: {teach}}}]"]
    whole = run(suite_file, tmp_path / "whole", settings, only="gauge")
    steps = rows(whole, cell(whole, "gauge"), "steps")
    assert all((s["own_gradient_norm"] or 0) >= 0 for s in steps)
    taught = [s for s in steps if s["peer_used"]]
    assert len(taught) > 3
    assert all(s["peer_gradient_norm"] > 0 for s in taught), "measured though `measure_every` is 0"
    with pytest.raises(Interrupted):
        run(suite_file, tmp_path / "broken", settings, only="gauge", stop_after=4)
    again = run(suite_file, tmp_path / "broken", settings, only="gauge")
    assert rows(again, cell(again, "gauge"), "steps") == steps


def test_contract_and_the_weight_that_it_chooses() -> None:
    from gauge import FIRST, Gauge, GaugeOptions

    for options in ({"teach": "one"}, {"teach": "group"}, {"share": 0.25}):
        check_regime(Gauge, options)
    regime = Gauge(GaugeOptions(share=0.5))
    assert regime._weight() == FIRST
    regime._seen.update(weight=0.1, now=0.25, taught=0.25, peak=0.5)
    regime.learnt(Measured(own=2.0, peer=0.05, cosine=-0.1))
    weight = regime._weight()
    assert weight * 0.5 * (0.05 / (0.1 * 0.25)) == pytest.approx(0.5 * 2.0), (
        "at its highest r the share of the own norm"
    )
    assert regime._seen["below"] == 1
