"""Settings in a task's name: `gym.knights_knaves:n_people=2..3,depth=2`, `countdown:numbers=3..4`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import PluginError

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_VALUES = 64
_MOST_LEVELS = 64


def read_settings(task: str, text: str) -> dict[str, list[Any]]:
    """Return the values of each setting of a task, from `n_people=2..3,depth=2`. Raises PluginError."""
    settings: dict[str, list[Any]] = {}
    for part in filter(None, text.split(",")):
        key, sign, value = part.partition("=")
        if not sign or not key.isidentifier() or key in settings:
            raise PluginError(f"{task}: {part!r} is no setting; e.g. n_people=2..3")
        settings[key] = _read_values(task, key, value)
    return settings


def _read_values(task: str, key: str, value: str) -> list[Any]:
    """Read the values that a setting may take: `2..4` is 2, 3 and 4; `true` and numbers are themselves, and other text is text."""
    if span := _RANGE.fullmatch(value):
        first, last = int(span[1]), int(span[2])
        if not first <= last < first + _MOST_VALUES:
            raise PluginError(f"{task}: {key}={value}: a range of 1 to {_MOST_VALUES} values, the smaller first")
        return list(range(first, last + 1))
    if value in ("true", "false"):
        return [value == "true"]
    for number in (int, float):
        try:
            return [number(value)]
        except ValueError:
            continue
    return [value]


def levels_of(task: str, settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the names of the task's levels: each combination of its settings' values. Raises PluginError for too many."""
    bare, _, _ = task.partition(":")
    combinations = list(itertools.islice(itertools.product(*settings.values()), _MOST_LEVELS + 1))
    if len(combinations) > _MOST_LEVELS:
        raise PluginError(f"task {task!r}: more than {_MOST_LEVELS} levels; give fewer settings a range")
    names = []
    for values in combinations:
        said = ",".join(f"{key}={_write_value(value)}" for key, value in zip(settings, values, strict=True))
        names.append(f"{bare}:{said}" if said else bare)
    return names


def _write_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
