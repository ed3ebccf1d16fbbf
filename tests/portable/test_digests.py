"""The same digits on every machine: this one's, and emulated ones', against `digests.json`, made by

python -m tests.portable.digest | jq -s add > tests/portable/digests.json    with the torch of constraints.txt"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from harness.engines.embedded.numerics import explain_unable
from tests.portable.digest import REGIMES

ROOT = Path(__file__).parents[2]
WANTED = json.loads(Path(__file__).with_name("digests.json").read_text("utf-8"))
PINNED = next(
    line.partition("==")[2].strip()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line.startswith("torch==")
)
EMULATED = ("Haswell", "Skylake-Client", "EPYC-Rome", "EPYC-Milan")
"""Two Intels and two AMDs. Debian 12's emulator knows no AVX-512."""

pytestmark = [
    pytest.mark.skipif(bool(why := explain_unable()), reason=why or "this machine can"),
    pytest.mark.skipif(torch.__version__.partition("+")[0] != PINNED, reason=f"the digests are torch {PINNED}'s"),
]


def said(*command: object, before: Sequence[str] = ()) -> dict[str, str]:
    """What `tests.portable.digest` prints in a process of its own. before: what runs its Python."""
    python = [*before, sys.executable, "-m", "tests.portable.digest", *map(str, command)]
    out = subprocess.run(python, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=7000).stdout
    return {name: digests for line in out.splitlines() for name, digests in json.loads(line).items()}


def test_this_machine_computes_the_reference_digests() -> None:
    assert said() == WANTED


@pytest.mark.slow
def test_one_changed_bit_in_a_weight_gives_another_digest() -> None:
    (changed,) = said("changed").items()
    assert changed not in WANTED.items()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command behind which come a CPU's name and a program: `qemu-x86_64 ... -cpu`. With a C compiler it is faster (fma.c)."""
    if "EMULATE" not in os.environ:
        pytest.skip("takes up to 26 CPU-minutes for each emulated CPU: make test-portable")
    program = shutil.which("qemu-x86_64")
    if program is None:
        pytest.skip("needs qemu-x86_64 (apt-get install qemu-user)")
    compiler = shutil.which("cc")
    if compiler is None:
        return [program, "-cpu"]
    library = tmp_path_factory.mktemp("emulator") / "fma.so"
    source = Path(__file__).with_name("fma.c")
    subprocess.run([compiler, "-O2", "-mfma", "-shared", "-fPIC", "-o", library, source], check=True)
    return ["env", f"LD_PRELOAD={library}", program, "-U", "LD_PRELOAD", "-cpu"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cpu", EMULATED[:3])
def test_an_emulated_cpu_computes_the_same(cpu: str, emulator: list[str]) -> None:
    assert said(before=[*emulator, cpu]) == WANTED


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_cells_begun_here_and_ended_on_another_cpu_have_the_same_rows(tmp_path: Path, emulator: list[str]) -> None:
    assert said("begin", tmp_path) == {}
    assert len([*tmp_path.glob("results/*/resume/step-*")]) == len(REGIMES)
    ended = said("end", tmp_path, before=[*emulator, EMULATED[3]])
    assert ended == {name: WANTED[name] for name in REGIMES}
