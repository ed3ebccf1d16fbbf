"""A limit is a fair sample."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmark_data import data_folder

from harness.tasks.registry import get_task
from harness.tasks.source import fair_part

FOLDER = data_folder()


MICRO = get_task("micro").documents(None)


@pytest.mark.parametrize(
    ("name", "label", "limit", "within"),
    [("micro", "skill", 20, 0.7), ("micro", "skill", 239, 0.9), ("micro", "level", 120, 2.0),
     ("math500", "level", 100, 2.5), ("math", "subject", 100, 2.5),
     ("olympiad", "subject", 100, 2.5)],
)  # fmt: skip
def test_labels_keep_their_shares(name: str, label: str, limit: int, within: float) -> None:
    if name != "micro" and FOLDER is None:
        pytest.skip("no benchmark folder (HARNESS_DATA)")
    everything = get_task(name).documents(FOLDER)
    counts = Counter(p.labels.get(label, "") for p in fair_part(everything, limit))
    for value, count in Counter(p.labels.get(label, "") for p in everything).items():
        assert abs(counts[value] - limit * count / len(everything)) <= within, value


def test_smaller_limits_are_parts_of_larger_ones_in_the_sets_order() -> None:
    place = {p.id: i for i, p in enumerate(MICRO)}
    before: set[str] = set()
    for limit in range(1, 241):
        part = [p.id for p in fair_part(MICRO, limit)]
        assert part == sorted(part, key=place.__getitem__)
        assert before < set(part)
        before = set(part)
    assert fair_part(MICRO, None) == fair_part(MICRO, 240) == fair_part(MICRO, 999) == MICRO


def test_the_choice_is_pinned_and_does_not_depend_on_the_sets_order() -> None:
    pinned = ["add:8+4+9", "sub3:2+6-6", "word:Mia has 12 keys, buys 11, then 14 more. How many keys?", "mul:6*28", "muladd:3*2+10", "sumul:3*(5+1)"]  # fmt: skip  # noqa: E501
    assert [p.id for p in fair_part(MICRO, 6)] == pinned
    assert {p.id for p in fair_part(MICRO[::-1], 50)} == {p.id for p in fair_part(MICRO, 50)}
