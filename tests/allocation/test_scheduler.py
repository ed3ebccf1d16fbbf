"""The scheduler on random finite batches."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.allocation import cell_layout, layout
from harness.allocation.inventory import Bundle, capacity_of, parse_inventory, place_bundles
from harness.allocation.scheduler import JobRequest, Scheduler, play_schedule

GB = 10**9
FOUR = parse_inventory("4xH100-80G")
bundles = st.lists(st.builds(Bundle, st.integers(0, 4), st.integers(1, 8), st.integers(0, 64).map(lambda n: n * GB)),
                   min_size=1, max_size=5)  # fmt: skip


@given(batch=st.lists(st.tuples(bundles, st.floats(1, 100)), max_size=12), seed=st.randoms())
def test_a_finite_batch_is_run_to_its_end(batch, seed):
    inventory = parse_inventory("3x4xH100-80G+8cpu-64G")
    whole = capacity_of(inventory)
    jobs = [
        JobRequest(str(i), tuple(own), seconds) for i, (own, seconds) in enumerate(batch) if place_bundles(own, whole)
    ]
    scheduler, waiting, running = Scheduler(inventory), {job.key: job for job in jobs}, list[str]()
    started = scheduler.submit(jobs[::2]) + scheduler.submit(jobs[1::2])
    while started or running:
        running += started
        for key in started:
            waiting.pop(key)
        used = {name: Bundle(0, 0, 0) for name in whole}
        for job, nodes in scheduler.running.values():
            for bundle, node in zip(job.bundles, nodes, strict=True):
                used[node] = used[node].plus(bundle)
        assert {name: left.plus(used[name]) for name, left in scheduler.free.items()} == whole
        assert min(min(b.gpus, b.cores, b.memory) for b in scheduler.free.values()) >= 0
        assert not any(place_bundles(job.bundles, scheduler.free) for job in waiting.values())
        started = scheduler.end(running.pop(seed.randrange(len(running))))
    assert not waiting
    assert scheduler.free == whole


def test_of_what_fits_the_widest_and_longest_start_first():
    gpu = Bundle(1, 1)
    jobs = [JobRequest("quick", (gpu,), 1.0), JobRequest("slow", (gpu,), 9.0), JobRequest("wide", (gpu,) * 3, 1.0)]
    scheduler = Scheduler(FOUR)
    assert scheduler.submit(jobs) == ["wide", "slow"]
    assert scheduler.end("retried beside the schedule") == []
    assert scheduler.end("slow") == ["quick"]


def test_a_turn_comes_before_width_and_length():
    """The run's order: what a comparison needs first; a job that does not fit is passed by those behind it."""
    gpu = Bundle(1, 1)
    wide = JobRequest("wide", (gpu,) * 4, 9.0, turn=1)
    jobs = [JobRequest("last", (gpu,), 99.0, turn=2), wide, JobRequest("first", (gpu,), 1.0, turn=0)]
    assert Scheduler(FOUR).submit(jobs) == ["first", "last"]
    scheduler = Scheduler(FOUR, most=1)
    assert scheduler.submit(jobs) == ["first"]
    assert scheduler.end("first") == ["wide"]


def test_a_timetable_is_what_a_run_takes():
    """A plan plays the scheduler that the driver runs."""
    three = (Bundle(1, 1, GB),) * 3
    table = play_schedule(
        [JobRequest("a", three, 10.0), JobRequest("b", three, 20.0), JobRequest("c", three[:1], 5.0)], FOUR
    )
    assert table == (30.0, 23.75, 95.0, 95.0, 2, 4, 4, 4 * GB)
    assert play_schedule([], FOUR).seconds == 0


@given(
    works=st.lists(st.floats(0.1, 100), min_size=1, max_size=4),
    least=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    rests=st.lists(st.floats(0, 300), min_size=4, max_size=4),
    useful=st.sampled_from([1, 2, 4]),
    gpus=st.integers(1, 8),
    ram=st.none() | st.integers(1, 40),
)
def test_no_division_makes_a_cell_shorter(works, least, rests, useful, gpus, ram):
    """Each policy has two ways on each number of GPUs: a fast one, and a slower one that takes a third of the RAM."""
    steps = 10

    def ways(i):
        for n in range(least[i], gpus + 1):
            yield _Place(n, works[i] / max(1, n // useful * useful), rests[i] / n, 3 * n)
            yield _Place(n, 1.5 * works[i] / max(1, n // useful * useful), rests[i] / n, n)

    def seconds(places):
        return steps * max(place.seconds.total for place in places) + max(place.rest for place in places)

    options = [list(ways(i)) for i in range(len(works))]
    possible = [places for places in product(*options) if fits(places, gpus, ram)]
    chosen = cell_layout.fastest_together(options, steps, gpus, ram)
    if not possible:
        assert not chosen
        return
    assert fits(chosen, gpus, ram)
    assert seconds(chosen) == pytest.approx(min(seconds(places) for places in possible))


def fits(places, gpus, ram):
    return sum(p.gpus for p in places) <= gpus and (ram is None or sum(p.host for p in places) <= ram)


class _Place:
    def __init__(self, gpus, step, rest, host):
        self.gpus, self.seconds, self.rest, self.host = gpus, layout.StepSeconds(step), rest, host
