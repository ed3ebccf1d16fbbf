"""What sharing itself costs: its part of a step (exchange, THL, verification, advantages, ledger) for n policies in one group.
Run by `bench.py`.

Policies alternate between the Llama- and the Qwen3-type base of preset `trap`. Everything runs in this process; seconds are CPU
seconds of one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench import Row, Size
from generation import random_policy

from harness.errors import TrainingError
from harness.session.driver.jobs import cell_job, run_job
from harness.session.suite.prepare import prepare
from harness.store.journal import read_journal
from harness.verification.verifier import Verifier

KINDS = ("{{name: l{i}, model: micro/llama, stage0: {{preset: trap, strong: add}}}}",
         "{{name: q{i}, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}")  # fmt: skip
PHASES = ("generate", "verify", "exchange", "score", "train")


def suite(policies: int, regimes: str, steps: int, bases: Sequence[Path] | None, **training: int) -> str:
    """bases: folders of policies instead of the base checkpoints. training: its other settings."""
    settings = {"steps": steps, "checkpoint_every": 1000, "measure_every": 0, **training}
    kinds = KINDS if bases is None else [f"{{{{name: p{{i}}, model: {base}}}}}" for base in bases]
    members = "\n".join("      - " + kinds[i % 2].format(i=i) for i in range(policies))
    return (
        f"name: cost-{policies}\nbaseline: {regimes.split(',')[0]}\ngroups:\n  - name: g\n    policies:\n{members}\n"
        f"regimes: [{regimes}]\nseeds: [1]\n"
        f"training: {{{', '.join(f'{name}: {value}' for name, value in settings.items())}}}\n"
        "evaluation: {k: 0, limit: 6, curve_every: 0}\n"
    )


def measure(
    policies: int, regimes: str, steps: int, folder: Path, bases: Sequence[Path] | None = None,
    judge: type[Verifier] = Verifier, **training: int,
) -> list[dict[str, object]]:  # fmt: skip
    """A row a regime: CPU-seconds a step and a trained token, and the shares of its phases and of sharing. The first step pays for
    caches."""
    file = folder / f"cost-{policies}.yaml"
    file.write_text(suite(policies, regimes, steps, bases, **training))
    prepared = prepare(str(file), folder / "results")
    found = []
    with judge(workers=1) as verifier:
        for cell in prepared.cells:
            with suppress(TrainingError):  # random weights end as they began; their steps are measured all the same
                run_job(cell_job(cell, prepared.folder / cell.key), verifier, lambda *_: None, lambda: False)
            table = read_journal(prepared.folder / cell.key).tables["steps"].to_pylist()
            kept = [row for row in table if row["step"] > 1]
            spent = {
                p: sum(row[f"{p}_seconds"] or 0.0 for row in kept if row[f"{p}_seconds"] == row[f"{p}_seconds"])
                for p in PHASES
            }
            total = sum(spent.values())
            share = (spent["verify"] + spent["exchange"]) / total
            trained = sum(row["trained_tokens"] for row in kept) or 1  # random weights may learn nothing
            found.append({"policies": policies, "regime": cell.variant.name, "step_seconds": total / (steps - 1), "share": share,
                          "token_seconds": total / trained, "token_train_seconds": spent["train"] / trained,
                          **{p: spent[p] / total for p in PHASES}})  # fmt: skip
    return found


def bench(size: Size) -> list[Row]:
    """Sharing's part of a step, the costliest regime's; the spread is the regimes'."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bases = [random_policy(Path(folder), family) for family in ("llama", "qwen")] if size.smoke else None
        for policies, bar in ((2, 0.05),) if size.smoke else ((2, 0.05), (8, 0.10)):
            found = measure(policies, "hacpo,sgt", 2 if size.smoke else size.rounds + 1, Path(folder), bases)
            shares = sorted(float(str(row["share"])) for row in found)
            seconds = max(float(str(row["step_seconds"])) for row in found)
            rows.append(Row(f"sharing's part of a step, n = {policies}", "the step", shares[-1], shares[0], shares[-1], bar, False,
                            shares[-1] * seconds, seconds))  # fmt: skip
    return rows
