"""Which engines there are and whether they can run here. Imports none of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata

MICRO_FAMILIES = ("llama", "qwen", "neox", "gpt2")
"""Of `embedded.families`, by name, so that a suite is checked without torch."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine. `missing` says what to install."""

    name: str
    summary: str
    version: str
    available: bool
    missing: str


def listing() -> list[EngineInfo]:
    """All engines."""
    return [
        _info("embedded", "torch and transformers in this process; CPU, or one CUDA device", ("torch", "transformers"),
              "pip install -e . -c constraints.txt"),
        _info("openrlhf", "OpenRLHF's Ray trainers with DeepSpeed and vLLM", ("openrlhf", "ray", "deepspeed", "vllm"),
              "docs/openrlhf.md"),
    ]  # fmt: skip


def _info(name: str, summary: str, packages: tuple[str, ...], advice: str) -> EngineInfo:
    absent = [p for p in packages if importlib.util.find_spec(p) is None]
    versions = ", ".join(f"{p} {_version(p)}" for p in packages if p not in absent)
    return EngineInfo(name, summary, versions, not absent, f"{', '.join(absent)}: {advice}" if absent else "")


def _version(package: str) -> str:
    for distribution in (package, f"{package}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "?"
