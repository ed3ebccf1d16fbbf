"""The embedded engine: conformance, and agreement with transformers' own generation and plain forward passes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from first_ratios import check_every_regime
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.engines.conformance import CHECKS, Case, name_of
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.logprobs import buckets_by_length, cut_into_microbatches
from harness.engines.embedded.sampling import draw_uniforms
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import EngineError
from harness.experience.answers import Prompt
from harness.learning.minibatches import MiniBatch, pack_answers
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import Objective, Term, TermAnswer

# Grouped-query attention with rotary positions, and learned positions; what differs by family is tested on all four.
two_families = pytest.mark.parametrize("folder", ["qwen", "gpt2"], indirect=True)
one_family = pytest.mark.parametrize("folder", ["qwen"], indirect=True)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.slow_but("qwen")
@two_families
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_conformance(check, device, folder, prompts, tmp_path):
    def make(name):
        return EmbeddedEngine(name, folder, device=device)

    check(Case(make, prompts[:7], tmp_path))


@pytest.mark.slow_but("qwen", "gpt2")
def test_greedy_equals_transformers_generate(folder, prompts):
    engine = EmbeddedEngine("a", folder, device="cpu")
    ours = engine.sample(prompts, np.zeros((len(prompts), 1), np.uint64), Sampling(0.0, 32))
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    batch = tokenizer([p.text for p in prompts], return_tensors="pt", padding=True, add_special_tokens=False)
    theirs = model.generate(
        **{key: batch[key] for key in ("input_ids", "attention_mask")},
        do_sample=False,
        max_new_tokens=32,
        suppress_tokens=[tokenizer.pad_token_id],
    )[:, batch["input_ids"].shape[1] :].numpy()
    lengths = [len(group[0].tokens) for group in ours]
    equal = [np.array_equal(g[0].tokens, t[:n]) for g, t, n in zip(ours, theirs, lengths, strict=True)]
    assert sum(equal) == len(prompts) == 200
    early = np.mean(np.array(lengths) < max(lengths))
    assert early > 0.15, "too few answers ended early: compaction was not exercised"


@pytest.mark.slow_but("qwen", "gpt2")
def test_gradient_is_that_of_plain_forward_passes(folder, prompts):
    prompts = prompts[:5]
    engine = EmbeddedEngine("a", folder, device="cpu", micro_tokens=200)
    samples = engine.sample(prompts, np.arange(20, dtype=np.uint64).reshape(5, 4), Sampling(1.0, 24))
    rng = np.random.default_rng(0)
    own, peer = (
        tuple(
            TermAnswer(p.id, s.tokens, float(rng.normal()), s.logprobs + rng.normal(0, 0.1), mask=mask)
            for p, group in zip(prompts, samples, strict=True)
            for s in group
            for mask in [None if rng.random() < 0.5 else np.arange(len(s.tokens)) < max(1, len(s.tokens) - 1)]
        )
        for _ in range(2)
    )
    sequence = Objective("sequence", low=0.9, high=1.1, aggregation="answer")
    terms = (Term("own", "own", Objective(), own), Term("peer", "peer", sequence, peer, weight=0.5))
    # A clip norm above the gradient's and a learning rate of 0: the update leaves the gradient to be read.
    engine.update(prompts, terms, Optimisation(learning_rate=0.0, clip_norm=1e9, max_tokens=24))
    gradients = {name: p.grad.clone() for name, p in engine.model.named_parameters()}

    engine.model.zero_grad()
    texts = {p.id: p.text for p in prompts}
    batch = MiniBatch(0, terms, 24)
    live, logps = list(batch.live()), []
    for _, answer in live:
        start = engine.tokenizer.encode(texts[answer.prompt_id])
        ids = torch.tensor([[*start, *answer.tokens.tolist()]])
        logits = engine.model(ids).logits[0, len(start) - 1 : -1]
        logits[:, engine.tokenizer.pad_token_id] = -1e9
        logp = logits.log_softmax(-1).gather(1, ids[0, len(start) :, None]).squeeze(1)
        logps.append(logp if answer.mask is None else logp[torch.as_tensor(answer.mask)])
    surrogate_loss(torch.cat(logps), pack_answers(batch, live))[0].backward()
    for name, parameter in engine.model.named_parameters():
        torch.testing.assert_close(
            gradients[name], parameter.grad, rtol=1e-3, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@one_family
def test_sampling_follows_the_distribution(folder, prompts):
    engine = EmbeddedEngine("a", folder, device="cpu")
    seeds = np.random.default_rng(3).integers(0, 2**64, (1, 4_000), dtype=np.uint64)
    for temperature in (1.0, 0.7):
        (group,) = engine.sample(prompts[:1], seeds, Sampling(temperature, 1))
        with torch.no_grad():
            logits = engine.model(torch.tensor([engine.tokenizer.encode(prompts[0].text)])).logits[0, -1]
        logits[engine.tokenizer.pad_token_id] = float("-inf")
        expected = (logits / temperature).softmax(-1).double().numpy() * seeds.size
        counts = np.bincount([s.tokens[0] for s in group], minlength=len(expected))
        common = expected > 5
        rest = [counts[~common].sum()], [expected[~common].sum()]
        seen, wanted = np.append(counts[common], rest[0]), np.append(expected[common], rest[1])
        wanted, seen = wanted[wanted > 0], seen[wanted > 0]
        freedom = len(wanted) - 1
        chi_square = ((seen - wanted) ** 2 / wanted).sum()
        assert freedom >= 1
        assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 10
        assert counts[engine.tokenizer.pad_token_id] == 0


def test_uniforms_are_uniform_and_distinct():
    table = draw_uniforms(np.arange(2_000, dtype=np.uint64), 50)
    assert 0 < table.min() < table.max() <= 1
    assert abs(table.mean() - 0.5) < 4 / np.sqrt(12 * table.size)
    assert abs(table.var() - 1 / 12) < 0.001
    for other in (table.T, table):
        assert abs(np.corrcoef(other[:-1].ravel(), other[1:].ravel())[0, 1]) < 0.015
    assert len(np.unique(table)) == table.size
    # mix(0) = 0, so seed 0 starts splitmix64 from state 0, whose first output is 0xE220A8397B1DCDAF.
    assert draw_uniforms(np.zeros(1, np.uint64), 1)[0, 0] == ((0xE220A8397B1DCDAF >> 11) + 1) * 2.0**-53


def test_micro_batches_and_buckets_keep_every_answer():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 100).tolist()
    cut = buckets_by_length(lengths)
    assert sorted(i for bucket in cut for i in bucket) == list(range(100))
    assert all(sum(lengths[b[0]] - lengths[i] for i in b) <= 64 for b in cut)
    assert buckets_by_length([5] * 10) == [list(range(10))]
    prompts = [[0] * 10, [0] * 20]
    requests = [type("R", (), {"prompt": i % 2, "tokens": [1] * 15})() for i in range(9)]
    pieces = list(cut_into_microbatches(prompts, requests, 60))
    assert [i for piece in pieces for i in piece] == list(range(9))
    assert [len(piece) for piece in pieces] == [2, 2, 2, 2, 1]


@one_family
def test_small_cache_budget_gives_the_same_answers(folder, prompts, monkeypatch):
    engine = EmbeddedEngine("a", folder, device="cpu")
    seeds = np.arange(18, dtype=np.uint64).reshape(9, 2)
    whole = engine.sample(prompts[:9], seeds, Sampling(1.0, 16))
    monkeypatch.setattr("harness.engines.embedded.engine.CACHE_BYTES", 400_000)
    pieces = engine.sample(prompts[:9], seeds, Sampling(1.0, 16))
    assert [[s.text for s in g] for g in whole] == [[s.text for s in g] for g in pieces]


@one_family
def test_refusals_are_one_clear_line(folder, prompts, tmp_path, monkeypatch):
    engine = EmbeddedEngine("a", folder, device="cpu")
    for ids in ([5, engine.tokenizer.pad_token_id], [10**6]):
        with pytest.raises(EngineError, match="no content of its vocabulary"):
            engine.score(prompts[:1], [np.array(ids, np.int32)])
    with pytest.raises(EngineError, match="'empty' has no tokens"):
        engine.sample([Prompt("empty", "", "0")], np.zeros((1, 1), np.uint64), Sampling())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineError, match=r"^nothing: does not open: there is no config\.json$"):  # named once
        EmbeddedEngine("nothing", Path("nothing"))
    shutil.copytree(folder, "holed")
    weights = load_file("holed/model.safetensors")
    save_file({n: w * float("nan") for n, w in weights.items()}, "holed/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match="the model computes NaN with these weights"):
        EmbeddedEngine("a", tmp_path / "holed")
    weights.pop(max(weights))
    save_file(weights, "holed/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match="the weights lack"):
        EmbeddedEngine("a", tmp_path / "holed")
    Path("holed/model.safetensors").write_bytes(b"truncated")
    with pytest.raises(EngineError, match="does not open"):
        EmbeddedEngine("a", tmp_path / "holed")
    with pytest.raises(EngineError, match="no chat template"):
        EmbeddedEngine("a", folder, chat=True)


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_learnt_positions_are_all_of_use_and_their_end_is_one_clear_line(folder, prompts):
    """It was an IndexError, also for the padding behind a short answer."""
    engine = EmbeddedEngine("a", folder, device="cpu")
    long = Prompt("long", "Q: 2+3\nA: " * 28, "5")
    room = 257 - len(engine.tokenizer.encode(long.text))
    assert 1 < room < 60
    fits, longer = np.full(room, 5, np.int32), np.full(room + 1, 5, np.int32)
    scores = engine.score([long, prompts[0]], [fits, longer])
    assert np.allclose(scores[0], engine.score([long], [fits])[0], atol=1e-5)
    for asked in (
        lambda: engine.score([long], [longer]),
        lambda: engine.sample([long], np.arange(40, dtype=np.uint64)[None], Sampling(1.0, 300)),
    ):
        with pytest.raises(EngineError, match=r"^a: a question and its answer take more than the 256 positions that"):
            asked()


@one_family
@pytest.mark.slow
def test_no_regime_clips_its_first_update_whatever_the_sampler_says(folder, prompts):
    check_every_regime(EmbeddedEngine("a", folder, device="cpu"), prompts[:6])
