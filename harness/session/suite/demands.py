"""A suite's cells in figures, for the plan. Imports without torch."""

from __future__ import annotations

from typing import NamedTuple

from harness.allocation.cost_model import CellDemand, Lengths, PolicyDemand, Workload
from harness.allocation.shapes import load_shape
from harness.engines.catalogue import backend_of
from harness.experience.records import AnswerRecord
from harness.learning import registry
from harness.learning.regime import Need
from harness.suite.cells import Cell
from harness.suite.schema import Evaluation
from harness.tasks.registry import get_task

PROMPT_TOKENS = 1024
"""Longest prompt where no tokenizer is at hand to measure it: a prior for the plan alone, never a limit."""
MICRO_PROMPT_TOKENS = {None: 24, "raw": 24, "zero-shot": 96, "few-shot": 320}
"""The same of the micro task, by how a policy is asked; a chat template adds some."""
LADDER_PROMPT_TOKENS = 96
"""The same of the ladder, through chat templates with a system turn of their own."""
HINTED = 0.25
"""Answers of a second round per own rollout: a prior (at most one)."""


class EvaluationLoad(NamedTuple):
    """Of one policy: answers over all tasks, tokens of the longest."""

    answers: int
    tokens: int


def asked(evaluation: Evaluation) -> EvaluationLoad:
    """With `k: null` a greedy answer and the task's own k."""
    tasks = [get_task(name) for name in evaluation.tasks]
    answers = 0
    for task in tasks:
        size = evaluation.limit or 0 if task.size is None else task.size
        questions = size if evaluation.limit is None else min(size, evaluation.limit)
        answers += questions * (1 + task.k if evaluation.k is None else int(evaluation.greedy) + evaluation.k)
    return EvaluationLoad(answers, evaluation.max_new_tokens or max(task.max_new_tokens for task in tasks))


class RegimeLoad(NamedTuple):
    """Per own rollout. trained, scored: answers of each peer that are trained on, or only scored. again: own answers of a second
    round. gradients: measured at every step."""

    trained: float
    scored: float
    again: float
    gradients: bool


def regime_load(cell: Cell) -> RegimeLoad:
    """By the regime's declarations: an upper bound for regimes that select [our reading]."""
    regime = registry.build(cell.variant.regime, cell.variant.options)
    answers = any(issubclass(kind, AnswerRecord) for kind in regime.shares)
    scored = float(Need.RECEIVER_OLD in regime.needs) + float(Need.SCORES in regime.needs)
    again = HINTED if regime.hint_tokens else 0.0
    return RegimeLoad(regime.peer_share * answers, scored, again, Need.GRADIENTS in regime.needs)


def prior_lengths(cell: Cell) -> Lengths:
    """Where no tokenizer is at hand."""
    task = cell.training.task.partition(".")[0] if isinstance(cell.training.task, str) else ""
    by_style = {"micro": MICRO_PROMPT_TOKENS, "ladder": dict.fromkeys(MICRO_PROMPT_TOKENS, LADDER_PROMPT_TOKENS)}
    styles = (policy.style for policy in cell.group.policies)
    prompt = max(by_style.get(task, {}).get(style, PROMPT_TOKENS) for style in styles)
    answer = max(cell.training.max_new_tokens, asked(cell.evaluation).tokens)
    longest = min(prompt + answer, cell.engine_options.get("max_length") or prompt + answer)
    return Lengths(max(1, longest - answer), longest)


def demand(cell: Cell, devices: int | None = None, lengths: Lengths | None = None) -> CellDemand:
    """devices: per policy, where the suite has chosen the layout. Raises UsageError."""
    training, evaluation, options = cell.training, cell.evaluation, cell.engine_options
    load, evaluated = regime_load(cell), asked(evaluation)
    prompt, longest = lengths or prior_lengths(cell)
    names = [policy.name for policy in cell.group.policies]
    directed = cell.sharing.direction in {"strong_to_weak", "weak_to_strong"}
    # Authors per receiver, on average; who is strong is seen when the cell starts.
    peers = (len(names) - 1) / 2 if directed else len(cell.sharing.among(names)) / len(names)
    policies = tuple(
        PolicyDemand(
            policy.name,
            load_shape(policy.model, policy.revision),
            cell.rollouts(index),
            backend_of(cell.engine).precision(policy, options),
            reference=bool(training.kl or training.measure_every) or directed,
            penalised=training.kl > 0,
            measured=training.measure_every > 0 or load.gradients,
            devices=devices,
            lora=int((options.get("lora") or {}).get("rank", 0)),
            checkpointing=bool(options.get("checkpointing")),
        )
        for index, policy in enumerate(cell.group.policies)
    )
    curves = 1 + -(-training.steps // evaluation.curve_every) if evaluation.curve_every else 0
    work = Workload(
        steps=training.steps,
        prompts=training.prompts,
        prompt_tokens=prompt,
        answer_tokens=training.max_new_tokens,
        longest=longest,
        trained=1.0 + load.again + peers * load.trained,
        scored=peers * load.scored,
        again=load.again,
        measured=training.steps // training.measure_every if training.measure_every else 0,
        evaluated=evaluated.answers,
        evaluation_tokens=evaluated.tokens,
        curves=curves,
        curve=curves * evaluation.curve_prompts,
        saves=-(-training.steps // training.checkpoint_every),
    )
    return CellDemand(policies, work, options.get("share_devices"))
