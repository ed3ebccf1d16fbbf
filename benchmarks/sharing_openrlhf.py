"""What sharing costs on the OpenRLHF engine: steps of several regimes by the same two policies on the same devices, in turn.

    python benchmarks/sharing_openrlhf.py [--rounds 12] [--regimes sgt,xgrpo,hacpo,prp,naive]

Needs the environment of `make install-openrlhf`. Two policies (the Llama- and the Qwen3-type base of preset `trap`) stay open
for the whole run; each round makes one step under every regime, in an order that changes from round to round, with a learning
rate so small that all steps meet the same policies. Prints, per regime, the median over rounds of its step's seconds over those
of the same round's `independent` step, the same per trained token, and the part of the time that is sharing itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")):
    os.environ[name] = value

import numpy as np  # noqa: E402  # after the threads are set

from harness.engines.catalogue import open_engines  # noqa: E402  # after the threads are set
from harness.learning import registry  # noqa: E402  # after the threads are set
from harness.session.cell.clock import Clock  # noqa: E402  # after the threads are set
from harness.session.cell.exchanges import CellExchange  # noqa: E402  # after the threads are set
from harness.session.cell.learners import Learner  # noqa: E402  # after the threads are set
from harness.session.cell.loop import Run  # noqa: E402  # after the threads are set
from harness.session.policy.model_folders import base_folder  # noqa: E402  # after the threads are set
from harness.session.suite.prepare import prepare  # noqa: E402  # after the threads are set
from harness.store.journal import Journal, read_journal  # noqa: E402  # after the threads are set
from harness.verification.verifier import Verifier  # noqa: E402  # after the threads are set

SHARING = ("exchange", "verify")
SUITE = """
name: cost
engine: openrlhf
engine_options: {{dtype: fp32, trainers: 1, max_length: 160, rollout_memory: 0.05, rollout_sequences: 256,
                 start_seconds: 600.0}}
groups:
  - name: pair
    policies:
      - {{name: llama, model: micro/llama, stage0: {{preset: trap, strong: add}}}}
      - {{name: qwen, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}
regimes: [independent, {regimes}]
seeds: [1]
training: {{steps: 1, prompts: 16, rollouts: 8, learning_rate: 1.0e-9, measure_every: 0}}
evaluation: {{curve_every: 0}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--regimes", default="sgt,xgrpo,hacpo,prp,naive")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Verifier(workers=1) as verifier:
        folder = Path(temporary)
        (folder / "cost.yaml").write_text(SUITE.format(regimes=asked.regimes))
        cells = prepare(str(folder / "cost.yaml"), folder).cells
        policies = cells[0].group.policies
        options = {policy.name: cells[0].engine_options for policy in policies}
        with open_engines("openrlhf", options, 1.0) as engines:
            bases = [base_folder(policy, 1) for policy in policies]
            opened = engines.each(lambda pair: engines.open(*pair), zip(policies, bases, strict=True))
            runs = {}
            for cell in cells:
                learners = [
                    Learner(policy, engine, registry.build(cell.variant.regime, cell.variant.options),
                           cell.rollouts(i), base, Clock())
                    for i, (policy, engine, base) in enumerate(zip(policies, opened, bases, strict=True))
                ]  # fmt: skip
                own = folder / cell.variant.name
                run = Run(cell, own, engines, learners, Journal(own), verifier, 1, lambda *_: None, lambda: False, {})
                run.exchange = CellExchange(cell, own, learners, engines.transport, dict, 0)
                runs[cell.variant.name] = run
            report(measure(runs, asked.rounds))


def measure(runs: dict[str, Run], rounds: int) -> dict[str, np.ndarray]:
    """Seconds, seconds of sharing by the slower policy, and trained tokens, (rounds, 3), by regime."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    shuffle = random.Random(1).shuffle
    for step in range(rounds + 1):
        order = list(runs)
        shuffle(order)
        for name in order:
            run = runs[name]
            started = time.perf_counter()
            run._keep(run._together(step + 1))
            took = time.perf_counter() - started
            sharing = max(sum(m.clock.step[p].wall for p in SHARING if p in m.clock.step) for m in run.learners)
            seconds[name].append((took, sharing))
    found = {}
    for name, run in runs.items():
        run.journal.commit(rounds + 1)
        steps = read_journal(run.folder).tables["steps"].to_pandas()
        tokens = steps.groupby("step")["trained_tokens"].sum().sort_index().to_numpy(float)
        found[name] = np.column_stack([np.array(seconds[name]), tokens])[1:]  # the first round pays for caches
    return found


def report(found: dict[str, np.ndarray]) -> None:
    base = found["independent"]

    print(
        f"{'regime':<12} {'step s':>8} {'x independent':>14} {'[25 %, 75 %]':>16} {'x per trained token':>20} {'sharing':>8}"
    )
    rows = []
    for name, values in found.items():
        ratio = values[:, 0] / base[:, 0]
        per_token = (values[:, 0] / values[:, 2]) / (base[:, 0] / base[:, 2])
        low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
        rows.append(
            {"regime": name, "seconds": float(np.median(values[:, 0])), "ratio": float(middle),
             "per_token": float(np.median(per_token)), "sharing": float(np.median(values[:, 1] / values[:, 0]))}
        )  # fmt: skip
        print(
            f"{name:<12} {np.median(values[:, 0]):>8.2f} {middle:>14.3f} {f'[{low:.2f}, {high:.2f}]':>16} "
            f"{np.median(per_token):>20.3f} {np.median(values[:, 1] / values[:, 0]):>8.1%}"
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
