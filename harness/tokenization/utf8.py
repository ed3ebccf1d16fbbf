"""Where invalid UTF-8 lies in a byte stream, and how long its replacement is. Vectorised; no loop over bytes.

Units follow the Unicode standard's "substitution of maximal subparts" (section 3.9), which Rust's and Python's lossy
decoders share: every maximal ill-formed prefix of a sequence becomes one U+FFFD.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64, UInt8

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

_NEED = np.zeros(256, dtype=np.int8)
_NEED[0x00:0x80], _NEED[0xC2:0xE0], _NEED[0xE0:0xF0], _NEED[0xF0:0xF5] = 1, 2, 3, 4
_SECOND_LOW = np.full(256, 0x80, dtype=np.uint8)
_SECOND_HIGH = np.full(256, 0xBF, dtype=np.uint8)
_SECOND_LOW[0xE0], _SECOND_LOW[0xF0], _SECOND_HIGH[0xED], _SECOND_HIGH[0xF4] = 0xA0, 0x90, 0x9F, 0x8F


def units(data: UInt8[np.ndarray, "N"]) -> tuple[Int64[np.ndarray, "U"], Bool[np.ndarray, "U"]]:
    """Starts of the stream's units (characters, or maximal ill-formed subparts) and whether each is valid."""
    padded = np.concatenate([data, np.zeros(3, dtype=np.uint8)])
    lead, second, third, fourth = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    need = _NEED[lead]
    has_second = (need >= 2) & (second >= _SECOND_LOW[lead]) & (second <= _SECOND_HIGH[lead])
    has_third = has_second & (need >= 3) & (third & 0xC0 == 0x80)
    has_fourth = has_third & (need >= 4) & (fourth & 0xC0 == 0x80)
    consumed = np.zeros(data.size + 3, dtype=bool)
    for distance, has in enumerate((has_second, has_third, has_fourth), start=1):
        consumed[distance : distance + data.size] |= has
    starts = np.flatnonzero(~consumed[: data.size])
    length = 1 + has_second.astype(np.int8) + has_third + has_fourth
    return starts, (length == need)[starts]


def lossy_positions(data: UInt8[np.ndarray, "N"]) -> Int64[np.ndarray, "N+1"]:
    """Position in the lossily decoded bytes of every position of `data`.

    A boundary inside an ill-formed unit of n bytes falls after as many bytes of its replacement; the unit's end falls at
    the replacement's end. So every byte keeps at least one byte of output, and a unit's tokens share one U+FFFD.
    """
    starts, valid = units(data)
    sizes = np.diff(starts, append=data.size)
    grown = np.where(valid, 0, len(REPLACEMENT) - sizes)
    shift = np.repeat(np.cumsum(grown) - grown, sizes)
    return np.append(np.arange(data.size) + shift, data.size + int(grown.sum()))
