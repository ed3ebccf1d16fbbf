"""Few-shot answers that the next example ends, in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.engines.conformance import tiny_policy, tiny_prompts
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sample
from harness.experience.answers import Answer, Group
from harness.learning.advantages import own_answers
from harness.session.cell.questions import stop_strings, truncate_at_stop, truncated_answers
from harness.session.suite.prepare import prepare
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict

STRINGS = ("\n\nQ:", "\nQ:")
SUITE = """
groups: [{{name: one, policies: [{{name: a, model: micro/llama, style: few-shot}}, {{name: b, model: micro/qwen}}]}}]
regimes: [independent]
seeds: [1]
training: {{steps: 1, prompts: 4{0}}}
"""


@pytest.fixture(scope="module", params=["llama", "qwen"])
def engine(request, tmp_path_factory):
    engine = EmbeddedEngine("a", tiny_policy(tmp_path_factory.mktemp("policies") / "a", request.param), device="cpu")
    yield engine
    engine.close()


def sample(engine, text, finished=False):
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    tokens = np.array([*ids, *[engine.stop[0]] * finished], dtype=np.int32)
    return Sample(tokens, np.linspace(-1, -2, tokens.size, dtype=np.float32), engine.tokenizer.decode(ids), finished)


@pytest.mark.parametrize("finished", [False, True])
def test_the_next_example_ends_an_answer(engine, finished):
    codec, (prompt,) = TokenCodec(engine.tokenizer, engine.stop), tiny_prompts(1)
    plain, long = sample(engine, "1+2=3", True), sample(engine, "1+2=3\n\nQ: 4+5\nA: 9", finished)
    ((kept, was), (cut, closed)) = truncated_answers(codec, engine, [prompt], [[plain, long]], STRINGS)[0]
    assert (kept, was, closed) == (plain, False, True)
    assert (cut.finished, cut.text, cut.tokens.tolist()) == (True, plain.text, plain.tokens.tolist())
    content = cut.tokens.size - 1
    np.testing.assert_array_equal(cut.logprobs[:content], long.logprobs[:content])
    np.testing.assert_allclose(cut.logprobs[-1], engine.score([prompt], [cut.tokens])[0][-1])


def test_a_token_over_the_boundary_stays_and_nothing_at_all_is_an_eos(engine):
    codec = TokenCodec(engine.tokenizer, engine.stop)
    inside, _ = truncate_at_stop(codec, sample(engine, "12 = 3"), ("2",))
    assert inside.text in ("1", "12")
    assert inside.tokens[-1] == engine.stop[0]
    empty, closed = truncate_at_stop(codec, sample(engine, "1+2"), (sample(engine, "1+2").text,))
    assert (empty.text, empty.tokens.tolist(), closed) == ("", [engine.stop[0]], True)


def test_an_eos_that_the_policy_did_not_choose_is_not_learnt(engine):
    (prompt,), one = tiny_prompts(1), sample(engine, "1+2=3", True)
    answers = tuple(
        Answer(one.tokens, one.logprobs, one.text, True, Verdict("right"), closed) for closed in (False, True)
    )
    plain, closed = own_answers(Group(prompt, "a", 0, 1, answers), [1.0, -1.0])
    assert plain.mask is None
    assert closed.mask is not None
    assert closed.mask.tolist() == [True] * (one.tokens.size - 1) + [False]


def test_who_is_ended_so(tmp_path: Path) -> None:
    keys = []
    for name, said in (("plain", ""), ("same", ", answer_ends: eos"), ("other", ", answer_ends: example")):
        (tmp_path / f"{name}.yaml").write_text(SUITE.format(said))
        cell = prepare(str(tmp_path / f"{name}.yaml"), tmp_path / "r").cells[0]
        keys.append(cell.key)
        few, raw = cell.group.policies
        assert stop_strings(cell, few) == (STRINGS if name == "other" else ())
        assert stop_strings(cell, raw) == ()
    assert keys[0] == keys[1] != keys[2]
