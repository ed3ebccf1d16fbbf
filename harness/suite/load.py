"""From a path, or the name of a shipped suite, to a validated Suite."""

from __future__ import annotations

import copy
import difflib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.errors import SuiteError, UsageError
from harness.suite import schema, yaml
from harness.suite.schema import TASK_FORMS, Suite

__all__ = ["LABORATORY", "find", "first_error", "load", "resolve", "shipped"]

_STEP = re.compile(r"([A-Za-z0-9_.+-]+?)((?:\[\d{1,4}\])*)(?:\.(?=[A-Za-z])|$)")
_LONGEST_KEY = 200
_SHOWN = 80
"""Characters of a key that a message repeats."""
_MODELS: dict[Any, type[BaseModel]] = {
    "groups": schema.ModelGroup, "policies": schema.Policy, "stage0": schema.Stage0, "regimes": schema.Variant,
    "training": schema.Training, "evaluation": schema.Evaluation, "tune": schema.Tune, "sharing": schema.Sharing,
    "<file>": schema.FileTask, "defences": schema.Defences,
}  # fmt: skip

_FOLDER = Path(str(resources.files("suites")))
LABORATORY = "bandit.yaml"
"""The file of `harness bandit`."""


def shipped() -> dict[str, Path]:
    """Names and paths of the suites that come with the package; `bandit.yaml` is a laboratory's file, not a suite."""
    return {file.stem: file for file in _FOLDER.glob("*.yaml") if file.name != LABORATORY}


def find(name: str) -> Path:
    """The file meant by `name`: a path, or the name of a shipped suite. Raises SuiteError, with the nearest name."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or os.path.isfile(name) or (os.path.dirname(name) and os.path.exists(name)):
        return path
    known = shipped()
    if name == Path(LABORATORY).stem:
        return _FOLDER / LABORATORY
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise SuiteError(
        name, "", f"no such suite{f'; did you mean {near[0]!r}?' if near else ''} (shipped: {', '.join(sorted(known))})"
    )


def load(name: str, overrides: Sequence[str] = ()) -> Suite:
    """A validated suite from a file or a shipped name. overrides: `key=value`, the key a path such as `training.steps`.
    Raises SuiteError with the place of the first fault (regimes' own options are checked by `session.suite.rules.validate`),
    UsageError for an override that is none."""
    path = find(name)
    raw = yaml.read(path)
    if raw is None:
        raise SuiteError(str(path), "", "the file is empty")
    if not isinstance(raw, dict):
        raise SuiteError(str(path), "", "a suite is a mapping of keys such as groups, regimes, seeds")
    if "bandits" in raw and "groups" not in raw:
        raise SuiteError(str(path), "", f"a laboratory, not a suite: harness bandit {name}")
    return resolve({"name": path.stem, **raw}, overrides, str(path))


def resolve(raw: Mapping[str, Any], overrides: Sequence[str], source: str) -> Suite:
    """A suite from its plain data, which is left alone, and overrides. source: for messages. Raises as `load`."""
    own = copy.deepcopy(dict(raw))
    for override in overrides:
        _apply(own, override)
    try:
        yaml.check_numbers(own, source)
        return Suite.model_validate(own)
    except (ValidationError, SuiteError) as error:
        fault = error if isinstance(error, SuiteError) else first_error(error, source)
        for key in (override.partition("=")[0] for override in overrides):
            if fault.path == key or fault.path.startswith((f"{key}.", f"{key}[")):  # not the file's fault
                raise SuiteError(f"--set {fault.path}", "", fault.problem) from None
        raise fault from None


def first_error(error: ValidationError, source: str) -> SuiteError:
    """The first of pydantic's findings, with its place written as in YAML. source: for the message."""
    first = error.errors(include_url=False)[0]
    where = ""
    for part in (p for p in first["loc"] if p not in TASK_FORMS):
        word = f"{part:.{_SHOWN}}" if isinstance(part, str) else f"[{part}]"
        where += f".{word}" if where and isinstance(part, str) else word
    problem = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        outer = next((_MODELS[p] for p in reversed(first["loc"][:-1]) if p in _MODELS), Suite)
        near = difflib.get_close_matches(key, outer.model_fields, n=1)
        problem = f"unknown key{f'; did you mean {near[0]!r}?' if near else ''}"
    elif first["type"] != "missing" and first["type"] != "value_error" and not isinstance(first["input"], dict | list):
        problem += f" (got {first['input']!r:.80})"
    more = error.error_count() - 1
    return SuiteError(source, where, problem + (f" (and {more} more)" if more else ""))


def _apply(raw: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise UsageError(f"--set {override}: expected key=value, e.g. training.steps=10")
    steps: list[str | int] = []
    found = _STEP.findall(key) if len(key) <= _LONGEST_KEY else []
    if len(key) != sum(len(name) + len(indices) for name, indices in found) + len(found) - 1:
        raise UsageError(f"--set {key[:80]!a}: not the path of a setting, e.g. groups[0].policies[1].model")
    for name, indices in found:
        steps.append(name)
        steps += [int(i) for i in re.findall(r"\d+", indices)]
    target: Any = raw
    try:
        for step, following in itertools.pairwise(steps):
            if isinstance(target, dict) and step not in target:
                target[step] = [] if isinstance(following, int) else {}
            if isinstance(target, list) and isinstance(step, int) and isinstance(target[step], str):
                target[step] = {"regime": target[step]}
            target = target[step]
        target[steps[-1]] = yaml.parse(text, f"--set {key}")
    except (KeyError, IndexError, TypeError):
        raise UsageError(f"--set {key}: the suite has no such place") from None
