"""Shares of GPUs, packing of gangs, and what is learnt from durations."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.allocation.estimates import Estimates
from harness.allocation.gangs import Bundle, Free, capacity, give, missing, place, take
from harness.allocation.inventory import parse
from harness.allocation.shares import apportion

GB = 10**9


@given(
    works=st.lists(st.floats(0.1, 100), min_size=1, max_size=4),
    least=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    gpus=st.integers(1, 10),
)
def test_no_division_makes_the_slowest_faster(works: list[float], least: list[int], gpus: int) -> None:
    names = [f"p{i}" for i in range(len(works))]
    at_least = dict(zip(names, least, strict=False))
    share = apportion(at_least, gpus, lambda name, n: works[names.index(name)] / n)
    possible = [
        d for d in product(range(1, gpus + 1), repeat=len(names))
        if sum(d) <= gpus and all(n >= at_least[name] for name, n in zip(names, d, strict=True))
    ]  # fmt: skip
    if share is None:
        assert not possible
        return
    best = min(max(w / n for w, n in zip(works, division, strict=True)) for division in possible)
    assert sum(share.values()) <= gpus
    assert max(works[names.index(name)] / n for name, n in share.items()) == pytest.approx(best)


def test_useless_gpus_stay_free() -> None:
    def seconds(name: str, n: int) -> float:
        return {"a": 8.0, "b": 1.0}[name] / min(n, 2)

    assert apportion({"a": 1, "b": 1}, 8, seconds) == {"a": 2, "b": 1}


def test_steps_to_the_next_useful_size_are_jumped() -> None:
    def seconds(name: str, n: int) -> float:
        return {"a": 8.0, "b": 1.0}[name] / (4 if n >= 4 else 1)

    assert apportion({"a": 1, "b": 1}, 8, seconds) == {"a": 4, "b": 1}


bundles = st.lists(
    st.builds(Bundle, st.integers(0, 4), st.integers(0, 8), st.integers(0, 64).map(lambda n: n * GB)), max_size=8
)


@given(gang=bundles)
def test_a_placement_never_takes_more_than_there_is(gang: list[Bundle]) -> None:
    free = capacity(parse("3x4xH100-80G+8cpu-64G"))
    before = dict(free)
    placement = place(gang, free)
    assert free == before
    assert bool(missing(gang, free)) == (placement is None)
    if placement is not None:
        take(free, gang, placement)
        assert all(room.legal for room in free.values())
        give(free, gang, placement)
        assert free == before


def test_equal_bundles_are_packed_whenever_they_fit() -> None:
    free = {"a": Free(3, 99, 99, 0), "b": Free(5, 99, 99, 0)}
    assert place([Bundle(2)] * 3, free) is not None
    assert place([Bundle(2)] * 4, free) is None


def test_a_small_gang_goes_where_it_fits_best() -> None:
    free = {"a": Free(8, 99, 99, 0), "b": Free(2, 99, 99, 0)}
    assert place([Bundle(2)], free) == ("b",)


@pytest.mark.parametrize(
    ("gang", "words"),
    [
        ([Bundle(9)], "9 GPUs on one node where the largest has 8: 1 short"),
        ([Bundle(1, gpu_memory=100 * GB)], "100.0 GB per GPU where the largest has 80.0 GB: 20.0 GB short"),
        ([Bundle(0, 400)], "400 cores on one node where the largest has 64: 336 short"),
        ([Bundle(0, 0, 600 * GB)], "600.0 GB of RAM on one node where the largest has 512.0 GB: 88.0 GB short"),
        ([Bundle(4)] * 5, "20 GPUs where there are 16: 4 short"),
        ([Bundle(0, 40)] * 4, "160 cores where there are 128: 32 short"),
        ([Bundle(0, 1, 300 * GB)] * 4, "1200.0 GB of RAM where there are 1024.0 GB: 176.0 GB short"),
        ([Bundle(5)] * 3, "3 bundles fit in sum, but not onto the nodes"),
    ],
)
def test_shortfalls_in_words(gang: list[Bundle], words: str) -> None:
    assert words in missing(gang, capacity(parse("2x8xH100-80G+64cpu-512G")))


def test_estimates_learn_and_carry_over() -> None:
    estimates = Estimates({"a": 100.0, "b": 50.0})
    assert estimates.seconds("a") == 100.0
    for _ in range(3):
        estimates.observe("a", 200.0)
    assert estimates.seconds("a") == pytest.approx(200, rel=0.05)
    assert estimates.seconds("b") == pytest.approx(100)
    assert estimates.seconds("c", 7.0) == pytest.approx(14)
    with pytest.raises(ValueError, match="positive and finite"):
        estimates.observe("a", float("inf"))
