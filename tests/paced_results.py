"""Results of a made-up suite whose paces and ends are known, for tests of what the store says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.store.journal import Journal
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    SuiteFile,
    VariantEntry,
    write_manifest,
    write_suite,
)
from harness.store.rows import CostRow, CurveRow, Row, SampleRow, StepRow

STEPS = 100
MEASURED = range(0, STEPS + 1, 10)
MIDDLE, RATE = 30.0, 0.09
LOW, HIGH = 0.35, 0.75
QUESTIONS, ANSWERS = 20, 4
SAMPLED = 1000


@dataclass(frozen=True)
class Line:
    """A variant with its true pace, and by how much its curve ends higher. trained: tokens; scored: peers' tokens.
    untrained: its accuracy at the end on the task `other`, which is not trained; None where that is not asked."""

    name: str
    regime: str = "independent"
    pace: float = 1.0
    end: float = 0.0
    budget: str = "1x"
    rate: float = 1e-4
    trained: int = 1000
    scored: int = 0
    stream: int = 0
    dynamic: bool = False
    by_policy: Mapping[str, float] | None = None
    untrained: float | None = None

    def accuracy(self, policy: str, step: float, level: float) -> float:
        """Return the expected accuracy after a step. level: added for this seed at every step."""
        begun, at_end = _logistic(0.0), 1.0
        risen = _logistic(self.pace * step)
        own = (self.by_policy or {}).get(policy, 0.0)
        return LOW + level + (HIGH - LOW) * risen + (self.end + own) * (risen - begun) / (at_end - begun)


def write_paced(
    results: Path,
    lines: Sequence[Line],
    seeds: Sequence[int] = range(5),
    policies: Sequence[str] = ("a", "b"),
    group: str = "pair",
    noise: float = 0.002,
    curves: bool = True,
    claims: Sequence[Mapping[str, Any]] = (),
    groups: Sequence[tuple[str, Sequence[Line]]] = (),
    suite: str = "paced",
    bases: Mapping[str, float] | None = None,
    retention: Sequence[str] = (),
) -> None:
    """Write finished cells of every line and seed, and the suite's file. groups: further ones, with their lines. bases: accuracy of
    each policy before training; without it bases were not evaluated. retention: tasks that the suite names as not trained."""
    for policy, accuracy in (bases or {}).items():
        _write_base(results / suite / f"base-{policy}", suite, group, policy, accuracy)
    every = [(group, lines), *groups]
    cells = [
        _write_cell(results, suite, name, line, seed, policies, noise, curves)
        for name, own in every
        for line in own
        for seed in seeds
    ]
    write_suite(
        results / suite,
        SuiteFile(
            name=suite,
            engine="embedded",
            baseline="independent",
            variants=tuple(
                VariantEntry(name=line.name, regime_type=line.regime, budget=line.budget, options={}) for line in lines
            ),
            groups=tuple(name for name, _ in every),
            seeds=tuple(seeds),
            cells=tuple(cells),
            config={
                "training": {"learning_rate": lines[0].rate, "steps": STEPS},
                "evaluation": {"tasks": ["made-up", *retention]},
                "retention": list(retention),
                "regimes": [{"name": line.name, "regime": line.regime, "options": {}} for line in lines],
                "groups": [
                    {"name": name, "policies": [{"name": p, "model": f"micro/{name}-{p}"} for p in policies]}
                    for name, _ in every
                ],
                "claims": list(claims),
            },
        ),
    )


def _write_base(folder: Path, suite: str, group: str, policy: str, accuracy: float) -> None:
    manifest = Manifest(
        suite=suite,
        key=folder.name,
        kind="base",
        group=group,
        engine="embedded",
        state="done",
        attempts=1,
        policies=(PolicyEntry(policy, f"micro/{policy}"),),
    )
    write_manifest(folder, manifest)
    journal = Journal(folder)
    journal.append([*_answers(policy, 0, accuracy), *_answers(policy, 0, accuracy, "other")])
    journal.commit(1)


def _answers(policy: str, step: int, accuracy: float, task: str = "made-up") -> list[Row]:
    """Final answers: of each question as many of the sampled ones are right as its accuracy says, the greedy one from a half on."""
    rows: list[Row] = []
    for question in range(QUESTIONS):
        share = float(np.clip(accuracy + 0.2 * np.sin(question), 0, 1))
        kinds = [("sampled", answer, share * ANSWERS > answer + 0.5) for answer in range(ANSWERS)]
        for metric, repeat, good in [*kinds, ("greedy", 0, share > 0.5)]:
            verdict = "right" if good else "wrong"
            rows.append(
                SampleRow(
                    policy=policy,
                    checkpoint_step=step,
                    task=task,
                    metric=metric,
                    doc_id=str(question),
                    repeat=repeat,
                    verdict=verdict,
                )
            )
    return rows


def _write_cell(
    results: Path,
    suite: str,
    group: str,
    line: Line,
    seed: int,
    policies: Sequence[str],
    noise: float,
    curves: bool,
) -> str:
    key = f"{group}-{line.name}-{seed}"
    folder = results / suite / key
    manifest = Manifest(
        suite=suite,
        key=key,
        group=group,
        regime=line.name,
        regime_type=line.regime,
        seed=seed,
        budget=line.budget,
        engine="embedded",
        baseline="independent",
        state="done",
        attempts=1,
        policies=tuple(PolicyEntry(policy, f"micro/{policy}") for policy in policies),
        config={
            "training": {"learning_rate": line.rate, "steps": STEPS, "prompts": 8},
            "variant": {"sampling_stream": line.stream, "dynamic_sampling": {} if line.dynamic else None},
        },
    )
    write_manifest(folder, manifest)
    rows: list[Row] = []
    for place, policy in enumerate(policies):
        rng = np.random.default_rng([seed, place, sum(map(ord, line.name + group))])
        level = 0.01 * float(np.random.default_rng([seed, place]).standard_normal())
        rows += _rows_of(line, policy, level, rng, noise, curves)
    journal = Journal(folder)
    journal.append(rows)
    journal.commit(STEPS + 1)
    return key


def _rows_of(line: Line, policy: str, level: float, rng: np.random.Generator, noise: float, curves: bool) -> list[Row]:
    rows: list[Row] = []
    factor = float(line.budget.removesuffix("x"))
    for step in range(1, STEPS + 1):
        rows.append(
            StepRow(
                policy=policy,
                step=step,
                reward_mean=line.accuracy(policy, step - 1, level) + noise * float(rng.standard_normal()),
                answers=int(8 * factor),
                rollouts=int(8 * factor),
                generated_tokens=int(SAMPLED * factor),
                trained_tokens=line.trained,
                exchanged_tokens=line.scored,
                gradient_norm=1.0,
            )
        )
    for step in MEASURED if curves else ():
        accuracy = line.accuracy(policy, step, level) + noise * float(rng.standard_normal())
        rows.append(CurveRow(policy=policy, step=step, metric="sampled", accuracy=accuracy, answers=QUESTIONS))
    rows += _answers(policy, STEPS, line.accuracy(policy, STEPS, level))
    if line.untrained is not None:
        rows += _answers(policy, STEPS, line.untrained, "other")
    rows.append(CostRow(attempt=1, policy=policy, phase="generate", cpu_seconds=10 * factor, wall_seconds=10 * factor))
    if line.scored:
        rows.append(CostRow(attempt=1, policy=policy, phase="score", cpu_seconds=5, wall_seconds=5))
    return rows


def _logistic(step: float) -> float:
    return float(1 / (1 + np.exp(-RATE * (step - MIDDLE))))
