"""Tasks through the entry points."""

from __future__ import annotations

from random import Random

import pytest
from benchmark_data import data_folder

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks.conformance import CHECKS, DESCRIBED, name_of
from harness.tasks.registry import (
    EVALUATION_SETS,
    PLUGINS,
    get_task,
    list_task_names,
    results_versions,
    source_of,
    training_source,
)
from harness.tasks.source import Generated
from harness.tasks.task import Task

MADE = ("micro", "micro_dev", "ladder", "countdown")
FOLDER = data_folder()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("name", [*MADE, *EVALUATION_SETS])
def test_conformance(name, check, monkeypatch):
    if name in EVALUATION_SETS and check not in DESCRIBED:
        if FOLDER is None:
            pytest.skip("no benchmark folder (HARNESS_DATA)")
        monkeypatch.setenv("HARNESS_DATA", str(FOLDER))
    if name == "ladder" and check.__name__.startswith("refuses"):
        with pytest.raises(PluginError, match="unknown level"):
            source_of("ladder.no-such-part")
    check(name)


def test_the_shipped_ones_come_through_the_door_and_first():
    assert set(PLUGINS.installed()) == {*MADE, *EVALUATION_SETS, "gym"}
    assert list_task_names()[: len(MADE)] == list(MADE)
    assert PLUGINS.origin("micro").endswith("(harness.tasks.shipped:Micro)")
    with pytest.raises(PluginError, match="did you mean 'gsm8k'"):
        get_task("gsm8")
    with pytest.raises(PluginError, match="micro has no part 'add'"):
        get_task("micro.add")


def test_a_shipped_tasks_version_is_in_its_package():
    for name in list_task_names():
        symbolic = {"verification/symbolic"} if name in EVALUATION_SETS else set()
        scorer = "scoring" if name == "countdown" else "verification"
        assert results_versions(name).keys() == {"tasks", scorer} | symbolic


def test_what_is_for_evaluation_alone_is_not_trained_on():
    assert [name for name in list_task_names() if source_of(name).trains] == [
        "micro",
        "ladder",
        "countdown",
        "gsm8k",
        "math",
    ]
    with pytest.raises(
        PluginError, match="unknown training task 'math500'; there are micro, ladder, countdown, math, gsm8k"
    ):
        training_source("math500")
    with pytest.raises(DataError, match=r"gsm8k has no levels|not on this machine|there is no"):
        source_of("gsm8k").pool(min_level=3)


class Letters(Generated):
    """Letters of the alphabet"""

    size = 3

    def invent(self, random: Random) -> Prompt:
        letter = random.choice("abcdefghijklmnopqrstuvwxyz")
        return Prompt(letter, letter, letter)

    def evaluation(self) -> Task:
        return Task(self.name, "Letters", self.held_out, size=self.size)


def test_a_small_space_ends_in_an_error_and_its_sides_share_nothing():
    source = Letters("letters")
    held_out = {p.text for p in source.held_out()}
    assert len(held_out) == 3
    tuning, final, every = ({p.text for p in source.draw(1, 2, part=part)} for part in ("tuning", "final", "all"))
    assert not held_out & (tuning | final | every)
    assert not tuning & final
    with pytest.raises(DataError, match="letters: 26 distinct questions asked for, only"):
        source.draw(1, 26)
