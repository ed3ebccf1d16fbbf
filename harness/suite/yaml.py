"""Reading YAML as the hostile data it is: plain scalars, lists and mappings only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.errors import SuiteError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """SafeLoader that refuses aliases, tags, duplicate keys and deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(problem=f"the tag {event.tag!r} is not allowed", problem_mark=event.start_mark)
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str, source: str) -> Any:
    """`text` as plain Python data. Raises SuiteError, naming line and column."""
    loader = _PlainLoader(text)
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SuiteError(source, where, str(error.problem or error.context)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SuiteError(source, "", f"not readable as YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def read(path: Path) -> Any:
    """The file's content as plain Python data. Raises SuiteError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SuiteError(str(path), "", f"larger than {MAX_BYTES:,} bytes: not a suite")
        data = path.read_bytes()
    except OSError as error:
        raise SuiteError(str(path), "", (error.strerror or str(error)).lower()) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SuiteError(str(path), "", "not a text file (invalid UTF-8)") from None
    return parse(text, str(path))
