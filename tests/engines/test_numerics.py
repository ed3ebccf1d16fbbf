"""Which cells are computed portably, what their keys say, and that no process claims it in vain."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.allocation.shapes import cpu_flags
from harness.engines.embedded import numerics
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.numerics import ENVIRONMENT, choose_numerics, environment_of
from harness.engines.embedded.plugin import Embedded
from harness.engines.embedded.warmup import MicroSpec
from harness.errors import EngineError
from harness.session.suite.prepare import prepare_named
from harness.session.suite.resolved import list_remarks

MICRO = ("micro/llama", "micro/qwen")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "DEFAULT", "portable")
    monkeypatch.setattr(numerics, "explain_unable", lambda: "")


@pytest.mark.parametrize(
    ("options", "models", "wanted"),
    [
        ({}, MICRO, "portable"),
        ({"numerics": "fast"}, MICRO, "fast"),
        ({"numerics": "portable", "dtype": "fp32"}, ("org/model",), "portable"),
        ({}, ("micro/llama", "org/model"), "fast"),
        ({"dtype": "bf16"}, MICRO, "fast"),
        ({"device": "cuda"}, MICRO, "fast"),
        ({"threads": 2}, MICRO, "fast"),
    ],
)
@pytest.mark.usefixtures("able")
def test_micro_families_on_a_cpu_are_computed_portably(
    options: dict[str, object], models: tuple[str, ...], wanted: str
) -> None:
    assert choose_numerics(options, models) == wanted
    assert environment_of({"numerics": wanted}) == (ENVIRONMENT if wanted == "portable" else {})


@pytest.mark.usefixtures("able")
def test_fast_numerics_leave_keys_as_they_were(tmp_path: Path) -> None:
    portable, fast = (
        prepare_named("quickstart", tmp_path, overrides=[f"engine_options.numerics={name}"])
        for name in ("portable", "fast")
    )
    assert prepare_named("quickstart", tmp_path).keys() == portable.keys()
    assert portable.keys().isdisjoint(fast.keys())
    assert (portable.cells[0].config()["engine_options"], fast.cells[0].config()["engine_options"]) == (
        {"numerics": "portable"}, {},
    )  # fmt: skip
    assert len({replace(MicroSpec("qwen", "mul"), numerics=name).key for name in ("portable", "fast")}) == 2


@pytest.mark.usefixtures("able")
def test_a_machine_that_cannot_says_so_and_computes_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (numerics, sys.modules[Embedded.__module__]):
        monkeypatch.setattr(module, "explain_unable", lambda: "this machine is aarch64, not x86-64")
    prepared = prepare_named("quickstart", tmp_path)
    assert prepared.suite.engine_options == {"numerics": "fast"}
    assert list_remarks(prepared.resolved)[-1] == (
        "numerics: fast, for this machine is aarch64, not x86-64: rows repeat on this kind of CPU only"
    )
    assert "aarch64" in Embedded.lacking({"numerics": "portable"})


def test_other_machines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "cpu_flags", lambda: {"avx2"})
    monkeypatch.setattr(numerics.platform, "machine", lambda: "x86_64")
    assert numerics.explain_unable() == "this CPU has no FMA"
    monkeypatch.setattr(numerics.platform, "machine", lambda: "arm64")
    assert numerics.explain_unable() == "this machine is arm64, not x86-64"


@pytest.mark.slow_but("qwen")
def test_a_process_without_the_environment_does_not_claim_to_be_portable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=r"bf16 on cpu; numerics: portable needs device: cpu, dtype: fp32"):
        EmbeddedEngine("a", folder, device="cpu", dtype="bf16", numerics="portable")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MKL_CBWR")
    with pytest.raises(EngineError, match=r"portable needs MKL_CBWR=COMPATIBLE in the environment before torch"):
        EmbeddedEngine("a", folder, device="cpu", numerics="portable")


@pytest.mark.parametrize(("late", "told"), [("torch", "needs torch's AVX2 kernels"), ("numpy", "needs numpy without")])
def test_libraries_that_were_imported_before_the_environment_was_set_are_noticed(late: str, told: str) -> None:
    if "avx512f" not in cpu_flags():
        pytest.skip("this CPU has nothing wider than AVX2 to take")
    clean = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    first = {"torch": "import os, torch; torch.backends.cpu.get_cpu_capability()", "numpy": "import os, numpy"}[late]
    imports = f"{first}\nfrom harness.engines.embedded import numerics"
    code = f"{imports}\nos.environ.update(numerics.ENVIRONMENT)\nnumerics.require_portable()"
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120)
    assert f"numerics: portable {told}" in done.stderr


def test_a_plug_in_that_fills_options_by_the_earlier_name_still_does() -> None:
    class Earlier(Embedded):
        @classmethod
        def settled(cls, options: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
            return {**options, "threads": 3}

    assert Earlier.with_defaults_filled({}, []) == {"threads": 3}
    assert Embedded.with_defaults_filled({"numerics": "fast"}, []) == {"numerics": "fast"}
