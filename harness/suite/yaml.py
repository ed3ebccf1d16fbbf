"""Reading YAML as the hostile data it is: plain scalars, lists and mappings only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from harness.errors import SuiteError
from harness.reading import CONTROLS, in_words, read_text

MAX_BYTES, MAX_LENGTH, MAX_BITS = 1 << 18, 4096, 63  # of a file, in characters of a value, of a whole number
MAX_DEPTH, MAX_VALUES = 32, 10_000  # the largest shipped suite has some hundreds of values
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
"""What a plain word may stand for besides itself: dates, merges and the like stay words."""
_FLOAT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
"""As in 1e-3, which YAML 1.1 takes for a word."""
_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+|(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
"""Numbers that YAML 1.1 and 1.2 read alike; 010, 1:30, 0b11 and 1_000 are others, or words, in YAML 1.2."""


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses aliases, tags, duplicate keys, deep nesting, masses of values, control characters, numbers of YAML 1.1 alone."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        first: [(tag, pattern) for tag, pattern in kinds if tag in _KINDS]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        tag, word = getattr(event, "tag", None) or "", getattr(event, "value", None) or ""
        control = CONTROLS.search(word) or ""
        self.values += 1
        _refuse(
            event.start_mark,
            {
                "anchors and aliases are not allowed": isinstance(event, yaml.AliasEvent) or event.anchor,
                f"the tag {tag[:80]!r} is not allowed": tag,
                f"nested deeper than {MAX_DEPTH}": self.depth >= MAX_DEPTH,
                f"more than {MAX_VALUES:,} values": self.values > MAX_VALUES,
                f"a value of more than {MAX_LENGTH:,} characters": len(word) > MAX_LENGTH,
                f"the control character {control and control[0]!a} is not allowed": control,
            },
        )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        number = node.tag.endswith((":int", ":float"))
        found = super().construct_object(node, deep)
        other = (
            f"{node.value!r} is {found} in YAML 1.1 and something else in YAML 1.2: write the number itself, or quotes"
        )
        _refuse(node.start_mark, {other: number and not _NUMBER.fullmatch(node.value)})
        return found

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            _refuse(key.start_mark, {"a key must be a word": not isinstance(key, yaml.ScalarNode)})
            _refuse(key.start_mark, {f"the key {key.value!r} stands twice": key.value in seen})
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse(mark: Any, faults: Mapping[str, Any]) -> None:
    for problem, wrong in faults.items():
        if wrong:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


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
    """Raises SuiteError, with its place, for a number that is NaN, infinite or of more than 64 bits."""
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
