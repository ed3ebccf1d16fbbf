"""Random mixtures through the scheduler under an independent judge; broken schedulers must be caught."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mixtures import (
    Attempt,
    Job,
    Mixture,
    allows,
    mixtures,
    naive_deadlocks,
    random_mixture,
    run,
    work_bound,
)

from harness.allocation.gangs import Bundle
from harness.allocation.inventory import parse
from harness.allocation.scheduler import Action, Request, Scheduler

COUNT = 100


def test_every_promise_is_kept() -> None:
    deadlocked = allowed = 0
    for index, mixture in enumerate(mixtures(0, COUNT)):
        outcome = run(mixture)
        assert not outcome.violations, (index, outcome.violations[:3])
        deadlocked += naive_deadlocks(mixture)
        if allows(mixture):
            allowed += 1
            assert work_bound(mixture) / outcome.makespan >= 0.9, index
    assert deadlocked > COUNT / 4
    assert allowed >= 3


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), patience=st.sampled_from([0.0, 600.0, None]))
def test_every_promise_is_kept_with_any_patience(seed: int, patience: float | None) -> None:
    outcome = run(random_mixture(random.Random(seed)), patience)
    assert not outcome.violations, outcome.violations[:3]


def caught(broken: type[Scheduler]) -> set[str]:
    found: set[str] = set()
    for mixture in mixtures(0, 60):
        found |= {word for violation in run(mixture, scheduler=broken).violations for word in violation.split()}
    return found


class NeverAges(Scheduler):
    def _fix_target(self, now: float) -> None:
        self._target = None


class Overbooks(Scheduler):
    def _release(self, key: str):  # type: ignore[no-untyped-def]
        run = self._running.get(key)
        if run is not None:
            for name in set(run.placement) & set(self._free):
                self._free[name] = self._free[name].plus(Bundle(1, 1))
        return super()._release(key)


class ForgetsToLook(Scheduler):
    def finished(self, key: str, now: float) -> list[Action]:
        self._advance(now)
        self._release(key)
        return []


class OneByOne(Scheduler):
    def _fill(self, now: float):  # type: ignore[no-untyped-def]
        return super()._fill(now)[:1] if not self._running else []


def test_a_scheduler_that_overbooks_is_caught() -> None:
    assert "reserved" in caught(Overbooks)


def test_a_scheduler_that_never_ages_is_caught() -> None:
    """A wide job under a stream of narrow ones, each of which leaves no room for it."""
    inventory = parse("4xH100-80G")
    narrow = [Job(Request(f"n{i}", "n", (Bundle(1, 1),) * 2, 100.0), 45.0 * i, (Attempt(99.0),)) for i in range(60)]
    wide = Job(Request("wide", "w", (Bundle(1, 1),) * 4, 100.0), 1.0, (Attempt(10.0),))
    mixture = Mixture(inventory, (*narrow, wide), 100.0, 1.0, {"n": 99.0, "w": 10.0})
    assert not run(mixture).violations
    assert any("wide: waited" in v for v in run(mixture, scheduler=NeverAges).violations)


def test_a_scheduler_that_forgets_the_waiting_is_caught() -> None:
    assert {"nothing", "waited"} & caught(ForgetsToLook)


def test_a_scheduler_that_wastes_is_caught() -> None:
    ratios = []
    for mixture in mixtures(0, COUNT):
        if allows(mixture):
            outcome = run(mixture, scheduler=OneByOne)
            ratios.append(work_bound(mixture) / outcome.makespan if outcome.makespan else 0.0)
    assert min(ratios) < 0.9


def test_naive_reservation_deadlocks_on_the_textbook_case() -> None:
    inventory = parse("4xH100-80G")
    three = (Bundle(1, 1),) * 3
    jobs = tuple(Job(Request(key, "k", three, 100.0), 0.0, (Attempt(10.0),)) for key in "ab")
    mixture = Mixture(inventory, jobs, 100.0, 1.0, {"k": 10.0})
    assert naive_deadlocks(mixture)
    assert run(mixture).finished == 2


def test_what_a_mixture_allows() -> None:
    inventory = parse("8xH100-80G")

    def mixture(width: int, count: int) -> Mixture:
        jobs = [Job(Request(f"{i}", "k", (Bundle(1, 1),) * width, 100.0), 0.0, (Attempt(10.0),)) for i in range(count)]
        return Mixture(inventory, tuple(jobs), 100.0, 1.0, {"k": 10.0})

    assert allows(mixture(1, 80))
    assert allows(mixture(4, 20))
    assert not allows(mixture(1, 40)), "the tail is a fifth of the work"
    assert not allows(mixture(3, 80)), "two of eight GPUs stay idle"
