"""In which precision the embedded engine computes a policy: decided by its model and its suite, on every machine alike. Imports
neither torch nor transformers.

Weights that come in half precision are multiplied in bf16, and the optimiser moves fp32 copies of them. Weights that come in fp32,
as the micro families' do, stay in it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Precision = Literal["bf16", "fp32"]
FAST = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "Arm BF16"}
"""CPU flags of instructions that multiply bf16, and what people call them."""
EMULATED = "bf16 takes 2.5 to 5 times as long as fp32 (engine_options.dtype: fp32 gives cells of their own)"
"""On a CPU without them: matrix products of an AMD EPYC, its instructions left out."""


def chosen(config: Mapping[str, Any]) -> Precision:
    """By a model's ``config.json``."""
    stored = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return "bf16" if stored in ("bfloat16", "float16") else "fp32"


@functools.cache
def cpu_bf16() -> str:
    """The name of what multiplies bf16 fast in this machine's CPU; empty where nothing does, or the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return next((name for flag, name in FAST.items() if flag in flags), "")
