"""Reservations on real Ray with four logical devices."""

from __future__ import annotations

import threading
import time

import pytest
import ray

from harness.engines.openrlhf import reserve
from harness.engines.openrlhf.cluster import Reservation
from harness.engines.openrlhf.settings import Settings, settings_of
from harness.errors import EngineError, InfeasibleError, SuiteError

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(120)]


def wait_until_free(count, seconds=20.0):
    end = time.monotonic() + seconds
    while ray.available_resources().get("GPU", 0) < count and time.monotonic() < end:
        time.sleep(0.1)
    return ray.available_resources().get("GPU", 0)


def test_two_cells_that_each_need_three_of_four_devices_both_finish():
    assert wait_until_free(4) == 4
    finished, held, overlap = [], [], []

    def cell(name):
        policies = {f"{name}1": Settings(trainers=2), f"{name}2": Settings()}
        with Reservation(policies, deadline=60.0) as reservation:
            held.append(name)
            overlap.append(len(held))
            bundles = [b for slot in reservation.slots.values() for b in slot.trainers]
            assert sorted(bundles) == [0, 1, 2]
            time.sleep(1.0)
            held.remove(name)
        finished.append(name)

    threads = [threading.Thread(target=cell, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(finished) == ["a", "b"]
    assert max(overlap) == 1
    assert wait_until_free(4) == 4


def test_the_impossible_is_refused_at_once_with_the_shortfall():
    started = time.monotonic()
    with pytest.raises(InfeasibleError, match=r"needs 7 GPUs, the cluster has 4: 3 short"):
        reserve({"a": {"trainers": 3}, "b": {"trainers": 2, "rollout_engines": 2, "colocate": False}})
    assert time.monotonic() - started < 5.0


def test_a_busy_cluster_is_given_up_at_the_deadline():
    with Reservation({"a": Settings(trainers=3)}, deadline=30.0):
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"no room on the cluster within 1 s: 2 devices needed, 1 GPUs"):
            Reservation({"b": Settings(trainers=2)}, deadline=1.0)
        assert time.monotonic() - started < 5.0
    assert wait_until_free(4) == 4


def test_layouts():
    assert Settings(trainers=2).devices == 2
    assert Settings(trainers=2, rollout_engines=1, tensor_parallel=4).devices == 4
    assert Settings(trainers=2, rollout_engines=1, tensor_parallel=4, colocate=False).devices == 6
    with Reservation({"a": Settings(trainers=1, rollout_engines=2, colocate=False)}, deadline=30.0) as reservation:
        assert reservation.slots["a"].trainers == (0,)
        assert reservation.slots["a"].rollouts == (1, 2)


def test_bad_options_name_their_place():
    with pytest.raises(SuiteError, match=r"x.yaml: engine_options.zero_stage: "):
        settings_of({"zero_stage": 1}, "x.yaml")
    with pytest.raises(SuiteError, match="unknown field `zero`"):
        settings_of({"zero": 1})
