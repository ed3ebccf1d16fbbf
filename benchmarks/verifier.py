"""Throughput of the verifier beside math-verify's own, interleaved, on ordinary answers.

    python benchmarks/verifier.py [--data-dir FOLDER] [--pairs N] [--rounds N]

The answers are the sets' golds respelt as a model would write them, half of them another problem's, so that nothing is decided
by equal strings alone. `expressions` holds only pairs that need more than numbers and spelling. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import msgspec

from harness.tasks.data import load
from harness.verification.extraction import extract
from harness.verification.notation import compact, normalise
from harness.verification.numerals import parse_numeral
from harness.verification.verifier import Verifier

Pair = tuple[str, str]
_RIVAL = """
import logging, sys, time, msgspec
logging.disable(logging.CRITICAL)
from math_verify import parse, verify
pairs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str]])
verify(parse("\\\\boxed{x}"), parse("\\\\boxed{2x}"))
begin = time.perf_counter()
for gold, text in pairs:
    verify(parse("\\\\boxed{" + gold + "}"), parse(text))
print(time.perf_counter() - begin)
"""


def respelt(gold: str) -> str:
    """The gold in other LaTeX: other fraction commands, spacing and delimiters."""
    text = re.sub(r"\\frac", r"\\dfrac", gold).replace("(", r"\left( ").replace(")", r" \right)")
    return re.sub(r"(?<=[\w}])([+-])(?=[\w\\])", r" \1 ", text)


def ordinary(data_dir: Path | None, count: int) -> list[Pair]:
    rows = [row for name in ("math500", "minerva", "olympiad", "math") for row in load(name, data_dir)]
    rows = rows[:: max(1, len(rows) // count)][:count]
    answers = [rows[(i + 1) % len(rows)].answer if i % 2 else row.answer for i, row in enumerate(rows)]
    return [
        (
            row.answer,
            f"We compute step by step. {'So it follows that. ' * 20}The answer is $\\boxed{{{respelt(answer)}}}$.",
        )
        for row, answer in zip(rows, answers, strict=True)
    ]


def is_expression(pair: Pair) -> bool:
    """Whether the gold is no number and the answer another spelling than the gold."""
    gold, answer = normalise(pair[0]), normalise(extract(pair[1]))
    return parse_numeral(gold) is None and compact(gold) != compact(answer)


def rival_seconds(pairs: list[Pair]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _RIVAL], input=msgspec.json.encode(pairs), capture_output=True, check=True
    )
    return float(done.stdout)


def our_seconds(pairs: list[Pair], workers: int) -> float:
    with Verifier(workers=workers) as verifier:
        verifier.verify(
            [(f"\\max(x, {i})", f"\\boxed{{\\max({i}, x)}}") for i in range(4 * workers)]
        )  # start every process
        begin = time.perf_counter()
        verifier.verify(pairs)
        return time.perf_counter() - begin


def cached_rate(pairs: list[Pair]) -> float:
    with Verifier() as verifier:
        verifier.verify(pairs)
        many = pairs * (200_000 // len(pairs))
        begin = time.perf_counter()
        verifier.verify(many)
        return len(many) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pairs = ordinary(arguments.data_dir, arguments.pairs)
    cores = len(os.sched_getaffinity(0))
    report: dict[str, object] = {"cores": cores, "load": os.getloadavg()[0]}
    for name, chosen in (("ordinary", pairs), ("expressions", [pair for pair in pairs if is_expression(pair)])):
        ours, rivals = [], []
        for _ in range(arguments.rounds):
            rivals.append(rival_seconds(chosen))
            ours.append(our_seconds(chosen, cores))
        ratio = median(r / o for r, o in zip(rivals, ours, strict=True))
        report[name] = {
            "pairs": len(chosen),
            "math-verify on one core, pairs a second": round(len(chosen) / median(rivals)),
            "ours, pairs a second": round(len(chosen) / median(ours)),
            "ratio to one core": round(ratio, 2),
            "ratio to cores": round(ratio / cores, 2),
        }
        print(name, report[name], flush=True)
    report["cached pairs a second"] = round(cached_rate(pairs))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
