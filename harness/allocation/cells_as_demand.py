"""From a suite's cells to what the planner asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.estimates import Estimates
from harness.allocation.inventory import Inventory
from harness.allocation.planner import Plan, plan_cells
from harness.allocation.precision import Precision
from harness.allocation.shapes import load_shape
from harness.suite.cells import Cell
from harness.suite.schema import Policy

PROMPT_TOKENS = 1024
"""Longest prompt where no tokenizer is at hand to measure it: a prior for the plan alone, never a limit."""
MEAN_ANSWER = 0.5
"""Expected answer length as a share of the longest: a prior."""
IMITATED = 0.1
"""Peer successes learnt per own rollout by a regime that shares successes: a prior (at most one per prompt)."""
MICRO_PROMPT_TOKENS = {None: 24, "raw": 24, "zero-shot": 96, "few-shot": 320}
"""The same of the micro task, by how a policy is asked; a chat template adds some."""
LADDER_PROMPT_TOKENS = 96
"""The same of the ladder, through chat templates with a system turn of their own."""


@dataclass(frozen=True, slots=True)
class RegimeLoad:
    """What a regime adds to a step, per own rollout and peer: answers trained on, answers only scored; and whether gradients are
    measured at every step."""

    trained: float = 0.0
    scored: float = 0.0
    measured: bool = False


def regime_load(shares: Collection[str], needs: Collection[str]) -> RegimeLoad:
    """The load that a regime's declarations imply: who shares rollouts (or their texts) trains on them, who shares successes
    imitates a few, who shares values trains on nothing more. An upper bound for regimes that select [our reading].

    shares: names of record types; needs: values of `Need`.
    """
    answers = {"Rollout", "TextRollout"} & set(shares)
    return RegimeLoad(
        trained=1.0 if answers else IMITATED if "Success" in shares else 0.0,
        scored=1.0 if "receiver_old" in needs else 0.0,
        measured="gradients" in needs,
    )


class Asked(NamedTuple):
    """What the evaluation asks of one policy: answers over all tasks, tokens of the longest."""

    answers: int
    tokens: int


def kind_of(cell: Cell) -> str:
    """Cells of one kind take equally long and the same place."""
    return f"{cell.group.name}/{cell.variant.name}"


class Lengths(NamedTuple):
    """Tokens. prompt: longest in training; longest: prompt and answer together of all that is asked, in evaluation too."""

    prompt: int
    longest: int


def prior_lengths(cell: Cell, asked: Asked) -> Lengths:
    """Where no tokenizer is at hand. A stated `max_length` leaves no more than it."""
    task = cell.training.task.partition(".")[0] if isinstance(cell.training.task, str) else ""
    by_style = {"micro": MICRO_PROMPT_TOKENS, "ladder": dict.fromkeys(MICRO_PROMPT_TOKENS, LADDER_PROMPT_TOKENS)}.get(
        task, {}
    )
    prompt = max(by_style.get(policy.style, PROMPT_TOKENS) for policy in cell.group.policies)
    answer = max(cell.training.max_new_tokens, asked.tokens)
    longest = min(prompt + answer, cell.engine_options.get("max_length") or prompt + answer)
    return Lengths(max(1, longest - answer), longest)


def demand(
    cell: Cell,
    load: RegimeLoad,
    asked: Asked,
    precision: Callable[[Policy], Precision],
    pending: bool = True,
    devices: int | None = None,
    lengths: Lengths | None = None,
) -> CellDemand:
    """One cell as the planner sees it. precision: what the engine computes each policy in. devices: per policy, where the suite
    has chosen the layout. lengths: as measured, over the policies. Raises UsageError."""
    training, evaluation, options = cell.training, cell.evaluation, cell.engine_options
    lengths = lengths or prior_lengths(cell, asked)
    peers = _peers(cell)
    directed = cell.sharing.direction in {"strong_to_weak", "weak_to_strong"}
    measured = training.steps // training.measure_every if training.measure_every else 0
    policies = tuple(
        PolicyDemand(
            policy.name,
            load_shape(policy.model, policy.revision),
            cell.rollouts(index),
            precision(policy),
            reference=bool(training.kl or training.measure_every) or directed,
            penalised=training.kl > 0,
            measured=training.measure_every > 0 or load.measured,
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
        prompt_tokens=lengths.prompt,
        answer_tokens=training.max_new_tokens,
        mean_answer_tokens=MEAN_ANSWER * training.max_new_tokens,
        trained=1.0 + peers * load.trained,
        scored=peers * load.scored,
        staleness=cell.sharing.max_staleness,
        measured=measured,
        evaluated=asked.answers,
        evaluation_tokens=asked.tokens,
        curves=curves,
        curve=curves * evaluation.curve_prompts,
        saves=-(-training.steps // training.checkpoint_every),
        longest=lengths.longest,
    )
    return CellDemand(cell.key, kind_of(cell), policies, work, pending, options.get("share_devices"))


def _peers(cell: Cell) -> float:
    """Authors per receiver, on average over the group's policies."""
    names = [policy.name for policy in cell.group.policies]
    if cell.sharing.direction in ("strong_to_weak", "weak_to_strong"):  # who is strong is seen when the cell starts
        return (len(names) - 1) / 2
    return len(cell.sharing.among(names)) / len(names)


def plan_suite(
    cells: Sequence[Cell],
    inventory: Inventory,
    *,
    loads: Mapping[str, RegimeLoad],
    asked: Asked,
    precision: Callable[[Policy], Precision],
    pending: Collection[str] | None = None,
    estimates: Estimates | None = None,
    devices: int | None = None,
    lengths: Callable[[Cell], Lengths | None] = lambda cell: None,
    **abilities: Any,
) -> Plan:
    """The plan of a suite's cells on GPUs (`plan_cells`).

    loads: by variant. pending: keys still to do, None for all. estimates: measured
    seconds by kind, ``group/variant``. precision, devices, lengths: see `demand`. abilities: `sleeps`, `stacks` of the engine.

    Raises
    ------
    UsageError
        A model's shape is unknown.
    """
    demands = [
        demand(
            cell,
            loads[cell.variant.name],
            asked,
            precision,
            pending is None or cell.key in pending,
            devices,
            lengths(cell),
        )
        for cell in cells
    ]
    return plan_cells(demands, inventory, estimates=estimates, **abilities)
