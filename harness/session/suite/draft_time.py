"""How long a drafted suite takes on this machine, by a step that is timed, and how many steps fit into the time that was
given."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.allocation import inventory
from harness.allocation.cost_model import CORE, CellDemand, device_of
from harness.allocation.plan_text import first_of
from harness.engines.embedded import account
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import HarnessError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer
from harness.session.cell.questions import as_asked, training_prompts
from harness.session.policy import base_folder
from harness.session.suite.demand import demand_of
from harness.session.suite.draft_text import SIZES_BY_BUDGET, Findings
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_suite
from harness.store.sentences import joined
from harness.suite.cells import Cell
from harness.suite.schema import Suite, Training
from harness.suite.seeds import derive_many

if TYPE_CHECKING:
    from harness.engines.embedded.engine import EmbeddedEngine

# Questions of the step that is timed
TIMED = 4
# The fewest and the most training steps of a drafted suite
STEPS = (16, 200)


def measure_pace(suite: Suite, source: str) -> float:
    """Return the seconds of a step of the suite's baseline here, without sharing, over those of the plan."""
    from harness.engines.embedded.engine import EmbeddedEngine

    with TemporaryDirectory() as results:
        prepared = prepare_suite(suite, source, Path(results))
    cell = prepared.all_cells[0]  # of the first regime of a draft, `independent`, which is its baseline
    demand = demand_of(cell, prepared.resolved)
    options: dict[str, Any] = {name: suite.engine_options.get(name) for name in ("dtype", "lora")}
    kind = next((node.gpu_kind for node in inventory.inventory_of_machine().nodes if node.gpus), CORE)
    taken = planned = 0.0
    for policy, own in zip(cell.group.policies, demand.policies, strict=True):
        raw = base_folder(policy.model_copy(update={"stage0": None}), 0)  # a supervised start takes minutes
        engine = EmbeddedEngine(policy.name, raw, chat=policy.chat, **options)
        prompts = as_asked(training_prompts(cell, 1), cell.training.task, policy)
        _time_step(engine, cell, prompts[:1])  # the first one allocates the optimiser's state
        seconds, mean_answer = _time_step(engine, cell, prompts[:TIMED])
        taken += seconds
        engine.close()
        mean = mean_answer / cell.training.max_new_tokens
        work = replace(demand.workload, steps=1, prompts=len(prompts[:TIMED]), trained=1.0, again=0.0, mean=mean)
        spent = account.phases(CellDemand((own,), work), device_of(kind))
        planned += spent.generate + spent.train
    return taken / planned


def _time_step(engine: EmbeddedEngine, cell: Cell, prompts: Sequence[Prompt]) -> tuple[float, float]:
    """Sample answers to the prompts and learn from them once; returns seconds, of the CPU unless the engine has a GPU, and the
    mean tokens of an answer. The weights stay: the learning rate is 0."""
    training: Training = cell.training
    clock = time.perf_counter if engine.gpus else time.process_time
    seeds = np.stack([derive_many(training.rollouts, "pace", prompt.id) for prompt in prompts])
    began = clock()
    drawn = engine.sample(prompts, seeds, Sampling(max_new_tokens=training.max_new_tokens))
    answers = []
    for prompt, row in zip(prompts, drawn, strict=True):
        for index, sample in enumerate(row):
            advantage = (-1.0) ** index  # such that the gradient is not 0
            answers.append(TermAnswer(prompt.id, sample.tokens, advantage, sample.logprobs))
    term = Term("own", "own", Objective(), tuple(answers))
    engine.update(prompts, [term], Optimisation(learning_rate=0.0, max_tokens=training.max_new_tokens))
    return clock() - began, float(np.mean([answer.tokens.size for answer in answers]))


def fit_to_time(findings: Findings, suite_with: Callable[[Findings], Suite], source: str, minutes: float) -> Findings:
    """Choose the first of SIZES_BY_BUDGET whose fewest steps take at most `minutes`, and the most steps that do, within STEPS. What
    they take is the plan's time, multiplied by the measured `findings.pace`. Where no size fits, the last one with its fewest steps
    is returned, and its reasons say so. suite_with: the suite with given findings. Raises HarnessError where the suite does not fit
    this machine."""

    def predict(changed: Findings) -> float:
        with TemporaryDirectory() as results:
            plan = plan_for(prepare_suite(suite_with(changed), source, Path(results)), None)
        if not plan.feasible:
            raise HarnessError(first_of(plan.shortfall or "it does not fit"))
        return findings.pace * plan.predicted.wall_seconds / 60

    fewest, most = STEPS
    for size in SIZES_BY_BUDGET:
        findings = replace(findings, **size._asdict(), steps=fewest)
        if predict(findings) <= minutes:
            break
    steps = range(fewest, most + 1)
    fits = bisect_right(steps, minutes, key=lambda count: predict(replace(findings, steps=count)))
    findings = replace(findings, steps=steps[max(0, fits - 1)])
    return replace(findings, why=(*findings.why, *_why_steps(findings, predict(findings), minutes)))


def _why_steps(findings: Findings, takes: float, minutes: float) -> list[str]:
    """Say how the number of steps was chosen. takes, minutes: those of the suite, and given."""
    told = [f"steps {findings.steps}: the suite takes {takes:.0f} minutes on this machine, and {minutes:g} were given."]
    if findings.pace != 1.0:
        told.append("That is by a step that was measured here; `harness plan` knows no such measurement.")
    if takes > minutes:
        told.append(f"Fewer than {STEPS[0]} steps show nothing. Give more time: --minutes {takes + 1:.0f}.")
    whole = SIZES_BY_BUDGET[0]
    if (findings.regimes, findings.seeds, findings.divided) != whole:
        fewer = ", half the questions a step" if findings.divided > 1 else ""
        told.append(
            f"{joined(findings.regimes)} on {len(findings.seeds)} seeds{fewer}: with {joined(whole.regimes)} on "
            f"{len(whole.seeds)} seeds {STEPS[0]} steps would take longer than that. --minutes N gives more time."
        )
    return told
