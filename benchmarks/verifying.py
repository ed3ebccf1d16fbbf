"""What a verdict on an answer costs, beside math-verify as its documentation calls it. Run by `bench.py`.

Answers are those of the tests' grammar (honest and cheating, in boxes and sentences) behind a paragraph of work, new numbers in
each round, so that no verdict is known before. CPU-seconds hold those of the verifier's processes. A dear answer, which keeps an
algebra system busy, is left out on both sides: math-verify has a limit of time for it, which needs a main thread.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from bench import Row, Size, faster

from harness.verification.processes import asked_seconds
from harness.verification.verifier import Verifier

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verification"))
from corpus import corpus

WORK = "We write the quantities as $a$ and $b$, add 12 to both, and divide by 3; this gives two equations.\n" * 8


def pairs_of_round(number: int, size: Size) -> list[tuple[str, str]]:
    """(gold, response) of one round."""
    cases = [case for case in corpus(seed=number, rounds=1) if "dear" not in case.form]
    return [(case.gold, WORK + case.text) for case in cases[: 20 if size.smoke else len(cases)]]


def seconds_of_ours(verifier: Verifier, pairs: list[tuple[str, str]]) -> float:
    begin = time.process_time() + asked_seconds()
    verifier.verify(pairs)
    return time.process_time() + asked_seconds() - begin


def seconds_of_math_verify(pairs: list[tuple[str, str]]) -> float:
    from math_verify import parse, verify

    begin = time.process_time()
    for gold, text in pairs:
        verify(parse(f"${gold}$", parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None)
    return time.process_time() - begin


def bench(size: Size) -> list[Row]:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns at each call that its time limit is off
    ours, theirs = list[float](), list[float]()
    with Verifier(workers=1) as verifier:
        for number in range(size.rounds + 1):
            pairs = pairs_of_round(number, size)
            spent = seconds_of_ours(verifier, pairs), seconds_of_math_verify(pairs)
            if number:  # the first round fills caches and starts processes
                ours.append(spent[0])
                theirs.append(spent[1])
    return [faster(f"verdicts on {len(pairs)} answers", "math-verify", ours, theirs, 25.0)]
