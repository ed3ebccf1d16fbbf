"""A point of a learning curve: one answer of a policy to each of the curve's questions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.engines.protocol import PolicyEngine, Sampling
from harness.experience.answers import Prompt
from harness.phases import announce_phase
from harness.session.cell import step_rows
from harness.session.cell.judge import judge_of
from harness.session.cell.learners import Learner, verdicts_of_answers
from harness.session.cell.questions import curve_prompts, curve_task, stop_strings, truncate_at_stop
from harness.suite.cells import Cell
from harness.suite.seeds import derive_many
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


def probe_policy(
    cell: Cell, verifier: Verifier, learner: Learner, engine: PolicyEngine, why: str
) -> dict[str, tuple[float, int]]:
    """Ask a policy each question of the curve once, at temperature 1 and with the same seeds everywhere.

    engine: its weights, as they are now or as it started. why: what the phase is called. Returns the share of right answers and
    their number: under the empty name of all, and in mixed training under each task's name of its own."""
    prompts = curve_prompts(cell, learner.policy)
    of_policy = cell.seed, "curve", cell.group.name, learner.name
    seeds = np.stack([derive_many(1, *of_policy, prompt.id) for prompt in prompts])  # (P, 1)
    with announce_phase(f"{why}: {len(prompts)} questions"), learner.clock.phase("curve"):
        sampling = Sampling(1.0, cell.training.max_new_tokens)
        samples = [row[0] for row in engine.sample(prompts, seeds, sampling)]  # one to each prompt
        strings = stop_strings(cell, learner.policy)
        if strings:
            samples = [truncate_at_stop(learner.codec, sample, strings)[0] for sample in samples]
        judge = judge_of(curve_task(cell), verifier)
        texts = [sample.text for sample in samples]
        finished = [sample.finished for sample in samples]
        said = verdicts_of_answers(judge, prompts, texts, finished)
    return _accuracy_by_task(prompts, said)


def _accuracy_by_task(prompts: Sequence[Prompt], verdicts: Sequence[Verdict]) -> dict[str, tuple[float, int]]:
    """Return the mean reward and the number of answers that could be judged, as `probe_policy` returns them; NaN of none."""
    rewards: dict[str, list[float]] = {"": []}
    for prompt, verdict in zip(prompts, verdicts, strict=True):
        of_task = rewards.setdefault(prompt.task, [])
        if not verdict.valid:
            continue
        rewards[""].append(verdict.reward)
        if prompt.task:
            of_task.append(verdict.reward)
    probed: dict[str, tuple[float, int]] = {}
    for name, own in rewards.items():
        accuracy = float(np.mean(own)) if own else step_rows.NAN
        probed[name] = accuracy, len(own)
    return probed
