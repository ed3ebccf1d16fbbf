"""Turns on shared devices, without the devices."""

from __future__ import annotations

import threading
import time

import pytest

from harness.engines.openrlhf.offload import DeviceLease, Devices, MemoryState
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import EngineError

NOTHING, WEIGHTS, ALL = MemoryState


class Recorded:
    """A policy that writes down what its parts are told to hold."""

    def __init__(self, turns, log, name, **settings):
        self.place = DeviceLease(
            name, turns, OpenRLHFSettings(**settings),
            lambda held: log.append(f"{name} trainer {held.name}"), lambda held: log.append(f"{name} rollout {held.name}"),
        )  # fmt: skip


def test_a_policy_alone_never_moves_anything():
    log = []
    policy = Recorded(Devices(), log, "a")
    for wanted in ((NOTHING, ALL), (ALL, NOTHING), (WEIGHTS, WEIGHTS)):
        with policy.place.turn(*wanted):
            pass
    assert log == []


def test_trainer_and_rollout_engine_in_turn_give_before_they_take():
    log = []
    policy = Recorded(Devices(), log, "a", sleep=True)
    policy.place.hold(ALL, NOTHING)
    for wanted in (
        (ALL, NOTHING),
        (WEIGHTS, NOTHING),
        (WEIGHTS, WEIGHTS),
        (NOTHING, ALL),
        (NOTHING, ALL),
        (WEIGHTS, NOTHING),
    ):
        with policy.place.turn(*wanted):
            pass
    assert log == [
        "a rollout NOTHING", "a trainer WEIGHTS", "a rollout WEIGHTS", "a trainer NOTHING", "a rollout ALL",
        "a rollout NOTHING", "a trainer WEIGHTS",
    ]  # fmt: skip


def test_the_trainer_rests_while_vllm_wakes_up_to_fall_asleep():
    """From half way vLLM sleeps only after it has been awake with its whole KV cache."""
    log = []
    policy = Recorded(Devices(), log, "a", sleep=True)
    policy.place.hold(WEIGHTS, WEIGHTS)
    log.clear()
    with policy.place.turn(WEIGHTS, NOTHING):
        assert log == ["a trainer NOTHING", "a rollout NOTHING", "a trainer WEIGHTS"]


def test_policies_that_share_sleep_when_anothers_turn_comes_and_not_before():
    log, turns = [], Devices()
    a, b = (Recorded(turns, log, name, share_devices=True) for name in "ab")
    for policy in (a, a, b, b, a):
        with policy.place.whole_turn(), policy.place.turn(NOTHING, ALL):
            log.append("work")
    slept = ["trainer NOTHING", "rollout NOTHING"]
    woke = ["a trainer ALL", "a rollout ALL"]
    assert log == [
        "work",
        "work",
        *(f"a {s}" for s in slept),
        "work",
        "work",
        *(f"b {s}" for s in slept),
        *woke,
        "work",
    ]
    a.place.leave()
    with b.place.turn(ALL, ALL):
        assert log[-2:] == ["b trainer ALL", "b rollout ALL"]


def test_a_turn_that_does_not_come_ends_at_the_deadline():
    turns, log, inside, done = Devices(), [], threading.Event(), threading.Event()
    a, b = (Recorded(turns, log, name, share_devices=True, call_seconds=0.5) for name in "ab")

    def work():
        with a.place.turn(ALL, ALL):
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(20)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"policy 'b': its turn on the shared devices did not come within 0.5 s"):
        b.place.turn(ALL, ALL).__enter__()
    assert 0.4 < time.monotonic() - began < 10
    done.set()
    thread.join(20)
    with b.place.turn(ALL, ALL):
        assert log == ["a trainer NOTHING", "a rollout NOTHING"]
