"""From a suite's cells to what the planner asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.estimates import Estimates
from harness.allocation.inventory import Inventory
from harness.allocation.models import ModelShape, load_shape
from harness.allocation.planner import Plan, plan_cells
from harness.suite.cells import Cell

PROMPT_TOKENS = 1024
"""Longest prompt where the engine's options do not say how long prompt and answer may be together."""
MEAN_ANSWER = 0.5
"""Expected answer length as a share of the longest: a prior."""
IMITATED = 0.1
"""Peer successes learnt per own rollout by a regime that shares successes: a prior (at most one per prompt)."""
MICRO = ModelShape("micro", "llama", 3, 96, 3, 3, 32, 384, 512, True)
"""About the shape of the micro families: all are 96 wide and 3 layers deep."""


@dataclass(frozen=True, slots=True)
class RegimeLoad:
    """What a regime adds to a step, per own rollout and peer: answers trained on, answers only scored."""

    trained: float = 0.0
    scored: float = 0.0


def regime_load(shares: Collection[str], needs: Collection[str]) -> RegimeLoad:
    """The load that a regime's declarations imply: who shares rollouts (or their texts) trains on them, who shares successes
    imitates a few, who shares values trains on nothing more. An upper bound for regimes that select [our reading].

    shares: names of record types; needs: values of `Need`.
    """
    answers = {"Rollout", "TextRollout"} & set(shares)
    return RegimeLoad(
        trained=1.0 if answers else IMITATED if "Success" in shares else 0.0,
        scored=1.0 if "receiver_old" in needs else 0.0,
    )


def kind_of(cell: Cell) -> str:
    """Cells of one kind take equally long and the same place."""
    return f"{cell.group.name}/{cell.variant.name}"


def longest_sequence(options: Mapping[str, Any], max_new_tokens: int) -> int:
    """Tokens of prompt and answer together that a policy must be able to hold."""
    return int(options.get("max_length") or max_new_tokens + PROMPT_TOKENS)


def demand(
    cell: Cell, load: RegimeLoad, questions: int, pending: bool = True, devices: int | None = None
) -> CellDemand:
    """One cell as the planner sees it. questions: of all evaluation tasks together, before `limit`. devices: per policy, where
    the suite has chosen the layout."""
    training, evaluation, options = cell.training, cell.evaluation, cell.engine_options
    longest = longest_sequence(options, training.max_new_tokens)
    precision = cast(Literal["bf16", "fp32"], options.get("dtype", "bf16"))
    policies = tuple(
        PolicyDemand(
            policy.name,
            MICRO if policy.model.startswith("micro/") else load_shape(policy.model),
            cell.rollouts(index),
            precision,
            training.kl > 0,
            devices,
        )
        for index, policy in enumerate(cell.group.policies)
    )
    if evaluation.limit is not None:
        questions = min(questions, evaluation.limit * len(evaluation.tasks))
    peers = _peers(cell)
    work = Workload(
        steps=training.steps,
        prompts=training.prompts,
        prompt_tokens=max(1, longest - training.max_new_tokens),
        answer_tokens=training.max_new_tokens,
        mean_answer_tokens=MEAN_ANSWER * training.max_new_tokens,
        trained=1.0 + peers * load.trained,
        scored=peers * load.scored,
        staleness=cell.sharing.max_staleness,
        evaluated=questions * (int(evaluation.greedy) + (evaluation.k or 0)),
    )
    return CellDemand(cell.key, kind_of(cell), policies, work, pending)


def _peers(cell: Cell) -> float:
    """Authors per receiver, on average over the group's policies."""
    count, sharing = len(cell.group.policies), cell.sharing
    if sharing.direction == "none":
        return 0.0
    if sharing.direction == "edges":
        return len(sharing.edges or []) / count
    return (count - 1) / (1 if sharing.direction == "all" else 2)


def plan_suite(
    cells: Sequence[Cell],
    inventory: Inventory,
    *,
    loads: Mapping[str, RegimeLoad],
    questions: int,
    pending: Collection[str] | None = None,
    estimates: Estimates | None = None,
    devices: int | None = None,
    **abilities: Any,
) -> Plan:
    """The plan of a suite's cells on GPUs (`plan_cells`).

    loads: by variant. questions: rows of all evaluation tasks. pending: keys still to do, None for all. estimates: measured
    seconds by kind, ``group/variant``. devices: see `demand`. abilities: `sleeps`, `offloads`, `stacks` of the engine.

    Raises
    ------
    UsageError
        A model's shape is unknown.
    """
    demands = [
        demand(cell, loads[cell.variant.name], questions, pending is None or cell.key in pending, devices)
        for cell in cells
    ]
    return plan_cells(demands, inventory, estimates=estimates, **abilities)
