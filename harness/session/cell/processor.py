"""Which kind of CPU this is: runs repeat to the digit on one kind only."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

_NUMERIC = ("avx", "fma", "amx", "sse", "f16c", "asimd", "sve")


def processor() -> str:
    """Model, and a digest of the instruction sets that numerical libraries choose their code by; the bare architecture where the
    system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = facts.get("model name") or facts.get("CPU part") or platform.machine()
    sets = sorted(f for f in (facts.get("flags") or facts.get("Features") or "").split() if f.startswith(_NUMERIC))
    digest = hashlib.blake2b(" ".join(sets).encode(), digest_size=4).hexdigest()
    return f"{platform.machine()}, {' '.join(model.split())}, {digest}"
