"""From a path or shipped name to a validated Suite; YAML is hostile data."""

from __future__ import annotations

import copy
import difflib
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.cache import PRETRAINED, model_folder
from harness.errors import SuiteError, UsageError
from harness.reading import CONTROLS, in_words, read_text
from harness.suite import schema
from harness.suite.schema import FORMS, ModelGroup, Policy, Suite

__all__ = [
    "LABORATORY",
    "find_suite",
    "first_error",
    "load_suite",
    "parse_suite",
    "parse_yaml",
    "read_yaml",
    "shipped_suites",
]

_STEP = re.compile(r"([A-Za-z0-9_.+-]+?)((?:\[\d{1,4}\])*)(?:\.(?=[A-Za-z])|$)")
_LONGEST_KEY, _SHOWN = 200, 80  # characters of a key, and of it in a message
_MODELS: dict[Any, type[BaseModel]] = {
    "groups": schema.ModelGroup, "policies": schema.Policy, "stage0": schema.Stage0, "regimes": schema.Variant,
    "training": schema.Training, "evaluation": schema.Evaluation, "tune": schema.Tune, "sharing": schema.Sharing,
    "<file>": schema.FileTask, "defences": schema.Defences,
}  # fmt: skip

_FOLDER = Path(str(resources.files("suites")))
LABORATORY = "bandit.yaml"
"""The file of `harness bandit`."""


def shipped_suites() -> dict[str, Path]:
    """Return all but `bandit.yaml`, a laboratory's file."""
    return {file.stem: file for file in _FOLDER.glob("*.yaml") if file.name != LABORATORY}


def find_suite(name: str) -> Path:
    """Find a suite's file, by its path or by a shipped name. Raises SuiteError, with the nearest name."""
    path = Path(name)
    is_in_a_folder = os.path.dirname(name) and os.path.exists(name)
    if path.suffix in {".yaml", ".yml"} or os.path.isfile(name) or is_in_a_folder:
        return path
    known = shipped_suites()
    if name in known or name == Path(LABORATORY).stem:
        return _FOLDER / f"{name}.yaml"
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    shipped_names = ", ".join(sorted(known))
    raise SuiteError(name, "", f"no such suite{meant} (shipped: {shipped_names})")


def load_suite(name: str, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite by its name or file. overrides: `key=value`, the key a path such as `training.steps`. Raises SuiteError with
    the place of the first fault, UsageError for an override."""
    path = find_suite(name)
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        mapping = "a suite is a mapping of keys such as groups, regimes, seeds"
        raise SuiteError(str(path), "", "the file is empty" if raw is None else mapping)
    if "bandits" in raw and "groups" not in raw:
        raise SuiteError(str(path), "", f"a file of bandits, not a suite; run it with: harness bandit {name}")
    return with_folders(parse_suite({"name": path.stem, **raw}, overrides, str(path)), path.parent)


def with_folders(suite: Suite, place: Path) -> Suite:
    """Write out the whole path of every model folder that lies beside the suite's file, in `place`. Other relative ones start at
    the working folder, as those of a task's file do."""

    def found(policy: Policy) -> Policy:
        """Write out a policy's model folder, if it lies beside the suite's file."""
        path = model_folder(policy.model)
        if policy.is_micro or policy.model.startswith(PRETRAINED) or path.is_absolute():
            return policy
        beside = place / path
        if beside.is_dir():
            return policy.model_copy(update={"model": str(beside.resolve())})
        return policy

    def all_found(groups: Sequence[ModelGroup]) -> list[ModelGroup]:
        placed = []
        for group in groups:
            policies = [found(policy) for policy in group.policies]
            placed.append(group.model_copy(update={"policies": policies}))
        return placed

    tune = suite.tune
    if tune is not None:
        tune = tune.model_copy(update={"groups": all_found(tune.groups)})
    return suite.model_copy(update={"groups": all_found(suite.groups), "tune": tune})


def parse_suite(raw: Mapping[str, Any], overrides: Sequence[str], source: str) -> Suite:
    """Make a suite of plain data, which is left as it is. Raises as `load_suite`."""
    own = copy.deepcopy(dict(raw))
    for override in overrides:
        _apply_override(own, override)
    with placed_in(overrides):
        try:
            return Suite.model_validate(own)
        except ValidationError as error:
            raise first_error(error, source) from None


@contextmanager
def placed_in(overrides: Sequence[str]) -> Iterator[None]:
    """Inside, a fault at the place of an override is raised as the override's, not the file's."""
    try:
        yield
    except SuiteError as fault:
        given = [override.partition("=")[0] for override in overrides]
        if any(fault.path == key or fault.path.startswith((f"{key}.", f"{key}[")) for key in given):
            raise SuiteError(f"--set {fault.path}", "", fault.problem) from None
        raise


def first_error(error: ValidationError, source: str) -> SuiteError:
    """Make an error of the first of pydantic's, with its place as in YAML."""
    first = error.errors(include_url=False)[0]
    place = [part for part in first["loc"] if part not in FORMS]
    problem = str(first["msg"]).removeprefix("Value error, ")
    kind = first["type"]
    given = first["input"]
    if kind == "extra_forbidden":
        problem = _explain_unknown_key(first["loc"])
    elif kind not in ("missing", "value_error") and not isinstance(given, dict | list):
        problem += f" (got {given!r:.80})"
    more = error.error_count() - 1
    if more:
        problem += f" (and {more} more)"
    return SuiteError(source, _join_place(place), problem)


def _join_place(place: Sequence[str | int]) -> str:
    """Write a place as in `groups[0].policies[1].model`."""
    where = ""
    for part in place:
        if isinstance(part, int):
            where += f"[{part}]"
        else:
            where += f".{part:.{_SHOWN}}" if where else f"{part:.{_SHOWN}}"
    return where


def _explain_unknown_key(place: Sequence[str | int]) -> str:
    """Say what is wrong at the place of a key that there is not, with the nearest one of the mapping in which it stands."""
    *outer, key = place
    kinds = [_MODELS[part] for part in outer if part in _MODELS]
    innermost = kinds[-1] if kinds else Suite
    near = difflib.get_close_matches(str(key), innermost.model_fields, n=1)
    return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"


def _apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one setting in plain data, which is changed. override: `key=value`. Raises UsageError, SuiteError."""
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise UsageError(f"--set {override}: expected key=value, e.g. training.steps=10")
    parsed = _STEP.findall(key) if len(key) <= _LONGEST_KEY else []
    dots = len(parsed) - 1
    understood = sum(len(name) + len(indices) for name, indices in parsed) + dots
    if len(key) != understood:
        raise UsageError(f"--set {key[:80]!a}: not the path of a setting, e.g. groups[0].policies[1].model")
    steps: list[str | int] = []
    for name, indices in parsed:
        steps += [name, *map(int, re.findall(r"\d+", indices))]
    target: Any = raw
    try:
        for step, following in itertools.pairwise(steps):
            if isinstance(target, dict) and target.get(step) is None:
                target[step] = [] if isinstance(following, int) else {}
            if isinstance(target, list) and isinstance(step, int) and isinstance(target[step], str):
                target[step] = {"regime": target[step]}
            target = target[step]
        target[steps[-1]] = parse_yaml(text, f"--set {key}")
    except (KeyError, IndexError, TypeError):
        raise UsageError(f"--set {key}: the suite has no such setting") from None


# of a file, in characters of a value, of a whole number
MAX_BYTES = 1 << 18
MAX_LENGTH = 4096
MAX_BITS = 63
MAX_DEPTH, MAX_VALUES, MAX_LINES = 32, 10_000, 10_000  # shipped suites have hundreds of values, in tens of lines
# What plain words may stand for; dates, merges and the like stay words
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
# 1e-3 is a word to YAML 1.1
_FLOAT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
# Numbers that YAML 1.1 and 1.2 read alike; not so 010, 1:30, 0b11 and 1_000
_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+|(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses all but plain scalars, lists and mappings of moderate size."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        first: [(tag, pattern) for tag, pattern in kinds if tag in _KINDS]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse what a suite has no use for, before it is built: aliases, tags, depth and size without bound, control
        characters."""
        event = self.peek_event()
        tag = getattr(event, "tag", None) or ""
        word = getattr(event, "value", None) or ""
        control = CONTROLS.search(word) or ""
        self.values += 1
        faults = {
            "anchors and aliases are not allowed": isinstance(event, yaml.AliasEvent) or event.anchor,
            f"the tag {tag[:80]!r} is not allowed": tag,
            f"nested deeper than {MAX_DEPTH}": self.depth >= MAX_DEPTH,
            f"more than {MAX_VALUES:,} values": self.values > MAX_VALUES,
            f"a value of more than {MAX_LENGTH:,} characters": len(word) > MAX_LENGTH,
            f"the control character {control and control[0]!a} is not allowed": control,
        }
        _refuse_yaml(event.start_mark, faults)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Refuse numbers that YAML 1.1 and 1.2 read differently, infinite and huge ones."""
        value = super().construct_object(node, deep)
        if node.tag.endswith((":int", ":float")):
            what = f"{node.value!r} is {value} in YAML 1.1 and something else in YAML 1.2"
            is_large = isinstance(value, int) and value.bit_length() > MAX_BITS
            is_infinite = value != value or abs(value) == math.inf
            faults = {
                f"{what}: write the number itself, or quotes": not _NUMBER.fullmatch(node.value),
                f"must be a finite number (got {value})": is_infinite,
                f"must be a number of at most {MAX_BITS} bits": is_large,
            }
            _refuse_yaml(node.start_mark, faults)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse keys that are no words, or occur twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            _refuse_yaml(key.start_mark, {"a key must be a word": not isinstance(key, yaml.ScalarNode)})
            _refuse_yaml(key.start_mark, {f"the key {key.value!r} occurs twice": key.value in seen})
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse_yaml(mark: Any, faults: Mapping[str, Any]) -> None:
    """Refuse a value of a file. Raises MarkedYAMLError for the first fault that is one. mark: its place. faults: in words, with
    whether each is there."""
    for problem, is_there in faults.items():
        if is_there:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+0123456789"])


def parse_yaml(text: str, source: str) -> Any:
    """Read plain data from YAML. Raises SuiteError naming line and column."""
    if len(text.splitlines()) > MAX_LINES:  # even empty ones take the parser long
        raise SuiteError(source, "", f"more than {MAX_LINES:,} lines")
    try:
        loader = _PlainLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SuiteError(source, where, str(error.problem or error.context)) from None
    except yaml.reader.ReaderError as error:
        raise SuiteError(source, "", f"the character {chr(error.character)!a} is not allowed") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SuiteError(source, "", f"not readable as YAML: {str(error).splitlines()[0]}") from None


def read_yaml(path: Path) -> Any:
    """Read plain data from a YAML file. Raises SuiteError, also where the file cannot be read."""
    try:
        text = read_text(path, MAX_BYTES)
    except OSError as error:
        raise SuiteError(str(path), "", in_words(error)) from None
    return parse_yaml(text, str(path))


# Earlier names, which packages of others may import
load = load_suite
find = find_suite
resolve = parse_suite
shipped = shipped_suites
