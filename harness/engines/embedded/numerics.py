"""The same digits on every x86-64 machine. Imports no torch.

MKL, ATen, numpy, oneDNN (GELU) and OpenBLAS choose kernels by vendor and instruction set. With `ENVIRONMENT`, on one thread, in
fp32 and with fused AdamW all take the same ones wherever there is AVX2 with FMA; only `torch.sqrt` does not. Products of matrices
are OpenBLAS's (`products`), since MKL's portable kernels are slow; MKL keeps attention's.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from harness.allocation import inventory
from harness.allocation.shapes import MICRO, cpu_flags
from harness.errors import EngineError

Numerics = Literal["portable", "fast"]
DEFAULT: Numerics = "portable"
"""Of suites of micro models that are computed on a CPU."""
ENVIRONMENT = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "HASWELL",
    "OPENBLAS_NUM_THREADS": "1",
}
OPENBLAS = ("0.3.30", "0.3.31")
"""The versions whose digits were compared and are the same, natively and under emulation. Another may block its sums otherwise."""


def choose_numerics(options: Mapping[str, Any], models: Iterable[str], able: bool | None = None) -> Numerics:
    """Choose the numerics: as the suite says, else by its models and the machine. able: whether that computes portably; None asks
    this one."""
    stated: Numerics | None = options.get("numerics")
    micro = all(model.startswith(MICRO) for model in models)
    return stated or (DEFAULT if micro and not explain_conflict(options) and (able or not explain_unable()) else "fast")


def environment_of(options: Mapping[str, Any]) -> dict[str, str]:
    return ENVIRONMENT if options.get("numerics") == "portable" else {}


def explain_conflict(options: Mapping[str, Any]) -> str:
    """Return what in the options rules portable numerics out; may be empty."""
    device = options.get("device") or ("cuda" if inventory.inventory_of_machine().gpus else "cpu")
    if device != "cpu":
        return f"device: {device}"
    if options.get("dtype", "fp32") not in (None, "fp32"):
        return f"dtype: {options['dtype']}"
    if (options.get("threads") or 1) > 1:
        return f"threads: {options['threads']}"
    return ""


def explain_unable() -> str:
    """Say why this machine cannot compute portably; empty where it can."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"this machine is {platform.machine()}, not x86-64"
    missing = {"avx2", "fma"} - cpu_flags()
    if missing:
        return f"this CPU has no {' and no '.join(sorted(missing)).upper()}"
    blas, version = numpy_blas()
    if blas != "OpenBLAS" or version not in OPENBLAS:
        return f"numpy multiplies by {blas} {version}, not by OpenBLAS {' or '.join(OPENBLAS)}"
    return ""


def numpy_blas() -> tuple[str, str]:
    """Say which library multiplies numpy's matrices, and the first three numbers of its version: `OpenBLAS`, `0.3.31`. One that
    does not come in numpy's own package has no version that could be known."""
    import numpy as np

    stated = np.show_config("dicts")["Build Dependencies"]["blas"]
    if "openblas" not in stated["name"] or not _openblas_files():
        return stated["name"], "of this system"
    return "OpenBLAS", ".".join(str(stated["version"]).split(".")[:3])


def _openblas_files() -> list[Path]:
    import numpy as np

    return sorted(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas64_*.so"))


def _openblas_kernels() -> str:
    """Return the processor for which OpenBLAS chose its kernels when numpy was imported, in capitals."""
    library = ctypes.CDLL(str(_openblas_files()[0]))  # which numpy has loaded: the same handle
    name_of_core = library.scipy_openblas_get_corename64_
    name_of_core.restype = ctypes.c_char_p
    found: bytes = name_of_core()
    return found.decode().upper()


def require_portable() -> None:
    """Make this process compute portably. Raises EngineError where it cannot."""
    import numpy as np
    import torch

    from harness.engines.embedded.products import install_products

    unset = [f"{name}={value}" for name, value in ENVIRONMENT.items() if os.environ.get(name) != value]
    if unset:
        raise EngineError(f"numerics: portable needs {', '.join(unset)} in the environment before torch is imported")
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        raise EngineError("numerics: portable needs a torch that multiplies by MKL, which this one does not")
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2":
        raise EngineError(f"numerics: portable needs torch's AVX2 kernels; this process took those for {capability}")
    wide = {*np.show_config("dicts")["SIMD Extensions"]["found"]} & {*ENVIRONMENT["NPY_DISABLE_CPU_FEATURES"].split()}
    if wide:
        raise EngineError(
            f"numerics: portable needs numpy without {', '.join(sorted(wide))}; it was imported too early"
        )
    why = explain_unable()
    if why:
        raise EngineError(f"numerics: portable cannot be had here: {why}")
    kernels = _openblas_kernels()
    if kernels != ENVIRONMENT["OPENBLAS_CORETYPE"]:
        raise EngineError(
            f"numerics: portable needs OpenBLAS's Haswell kernels; numpy was imported too early and took {kernels}"
        )
    torch.set_num_threads(1)
    install_products()
