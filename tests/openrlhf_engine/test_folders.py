"""Model folders of unusual make: ends, openings and saved settings are those of the embedded engine."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from alone import Alone

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.protocol import Optimisation, Sampling
from harness.learning.terms import Objective, Term, TermAnswer

sys.path.append(str(Path(__file__).parents[1] / "engines"))
import models

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(1200)]
SETTINGS = {
    "dtype": "fp32", "start_seconds": 500.0, "call_seconds": 240.0, "rollout_memory": 0.05, "max_length": 160,
    "rollout_sequences": 64,
}  # fmt: skip
TWO_ENDS = models.TURNS.replace("<|done|>", "<|said|><|done|>")
UNSAVABLE = {"do_sample": False, "temperature": 0.6}  # transformers refuses to write it back


@pytest.fixture(scope="module")
def engine(ray_cluster, tmp_path_factory):
    """Of a chat whose template writes two closing tokens, with its ends in config.json alone and settings that do not save."""
    folder = tmp_path_factory.mktemp("models") / "two"
    core = models.byte_level([*models.SPECIAL, "<|said|>"])
    models.write(folder, core, TWO_ENDS, listed=["<|done|>"], generation=UNSAVABLE, heads=1, eos_token="<|eos|>")
    opened = Alone("a", folder, settings=OpenRLHFSettings(**SETTINGS), chat=True)
    yield opened, folder
    opened.close()


def test_ends_and_openings_are_the_embedded_engines(engine, prompts):
    ours, folder = engine
    embedded = EmbeddedEngine("b", folder, chat=True, device="cpu")
    assert (ours.stop, ours.closing, ours.positions) == (embedded.stop, embedded.closing, embedded.positions)
    assert len(ours.closing) == 2
    assert [ours.reads(prompt) for prompt in prompts] == [embedded.reads(prompt) for prompt in prompts]


def test_ends_are_one_action(engine, prompts):
    """Of the trainer's scores, as of the embedded engine's; and of vLLM's samples, as of the trainer's scores."""
    ours, folder = engine
    embedded = EmbeddedEngine("b", folder, chat=True, device="cpu", dtype="fp32")
    assert len(ours.stop) == 2
    text = ours.tokenizer.encode("5", add_special_tokens=False)
    answers = [np.array([*text, end], np.int32) for end in ours.stop]
    one, other = ours.score([prompts[0]] * 2, answers)
    assert one == pytest.approx(other, abs=1e-6)
    assert one == pytest.approx(embedded.score([prompts[0]], answers[:1])[0], abs=1e-5)
    told_apart = EmbeddedEngine("c", folder, chat=True, device="cpu", dtype="fp32", ends_are_one=False)
    alone = [score[-1] for score in told_apart.score([prompts[0]] * 2, answers)]
    assert one[-1] == pytest.approx(np.logaddexp(*alone), abs=1e-5)
    assert one[-1] > max(alone) + 1e-3

    seeds = np.arange(64, dtype=np.uint64)[None]
    (samples,) = ours.sample(prompts[:1], seeds, Sampling(1.0, 64))
    ended = [sample for sample in samples if sample.finished]
    assert {int(sample.tokens[-1]) for sample in ended} == set(ours.stop), "both ends are drawn"
    scores = ours.score([prompts[0]] * len(ended), [sample.tokens for sample in ended])
    for sample, score in zip(ended, scores, strict=True):
        assert sample.logprobs == pytest.approx(score, abs=1e-4)


def test_a_carried_answers_ratio_is_the_same_whichever_end_it_has(engine, prompts):
    """Learnt by either engine, against what a peer says of its own end."""
    ours, folder = engine
    embedded = EmbeddedEngine("b", folder, chat=True, device="cpu", dtype="fp32")
    text = ours.tokenizer.encode("5", add_special_tokens=False)
    still, ratios = Optimisation(learning_rate=0.0), []
    for end in ours.stop:
        tokens = np.array([*text, end], np.int32)
        said = np.full(tokens.size, -3.0, np.float32)
        carried = TermAnswer(prompts[0].id, tokens, 1.0, said, origin=("peer", 0))
        term = Term("peer", "peer", Objective(), (carried,))
        ratios += [one.update(prompts[:1], [term], still).terms[0].ratio_mean for one in (ours, embedded)]
    assert ratios == pytest.approx([ratios[0]] * 4, rel=1e-5)


def test_settings_that_transformers_refuses_are_saved_as_they_were(engine, tmp_path):
    ours, folder = engine
    ours.save(tmp_path / "saved")
    name = "generation_config.json"
    saved = next((tmp_path / "saved").rglob(name))
    assert saved.read_bytes() == (folder / name).read_bytes()
