"""What sharing itself costs, in CPU-seconds of one thread. Run by `bench.py`.

bench: its part of a step (exchange, THL, verification, advantages, ledger) for n policies in one group.
peers: a step of a regime that trains on peers' answers, per trained token, beside `independent`.
beyond: a step with peers' scores of all own answers beside `independent`; one with a second round beside one without, per
    answer.
portable: a step with portable numerics beside one with fast ones, in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench import Row, Size, costs
from embedded import random_policy

from harness.engines.embedded.numerics import environment_of
from harness.errors import TrainingError
from harness.session.driver.jobs import job_of, run_job
from harness.session.suite.prepare import prepare_named
from harness.store.journal import read_journal
from harness.verification.verifier import Verifier

BASES = ("{{name: p{i}, model: micro/llama, stage0: {{preset: trap, strong: add}}}}",
         "{{name: p{i}, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}")  # fmt: skip
SUITE = """
name: cost
baseline: {baseline}
engine_options: {{numerics: {numerics}}}
groups: [{{name: g, policies: [{members}]}}]
regimes: [{regimes}]
seeds: [1]
training: {{steps: {steps}, checkpoint_every: 1000, measure_every: 0}}
evaluation: {{k: 0, limit: 6, curve_every: 0}}
"""
PHASES = ("generate", "verify", "exchange", "score", "train")
PEERS = ("independent", "naive", "sgt", "hacpo")
STEPS = 8


def measure(
    policies: int, regimes: Sequence[str], steps: int, smoke: bool, numerics: str = "fast"
) -> dict[str, dict[str, float]]:
    """By regime, CPU-seconds of each phase and trained tokens, over all steps but the first. smoke: with untrained
    policies. numerics: portable needs its environment (`portable`)."""
    by_regime = {}
    with tempfile.TemporaryDirectory() as name, Verifier(workers=1) as verifier:
        kinds = (
            [f"{{{{name: p{{i}}, model: {random_policy(Path(name), f)}}}}}" for f in ("llama", "qwen")]
            if smoke
            else BASES
        )
        members = ", ".join(kinds[i % 2].format(i=i) for i in range(policies))
        file = Path(name) / "cost.yaml"
        said = {"baseline": regimes[0], "regimes": ", ".join(regimes), "members": members}
        file.write_text(SUITE.format(**said, steps=steps, numerics=numerics))
        prepared = prepare_named(str(file), Path(name) / "results")
        for cell in prepared.cells:
            with suppress(TrainingError):  # random weights end as they began; their steps are measured all the same
                run_job(job_of(cell, prepared.folder / cell.key), verifier, lambda *_: None, lambda: False)
            rows = [r for r in read_journal(prepared.folder / cell.key).tables["steps"].to_pylist() if r["step"] > 1]
            spent = {p: sum(v for row in rows if (v := row[f"{p}_seconds"] or 0.0) == v) for p in PHASES}
            trained = sum(row["trained_tokens"] for row in rows) or 1  # random weights may learn nothing
            rollouts = sum(row["rollouts"] for row in rows) or 1
            by_regime[cell.variant.name] = {
                **spent, "step": sum(spent.values()), "trained": float(trained), "rollouts": float(rollouts)
            }  # fmt: skip
    return by_regime


def bench(size: Size) -> list[Row]:
    rows = []
    for policies, bar in ((2, 0.05),) if size.smoke else ((2, 0.05), (8, 0.10)):
        steps = 2 if size.smoke else size.rounds + 1
        phases = measure(policies, ["hacpo", "sgt"], steps, size.smoke).values()
        shares = sorted((one["verify"] + one["exchange"]) / one["step"] for one in phases)
        seconds = max(one["step"] for one in phases) / (steps - 1)
        name, ends = f"sharing's part of a step, n = {policies}", (shares[-1], shares[0], shares[-1])
        rows.append(Row(name, "the step", *ends, bar, False, shares[-1] * seconds, seconds))
    return rows


def peers(size: Size) -> list[Row]:
    rounds = [measure(2, PEERS, 2 if size.smoke else STEPS, size.smoke) for _ in range(size.rounds)]
    rows = []
    for key, what in (("step", ""), ("train", ", learning")):
        spent = {regime: [one[regime][key] / one[regime]["trained"] for one in rounds] for regime in PEERS}
        name = f"step with peers, per trained token{what}"
        each = [costs(name, "independent", spent[regime], spent["independent"], 1.05) for regime in PEERS[1:]]
        rows.append(max(each, key=lambda row: row.value))
    return rows


def beyond(size: Size) -> list[Row]:
    """Every step scored; hints wherever they help, beside the same regime that never gives one."""
    never = "{regime: core, name: never, probability: 0.0}"
    regimes = ("independent", "{regime: copd, ratio: 0}", never, "{regime: core, probability: 1.0}")
    rounds = [measure(2, regimes, 2 if size.smoke else STEPS, size.smoke) for _ in range(size.rounds)]
    step = {name: [one[name]["step"] for one in rounds] for name in ("independent", "copd")}
    each = {name: [one[name]["step"] / one[name]["rollouts"] for one in rounds] for name in ("never", "core")}
    return [
        costs("step with peers' scores", "independent", step["copd"], step["independent"], 1.35),
        costs("step with hints, per answer of both rounds", "without hints", each["core"], each["never"], 1.35),
    ]


def portable(size: Size) -> list[Row]:
    steps = 2 if size.smoke else STEPS + 1
    spent: dict[str, list[float]] = {"portable": [], "fast": []}
    for number in range(size.rounds):
        for numerics in list(spent)[:: 1 - 2 * (number % 2)]:
            asked = f"2, ['hacpo'], {steps}, {size.smoke}, {numerics!r}"
            words = f"import sharing; print(sharing.measure({asked})['hacpo']['step'])"
            own = environment_of({"numerics": numerics})
            done = subprocess.run(
                [sys.executable, "-c", words], env=os.environ | own, capture_output=True, text=True, check=True
            )
            spent[numerics].append(float(done.stdout.split()[-1]))
    return [costs("a step with portable numerics", "fast numerics", spent["portable"], spent["fast"], 1.2)]
