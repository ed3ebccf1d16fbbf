"""A measured training step of the embedded engine with its reference, by the instruments of `make gpu-check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_check
import numpy as np
from gpu_check import IDS, peak, states, stored

from harness.allocation.cost_model import CellDemand, PolicyDemand, Workload
from harness.allocation.shapes import shape_from_config
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Optimisation
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer

SIZE = {
    "hidden_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 480,
    "vocab_size": 2000,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZE, "model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen3": {**SIZE, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 48, "tie_word_embeddings": True},
    "gpt_neox": {**SIZE, "model_type": "gpt_neox", "tie_word_embeddings": False},
    "gemma3": {
        "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "intermediate_size": 128, "vocab_size": 262_144, "sliding_window": 16,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}  # fmt: skip
"""Four architectures, one of them with sliding windows and a vocabulary of 262,144."""
ANSWERS = {"gemma3": 2}
PROMPT, ANSWER = 12, 24


def demanded(name: str, precision: str = "fp32", checkpointing: bool = False, lora: int = 0) -> CellDemand:
    """What the step asks for, as the planner sees it."""
    shape = shape_from_config(name, {**CONFIGS[name], **IDS})
    policy = PolicyDemand(name, shape, ANSWERS.get(name, 16), precision, reference=True, measured=True,
                          lora=lora, checkpointing=checkpointing)  # fmt: skip
    return CellDemand((policy,), Workload(2, 2, PROMPT, ANSWER, PROMPT + ANSWER, trained=2.0, measured=1))


def build(name: str, folder: Path) -> Path:
    return gpu_check.build(CONFIGS[name], folder)


def measured_step(name: str, folder: Path, precision: str = "fp32", **options: Any) -> dict[str, int]:
    """Bytes by part of a step that is measured, and of all at the fullest moment."""
    engine, reference = (EmbeddedEngine(name, folder, dtype=precision, **options) for _ in range(2))
    answers = ANSWERS.get(name, 16)
    tokenizer = engine.tokenizer
    prompts = [Prompt(f"p{i}", tokenizer.decode([20 + i] * PROMPT), "", {}) for i in range(2)]
    rng = np.random.default_rng(0)
    drawn = [(p, rng.integers(30, 400, ANSWER).astype(np.int32)) for p in prompts for _ in range(answers)]
    old = engine.score([p for p, _ in drawn], [a for _, a in drawn])
    terms = [
        Term(
            source, source, Objective(),
            tuple(TermAnswer(p.id, a, float(1 - 2 * (i % 2)), o) for i, ((p, a), o) in enumerate(zip(drawn, old, strict=True))),
        )
        for source in ("own", "peer")
    ]  # fmt: skip

    def step(measure: bool) -> None:
        optimisation = Optimisation(
            learning_rate=1e-4,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            clip_norm=1.0,
            updates=1,
            max_tokens=ANSWER,
            measure=measure,
        )
        engine.update(prompts, terms, optimisation)
        if measure:
            for one in (engine, reference):
                one.score([p for p, _ in drawn], [a for _, a in drawn])

    step(measure=False)
    measured = {**states(engine), "reference": stored(reference.model.parameters())}
    moment = peak(lambda: step(measure=True))
    engine.close()
    reference.close()
    return {**measured, "moment": moment, "all": sum(measured.values()) + moment}
