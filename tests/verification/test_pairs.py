"""Our verdicts against a reader's, on pairs chosen where verifiers go wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import msgspec
import pytest
from verifier_pairs import PAIRS

from harness.verification.verifier import Verifier


@pytest.fixture(scope="module")
def verdicts(verifier: Verifier) -> dict[tuple[str, str], str]:
    judged = verifier.verify([(gold, text) for gold, text, _ in PAIRS])
    return {(gold, text): v.value for (gold, text, _), v in zip(PAIRS, judged, strict=True)}


@pytest.mark.parametrize(("gold", "text", "right"), PAIRS)
def test_verdict(verdicts: dict[tuple[str, str], str], gold: str, text: str, right: bool) -> None:
    assert verdicts[gold, text] == ("right" if right else "wrong")


@pytest.mark.slow
def test_math_verify_alone_errs_on_at_least_sixty() -> None:
    script = textwrap.dedent(
        """
        import logging, sys, msgspec
        logging.disable(logging.CRITICAL)
        from math_verify import parse, verify
        errors = 0
        for gold, text, right in msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str, bool]]):
            try:
                verdict = verify(parse("\\\\boxed{" + gold + "}"), parse(text))
            except Exception:
                verdict = not right
            errors += verdict != right
        print(errors)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=msgspec.json.encode(PAIRS), capture_output=True, timeout=90, check=True
    )
    assert int(done.stdout) >= 60


def test_verdicts_are_deterministic_and_order_free(verifier: Verifier) -> None:
    pairs = [(gold, text) for gold, text, _ in PAIRS]
    with Verifier(workers=1) as fresh:
        backwards = fresh.verify(pairs[::-1])
    assert backwards[::-1] == verifier.verify(pairs)
