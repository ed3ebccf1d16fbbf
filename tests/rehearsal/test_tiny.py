"""The tiny suite of a rehearsal: a few short steps and questions, whatever the suite and its variants say."""

from __future__ import annotations

from pathlib import Path

from harness.rehearsal.tiny import QUESTIONS, STEPS, scale_down
from harness.suite.load import load_suite

LONG = """
groups:
  - name: pair
    policies:
      - {name: a, model: Qwen/Qwen3-0.6B}
      - {name: b, model: meta-llama/Llama-3.2-1B}
regimes:
  - independent
  - {regime: hacpo, training: {steps: 400, prompts: 64, updates: 4}}
seeds: [1, 2]
training: {task: math, steps: 200, max_new_tokens: 1024}
evaluation: {tasks: [math500, aime25], k: {math500: 1, aime25: 30}}
"""


def test_variants_keep_no_length_of_their_own_and_sets_no_number_of_answers(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG)
    tiny = scale_down(load_suite(str(file)))
    (own,) = [variant.training for variant in tiny.regimes if variant.training is not None]
    assert (own.steps, own.prompts, own.updates) == (None, None, 4)
    assert tiny.training.steps == STEPS
    assert tiny.evaluation.k == {"math500": 1, "aime25": QUESTIONS}
    assert tiny.seeds == [1]
