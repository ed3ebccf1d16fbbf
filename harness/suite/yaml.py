"""Reading YAML as the hostile data it is: plain scalars, lists and mappings only."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from harness.errors import SuiteError
from harness.reading import CONTROLS, in_words, read_text

MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Of a file; the largest shipped suite has some hundreds."""
MAX_LENGTH = 4096
"""Characters of one value."""
MAX_BITS = 63
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
"""What a plain word may stand for besides itself: dates, merges and the like stay words."""


_FLOAT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
"""As in 1e-3, which YAML 1.1 takes for a word."""


_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+|(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
"""Numbers that YAML 1.1 and 1.2 read alike; 010, 1:30, 0b11 and 1_000 are others, or words, in YAML 1.2."""


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """SafeLoader that refuses aliases, tags, duplicate keys, deep nesting, masses of values, control characters in them, and
    numbers of YAML 1.1 alone."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        first: [(tag, pattern) for tag, pattern in kinds if tag in _KINDS]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0
    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem=f"the tag {event.tag[:80]!r} is not allowed", problem_mark=event.start_mark
            )
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=event.start_mark)
        self.values += 1
        if self.values > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES:,} values", problem_mark=event.start_mark)
        word = getattr(event, "value", None) or ""
        if len(word) > MAX_LENGTH:
            problem = f"a value of more than {MAX_LENGTH:,} characters"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if control := CONTROLS.search(word):
            problem = f"the control character {control[0]!a} is not allowed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        number = node.tag.endswith((":int", ":float"))
        found = super().construct_object(node, deep)
        if number and not _NUMBER.fullmatch(node.value):
            problem = f"{node.value!r} is {found} in YAML 1.1 and something else in YAML 1.2: write the number itself, or quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return found

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+0123456789"])


def parse(text: str, source: str) -> Any:
    """`text` as plain Python data. Raises SuiteError, naming line and column."""
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


def read(path: Path) -> Any:
    """The file's content as plain Python data. Raises SuiteError."""
    try:
        text = read_text(path, MAX_BYTES)
    except OSError as error:
        raise SuiteError(str(path), "", in_words(error)) from None
    return parse(text, str(path))


def check_numbers(value: Any, source: str, path: str = "") -> None:
    """Raises SuiteError, with its place, for a number that is none (NaN), has no end or more than 64 bits: no setting means it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_numbers(inner, source, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_numbers(inner, source, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise SuiteError(source, path, f"must be a finite number (got {value})")
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SuiteError(
            source, path, f"must be a number of at most {MAX_BITS} bits (this one has {value.bit_length()})"
        )
