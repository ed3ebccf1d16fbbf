"""A suite over three Ray nodes, of which one is killed in a step and another joins: the table must be an undisturbed run's.

    .venv-openrlhf/bin/python benchmarks/node_lost.py [--steps 12]

All nodes are raylets on this machine: three with two logical devices each, room for the two policies of a cell, and a head without
any. The node of a cell is killed with all its processes once the cell has written a checkpoint. That run ends with the reason, the
next one goes on; then the suite runs undisturbed beside it. Ten to twenty minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")

import ray
from ray._private import state
from ray.cluster_utils import Cluster

from harness.store.journal import read_journal

SUITE = """
name: nodes
engine: openrlhf
engine_options: {{dtype: fp32, trainers: 1, share_devices: false, max_length: 160, rollout_memory: 0.05, rollout_sequences: 64,
                 start_seconds: 1200.0, sync_seconds: 600.0, call_seconds: 1200.0, silence_seconds: 300.0}}
groups:
  - name: pair
    policies:
      - {{name: a, model: micro/llama, stage0: {{preset: trap, strong: add}}}}
      - {{name: b, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}
regimes: [independent, sgt]
seeds: [1]
training: {{steps: {steps}, prompts: 4, rollouts: 4, measure_every: 0, checkpoint_every: 2}}
evaluation: {{tasks: [micro], k: 1, limit: 24, curve_every: 0}}
"""
COSTS = ("cpu_seconds", "gpu_seconds", "gain_per_gpu_second")
BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.0f} s  {words}", flush=True)


def harness(*arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=3600)
    return process.returncode, out, err


def table(suite: Path, results: Path) -> list[dict[str, object]]:
    code, out, err = ended(harness("show", suite, "--results", results, "--format", "json"))
    assert code == 0, err
    return [{k: v for k, v in row.items() if k not in COSTS} for row in json.loads(out)["rows"]]


def policies(head: str) -> dict[str, str]:
    """Living trainers by their node, but those on the head."""
    return {
        actor["Address"]["NodeID"]: actor["ActorClassName"]
        for actor in state.actors().values()
        if actor["State"] == "ALIVE" and "Policy" in actor["ActorClassName"] and actor["Address"]["NodeID"] != head
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    device = {"num_cpus": 2, "num_gpus": 2}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False})
    try:
        for _ in range(3):
            cluster.add_node(**device)
        ray.init(address=cluster.address, log_to_driver=False)
        with tempfile.TemporaryDirectory() as folder:
            return lose_a_node(cluster, Path(folder), steps, device)
    finally:
        ray.shutdown()
        cluster.shutdown()


def lose_a_node(cluster: Cluster, folder: Path, steps: int, device: dict[str, int]) -> int:
    suite, results, alone = folder / "nodes.yaml", folder / "results", folder / "alone"
    suite.write_text(SUITE.format(steps=steps))
    code, out, err = ended(
        harness("doctor", "--address", cluster.address, "--nodes", 4, "--within", 120, "--results", results)
    )
    print(out, err, flush=True)
    say(f"doctor: exit code {code}")
    run = ("run", suite, "--address", cluster.address, "--results")
    process = harness(*run, results)
    head = cluster.head_node.node_id
    while not (there := [*results.glob("nodes/*/resume/step-????????")]) or not policies(head):
        if process.poll() is not None:
            print(ended(process)[2])
            return 1
        time.sleep(0.5)
    time.sleep(1.0)  # into the next step
    lost = next(iter(policies(head)))
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    say(f"{there[0].parent.parent.name} has {there[0].name}: node {lost[:6]} is killed with the trainers on it")
    cluster.remove_node(nodes[lost], allow_graceful=False)
    added = cluster.add_node(**device)
    say(f"node {added.node_id[:6]} has joined; {sum(n['Alive'] for n in ray.nodes())} nodes live")
    code, _, err = ended(process)
    reasons = [line for line in err.splitlines() if " failed: " in line and line.startswith("harness:")]
    say(f"the run has ended: {reasons}")
    if reasons:  # Ray in this process takes its children's exit codes away
        code, _, err = ended(harness(*run, results))
        say("the next one has ended")
    if code:
        print(err)
        return 1
    cells = json.loads(ended(harness("status", suite, "--results", results, "--json"))[1])["cells"]
    say(f"cells: {[(c['regime'], c['state'], c['attempts']) for c in cells]}")
    rows = [
        read_journal(results / "nodes" / c["key"]).tables["steps"].select(["policy", "step"]).to_pylist() for c in cells
    ]
    once = [
        sorted((r["policy"], r["step"]) for r in own) == [(p, s + 1) for p in "ab" for s in range(steps)]
        for own in rows
    ]
    say(f"every step of every policy once: {once}")
    code, _, err = ended(harness(*run, alone))
    say("the undisturbed one has ended")
    same = table(suite, results) == table(suite, alone)
    say(f"the tables are {'equal but for costs' if same else 'DIFFERENT'}")
    if not same:
        print(json.dumps([table(suite, results), table(suite, alone)], indent=1))
    return 0 if same and all(once) and max(c["attempts"] for c in cells) > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
