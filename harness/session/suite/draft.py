"""`harness new-suite`: a suite for two models, drafted by their sizes, and measured first by a trial and a step's time."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import DataError, HarnessError, UsageError
from harness.session.suite.draft_models import check_models
from harness.session.suite.draft_text import Findings, names_to_try, suite_of, write_draft
from harness.session.suite.draft_time import fit_to_time, measure_pace
from harness.session.suite.draft_trial import ANSWERS, MORE, PROMPTS, try_models, try_starts, why_untried
from harness.suite.schema import Suite
from harness.tasks import ladder

# The training task unless the user names one
USUAL = "gsm8k"
# A line of `why` on one level; those were said while they were measured
_OF_LEVEL = re.compile(r"[\w.+:=,-]+: .*% right$")


def draft_by_trial(models: Sequence[str], task: str | None, name: str, file: Path, minutes: float) -> str:
    """Return the text of a suite measured on this machine. task: None is USUAL, or the ladder where its data cannot be had. file:
    where the suite will be. minutes: for the whole suite. Raises as `write_draft`; SuiteError, DataError."""
    source = str(file)
    chosen = task or USUAL
    suite = suite_of(write_draft(models, chosen, name))
    check_models(suite)
    untried = why_untried(suite)
    if untried and "*" in chosen:
        raise UsageError(f"--task {chosen}: which puzzles fit is found by a trial, but {untried}; name one")
    if untried:
        findings = Findings(why=(f"Not measured on this machine: {untried}.",))
    else:
        findings, chosen = _try_models(suite, models, chosen, name, may_change_task=task is None)

    def suite_with(changed: Findings) -> Suite:
        return suite_of(write_draft(models, chosen, name, changed))

    try:
        if not untried:
            findings = try_starts(findings, suite_with(findings), source)
            findings = replace(findings, pace=measure_pace(suite_with(findings), source))
        findings = fit_to_time(findings, suite_with, source, minutes)
    except HarnessError as error:
        problem = " ".join(str(error).split())
        told = f"The time could not be measured, so the steps are by the models' size: {problem}"
        findings = replace(findings, why=(*findings.why, told))
    unsaid = [line for line in findings.why if not _OF_LEVEL.match(line)]
    print("\n".join(["", *unsaid]), file=sys.stderr)
    return write_draft(models, chosen, name, findings, file)


def _try_models(
    suite: Suite, models: Sequence[str], task: str, name: str, may_change_task: bool
) -> tuple[Findings, str]:
    """Try the models on a task, or on the ladder where the task's questions cannot be had and the user did not name it. Returns
    what was found, and the task. Raises DataError."""
    reasons = []
    try:
        findings = try_models(suite, names_to_try(task))
    except DataError:
        if not may_change_task:
            raise
        reasons.append(
            f"On {ladder.NAME}, because the questions of {USUAL} are not on this machine and cannot be fetched now. With "
            f"{USUAL}_train.jsonl in a folder that HARNESS_DATA names, --task {USUAL} trains on them."
        )
        task = ladder.NAME
        findings = try_models(suite_of(write_draft(models, task, name)))
    policies = " and ".join(policy.name for policy in suite.groups[0].policies)
    most = PROMPTS * (ANSWERS + MORE)
    reasons.append(f"Measured here with {PROMPTS * ANSWERS} to {most} answers a line of each of {policies}:")
    return replace(findings, why=(*reasons, *findings.why)), task
