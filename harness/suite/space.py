"""Search spaces, in an option's annotation: `lambda_: Annotated[float, Range(0.01, 3.0, "log")] = 0.1`. An optimiser searches
[0, 1]."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["Choice", "Range", "Space", "as_dict", "spaces_of"]

# Standard deviation of a normal prior, as part of the range
WIDTH = 0.25
# Significant digits of a drawn value
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Range:
    """`low` to `high`, both included. scale: on which equal steps are alike. prior: `uniform` on it, or `normal` around the
    default. relative: factors of the suite's own value."""

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    prior: Literal["uniform", "normal"] = "uniform"
    whole: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range needs an upper end above its lower end, got {self.low} to {self.high}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a range on a log scale needs a lower end above 0, got {self.low}")

    def around(self, given: float) -> Range:
        """Return the range where the suite gives this value."""
        if not self.relative:
            return self
        return dataclasses.replace(self, low=self.low * given, high=self.high * given, relative=False)

    def holds(self, value: Any) -> bool:
        """Whether the value lies in it."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        is_within = (
            self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)
        )  # a product may miss an end by its last digit
        return is_within and (not self.whole or value == int(value))

    def at(self, u: float, default: Any) -> float | int:
        """Return the value at `u` in [0, 1] under the prior (normal: around `default`)."""
        if self.prior == "normal":
            bell = NormalDist(self._place_of_value(default), WIDTH)
            low = bell.cdf(0.0)
            high = bell.cdf(1.0)
            mass = low + u * (high - low)
            place = bell.inv_cdf(min(max(mass, 1e-12), 1 - 1e-12))
            u = min(max(place, 0.0), 1.0)
        low, high = self._range_ends()
        value = low + u * (high - low)
        if self.scale == "log":
            value = math.exp(value)
        if self.whole:
            return min(max(round(value), math.ceil(self.low)), math.floor(self.high))
        rounded = float(f"{value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def unit(self, value: float, default: Any) -> float:
        """Find where in [0, 1] `at` finds a value of the range."""
        u = min(max(self._place_of_value(value), 0.0), 1.0)
        if self.prior == "uniform":
            return u
        bell = NormalDist(self._place_of_value(default), WIDTH)
        low = bell.cdf(0.0)
        high = bell.cdf(1.0)
        share = (bell.cdf(u) - low) / (high - low)
        return min(max(share, 0.0), 1.0)

    def _range_ends(self) -> tuple[float, float]:
        """Return the ends on the range's scale."""
        if self.scale == "log":
            return (math.log(self.low), math.log(self.high))
        return (self.low, self.high)

    def _place_of_value(self, value: float) -> float:
        """Find where the value stands between the ends, 0 at the lower and 1 at the upper, on the range's scale."""
        low, high = self._range_ends()
        on_scale = math.log(value) if self.scale == "log" else value
        return (on_scale - low) / (high - low)

    def __str__(self) -> str:
        factor = " x the suite's" if self.relative else ""
        whole = ", whole" if self.whole else ""
        return f"{self.low:g}{factor} to {self.high:g}{factor}, {self.scale}, prior {self.prior}{whole}"


@dataclass(frozen=True, slots=True, init=False)
class Choice:
    """Two or more values, equally likely. relative: factors of the suite's own value."""

    values: tuple[Any, ...]
    relative: bool = False

    def __init__(self, *values: Any, relative: bool = False) -> None:
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "relative", relative)
        if len(values) < 2:
            raise ValueError("a choice is between two values or more")

    def around(self, given: float) -> Choice:
        """Return the choice for a given value, as `Range.around`."""
        if self.relative:
            return Choice(*(type(given)(given * v) for v in self.values))
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value is among the choices, as `Range.holds`."""
        return any(v == value and type(v) is type(value) for v in self.values)

    def __str__(self) -> str:
        words = ", ".join(f"{v} x the suite's" if self.relative else str(v) for v in self.values)
        return f"one of {words}; prior uniform"


Space = Range | Choice
"""Of one setting."""


def as_dict(space: Space) -> dict[str, Any]:
    """Write a space as plain data, for `--json`."""
    if isinstance(space, Range):
        return dataclasses.asdict(space)
    return {"values": list(space.values), "prior": "uniform", "relative": space.relative}


def _metadata_of(hint: Any) -> Iterable[Any]:
    """Yield what stands in a type's annotation, and in those of a union's parts."""
    yield from getattr(hint, "__metadata__", ())
    if get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _metadata_of(part)


def spaces_of(kind: type, defaults: Mapping[str, Any]) -> dict[str, Space]:
    """Return the search spaces of a class's fields. Raises ValueError where a default lies outside its space."""
    spaces: dict[str, Space] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for metadata in _metadata_of(hint):
            if isinstance(metadata, Range | Choice):
                _check_default(name, metadata, defaults[name])
                spaces[name] = metadata
    return spaces


def _check_default(name: str, space: Space, default: Any) -> None:
    """Check a default. Raises ValueError where a field's default lies outside its space."""
    own = space if default is None else space.around(default)
    if not own.holds(default):
        raise ValueError(f"{name}: the default {default} lies outside its search space ({space})")
