"""Colours, shapes and signs of verdicts; colours and dashes of regimes."""

from __future__ import annotations

from zlib import crc32

from harness.statistics.comparison import (
    ALONE,
    BASELINE,
    DIFFERS,
    DIFFERS_POLICIES,
    EQUIVALENT,
    GAINS,
    INCONCLUSIVE,
    LOSES,
    WITHHELD,
)

_LOOKS = {
    GAINS: ("#0f8a83", "triangle-up", "▲"),
    LOSES: ("#c2502d", "triangle-down", "▼"),
    EQUIVALENT: ("#7d8590", "circle", "●"),
    INCONCLUSIVE: ("#b08900", "diamond", "◆"),
    DIFFERS: ("#8e4fb8", "cross", "✚"),
    DIFFERS_POLICIES: ("#8e4fb8", "cross", "✚"),
    **dict.fromkeys((BASELINE, ALONE, *WITHHELD), ("#7d8590", "square", "■")),
}
COLOURS = {verdict: colour for verdict, (colour, _, _) in _LOOKS.items()}
SHAPES = {verdict: shape for verdict, (_, shape, _) in _LOOKS.items()}
SIGNS = {verdict: sign for verdict, (_, _, sign) in _LOOKS.items()}
LEGEND = (
    "▲ gains, ▼ loses, ✚ differs between groups or policies, ● no effect larger than the margin, ◆ cannot tell, "
    "■ the baseline, or without one, or withheld."
)
# 3:1 at least on white and near-black; regimes also differ by dash, order and label
PALETTE = ["#0f8a83", "#c2502d", "#3b6fd4", "#b08900", "#8e4fb8", "#4f8f2f", "#d1477f", "#6b7280", "#1f9bcf", "#96592d"]
KNOWN = ("sgt", "naive", "hacpo", "prp", "xgrpo", "graft", "sapo", "independent", "ftis")
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [10, 2], [1, 3], [6, 2, 1, 2, 1, 2]]


def list_colours(count: int) -> list[str]:
    """Return the palette's first colours, from its start again where it has fewer."""
    return [PALETTE[place % len(PALETTE)] for place in range(count)]


def colour_of(regime: str) -> str:
    """Return a regime's colour, the same in every figure; a published method's variants (`sgt-lying`) have its colour."""
    variants_of = {name: (f"{name}-", f"{name}.", f"{name},") for name in KNOWN}
    method = next((name for name, heads in variants_of.items() if regime.startswith(heads)), regime)
    if method in KNOWN:
        return PALETTE[KNOWN.index(method)]
    # a name has the same colour in every process, which its own hash would not give
    place = crc32(regime.encode()) % len(PALETTE)
    return PALETTE[place]


def dash_of(regime: str) -> list[int]:
    """Return a regime's dashes: a full line for a published method, others by the name."""
    if regime in KNOWN:
        return DASHES[0]
    # other digits of the name's number than the colour's, so that equal colours have unequal dashes
    number = crc32(regime.encode()) // len(PALETTE)
    place = 1 + number % (len(DASHES) - 1)
    return DASHES[place]
