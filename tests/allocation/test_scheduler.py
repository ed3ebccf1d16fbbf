"""The scheduler, event by event."""

from __future__ import annotations

import pytest

from harness.allocation.gangs import Bundle
from harness.allocation.inventory import parse
from harness.allocation.scheduler import Refuse, Request, Scheduler, Start, Stop

GPU = Bundle(1, 1)


def request(key: str, gpus: int, limit: float = 100.0, kind: str = "k") -> Request:
    return Request(key, kind, (GPU,) * gpus, limit)


def keys(actions) -> list[str]:  # type: ignore[no-untyped-def]
    return [a.key for a in actions if isinstance(a, Start)]


def test_two_cells_that_each_need_three_of_four_gpus_both_finish() -> None:
    scheduler = Scheduler(parse("4xH100-80G"), 100.0)
    (first,) = scheduler.submit([request("a", 3), request("b", 3)], 0.0)
    assert isinstance(first, Start)
    assert scheduler.waiting == ({"a": "b", "b": "a"}[first.key],)
    assert keys(scheduler.finished(first.key, 10.0)) == list({"a", "b"} - {first.key})


def test_what_can_never_run_is_refused_with_the_shortfall() -> None:
    (refused,) = Scheduler(parse("4xH100-80G"), 100.0).submit([request("a", 5)], 0.0)
    assert isinstance(refused, Refuse)
    assert "needs 5 GPUs where there are 4: 1 short" in refused.reason


def test_small_cells_overtake_only_until_the_large_one_has_aged() -> None:
    scheduler = Scheduler(parse("4xH100-80G"), 100.0, patience=50.0, stop_within=0.0)
    assert keys(scheduler.submit([request("s0", 2)], 0.0)) == ["s0"]
    assert keys(scheduler.submit([request("large", 4)], 1.0)) == []
    assert keys(scheduler.submit([request("s1", 2)], 2.0)) == ["s1"]
    # From 51 on s1's end at 102 is reserved: what would outlast it waits, what ends before may go.
    scheduler.finished("s0", 60.0)
    assert keys(scheduler.submit([request("long", 2)], 61.0)) == []
    assert keys(scheduler.submit([request("short", 2, limit=30.0)], 62.0)) == ["short"]
    scheduler.finished("short", 70.0)
    assert keys(scheduler.finished("s1", 80.0)) == ["large"]
    assert keys(scheduler.finished("large", 90.0)) == ["long"]


def test_without_ageing_the_large_one_would_wait_forever() -> None:
    """The same stream of small cells, with and without patience running out."""

    def served(patience: float) -> bool:
        scheduler = Scheduler(parse("4xH100-80G"), 100.0, patience=patience, stop_within=0.0)
        scheduler.submit([request("s0", 2)], 0.0)
        scheduler.submit([request("large", 4)], 1.0)
        scheduler.submit([request("s1", 2)], 2.0)
        for step in range(2, 40):
            now = 10.0 * step
            scheduler.submit([request(f"s{step}", 2)], now)
            for key in [k for k in scheduler.running if k != f"s{step}"][:1]:
                scheduler.finished(key, now + 1)
            if "large" in scheduler.running:
                return True
        return False

    assert served(100.0)
    assert not served(1e9)


def test_a_cell_past_its_limit_is_stopped_and_keeps_its_resources_until_it_is_gone() -> None:
    scheduler = Scheduler(parse("4xH100-80G"), 100.0)
    scheduler.submit([request("a", 4, limit=20.0), request("b", 4)], 0.0)
    running = next(iter(scheduler.running))
    assert scheduler.wake == (20.0 if running == "a" else 100.0)
    (stop,) = scheduler.tick(scheduler.wake)
    assert stop == Stop(
        running, f"did not end within its limit of {scheduler.wake if running != 'a' else 20:.0f} s"
    ) or (isinstance(stop, Stop) and stop.key == running)
    assert scheduler.tick(150.0) == []
    assert len(keys(scheduler.failed(running, 151.0))) == 1


def test_durations_are_learnt() -> None:
    scheduler = Scheduler(parse("4xH100-80G"), 1000.0)
    scheduler.submit([request("a", 2, 1000.0, "slow")], 0.0)
    scheduler.finished("a", 300.0)
    assert scheduler.estimates.seconds("slow", 1.0) > 200


def test_of_equal_width_the_one_that_takes_longest_starts_first() -> None:
    scheduler = Scheduler(parse("1xH100-80G"), 1000.0)
    scheduler.estimates.observe("quick", 10.0)
    scheduler.estimates.observe("slow", 500.0)
    assert keys(scheduler.submit([request("q", 1, kind="quick"), request("s", 1, kind="slow")], 0.0)) == ["s"]


def test_misuse() -> None:
    scheduler = Scheduler(parse("1xH100-80G"), 100.0)
    scheduler.submit([request("a", 1)], 5.0)
    with pytest.raises(ValueError, match="already submitted"):
        scheduler.submit([request("a", 1)], 6.0)
    with pytest.raises(ValueError, match="limit"):
        scheduler.submit([request("b", 1, limit=101.0)], 6.0)
    with pytest.raises(ValueError, match="backwards"):
        scheduler.tick(1.0)
