"""How much of the skill that it lacks each micro start has: the axis of the map (docs/results.md).

    python tools/measure_starts.py SUITE SEED...      2,000 answers of each start, into results/starts/<suite>.json

A start of preset `trap` with `weak_cot: S` has seen a share S of examples that reason in its weak skill group, which says little of
how often it reasons there when it is asked. So it is asked: 2,000 training questions of its weak group, one answer each, at the
temperature of training. `reasoned` is the share of answers with steps, `mass` the share of those with steps and the right result:
a rollout that shows the skill. Base checkpoints come from the cache, or are trained now. A start that several groups share is
measured once. Equal starts give equal numbers on every machine (`numerics: portable`).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import typer
from measured_starts import MeasuredStart, MeasuredStarts, read_measured, write_measured  # beside this script

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.numerics import ENVIRONMENT
from harness.engines.embedded.warmup import MicroSpec, base_checkpoint
from harness.engines.protocol import Sampling
from harness.errors import HarnessError
from harness.experience.answers import Prompt
from harness.session.policy import micro_spec
from harness.suite.load import load_suite
from harness.tasks.micro import GROUPS, LEVELS, SKILLS, as_prompts

ROOT = Path(__file__).parents[1]
ANSWERS = 2_000
QUESTIONS_SEED = 61_803
"""Of the questions: the same for all starts that lack the same group."""


def draw_questions(group: str, count: int) -> list[Prompt]:
    """Draw training questions of a skill group, its skills and levels in turn; repeats may occur, as they do in training."""
    rng = Random(QUESTIONS_SEED)
    skills = [skill for skill in SKILLS.values() if skill.group == group]
    return as_prompts(
        skills[place % len(skills)].draw(rng, LEVELS[place // len(skills) % len(LEVELS)], held_out=False)
        for place in range(count)
    )


def measure_start(spec: MicroSpec, max_new_tokens: int) -> MeasuredStart:
    """Sample ANSWERS answers of a start at temperature 1. max_new_tokens: the end of sequence included. Raises CellError where
    the base checkpoint cannot be had."""
    lacks = next(group for group in GROUPS if group != spec.strong)
    prompts = draw_questions(lacks, ANSWERS)
    engine = EmbeddedEngine("start", base_checkpoint(spec), device="cpu", numerics=spec.numerics)
    seeds = np.arange(ANSWERS, dtype=np.uint64).reshape(ANSWERS, 1)
    rows = engine.sample(prompts, seeds, Sampling(max_new_tokens=max_new_tokens))
    engine.close()
    reasoned = shown = 0
    for prompt, (sample,) in zip(prompts, rows, strict=True):
        if spec.reasons(sample.text):
            reasoned += 1
            shown += sample.finished and re.findall(spec.boxed, sample.text) == [prompt.gold]
    return MeasuredStart(spec.key, spec.family, lacks, spec.seed, ANSWERS, reasoned / ANSWERS, shown / ANSWERS)


def main(
    suite: str,
    seeds: list[int],
    groups: Annotated[list[str] | None, typer.Option("--group", help="Only these; repeatable.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder of the records.")] = ROOT / "results" / "starts",
) -> None:
    """Measure the starts of a suite's micro policies that were not measured yet."""
    config = load_suite(suite)
    file = to / f"{config.name}.json"
    known = read_measured(file)
    starts, policies = dict(known.starts), dict(known.policies)
    for seed in seeds:
        for group in config.groups:
            if groups and group.name not in groups:
                continue
            for policy in group.policies:
                spec = micro_spec(policy, seed, config.engine_options.get("numerics", "portable"))
                if spec.key not in starts:
                    starts[spec.key] = measure_start(spec, config.training.max_new_tokens)
                    print(f"{group.name}/{policy.name}/{seed}: {starts[spec.key]}", flush=True)
                policies[f"{group.name}/{policy.name}/{seed}"] = spec.key
                write_measured(file, MeasuredStarts(starts, policies))


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # these libraries read it when they are imported, which has happened
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ENVIRONMENT)
    try:
        typer.run(main)
    except HarnessError as error:
        print(f"measure_starts: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
