"""What sharing itself costs: its part of a step (exchange, THL, verification, advantages, ledger) for n policies in one group.

    python benchmarks/sharing.py [--steps 6] [--regimes hacpo,prp,sgt,xgrpo] [--policies 2,3,4,8]

Policies alternate between the Llama- and the Qwen3-type base of preset `trap`. Everything runs in this process; seconds are CPU
seconds of one thread. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")):
    os.environ[name] = value

from harness.session.jobs import cell_job, run_job  # noqa: E402  # after the threads are set
from harness.session.prepare import prepare  # noqa: E402
from harness.store.journal import read_journal  # noqa: E402
from harness.verification.verifier import Verifier  # noqa: E402

KINDS = ("{{name: l{i}, model: micro/llama, stage0: {{preset: trap, strong: add}}}}",
         "{{name: q{i}, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}")  # fmt: skip
PHASES = ("generate", "verify", "exchange", "score", "train")


def suite(policies: int, regimes: str, steps: int) -> str:
    members = "\n".join("      - " + KINDS[i % 2].format(i=i) for i in range(policies))
    return (
        f"name: cost-{policies}\nbaseline: {regimes.split(',')[0]}\ngroups:\n  - name: g\n    policies:\n{members}\n"
        f"regimes: [{regimes}]\nseeds: [1]\n"
        f"training: {{steps: {steps}, checkpoint_every: 1000, measure_every: 0}}\n"
        "evaluation: {k: 0, limit: 6, curve_every: 0}\n"
    )


def measure(policies: int, regimes: str, steps: int, folder: Path) -> list[dict[str, object]]:
    file = folder / f"cost-{policies}.yaml"
    file.write_text(suite(policies, regimes, steps))
    prepared = prepare(str(file), folder / "results")
    found = []
    with Verifier(workers=1) as verifier:
        for cell in prepared.cells:
            run_job(cell_job(cell, prepared.folder / cell.key), verifier, lambda *_: None, lambda: False)
            table = read_journal(prepared.folder / cell.key).tables["steps"].to_pylist()
            kept = [row for row in table if row["step"] > 1]  # the first step pays for caches
            spent = {
                p: sum(row[f"{p}_seconds"] or 0.0 for row in kept if row[f"{p}_seconds"] == row[f"{p}_seconds"])
                for p in PHASES
            }
            total = sum(spent.values())
            share = (spent["verify"] + spent["exchange"]) / total
            found.append({"policies": policies, "regime": cell.variant.name, "step_seconds": total / (steps - 1), "share": share,
                          **{p: spent[p] / total for p in PHASES}})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--regimes", default="hacpo,prp,naive,sgt,xgrpo")
    parser.add_argument("--policies", default="2,3,4,8")
    asked = parser.parse_args()
    rows = []
    print(f"{'n':>2} {'regime':<8} {'step CPU-s':>10} {'sharing':>8}   " + "  ".join(f"{p:>8}" for p in PHASES))
    with tempfile.TemporaryDirectory() as folder:
        for n in map(int, asked.policies.split(",")):
            for row in measure(n, asked.regimes, asked.steps, Path(folder)):
                rows.append(row)
                shares = "  ".join(f"{row[p]:>8.1%}" for p in PHASES)
                print(
                    f"{n:>2} {row['regime']:<8} {row['step_seconds']:>10.3f} {row['share']:>8.1%}   {shares}",
                    flush=True,
                )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
