"""A limit is a fair sample: every skill, level and subject has its share, the same questions everywhere."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmark_data import data_folder

from harness.tasks.registry import get_task
from harness.tasks.source import fair_part

FOLDER = data_folder()


def shares(prompts, label):
    return Counter(prompt.labels.get(label, "") for prompt in prompts)


@pytest.mark.parametrize("limit", [6, 20, 24, 48, 50, 120, 239])
def test_every_skill_is_asked_equally_often(limit: int) -> None:
    part = fair_part(get_task("micro").documents(None), limit)
    counts = shares(part, "skill")
    assert len(part) == limit
    assert len(counts) == 6
    assert max(counts.values()) - min(counts.values()) <= 1


def test_levels_keep_their_share_within_skills() -> None:
    everything = get_task("micro").documents(None)
    for skill in {p.labels["skill"] for p in everything}:
        own = [p for p in everything if p.labels["skill"] == skill]
        part = [p for p in fair_part(everything, 120) if p.labels["skill"] == skill]
        for level, count in shares(own, "level").items():
            assert abs(shares(part, "level")[level] - count * len(part) / len(own)) <= 1


def test_smaller_limits_are_parts_of_larger_ones_in_the_sets_order() -> None:
    everything = get_task("micro").documents(None)
    place = {p.id: i for i, p in enumerate(everything)}
    before: set[str] = set()
    for limit in range(1, 241):
        part = [p.id for p in fair_part(everything, limit)]
        assert part == sorted(part, key=place.__getitem__)
        assert before < set(part)
        before = set(part)


def test_a_limit_of_the_sets_size_or_none_changes_nothing() -> None:
    everything = get_task("micro").documents(None)
    assert fair_part(everything, None) == fair_part(everything, 240) == fair_part(everything, 999) == everything


def test_the_choice_is_pinned() -> None:
    assert [p.id for p in fair_part(get_task("micro").documents(None), 6)] == [
        "add:8+4+9",
        "sub3:2+6-6",
        "word:Mia has 12 keys, buys 11, then 14 more. How many keys?",
        "mul:6*28",
        "muladd:3*2+10",
        "sumul:3*(5+1)",
    ]


def test_the_choice_does_not_depend_on_the_order_of_the_set() -> None:
    everything = get_task("micro").documents(None)
    assert {p.id for p in fair_part(everything[::-1], 50)} == {p.id for p in fair_part(everything, 50)}


@pytest.mark.skipif(FOLDER is None, reason="no benchmark folder (HARNESS_DATA)")
@pytest.mark.parametrize(("name", "label"), [("math500", "level"), ("math", "subject"), ("olympiad", "subject")])
def test_benchmarks_keep_their_shares(name: str, label: str) -> None:
    everything = get_task(name).documents(FOLDER)
    part = fair_part(everything, 100)
    for value, count in shares(everything, label).items():
        assert abs(shares(part, label)[value] - 100 * count / len(everything)) <= 2.5, value
