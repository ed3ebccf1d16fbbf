"""What only large models need."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from own_terms import gradients, terms_of
from test_architectures import CONFIGS, build
from transformers import AutoModelForCausalLM

from harness.allocation import shapes
from harness.engines import head
from harness.engines.conformance import (
    Case,
    broken_checkpoints_are_refused,
    greedy_ignores_the_seed,
    restored_engine_continues_exactly,
    samples_are_well_formed,
    updates_without_gradient_change_nothing,
)
from harness.engines.embedded import sampling
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.masters import dither_to_bf16
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import EngineError
from harness.learning.terms import Objective, Term, TermAnswer

one_family = pytest.mark.parametrize("folder", ["qwen"], indirect=True)
HALF_CHECKS = (
    samples_are_well_formed,
    greedy_ignores_the_seed,
    updates_without_gradient_change_nothing,
    restored_engine_continues_exactly,
    broken_checkpoints_are_refused,
)


@pytest.mark.slow_but("gemma3", "qwen3_moe")
@pytest.mark.parametrize("kind", CONFIGS)
def test_vocabularies_in_parts_give_the_same(kind, tmp_path, prompts, monkeypatch):
    build(kind, tmp_path)
    prompts = prompts[:4]
    seeds = np.arange(12, dtype=np.uint64).reshape(4, 3)
    scores, slopes = [], []
    for whole in (1 << 23, 1500):
        monkeypatch.setattr(head, "LOGITS", whole)
        engine = EmbeddedEngine("a", tmp_path, device="cpu", temperature=0.7)
        samples = engine.sample(prompts, seeds, Sampling(0.7, 24))
        scores.append(engine.score([p for p in prompts for _ in range(3)], [s.tokens for g in samples for s in g]))
        slopes.append(gradients(engine, prompts, terms_of(engine, prompts, samples)))
    assert not engine._policy.head.fits(sum(len(s.tokens) for g in samples for s in g))
    for whole, parts in zip(*scores, strict=True):
        np.testing.assert_allclose(whole, parts, atol=2e-5)
    largest = max(float(whole.abs().max()) for whole in slopes[0].values())
    for name, whole in slopes[0].items():
        parts = slopes[1][name]
        if kind == "opt" and name.endswith("k_proj.bias"):  # the softmax does not see it: rounding alone
            assert max(float(whole.abs().max()), float(parts.abs().max())) < 1e-6 * largest
            continue
        scale = float(whole.abs().max()) or 1.0
        torch.testing.assert_close(whole / scale, parts / scale, rtol=1e-4, atol=1e-5)


def test_parts_are_as_wide_as_a_gpu_wants_them():
    """On a GPU eight times as many logits exist at once. A tensor without storage stands for one there."""
    for device, parts in (("cpu", 191), ("meta", 24)):
        weight, hidden = torch.empty(200_000, 8, device=device), torch.empty(8000, 8, device=device)
        layer = head.Head(weight, None, 1.0, None)
        assert len(head._cut_vocabulary(hidden, len(weight))) == parts
        assert layer.fits(300) == (device != "cpu")
        assert not layer.fits(400)


@one_family
def test_answers_of_one_token_in_parts(folder, prompts, monkeypatch):
    engine = EmbeddedEngine("a", folder, device="cpu")
    answers = [np.array([engine.stop[0]], np.int32)] * 2
    whole = engine.score(prompts[:2], answers)
    monkeypatch.setattr(head, "LOGITS", 100)
    for scored, wanted in zip(engine.score(prompts[:2], answers), whole, strict=True):
        np.testing.assert_allclose(scored, wanted, atol=1e-6)


def test_memory_of_a_large_vocabulary_stays_small(monkeypatch):
    """400 tokens over 200,000 ids are 320 MB of logits: no tensor of that size may exist, forward or backward."""
    monkeypatch.setattr(head, "LOGITS", 1 << 20)
    weight = torch.randn(200_000, 8, requires_grad=True)
    hidden = torch.randn(400, 8, requires_grad=True)
    layer = head.Head(weight, None, 1.0, None)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            largest = max([largest, *(t.numel() for t in [out] if isinstance(t, torch.Tensor))])
            return out

    targets = torch.arange(400) * 499
    with Largest():
        scored = head.logprobs_by_parts(layer, hidden, targets, 1.0, torch.zeros(200_000))
        scored.sum().backward()
    assert largest <= 200_000 * 8
    with torch.no_grad():
        plain = (hidden[:5] @ weight.T).log_softmax(1)[range(5), targets[:5]]
    torch.testing.assert_close(scored[:5].detach(), plain, rtol=1e-5, atol=1e-5)


def test_choice_in_two_steps_is_the_choice_in_one():
    rng = np.random.default_rng(1)
    for size in (5000, 3 * sampling.BLOCK, sampling.BLOCK + 1):
        logits = torch.from_numpy(rng.normal(0, 3, (64, size)).astype(np.float32))
        logits[:, rng.integers(0, size, size // 2)] = -1e9
        chance = torch.from_numpy(rng.random(64))
        chance[:2] = torch.tensor([1.0, 2.0**-53])
        weights = logits.log_softmax(1).exp()
        one = sampling._find_reached(weights, chance)[0]
        two = sampling._invert_cdf(weights, chance)
        assert (weights.gather(1, two[:, None]) > 0).all()
        assert (one == two).sum() >= 62, "float32 sums of blocks may move a choice by an id, seldom"
        assert ((one - two).abs() <= 50).all()


@pytest.mark.slow_but("updates", "restored")
@one_family
@pytest.mark.parametrize("check", HALF_CHECKS, ids=lambda c: c.__name__)
def test_bf16_conformance(check, folder, prompts, tmp_path):
    check(Case(lambda name: EmbeddedEngine(name, folder, device="cpu", dtype="bf16"), prompts[:7], tmp_path))


@one_family
def test_bf16_computes_as_fp32_within_its_error(folder, prompts):
    engines = [EmbeddedEngine("a", folder, device="cpu", dtype=dtype) for dtype in ("fp32", "bf16")]
    seeds = np.arange(24, dtype=np.uint64).reshape(6, 4)
    samples = engines[0].sample(prompts[:6], seeds, Sampling(1.0, 24))
    asked = [p for p in prompts[:6] for _ in range(4)], [s.tokens for g in samples for s in g]
    exact, rounded = (np.concatenate(e.score(*asked)) for e in engines)
    assert 1e-5 < np.abs(exact - rounded).mean() < 0.03
    terms = terms_of(engines[0], prompts[:6], samples)
    exact, rounded = (torch.cat([g.flatten() for g in gradients(e, prompts[:6], terms).values()]) for e in engines)
    assert rounded.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.99


@pytest.mark.slow
@one_family
def test_bf16_masters_learn_what_bf16_weights_would_lose(folder, prompts, tmp_path):
    engine = EmbeddedEngine("a", folder, device="cpu", dtype="bf16")
    samples = engine.sample(prompts[:4], np.arange(16, dtype=np.uint64).reshape(4, 4), Sampling(1.0, 24))
    answers = tuple(
        TermAnswer(p.id, s.tokens, 1.0, s.logprobs) for p, g in zip(prompts, samples, strict=False) for s in g
    )
    term = Term("own", "own", Objective(form="nll"), answers)
    before = {n: p.detach().clone() for n, p in engine.model.named_parameters()}
    for _ in range(5):
        engine.update(prompts[:4], [term], Optimisation(learning_rate=1e-6))
    whole = {n: p.detach() for n, p in engine.model.named_parameters()}
    moved = torch.cat([(m.detach() - before[n].float()).flatten() for n, m in engine._masters.named.items()])
    seen = torch.cat([(whole[n].float() - before[n].float()).flatten() for n in engine._masters.named])
    nearest = torch.cat(
        [(m.detach().bfloat16().float() - before[n].float()).flatten() for n, m in engine._masters.named.items()]
    )
    share = [float((dot * moved).sum() / moved.square().sum()) for dot in (seen, nearest)]
    assert share[0] == pytest.approx(1.0, abs=0.1)  # of what was learnt, what the model has
    assert share[1] < 0.5
    for _ in range(20):
        engine.update(prompts[:4], [term], Optimisation(learning_rate=1e-3))
    assert engine.score(prompts[:1], [answers[0].tokens])[0].mean() > answers[0].denominator.mean() + 0.1
    engine.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["dtype"] == "bfloat16"


def test_dithering_keeps_what_bf16_holds():
    weights = torch.randn(300, 300) * 0.02
    held = weights.bfloat16()
    assert torch.equal(dither_to_bf16(held.float(), 3), held)
    rounded = dither_to_bf16(weights, 3)
    threshold = torch.randint(1 << 16, weights.shape, generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    bits = weights.view(torch.int32)
    carried = ((bits & 0xFFFF) + threshold) >= 1 << 16
    assert torch.equal(rounded.float().view(torch.int32), (bits & ~0xFFFF) + (carried.int() << 16))
    step = held.float().abs() * 2**-7
    assert ((rounded.float() - weights).abs() <= step).all()


@one_family
def test_default_precision(folder, tmp_path, monkeypatch):
    """fp32 for weights in fp32; bf16 for weights in half precision, fast here or not (24.6); refused where there is none."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    monkeypatch.setattr("harness.engines.embedded.kernels.cpu_bf16", lambda: "")
    engine = EmbeddedEngine("a", folder, device="cpu")
    assert engine.precision == "fp32"
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    engine.tokenizer.save_pretrained(tmp_path)
    assert EmbeddedEngine("a", tmp_path, device="cpu").precision == "bf16"
    assert EmbeddedEngine("a", tmp_path, device="cpu", dtype="fp32").precision == "fp32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(EngineError, match=r"this GPU has no bf16; `--set engine_options\.dtype=fp32`"):
        EmbeddedEngine("a", tmp_path, device="cuda")


def test_cpu_flags(monkeypatch, tmp_path):
    for flags, name in (("fpu amx_tile amx_bf16", "AMX"), ("avx512f avx512_bf16", "AVX512-BF16"), ("avx512f", "")):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
        monkeypatch.setattr(shapes, "Path", lambda _: tmp_path / "cpuinfo")
        shapes.cpu_bf16.cache_clear()
        assert shapes.cpu_bf16() == name
    shapes.cpu_bf16.cache_clear()
