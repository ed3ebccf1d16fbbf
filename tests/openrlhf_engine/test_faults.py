"""Parts of an engine die or stop."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import psutil
import pytest
import ray
from alone import Alone

from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import EngineError
from harness.learning.terms import Objective, Term, TermAnswer

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(1200)]
SILENCE, SYNC, SLACK = 15.0, 40.0, 25.0
SETTINGS = OpenRLHFSettings(
    dtype="fp32", trainers=2, start_seconds=500.0, call_seconds=240.0, sync_seconds=SYNC, silence_seconds=SILENCE,
    rollout_memory=0.05, max_length=160, rollout_sequences=64,
)  # fmt: skip


def step(engine, prompts):
    prompts = prompts[:4]
    samples = engine.sample(prompts, np.arange(16, dtype=np.uint64).reshape(4, 4), Sampling(1.0, 24))
    answers = tuple(
        TermAnswer(p.id, s.tokens, (-1.0) ** i, s.logprobs)
        for p, group in zip(prompts, samples, strict=True)
        for i, s in enumerate(group)
    )
    return engine.update(prompts, [Term("own", "own", Objective(), answers)], Optimisation(max_tokens=24))


def process_of(engine, part):
    """The process of trainer rank 1, of the rollout actor, or of vLLM's own engine under it."""
    member = engine._trainers[1] if part == "trainer" else engine._rollouts[0]
    processes = ray.get(member.handle.processes.remote(), timeout=120)
    if part != "core":
        return psutil.Process(processes[0].pid)
    core = [p for p in (psutil.Process(f.pid) for f in processes) if "EngineCore" in p.name() + " ".join(p.cmdline())]
    assert core, [psutil.Process(f.pid).cmdline() for f in processes]
    return core[0]


@pytest.mark.parametrize(
    ("part", "sent", "limit", "named"),
    [
        ("trainer", signal.SIGKILL, SILENCE, "trainer rank 1"),
        ("trainer", signal.SIGSTOP, SILENCE, "trainer rank 1"),
        ("rollout", signal.SIGKILL, SILENCE, "rollout engine 0"),
        ("core", signal.SIGKILL, SILENCE, "rollout engine 0"),
        ("core", signal.SIGSTOP, SILENCE, "rollout engine 0"),
    ],
)
def test_a_lost_part_is_named_and_everything_is_freed(part, sent, limit, named, folders, prompts, report_line):
    engine = Alone("a", folders["llama"], settings=SETTINGS)
    try:
        step(engine, prompts)
        alive = [p.pid for p in engine._processes]
        os.kill(process_of(engine, part).pid, sent)
        started = time.monotonic()
        with pytest.raises(EngineError) as caught:
            step(engine, prompts)
        waited = time.monotonic() - started
    finally:
        began = time.monotonic()
        engine.close()
        freed = time.monotonic() - began
    message = str(caught.value)
    report_line(f"{sent.name} of {part}: after {waited:.1f} s: {message}; freed in {freed:.1f} s")
    assert waited < limit + SLACK
    assert re.search(rf"policy 'a': {named}", message), message
    assert "\n" not in message
    assert not [pid for pid in alive if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    end = time.monotonic() + 20
    while ray.available_resources().get("GPU", 0) < 4 and time.monotonic() < end:
        time.sleep(0.2)
    assert ray.available_resources()["GPU"] == 4
    with pytest.raises(EngineError, match="the engine is closed"):
        step(engine, prompts)


def test_an_engine_core_that_stops_during_a_weight_sync_is_named(folders, prompts, report_line):
    engine = Alone("a", folders["llama"], settings=SETTINGS)
    try:
        step(engine, prompts)
        os.kill(process_of(engine, "core").pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(EngineError) as caught:
            engine.sync()
        waited = time.monotonic() - started
    finally:
        engine.close()
    report_line(f"SIGSTOP of core during a sync: after {waited:.1f} s: {caught.value}")
    assert waited < SYNC + SLACK
    assert "rollout engine 0 (ALIVE; '" in str(caught.value)  # with the last line that it wrote


def test_a_model_that_does_not_open_is_refused(tmp_path):
    with pytest.raises(EngineError, match="nothing: does not open"):
        Alone("a", tmp_path / "nothing", settings=SETTINGS)
