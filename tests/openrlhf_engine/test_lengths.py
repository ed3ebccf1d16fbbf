"""24.1: a paper suite at a tenth of its lengths, whose evaluation gets its whole length on real vLLM."""

from __future__ import annotations

import pytest

from harness.engines.catalogue import open_backend
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.errors import SuiteError
from harness.session.cell.evaluate import sample_rows
from harness.session.cell.questions import with_length
from harness.session.suite.planning import place_of, plan_for
from harness.session.suite.prepare import prepare_named
from harness.verification.verifier import Verifier

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(1200)]


@pytest.fixture
def suite(tmp_path):
    """Untrained models, which repeat themselves to the end of what they are allowed."""
    tokenizer = build_tokenizer("qwen")
    tokenizer.model_max_length = 2048
    model = build_model("qwen", 3, tokenizer)
    model.config.max_position_embeddings = 2048
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    policies = ", ".join(f"{{name: {name}, model: {tmp_path / 'model'}}}" for name in "ab")
    settings = [
        f"groups=[{{name: pair, policies: [{policies}]}}]",
        "engine_options={dtype: fp32, rollout_memory: 0.05, rollout_sequences: 8, start_seconds: 500.0}",
        "training.task=micro", "training.max_new_tokens=410",
        "evaluation={tasks: [micro], greedy: true, k: 0, limit: 2, max_new_tokens: 820, curve_every: 0}",
    ]  # fmt: skip
    return lambda *more: prepare_named("hetero_size", tmp_path / "results", overrides=[*settings, *more])


def test_a_paper_suite_at_a_tenth_of_its_lengths(suite, tmp_path, report_line):
    with pytest.raises(SuiteError, match=r"engine_options\.max_length: 512 tokens cut an answer of 820 short"):
        suite("engine_options.max_length=512")
    prepared = suite()
    base = prepared.bases[0]
    evaluation, policy, folder = prepared.suite.evaluation, base.policy, tmp_path / "model"
    layout = place_of(plan_for(prepared, None), base).layout[policy.name]
    options = with_length("openrlhf", {**layout, **prepared.suite.engine_options}, policy, folder, evaluation)
    with Verifier(workers=1) as verifier, open_backend("openrlhf", {policy.name: options}, 1.0) as engines:
        engine = engines.reference(policy, folder)
        rows = sample_rows(engine, evaluation, policy, 0, 0, verifier)
        report_line(
            f"max_length {options['max_length']} measured; evaluation answers of {[r.tokens for r in rows]} tokens"
        )
        cut = [row for row in rows if not row.finished]
        assert cut
        assert {row.tokens for row in cut} == {820}
