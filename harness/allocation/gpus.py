"""The GPUs that CUDA shows to a process on this machine: what the plan, `harness doctor`, a run's workers and Ray go by."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
ANSWER_SECONDS = 10.0
"""Without persistence mode nvidia-smi wakes every GPU first."""
_KIND = re.compile(r"(?:(?:QUADRO )?[RG]TX (?:PRO )?(?=\d))?[A-Z]{0,2}\d+[A-Z]*|QUADRO|TITAN")
_NO_BF16 = re.compile(r"QUADRO|TITAN|GTX|RTX20|MX|G?[KMPVT]\d")
_NAMES = re.compile(r"^GPU (\d+):.*\(UUID: (GPU-[^)]+)\)|^ +MIG \S*?(\d+)gb\b.*\(UUID: (MIG-[^)]+)\)", re.MULTILINE)


class Card(NamedTuple):
    """A GPU, or a MIG part of one. name: what CUDA_VISIBLE_DEVICES calls it. kind: e.g. H100 or RTX4090. memory: bytes."""

    name: str
    kind: str
    memory: int


def visible() -> list[Card]:
    """Those that nvidia-smi lists and CUDA_VISIBLE_DEVICES leaves, in its order; none where nvidia-smi is absent, fails or is late.

    The variable is read as CUDA reads it (CUDA programming guide, "Environment variables"): numbers, or names of GPUs or of MIG
    parts, whole or as far as they are unique, up to the first that means no device; none where one stands twice. A number counts
    as in nvidia-smi's list, which is CUDA's own where the GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    chosen, numbered, parted = os.environ.get(VISIBLE), dict[str, Card](), False
    listed = _ask("--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
    for number, line in enumerate(listed.splitlines()):
        name, size, *mig = (field.strip() for field in line.split(",")) if "," in line else ("", "")
        if size.isdigit():
            numbered[str(number)] = Card(str(number), kind_of(name), int(size) * 2**20)
            parted = parted or mig == ["Enabled"]
    known = numbered
    if numbered and (parted if chosen is None else chosen.startswith(("GPU-", "MIG-"))):
        known = _named(numbered)
        if chosen is None:
            chosen = ",".join(name for name in known if name.startswith("MIG-"))
    if chosen is None:
        return list(known.values())
    found: list[Card] = []
    for word in map(str.strip, chosen.split(",")):
        meant = {card for name, card in known.items() if name == word or ("-" in word[1:] and name.startswith(word))}
        if len(meant) != 1:
            break
        found.append(meant.pop())
    return found if len({*found}) == len(found) else []


def has_bf16(kind: str) -> bool:
    """Whether such a GPU multiplies bf16: not those of the generations before Ampere, whose names begin with Kepler's to Turing's
    letter, or have a brand that ended with them."""
    return not _NO_BF16.match(kind.upper())


def kind_of(name: str) -> str:
    """A GPU's kind from its product name: `NVIDIA A100-SXM4-80GB` is an A100, `NVIDIA GeForce RTX 4090` an RTX4090."""
    found = _KIND.search(name.upper())
    return found[0].replace(" ", "") if found else "GPU"


def _named(numbered: dict[str, Card]) -> dict[str, Card]:
    """The same cards by their UUIDs, and their MIG parts."""
    found, card = dict[str, Card](), Card("", "", 0)
    for number, uuid, gigabytes, part in _NAMES.findall(_ask("-L")):
        if number:
            card = numbered.get(number, card)
            found[uuid] = card._replace(name=uuid)
        else:
            found[part] = card._replace(name=part, memory=int(gigabytes) * 10**9)
    return found


def _ask(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
