"""Search spaces: drawn values lie inside, come back to where they were drawn, and follow scale and prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from harness.errors import PluginError
from harness.learning.regime import Regime
from harness.learning.registry import installed, load, search_spaces
from harness.suite.schema import Training
from harness.suite.space import Choice, Range, spaces_of

RANGES = [
    Range(0.0, 2.0),
    Range(0.01, 3.0, "log"),
    Range(1e-5, 1e-3, "log", "normal"),
    Range(0.05, 0.95, prior="normal"),
    Range(1, 20, "log", whole=True),
]


@pytest.mark.parametrize("space", RANGES, ids=str)
def test_drawn_values_lie_inside_and_lead_back(space):
    default = space.at(0.3, space.low)
    for u in np.linspace(0, 1, 101):
        value = space.at(float(u), default)
        assert space.holds(value)
        again = space.at(space.unit(value, default), default)
        assert again == pytest.approx(value, rel=5e-3)
        if not space.whole:
            assert space.unit(value, default) == pytest.approx(u, abs=0.02)
    assert [space.holds(v) for v in (space.low, space.high, space.low - 1, space.high * 1.01)] == [
        True,
        True,
        False,
        False,
    ]


def test_scales_and_priors():
    assert Range(1.0, 100.0, "log").at(0.5, 1.0) == 10.0
    assert Range(0.0, 10.0).at(0.5, 0.0) == 5.0
    bell = Range(0.0, 1.0, prior="normal")
    drawn = np.array([bell.at((i + 0.5) / 2000, 0.5) for i in range(2000)])
    assert np.median(drawn) == pytest.approx(0.5, abs=1e-3)
    # a normal distribution of standard deviation 1/4, cut off at two of them: 68.27 % / 95.45 % within one
    assert np.mean(np.abs(drawn - 0.5) < 0.25) == pytest.approx(0.6827 / 0.9545, abs=2e-3)


def test_every_shipped_default_lies_in_its_space_and_the_baseline_s_settings_have_one():
    declared = {
        name: search_spaces(load(name)) for name, entry in installed().items() if entry.value.startswith("regimes.")
    }
    assert {name for name, searched in declared.items() if searched} >= {
        "sgt",
        "hacpo",
        "prp",
        "xgrpo",
        "graft",
        "sapo",
        "ftis",
    }
    assert set(spaces_of(Training, Training().model_dump())) == {"learning_rate", "rollouts", "kl"}


def test_a_default_outside_its_space_is_refused():
    @dataclass(frozen=True)
    class Options:
        rate_: Annotated[float, Range(0.5, 1.0)] = 0.1

    class Outside(Regime):
        """Bad."""

    Outside.Options = Options
    with pytest.raises(PluginError, match=r"rate_: the default 0.1 lies outside its search space \(0.5 to 1"):
        search_spaces(Outside)


def test_relative_spaces_follow_the_suite():
    assert Range(0.2, 5.0, "log", relative=True).around(1e-4) == Range(2e-5, 5e-4, "log")
    assert Choice(0.5, 1, 2, relative=True).around(8).values == (4, 8, 16)
    assert Choice(None, 4).holds(None)
    assert not Choice(0.0, 1.0).holds(False)


@pytest.mark.parametrize("bad", [(1.0, 1.0), (0.0, 1.0, "log"), (0.0, float("inf"))])
def test_impossible_ranges(bad):
    with pytest.raises(ValueError, match="a range"):
        Range(*bad)
