"""24.1: how long prompts and answers may be is measured by each policy's tokenizer; what is stated shorter is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.embedded.families import build_model, build_tokenizer
from harness.engines.vocabulary import open_vocabulary
from harness.errors import EngineError, SuiteError
from harness.session.cell.lengths import measured, with_length
from harness.session.cell.prompt_order import curve_prompts, training_prompts
from harness.session.suite.demands import MICRO_PROMPT_TOKENS
from harness.session.suite.planning import place_of_cell, plan_for
from harness.session.suite.preflight import preflight
from harness.session.suite.prepare import prepare
from harness.tasks.choice import fair_part
from harness.tasks.registry import get_task

SUITE = """
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
    file.write_text(SUITE.format(folder=folder))
    return lambda *overrides: prepare(str(file), tmp_path / "results", overrides=overrides)


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
        assert measured(policy, folder, cell.evaluation, cell) == (trained, longest)
        assert with_length("openrlhf", {}, policy, folder, cell.evaluation, cell) == {"max_length": longest}
        assert with_length("embedded", {}, policy, folder, cell.evaluation, cell) == {}


def test_a_plan_has_the_measured_lengths_and_sets_no_limit_by_a_prior(suite):
    prepared = suite()
    (cell,) = prepared.cells
    plan = plan_for(prepared, "2xH100-80G")
    few_shot = cell.group.policies[1]
    lengths = measured(few_shot, Path(few_shot.model), cell.evaluation, cell)
    (kind,) = plan.kinds
    assert {p.sequence for p in kind.layout.policies} == {lengths.prompt + 30}
    assert all("max_length" not in options for options in place_of_cell(plan, cell).layout.values())


def test_a_stated_length_that_is_too_short_is_refused_by_its_key(suite, folder):
    few_shot = suite().cells[0].group.policies[1]
    needed = measured(few_shot, folder, suite().suite.evaluation, suite().cells[0]).longest
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
    assert any(remark.endswith(words) for remark in preflight(absent, run=False))
    (kind,) = plan_for(absent, "2xH100-80G").kinds
    assert {p.sequence for p in kind.layout.policies} == {MICRO_PROMPT_TOKENS["few-shot"] + 30}
