"""How cost grows: CPU-seconds of a step, its parts, and memory, against one size at a time, the others as in the micro setting.

    python benchmarks/growth.py [--axes policies vocabulary] [--regime hacpo] [--steps 3] [--png growth.png]
    python benchmarks/growth.py --read benchmarks/results/growth.json --png growth.png

Policies with random weights, half of whose answers are called right, in turn Llama- and Qwen3-shaped; each point is a whole cell
in a process of its own, in rounds that go through all points in turn. The first step pays for caches and is left out. Memory is
the process's peak. `--png` draws it (extra `leaderboard`). Seconds are of one thread. A run is kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0",
               "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from bench import about  # noqa: E402  # after the threads are set

from harness.threads import LARGE_BLOCKS  # noqa: E402  # of this tree, whatever is installed

MICRO = {"policies": 2, "answer": 44, "vocabulary": 0, "rollouts": 8, "width": 96}
"""The micro setting: answer tokens, rollouts per prompt, hidden width; vocabulary 0 is the tokenizer's own size."""
AXES = {
    "policies": [2, 4, 8, 16],
    "answer": [22, 44, 88, 176],
    "vocabulary": [1024, 4096, 16384, 65536],
    "rollouts": [4, 8, 16, 32],
    "width": [96, 192, 384, 768],
}
TITLES = {
    "policies": "policies in a group", "answer": "tokens an answer", "vocabulary": "vocabulary",
    "rollouts": "rollouts a prompt", "width": "hidden width (3 layers)",
}  # fmt: skip
PARTS = ("generate", "score", "train", "exchange", "verify")
FAMILIES = ("llama", "qwen")


def save_policy(folder: Path, family: str, answer: int, vocabulary: int, width: int) -> Path:
    """A random policy of the family, so wide; the vocabulary's last ids no tokenizer knows. As many ids end an answer as make the
    mean one half as long as the limit."""
    import torch
    from transformers import AutoModelForCausalLM

    from harness.engines.embedded.families import FAMILIES, build_tokenizer

    tokenizer = build_tokenizer(family)
    config = FAMILIES[family].configure(max(vocabulary, len(tokenizer)))
    config.update({"hidden_size": width, "intermediate_size": width * 5 // 2, "head_dim": width // config.num_attention_heads,
                   "max_position_embeddings": max(256, 2 * answer)})  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    ends = range(len(tokenizer) - 2 * len(tokenizer) // answer, len(tokenizer))
    model.generation_config.eos_token_id = sorted({tokenizer.eos_token_id, *ends})
    model.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


def point(regime: str, steps: int, sizes: dict[str, int]) -> dict[str, Any]:
    """One cell: seconds a step, the shares of its parts, sharing's, and the bytes that the process took at most."""
    import torch
    from sharing import measure

    from harness.verification.verifier import Verdict, Verifier

    class Halved(Verifier):
        """Verifies, then calls half of the answers right: where all are wrong nothing is trained."""

        def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[Verdict]:
            super().verify(pairs)
            return [Verdict("right" if crc32((text or "").encode()) % 2 else "wrong") for _, text in pairs]

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        bases = [save_policy(Path(name), f, sizes["answer"], sizes["vocabulary"], sizes["width"]) for f in FAMILIES]
        (found,) = measure(
            sizes["policies"], regime, steps + 1, Path(name), bases, Halved,
            max_new_tokens=sizes["answer"], rollouts=sizes["rollouts"],
        )  # fmt: skip
    return found | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


def run(axes: Sequence[str], regime: str, steps: int, rounds: int, tiny: bool) -> list[dict[str, Any]]:
    """A row for each value of each axis, medians over the rounds."""
    values = {axis: AXES[axis][:2] if tiny else AXES[axis] for axis in axes}
    points = {(axis, value): MICRO | {axis: value} for axis in axes for value in values[axis]}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {at: [] for at in points}
    for _ in range(rounds):
        for (axis, value), sizes in points.items():
            print(f"{axis} {value} ...", file=sys.stderr, flush=True)
            command = [
                sys.executable,
                __file__,
                "--point",
                json.dumps(sizes),
                "--regime",
                regime,
                "--steps",
                str(steps),
            ]
            done = subprocess.run(command, capture_output=True, env=os.environ | LARGE_BLOCKS, text=True)
            if done.returncode:
                sys.exit(f"{axis} {value}: {done.stderr}")
            found[axis, value].append(json.loads(done.stdout.splitlines()[-1]))
    numbers = ("step_seconds", "share", "peak_bytes", *PARTS)
    return [
        {"axis": axis, "value": value, **{name: median(each[name] for each in rows) for name in numbers}}
        for (axis, value), rows in found.items()
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'axis':<12}{'value':>8}{'CPU-s a step':>14}{'sharing':>9}{'peak GiB':>10}  "
        + " ".join(f"{p:>8}" for p in PARTS)
    ]
    for r in rows:
        numbers = f"{r['step_seconds']:>14.3f}{r['share']:>9.1%}{r['peak_bytes'] / 2**30:>10.2f}"
        lines.append(f"{r['axis']:<12}{r['value']:>8}{numbers}  " + " ".join(f"{r[p]:>8.1%}" for p in PARTS))
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """A column an axis: seconds by part of the step, memory, sharing's part."""
    import altair as alt
    import pandas as pd

    frame = pd.DataFrame(rows).assign(gib=lambda f: f.peak_bytes / 2**30, sharing=lambda f: 100 * f.share)
    columns = []
    for axis in dict.fromkeys(frame["axis"]):
        part = frame[frame["axis"] == axis]
        long = part.melt(["value", "step_seconds"], list(PARTS), "part", "share_of_step")
        long["seconds"] = long.share_of_step * long.step_seconds
        x = alt.X("value:O", title=TITLES[axis], axis=alt.Axis(labelAngle=0))
        columns.append(
            alt.vconcat(
                alt.Chart(long, width=180, height=150).mark_bar().encode(
                    x, alt.Y("seconds:Q", title="CPU-s a step"), alt.Color("part:N", sort=list(PARTS), title="part of a step")
                ),
                alt.Chart(part, width=180, height=110).mark_line(point=True).encode(
                    x, alt.Y("sharing:Q", title="sharing, % of a step", scale=alt.Scale(zero=True))
                ),
                alt.Chart(part, width=180, height=110).mark_line(point=True).encode(
                    x, alt.Y("gib:Q", title="peak memory, GiB", scale=alt.Scale(zero=True))
                ),
            )
        )  # fmt: skip
    alt.hconcat(*columns).properties(title="How the cost of a step grows").save(file, scale_factor=2)


def main() -> None:
    """Measure, or read what was measured; print it, and draw it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--regime", default="hacpo")
    parser.add_argument("--steps", type=int, default=3, help="after the first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="two values an axis and one round: does it work?")
    parser.add_argument("--read", type=Path, help="a kept run instead of a new one")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(point(asked.regime, asked.steps, asked.point)))
        return
    if asked.read:
        rows = json.loads(asked.read.read_text())["rows"]
    else:
        rows = run(asked.axes, asked.regime, asked.steps, 1 if asked.tiny else asked.rounds, asked.tiny)
        kept = HERE / "results" / "growth.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(about() | {"regime": asked.regime, "rows": rows}, indent=1) + "\n")
        print(f"kept in {kept}", file=sys.stderr)
    print(table(rows))
    if asked.png:
        draw(rows, asked.png)


if __name__ == "__main__":
    main()
