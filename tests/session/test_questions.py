"""What a cell asks: where answers end, how long prompts and answers may be (24.1), and by whose scorer they are judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.engines.conformance import tiny_policy, tiny_prompts
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.engines.protocol import Sample
from harness.engines.vocabulary import open_vocabulary
from harness.errors import EngineError, SuiteError
from harness.experience.answers import Answer, Group, Prompt
from harness.learning.advantages import own_answers
from harness.session.cell.judge import judge_of
from harness.session.cell.learners import verdicts_of_answers
from harness.session.cell.questions import (
    curve_prompts,
    measure_lengths,
    pool_entry,
    stop_strings,
    training_prompts,
    truncate_at_stop,
    truncated_answers,
    with_length,
)
from harness.session.suite.demand import MICRO_PROMPT_TOKENS
from harness.session.suite.planning import place_of, plan_for
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.tasks.registry import get_task
from harness.tasks.source import fair_part
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

STRINGS = ("\n\nQ:", "\nQ:")
ENDINGS = """
groups: [{{name: one, policies: [{{name: a, model: micro/llama, style: few-shot}}, {{name: b, model: micro/qwen}}]}}]
regimes: [independent]
seeds: [1]
training: {{steps: 1, prompts: 4{0}}}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = EmbeddedEngine("a", tiny_policy(tmp_path_factory.mktemp("policies") / "a", "qwen"), device="cpu")
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
        (tmp_path / f"{name}.yaml").write_text(ENDINGS.format(said))
        cell = prepare_named(str(tmp_path / f"{name}.yaml"), tmp_path / "r").cells[0]
        keys.append(cell.key)
        few, raw = cell.group.policies
        assert stop_strings(cell, few) == (STRINGS if name == "other" else ())
        assert stop_strings(cell, raw) == ()
    assert keys[0] == keys[1] != keys[2]


LENGTHS = """
engine: openrlhf
groups:
  - name: pair
    policies:
      - {{name: a, model: {folder}}}
      - {{name: b, model: {folder}, style: few-shot}}
regimes: [independent]
seeds: [1]
training: {{steps: 3, prompts: 4, rollouts: 2, max_new_tokens: 30, measure_every: 0}}
evaluation: {{k: 0, limit: 6, max_new_tokens: 50, curve_every: 1, curve_prompts: 6}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = build_tokenizer("llama")
    tokenizer.save_pretrained(place)
    model = build_model("llama", 0, tokenizer)
    model.config.max_position_embeddings = 1024
    model.save_pretrained(place)
    return place


@pytest.fixture
def suite(folder, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(LENGTHS.format(folder=folder))
    return lambda *overrides: prepare_named(str(file), tmp_path / "results", overrides=overrides)


def test_every_question_is_measured_as_the_policy_reads_it(suite, folder):
    (cell,) = suite().cells
    task = get_task("micro")
    for policy, style in zip(cell.group.policies, ("raw", "few-shot"), strict=True):
        encode = open_vocabulary(folder, False).encode
        asked = [p for step in (1, 2, 3) for p in training_prompts(cell, step)]
        trained = max(len(encode(p.__class__(p.id, task.render(p, style), ""))) for p in asked)
        evaluated = [p.__class__(p.id, task.render(p, style), "") for p in fair_part(task.documents(None), 6)]
        assert {p.text for p in curve_prompts(cell, policy)} <= {p.text for p in evaluated}
        longest = max(trained + 30, max(len(encode(p)) for p in evaluated) + 50)
        assert measure_lengths(policy, folder, cell.evaluation, cell) == (trained, longest)
        assert with_length("openrlhf", {}, policy, folder, cell.evaluation, cell) == {"max_length": longest}
        assert with_length("embedded", {}, policy, folder, cell.evaluation, cell) == {}


@pytest.mark.parametrize("template", ["{question} {hint}", "{question} Another student begins with: {hint}"])
def test_a_hinted_question_has_room_for_the_words_around_the_hint(folder, tmp_path, template):
    """The rollout engine ended its answers, and the cell failed at every start."""
    asked = f"[independent, {{regime: core, tokens: 4, template: {json.dumps(template)}}}]"
    (tmp_path / "x.yaml").write_text(LENGTHS.format(folder=folder).replace("[independent]", asked))
    cell = prepare_named(str(tmp_path / "x.yaml"), tmp_path / "results").cells[1]
    encode, hint = open_vocabulary(folder, False).encode, "1234567"
    assert len(encode(Prompt("", hint, ""))) == 4
    longest = max((p.text for step in (1, 2, 3) for p in training_prompts(cell, step)), key=len)
    hinted = Prompt("", template.format(question=longest, hint=hint), "")
    assert len(encode(hinted)) <= measure_lengths(cell.group.policies[0], folder, cell.evaluation, cell).prompt


def test_a_plan_has_the_measured_lengths_and_sets_no_limit_by_a_prior(suite):
    prepared = suite()
    (cell,) = prepared.cells
    plan = plan_for(prepared, "2xH100-80G")
    few_shot = cell.group.policies[1]
    lengths = measure_lengths(few_shot, Path(few_shot.model), cell.evaluation, cell)
    (kind,) = plan.kinds
    assert {p.sequence for p in kind.layout.policies} == {lengths.prompt + 30}
    assert all("max_length" not in options for options in place_of(plan, cell).layout.values())


def test_a_stated_length_that_is_too_short_is_refused_by_its_key(suite, folder):
    few_shot = suite().cells[0].group.policies[1]
    needed = measure_lengths(few_shot, folder, suite().suite.evaluation, suite().cells[0]).longest
    assert plan_for(suite(f"engine_options.max_length={needed}"), "2xH100-80G").feasible
    words = rf"x\.yaml: engine_options\.max_length: {needed - 1} tokens would cut answers short: .* b take {needed}\."
    with pytest.raises(SuiteError, match=words):
        plan_for(suite(f"engine_options.max_length={needed - 1}"), "2xH100-80G")
    longer = suite("evaluation.max_new_tokens=1000")
    with pytest.raises(EngineError, match=r"the model has 1,024 positions, fewer than the 1,\d\d\d tokens"):
        with_length("openrlhf", {}, few_shot, folder, longer.suite.evaluation, longer.cells[0])
    with pytest.raises(
        SuiteError, match=r"engine_options\.max_length: 50 tokens cut an answer of 50 short \(evaluation"
    ):
        suite("engine_options.max_length=50")


def test_without_a_tokenizer_a_plan_says_so(suite, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    absent = suite("groups[0].policies[0].model=Qwen/Qwen2.5-0.5B-Instruct")
    words = "; `harness run` fetches and checks them and measures how long questions are, here a prior"
    assert any(remark.endswith(words) for remark in check_before_run(absent, about_to_run=False))
    (kind,) = plan_for(absent, "2xH100-80G").kinds
    assert {p.sequence for p in kind.layout.policies} == {MICRO_PROMPT_TOKENS["few-shot"] + 30}


SCORED = """
groups: [{name: one, policies: [{name: a, model: micro/llama}]}]
regimes: [independent]
seeds: [1]
training: {steps: 1, prompts: 4, task: {file: halves.jsonl, scorer: exact}}
evaluation: {tasks: [micro], k: 1}
"""


def test_each_task_is_judged_by_its_own_scorer(tmp_path: Path) -> None:
    rows = [{"question": f"{n} halves are", "answer": f"{n}/2"} for n in range(1, 9)]
    (tmp_path / "halves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "s.yaml").write_text(SCORED)
    cell = prepare_named(str(tmp_path / "s.yaml"), tmp_path / "r").cells[0]
    with Verifier(workers=1) as verifier:
        prompt = Prompt("x", "", "1/2")
        asked = (
            judge_of(cell.training.task, verifier),
            [prompt] * 3,
            [r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{1/2}"],
            [True, True, False],
        )
        assert [v.value for v in verdicts_of_answers(*asked)] == ["right", "wrong", "wrong"]
        assert judge_of(cell.evaluation.tasks[0], verifier).verify([(prompt, r"\boxed{0.5}")])[0].value == "right"
    prompts = training_prompts(cell, 1)
    assert {p.gold for p in prompts} <= {row["answer"] for row in rows}
    assert all(p.text.endswith(r"Put your final answer within \boxed{}.") for p in prompts)
    pool = pool_entry(cell.training)
    assert pool is not None
    assert (pool.describe().split()[0], cell.identity.pool) == ("halves:", cell.training.task.sha256)  # type: ignore[union-attr]
