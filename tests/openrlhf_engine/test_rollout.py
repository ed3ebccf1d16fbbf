"""What the GPU's path of the rollout engines is asked for, with real library functions and real processes, on a CPU."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import ray
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS, LogitBiasState

from harness.engines.openrlhf import engine, seams
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.remote import RemoteActor, end_actors, list_own_processes
from harness.engines.openrlhf.rollout import RolloutWorker
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.protocol import Sample, Sampling
from harness.errors import EngineError
from harness.experience.answers import Prompt


@pytest.mark.parametrize("more", [0, 1])
def test_more_forbidden_ids_than_the_newer_runner_holds_go_to_the_older_one(more, monkeypatch):
    """25.9: vLLM's newer runner refused them in its worker, which ended the engine."""
    ids = range(MAX_NUM_LOGIT_BIAS_TOKENS + more)
    asked = SamplingParams(logit_bias=dict.fromkeys(ids, -100.0))
    table = SimpleNamespace(num_allowed_token_ids=SimpleNamespace(np={}), num_logit_bias=SimpleNamespace(np={}))
    refused = pytest.raises(ValueError, match="Too many logit bias tokens")
    with refused if more else pytest.raises(AttributeError):  # it goes on to tables that want CUDA
        LogitBiasState.add_request(table, 0, 1, asked)
    handed = {}
    monkeypatch.setattr(engine, "open_rollouts", lambda *given: handed.update(given[4]) or [])
    policy = object.__new__(engine.OpenRLHFEngine)
    policy.__dict__.update(
        name="a", _folder="", _settings=OpenRLHFSettings(), _group=None, _slot=None, _closed=False, _trainers=[],
        _vocabulary=SimpleNamespace(forbidden=frozenset(ids)),
    )  # fmt: skip
    policy._open_rollouts()
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    for name, value in handed.items():
        monkeypatch.setenv(name, value)
    older = "VLLM_USE_V2_MODEL_RUNNER" in handed and VllmConfig.use_v2_model_runner.fget(None) is False
    assert older == bool(more)


def test_answers_that_the_engines_own_limit_ended_are_no_answers(monkeypatch):
    """24.1: they were returned as if `max_new_tokens` had ended them, and counted as wrong."""
    tokens = np.zeros(5, np.int32)
    samples = [Sample(tokens, np.zeros(5, np.float32), "", finished) for finished in (True, False, False)]
    policy = object.__new__(engine.OpenRLHFEngine)
    vocabulary = SimpleNamespace(
        model_ids=lambda prompt: [1], text=lambda ids, finished: "", stop=(0,), forbidden=frozenset()
    )
    policy.__dict__.update(
        name="a", _settings=OpenRLHFSettings(max_length=8), _vocabulary=vocabulary, _ends=(), _rollouts=[MagicMock()],
        _lease=SimpleNamespace(turn=lambda *held: nullcontext()),
    )  # fmt: skip
    monkeypatch.setattr(engine.OpenRLHFEngine, "_gather_answers", lambda *given, **more: [samples])
    monkeypatch.setattr(engine.OpenRLHFEngine, "_rollout_cores", lambda self: [])
    ask = lambda longest: policy.sample([Prompt("p", "p", "")], np.zeros((1, 3), np.uint64), Sampling(1.0, longest))  # noqa: E731
    assert len(ask(5)[0]) == 3
    with pytest.raises(
        EngineError, match=r"2 of 3 answers were ended by the rollout engine's own limit .*max_length: 8\)"
    ):
        ask(6)


def test_starting_may_take_longer_than_a_rank_waits_for_another(monkeypatch):
    """25.10: 300 s were for imports, weights, compilation and graphs, and NCCL's time-out too."""
    given = []
    monkeypatch.setattr(Strategy.__base__, "setup_distributed", lambda self, timeout: given.append(timeout))
    assert OpenRLHFSettings().start_seconds == 900.0
    for settings in (
        OpenRLHFSettings(),
        OpenRLHFSettings(start_seconds=10.0, call_seconds=60.0),
        OpenRLHFSettings(call_seconds=60.0),
    ):
        Strategy(settings, 1.0).setup_distributed()
    assert given == [timedelta(seconds=1800), timedelta(seconds=60), timedelta(seconds=900)]


def test_vllms_own_process_takes_the_worker_without_asking_ray(monkeypatch):
    """On a GPU nothing of the CPU's is in the environment, and that process knows no cluster."""
    monkeypatch.delenv(seams.SYNC_SECONDS, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ray, "cluster_resources", MagicMock(side_effect=RuntimeError("Ray has not been started yet")))
    seams._make_worker_class.cache_clear()
    try:
        assert seams.Worker.__name__ == "CheckedWorker"
    finally:
        seams._make_worker_class.cache_clear()


@ray.remote(num_cpus=0)
class WorkerOfRay:
    """A worker that Ray started, with a process of its own; it answers as vLLM's workers do."""

    def __init__(self):
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

    def call(self, method):
        return getattr(seams.Worker(), method)()


def test_vllm_workers_that_ray_started_are_waited_for(ray_cluster):
    """25.11: with tensor parallelism they are no children of the rollout engine, and nobody waited for them."""
    workers = [WorkerOfRay.remote()]

    async def collective_rpc(method):
        return [await worker.call.remote(method) for worker in workers]

    rollout = object.__new__(RolloutWorker)
    rollout.llm, rollout.kwargs = (
        SimpleNamespace(collective_rpc=collective_rpc),
        {"distributed_executor_backend": "ray"},
    )
    own = {process.pid for process in list_own_processes()}
    known = [process for process in asyncio.run(rollout.processes()) if process.pid not in own]
    assert len(known) >= 2
    alive = [psutil.Process(process.pid) for process in known]
    end_actors([RemoteActor("rollout engine 0", worker) for worker in workers], known)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
