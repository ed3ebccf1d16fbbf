"""Tokens that end an answer are one action: its log-probability is that of ending by any of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models import TURNS, byte_level, write
from transformers import LlamaForCausalLM

from harness.engines import head as heads
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import FAMILIES, build_model, build_tokenizer
from harness.engines.head import NEVER, Head, logprobs_by_parts, merge_ends, whole_logprobs
from harness.engines.protocol import Optimisation, Sampling
from harness.engines.vocabulary import open_vocabulary
from harness.experience.answers import Prompt
from harness.learning.terms import OLD, Objective, Term, TermAnswer

QUESTION = Prompt("q", "What is 2 + 3?", "5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A chat model with two ends, of which its template writes one."""
    place = tmp_path_factory.mktemp("models") / "two"
    return write(place, byte_level(), TURNS, ends=["<|done|>", "<|eos|>"], eos_token="<|eos|>")


def opened(folder: Path, ends_are_one: bool = True) -> EmbeddedEngine:
    return EmbeddedEngine("p", folder, chat=True, device="cpu", dtype="fp32", ends_are_one=ends_are_one)


def by_each_end(engine: EmbeddedEngine) -> list[np.ndarray]:
    """The same text, ended in each of the ways."""
    text = engine.tokenizer.encode("\\boxed{5}", add_special_tokens=False)
    return [np.array([*text, end], np.int32) for end in engine.stop]


def library_logits(folder: Path, engine: EmbeddedEngine, answer: np.ndarray) -> torch.Tensor:
    """(T, V) before each token of an answer, by transformers alone."""
    prompt = engine._vocabulary.encode(QUESTION)
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *answer.tolist()]])).logits[0]
    return logits[len(prompt) - 1 : -1].double()


def test_an_answer_scores_the_same_whichever_end_it_has(folder):
    engine = opened(folder)
    assert len(engine.stop) == 2
    answers = by_each_end(engine)
    one, other = engine.score([QUESTION] * 2, answers)
    assert one.tolist() == other.tolist()
    logits = library_logits(folder, engine, answers[0])
    probabilities = torch.softmax(logits, dim=1)
    assert one[-1] == pytest.approx(float(probabilities[-1, list(engine.stop)].sum().log()), abs=1e-5)
    said = probabilities[range(len(one) - 1), answers[0][:-1].tolist()].log()
    assert one[:-1] == pytest.approx(said.numpy(), abs=1e-5)


def test_ends_may_be_told_apart(folder):
    engine = opened(folder, ends_are_one=False)
    answers = by_each_end(engine)
    scores = engine.score([QUESTION] * 2, answers)
    logits = library_logits(folder, engine, answers[0])
    own = torch.log_softmax(logits, dim=1)[-1]
    assert [score[-1] for score in scores] == pytest.approx([float(own[end]) for end in engine.stop], abs=1e-5)
    assert abs(scores[0][-1] - scores[1][-1]) > 1e-3


def test_a_model_with_one_end_has_nothing_to_add_up(tmp_path):
    engine = opened(write(tmp_path, byte_level(), TURNS, ends=["<|done|>"], eos_token="<|done|>"))
    assert engine.stop == engine.closing
    assert engine._policy.ends is None


@pytest.mark.parametrize("family", FAMILIES)
def test_micro_families_have_one_end(tmp_path, family):
    """So their rows are what they were before ends were one action."""
    tokenizer = build_tokenizer(family)
    build_model(family, 0, tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    vocabulary = open_vocabulary(tmp_path, chat=False)
    assert len(vocabulary.stop) == 1
    assert vocabulary.ends(are_one=True) == ()


@pytest.mark.parametrize("ends_are_one", [True, False])
def test_samples_have_the_log_probabilities_that_scores_have(folder, ends_are_one):
    engine = opened(folder, ends_are_one)
    seeds = np.arange(96, dtype=np.uint64)[None]
    (samples,) = engine.sample([QUESTION], seeds, Sampling(1.0, 64))
    ended = [sample for sample in samples if sample.finished]
    assert {int(sample.tokens[-1]) for sample in ended} == set(engine.stop), "both ends are drawn"
    scores = engine.score([QUESTION] * len(ended), [sample.tokens for sample in ended])
    for sample, score in zip(ended, scores, strict=True):
        assert sample.logprobs == pytest.approx(score, abs=2e-5)


def weights_after(folder: Path, end: int, ends_are_one: bool) -> torch.Tensor:
    """All weights after one update on an answer that has this end."""
    engine = opened(folder, ends_are_one)
    tokens = next(answer for answer in by_each_end(engine) if answer[-1] == end)
    (sampled,) = engine.score([QUESTION], [tokens])
    answer = TermAnswer("q", tokens, 1.0, OLD, sampled=sampled)
    engine.update([QUESTION], [Term("own", "own", Objective(), (answer,))], Optimisation(learning_rate=1e-3))
    return torch.cat([parameter.detach().flatten() for parameter in engine.model.parameters()])


def test_learning_is_the_same_whichever_end_an_answer_has(folder):
    ends = opened(folder).stop
    one, other = (weights_after(folder, end, ends_are_one=True) for end in ends)
    assert torch.equal(one, other)
    one, other = (weights_after(folder, end, ends_are_one=False) for end in ends)
    assert not torch.equal(one, other)


def test_parts_of_the_vocabulary_give_the_same_values_and_gradients(monkeypatch):
    """Ends lie in different parts."""
    torch.manual_seed(3)
    size, width = 40, 16
    weight = torch.randn(size, width, dtype=torch.float32, requires_grad=True)
    hidden = torch.randn(9, width, requires_grad=True)
    targets = torch.tensor([1, 5, 7, 38, 0, 39, 7, 20, 38])
    forbidden = torch.zeros(size)
    forbidden[3] = NEVER
    ends, slopes = torch.tensor([7, 38]), torch.randn(9)
    made = Head(weight, None, 0.7, 4.0)
    whole = whole_logprobs(made.logits(hidden), targets, 0.8, forbidden, ends)
    expected = torch.autograd.grad((whole * slopes).sum(), (hidden, weight))
    monkeypatch.setattr(heads, "at_once", lambda _: 9 * 11)  # four parts
    parts = logprobs_by_parts(made, hidden, targets, 0.8, forbidden, ends)
    got = torch.autograd.grad((parts * slopes).sum(), (hidden, weight))
    assert torch.allclose(parts, whole, atol=1e-5)
    assert parts[2] != parts[3]
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    apart = logprobs_by_parts(made, hidden, targets, 0.8, forbidden)
    is_end = torch.isin(targets, ends)
    assert torch.equal(apart[~is_end], parts[~is_end])
    assert (apart[is_end] < parts[is_end]).all()


def test_without_several_ends_values_are_left_alone():
    values, logits = torch.tensor([-1.0]), torch.randn(1, 4)
    assert merge_ends(values, logits, torch.tensor([2]), None) is values
