"""What a reader of a table must know of a line's settings, on its own row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDLE_CLIP = "one update a step: its stepwise clip is idle"


def remark_on(kind: str, options: Mapping[str, Any], updates: int | None) -> str:
    """Return the remark on a variant; empty where there is none.

    kind: the registered regime. options: as stored. updates: of the optimiser a step, None where unknown. HACPO narrows its clip
    from update to update inside a step (`regimes.hacpo`); with a single one own and peer answers share the first bound, so that
    this part of the method is not tested.
    """
    if kind == "hacpo" and updates == 1 and options.get("stepwise_clip", True) and options.get("delta_step", 1.0):
        return IDLE_CLIP
    return ""
