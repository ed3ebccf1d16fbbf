"""One line of `harness doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `needed`: without it nothing runs."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = False
