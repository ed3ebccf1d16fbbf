"""A cell in figures: what it asks of a machine, as the planner counts it."""

from __future__ import annotations

from math import ceil

from harness.allocation.cost_model import CellDemand, Lengths, PolicyDemand, Workload
from harness.experience.records import AnswerRecord
from harness.learning.regime import Need
from harness.session.suite.resolved import ResolvedSuite
from harness.suite.cells import Cell
from harness.suite.schema import Policy

# Longest prompt without a tokenizer: a prior, never a limit
PROMPT_TOKENS = 1024
# Of the micro task, by style; a chat template adds some
MICRO_PROMPT_TOKENS = {None: 24, "raw": 24, "zero-shot": 96, "few-shot": 320}
# Of the ladder, through chat templates with a system turn
LADDER_PROMPT_TOKENS = 96
# Second-round answers per own rollout: a prior (at most one)
HINTED = 0.25
# Rollouts that dynamic sampling throws away per kept one: 67.9 GPU-hours over 29.9 in arXiv 2609.37868, table 5, less the kept
# one. A prior, and at most `rounds`
REPLACED = 1.3


def prior_lengths(cell: Cell, resolved: ResolvedSuite) -> Lengths:
    """Return the tokens of the longest prompt, and of it with its answer, as long as no tokenizer has measured them."""
    task = cell.training.task.partition(".")[0] if isinstance(cell.training.task, str) else ""
    prompt = max(_prompt_tokens(task, policy) for policy in cell.group.policies)
    answer = max(cell.training.max_new_tokens, resolved.evaluation_load().tokens)
    longest = min(prompt + answer, cell.engine_options.get("max_length") or prompt + answer)
    return Lengths(max(1, longest - answer), longest)


def _prompt_tokens(task: str, policy: Policy) -> int:
    if task == "micro":
        return MICRO_PROMPT_TOKENS.get(policy.style, PROMPT_TOKENS)
    if task == "ladder" and policy.style in MICRO_PROMPT_TOKENS:
        return LADDER_PROMPT_TOKENS
    return PROMPT_TOKENS


def demand_of(
    cell: Cell, resolved: ResolvedSuite, devices: int | None = None, lengths: Lengths | None = None
) -> CellDemand:
    """Return what a cell of the resolved suite asks for. devices: of each policy, where the suite has chosen the layout. lengths:
    as a tokenizer measured them. Raises UsageError for a model of unknown size."""
    policies = [_policy_demand(policy, cell, resolved, devices) for policy in cell.group.policies]
    workload = _count_workload(cell, resolved, lengths or prior_lengths(cell, resolved))
    return CellDemand(tuple(policies), workload, cell.engine_options.get("share_devices"))


def _policy_demand(policy: Policy, cell: Cell, resolved: ResolvedSuite, devices: int | None) -> PolicyDemand:
    training = cell.training
    options = cell.engine_options
    needs = resolved.regime_of(cell).needs
    keeps_reference = bool(training.kl or training.measure_every) or _is_directed(cell) or Need.START_SCORES in needs
    return PolicyDemand(
        policy.name,
        resolved.shape_of(policy),
        cell.rollouts(policy),
        resolved.engine.precision(policy, options),
        reference=keeps_reference,
        penalised=training.kl > 0,
        measured=training.measure_every > 0 or Need.GRADIENTS in needs,
        devices=devices,
        lora=int((options.get("lora") or {}).get("rank", 0)),
        checkpointing=bool(options.get("checkpointing")),
    )


def _count_workload(cell: Cell, resolved: ResolvedSuite, lengths: Lengths) -> Workload:
    """Say how often each phase runs, and on how many answers. By the regime's declarations: an upper bound for regimes that
    select [our reading]."""
    training = cell.training
    evaluation = cell.evaluation
    regime = resolved.regime_of(cell)
    evaluated = resolved.evaluation_load()
    peers = _peers_of_a_receiver(cell)
    prompts = training.prompts
    if cell.variant.sampling == "split":
        prompts = ceil(training.prompts / len(cell.group.policies))
    scored_for_peers = regime.needs & {Need.RECEIVER_OLD, Need.SCORES, Need.START_SCORES}
    scored_at_start = Need.START_SCORES in regime.needs
    hinted = HINTED if regime.hint_tokens else 0.0
    dynamic = cell.variant.dynamic_sampling
    replaced = min(REPLACED, dynamic.rounds) if dynamic else 0.0
    sends_answers = any(issubclass(kind, AnswerRecord) for kind in regime.shares)
    learnt_of_peers = peers * (regime.peer_share * sends_answers)
    penalised = training.kl > 0  # own answers are learnt once more, as the penalty's term
    measured = training.steps // training.measure_every if training.measure_every else 0
    curves = 0
    if evaluation.curve_every:
        curves = 1 + -(-training.steps // evaluation.curve_every)  # one before training; a last interval may be shorter
    return Workload(
        steps=training.steps,
        prompts=prompts,
        prompt_tokens=lengths.prompt,
        answer_tokens=training.max_new_tokens,
        longest=lengths.longest,
        trained=1.0 + hinted + learnt_of_peers + penalised,
        scored=float(peers * len(scored_for_peers) + scored_at_start),
        again=hinted + replaced,
        measured=measured,
        evaluated=evaluated.answers,
        questions=evaluated.questions,
        evaluation_tokens=evaluated.tokens,
        curves=curves,
        curve=curves * evaluation.curve_prompts,
        saves=-(-training.steps // training.checkpoint_every),
    )


def _peers_of_a_receiver(cell: Cell) -> float:
    """Return the authors per receiver, on average. Which policy is the stronger one is seen at the start: of each pair one
    sends."""
    names = [policy.name for policy in cell.group.policies]
    if _is_directed(cell):
        return (len(names) - 1) / 2
    return len(cell.sharing.among(names)) / len(names)


def _is_directed(cell: Cell) -> bool:
    """Whether records go from stronger to weaker policies alone, or the other way round."""
    return cell.sharing.direction in {"strong_to_weak", "weak_to_strong"}
