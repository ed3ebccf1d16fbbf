"""False accepts and false rejects of the verifier on answers made by grammar, by class, as a table.

    python benchmarks/verifier_corpus.py [--seed N] [--rounds N]

The corpus is that of tests/verification/corpus.py. Each pair is asked alone; CPU seconds are those of this process and of the
verifier's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import defaultdict
from pathlib import Path

import psutil

from harness.verification.verifier import Verifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "verification"))
from corpus import Case, corpus  # lies with the tests


def cpu_seconds() -> float:
    """Of this process and of all that it started, dead ones included."""
    mine = psutil.Process()
    own = mine.cpu_times()
    times = [process.cpu_times() for process in mine.children(recursive=True)]
    return own.user + own.system + sum(t.user + t.system + t.children_user + t.children_system for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: dict[str, list[tuple[Case, str, float]]] = defaultdict(list)
    with Verifier(workers=1) as verifier:
        verifier.verify([(r"\max(x, y)", r"\boxed{\max(y, x)}")])  # starts the process
        for case in corpus(arguments.seed, arguments.rounds):
            begin = cpu_seconds()
            verdict = verifier.verify([(case.gold, case.text)])[0]
            found[case.form].append((case, verdict.value, cpu_seconds() - begin))
    print(
        "| class | answers | false accepts | false rejects | invalid | most CPU seconds |\n| --- | --- | --- | --- | --- | --- |"
    )
    report = {}
    for form, rows in sorted(found.items()):
        accepts = sum(value == "right" for case, value, _ in rows if not case.honest)
        rejects = sum(value != "right" for case, value, _ in rows if case.honest)
        invalid = sum(value == "invalid" for _, value, _ in rows)
        slowest = max(cpu for _, _, cpu in rows)
        shown = (f"{accepts / len(rows):.2%}", "–") if not rows[0][0].honest else ("–", f"{rejects / len(rows):.2%}")
        print(f"| {form} | {len(rows):,} | {shown[0]} | {shown[1]} | {invalid} | {slowest:.2f} |")
        report[form] = {
            "answers": len(rows),
            "false accepts": accepts,
            "false rejects": rejects,
            "invalid": invalid,
            "cpu": slowest,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
