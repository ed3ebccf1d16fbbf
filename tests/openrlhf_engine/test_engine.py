"""The engine on real Ray, DeepSpeed and vLLM."""

from __future__ import annotations

import copy
import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import ray
from alone import Alone
from first_ratios import check_every_regime

from harness.engines.conformance import CHECKS, Case, name_of, restored_engine_continues_exactly
from harness.engines.openrlhf.cluster import Reservation
from harness.engines.openrlhf.engine import BaseScorer, OpenRLHFEngine
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.trainer import AnswerRow
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import EngineError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(1200)]
SETTINGS = {
    "dtype": "fp32", "start_seconds": 500.0, "call_seconds": 240.0, "rollout_memory": 0.05, "max_length": 160,
    "rollout_sequences": 64,
}  # fmt: skip


POOL = []


class Reused(Alone):
    """An engine whose processes serve one test after another: closed, it waits to be opened anew with its start weights."""

    usable = False

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.usable = True

    def close(self):
        if not self.usable:
            super().close()
        elif self not in POOL:
            POOL.append(self)

    def reopen(self, name):
        self.name, self.version, self.usable = name, 0, False
        try:
            self._load_weights(self._folder)
            self.sync()
        except BaseException:
            self.close()
            raise
        self.usable = True
        return self


@pytest.fixture(scope="module", autouse=True)
def _ended():
    yield
    for engine in POOL:
        Alone.close(engine)


@pytest.fixture
def make(ray_cluster, folders):
    """Engines of one rank and ZeRO 2, closed after the test."""
    given = []

    def make(name):
        given.append(
            POOL.pop().reopen(name) if POOL else Reused(name, folders["qwen"], settings=OpenRLHFSettings(**SETTINGS))
        )
        return given[-1]

    yield make
    for engine in given:
        engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_conformance(check, make, prompts, tmp_path):
    def opened(name):
        engine = make(name)
        # the restored one gets processes that never saw the first one's state
        engine.usable = check is not restored_engine_continues_exactly
        return engine

    check(Case(opened, prompts[:7], tmp_path))


def own_term(prompts, samples, scale=1.0):
    rng = np.random.default_rng(0)
    answers = tuple(
        TermAnswer(p.id, s.tokens, scale * float(rng.normal()), s.logprobs)
        for p, group in zip(prompts, samples, strict=True)
        for s in group
    )
    return Term("own", "own", Objective(), answers)


def test_tokens_without_rows_are_refused_before_they_reach_a_device(make, monkeypatch):
    engine = make("a")
    tokenizer = copy.deepcopy(engine.tokenizer)
    tokenizer.add_tokens(["zz"])
    monkeypatch.setattr(engine, "_vocabulary", replace(engine._vocabulary, tokenizer=tokenizer))
    with pytest.raises(EngineError, match="'zz', for which the model has no row"):
        engine.sample([Prompt("q", "azz", "1")], np.zeros((1, 1), np.uint64), Sampling(1.0, 4))


def test_weight_sync_is_real(make, prompts, report_line, monkeypatch):
    engine = make("a")
    seeds = np.arange(24, dtype=np.uint64).reshape(6, 4)
    worst = 0.0
    for step in range(3):
        samples = engine.sample(prompts[:6], seeds + np.uint64(100 * step), Sampling(1.0, 24))
        flat = [s for group in samples for s in group]
        scores = engine.score([p for p in prompts[:6] for _ in range(4)], [s.tokens for s in flat])
        worst = max(worst, *(float(np.abs(a - b.logprobs).max()) for a, b in zip(scores, flat, strict=True)))
        engine.update(prompts[:6], [own_term(prompts[:6], samples)], Optimisation(learning_rate=1e-3, max_tokens=24))
    ids = engine._vocabulary.encode(prompts[0])
    difference = engine.check_sync([AnswerRow(ids, flat[0].tokens)])
    report_line(
        f"weight sync: {difference:.2e} nats per token after an update, {worst:.2e} at most on any sampled token"
    )
    assert difference < 1e-5
    assert worst < 1e-4
    monkeypatch.setattr(engine, "sync", lambda: None)
    with pytest.raises(EngineError, match=r"policy 'a': rollout engine 0: after the weight sync .* nats per token"):
        engine.update(prompts[:6], [own_term(prompts[:6], samples)], Optimisation(learning_rate=1e-3, max_tokens=24))


def test_no_regime_clips_its_first_update_whatever_the_sampler_says(make, prompts, report_line):
    engine = make("a")
    drift = check_every_regime(engine, prompts)
    report_line(f"drift of a sampler that is off by 0.3 nats per token: {drift}")


def test_weights_that_transformers_renames_are_synced_too(folders, prompts):
    engine = Alone("neox", folders["neox"], settings=OpenRLHFSettings(**SETTINGS))
    try:
        samples = engine.sample(prompts[:2], np.arange(8, dtype=np.uint64).reshape(2, 4), Sampling(1.0, 16))
        engine.update(prompts[:2], [own_term(prompts[:2], samples)], Optimisation(learning_rate=1e-2, max_tokens=16))
        flat = [s for group in samples for s in group]
        again = engine.score([p for p in prompts[:2] for _ in range(4)], [s.tokens for s in flat])
        assert max(np.abs(a - s.logprobs).max() for a, s in zip(again, flat, strict=True)) > 1e-2
    finally:
        engine.close()


def test_a_reference_keeps_the_base(make, prompts):
    engine = make("a")
    samples = engine.sample(prompts[:2], np.arange(8, dtype=np.uint64).reshape(2, 4), Sampling(1.0, 24))
    asked = [p for p in prompts[:2] for _ in range(4)], [s.tokens for group in samples for s in group]
    base = BaseScorer(engine)
    assert [[s.text for s in group] for group in samples] == [
        [s.text for s in group]
        for group in base.sample(prompts[:2], np.arange(8, dtype=np.uint64).reshape(2, 4), Sampling(1.0, 24))
    ]
    first = base.score(*asked)
    for a, b in zip(engine.score(*asked), base.score(*asked), strict=True):
        assert np.abs(a - b).max() < 1e-5
    engine.update(prompts[:2], [own_term(prompts[:2], samples)], Optimisation(learning_rate=1e-2, max_tokens=24))
    moved = [np.abs(a - b).max() for a, b in zip(engine.score(*asked), base.score(*asked), strict=True)]
    assert max(moved) > 1e-2
    for a, b in zip(base.score(*asked), first, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(EngineError, match="sampled only before the first update"):
        base.sample(prompts[:2], np.arange(8, dtype=np.uint64).reshape(2, 4), Sampling(1.0, 24))
    with pytest.raises(EngineError, match="neither learns nor is stored"):
        base.update([], [], Optimisation())


def step(engine, prompts, done, at):
    began = time.monotonic()
    samples = engine.sample(prompts[:6], np.arange(48, dtype=np.uint64).reshape(6, 8), Sampling(1.0, 24))
    report = engine.update(prompts[:6], [own_term(prompts[:6], samples)], Optimisation(max_tokens=24, updates=2))
    done[at] = (repr(report), [s.text for group in samples for s in group], began, time.monotonic())


def test_policies_take_turns_on_one_device(make, prompts, folders, tmp_path):
    done, settings = {}, OpenRLHFSettings(**SETTINGS, share_devices=True, sleep=True)
    alone = make("alone")
    for at in range(2):
        step(alone, prompts, done, at)
    with closing(Reservation({"a": settings, "b": settings})) as reservation:
        assert reservation.group.bundle_count == 1
        engines = [OpenRLHFEngine(n, folders["qwen"], settings=settings, reservation=reservation) for n in "ab"]
        try:
            threads = [threading.Thread(target=step, args=(e, prompts, done, 2 + at)) for at, e in enumerate(engines)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=600)
            assert done[0][:2] == done[2][:2] == done[3][:2]
            assert sorted(e._lease._held == (0, 0) for e in engines) == [False, True]
            for engine in engines:  # through a checkpoint, and on
                engine.save(tmp_path / engine.name)
                engine.restore(tmp_path / engine.name)
                step(engine, prompts, done, 4)
                assert done[4][:2] == done[1][:2]
        finally:
            for engine in engines:
                engine.close()


def on(member, do):
    return ray.get(member.handle.__ray_call__.remote(do), timeout=180)


@pytest.mark.parametrize("fault", ["one is not sent", "one is altered"])
def test_a_tensor_that_does_not_arrive_fails_the_sync(fault, make, prompts):
    """Item 4: whatever its log-probabilities say."""
    engine = make("a")

    def spoil(worker):
        trainer, module = worker.trainer, worker.actor.model.module
        send, named, parameters = trainer.broadcast_to_vllm, module.named_parameters, list(module.named_parameters())
        name, parameter = parameters[3]

        def broadcast():
            del trainer.broadcast_to_vllm
            if fault == "one is altered":
                parameter.data.flatten()[5] += 1e-3
                send()
                parameter.data.flatten()[5] -= 1e-3
            else:
                module.named_parameters = lambda: [pair for pair in parameters if pair[0] != name]
                send()
                module.named_parameters = named

        trainer.broadcast_to_vllm = broadcast
        return name

    name = on(engine._trainers[0], spoil)
    with pytest.raises(EngineError, match=rf"rollout engine 0: 1 of \d+ tensors .* {re.escape(name)} the first"):
        engine.sync()
    engine.sync()


def test_a_stale_copy_of_a_tied_head_is_found_when_the_engine_starts(make, prompts):
    """Item 4: what a sync does not reach is not what vLLM itself has read."""
    engine = make("a")

    def untie(worker):
        model = worker.model_runner.model
        model.lm_head, model.tied = copy.deepcopy(model.lm_head), model.lm_head

    def tie(worker):
        worker.model_runner.model.lm_head = worker.model_runner.model.tied
        del worker.model_runner.model.tied

    (member,) = engine._rollouts
    engine._rehearse_sync()
    ray.get(member.handle.on_workers.remote(untie), timeout=180)
    with pytest.raises(
        EngineError, match=r"rollout engine 0: a weight sync leaves out lm_head\.weight of its parameters"
    ):
        engine._rehearse_sync()
    ray.get(member.handle.on_workers.remote(tie), timeout=180)
    engine._rehearse_sync()


def test_a_sampler_that_always_differed_passes_the_check(make, prompts, monkeypatch):
    """Item 4: what counts is by how much more than before the first update."""
    engine = make("a")
    rows = [AnswerRow([5, 6, 7], np.arange(8, 20, dtype=np.int32))]
    scores = OpenRLHFEngine._ask_scores

    def differing(engine, rows, method, *arguments):
        return [scored + np.float32(0.1) for scored in scores(engine, rows, method, *arguments)]

    monkeypatch.setattr(Reused, "_ask_scores", differing)
    with pytest.raises(
        EngineError, match=r"0\.1 nats per token from the trainer's; before the first update they were "
    ):
        engine.check_sync(rows)
    samples = engine.sample(prompts[:2], np.arange(8, dtype=np.uint64).reshape(2, 4), Sampling(1.0, 24))
    engine._before = None
    engine.update(prompts[:2], [own_term(prompts[:2], samples)], Optimisation(max_tokens=24))
    assert engine._before == pytest.approx(0.1, abs=1e-3)
    engine._before = None
