"""Write docs/keys.md from the schema: every key of a suite with its type, its default and a sentence. A test says when it is not
current: `python tools/suite_keys.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.embedded.plugin import EmbeddedOptions
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.suite.schema import Suite

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
HEAD = """\
# Every key of a suite

Every key of a suite file, with its type, default and bounds.

Written by `python tools/suite_keys.py` from the schema; [suites](suites.md) says how a suite works. In brackets: default and type.
A key without a default is required, unless its line says otherwise. Limits of a million and more are left out. To override a key
for one run: `harness run SUITE --set training.steps=10`. Training samples at `training.temperature` from the whole distribution,
without top-p or top-k. Evaluation samples at `evaluation.temperature` with `evaluation.top_p`.
"""
UNBOUNDED = 1_000_000
ENGINES: dict[str, type[msgspec.Struct]] = {"embedded": EmbeddedOptions, "openrlhf": OpenRLHFSettings}
NAMES = {"string": "text", "object": "mapping"}
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
Keys = dict[str, dict[str, Any]]
"""JSON Schema by key."""


@cache
def models() -> dict[str, Keys]:
    """Keys by the name of their class in the schema."""
    whole = Suite.model_json_schema()
    return {name: one["properties"] for name, one in {"Suite": whole, **whole["$defs"]}.items()}


@cache
def sections() -> dict[str, str]:
    """What stands before the keys of a class, outer ones first."""
    prefixes, waiting = {"Suite": ""}, ["Suite"]
    for outer in waiting:
        for name, one in models()[outer].items():
            said = json.dumps(one)
            new = [inner for inner in re.findall(r"#/\$defs/(\w+)", said) if inner not in prefixes]
            prefixes |= dict.fromkeys(new, f"{prefixes[outer]}{name}{'[]' if 'items' in one else ''}.")
            waiting += new
    return prefixes


def engine_keys(options: type[msgspec.Struct]) -> Keys:
    """With the sentences of the class's docstring as descriptions."""
    keys: Keys = msgspec.json.schema(options)["$defs"][options.__name__]["properties"]
    names = "|".join(keys)
    parts = re.split(
        rf"(?:^|(?<=\s)|(?<=, ))((?:(?:{names}), )*(?:{names})): ", " ".join((options.__doc__ or "").split())
    )
    for told, text in zip(parts[1::2], parts[2::2], strict=True):
        sentence = text.strip().replace("None ", "null ")
        for name in told.split(", "):
            keys[name]["description"] = sentence if sentence.startswith("vLLM") else sentence[:1].upper() + sentence[1:]
    return keys


def chapters() -> Iterator[tuple[str, str, Keys]]:
    """Title, what stands before each key, and keys."""
    for model, prefix in sections().items():
        yield f"`{prefix.rstrip('.')}`" if prefix else "The file", prefix, models()[model]
    for engine, options in ENGINES.items():
        yield f"Options of the {engine} engine", "engine_options.", engine_keys(options)


def page() -> str:
    return HEAD + "".join(f"\n## {title}\n\n{_list(prefix, keys)}" for title, prefix, keys in chapters())


def _list(prefix: str, keys: Keys) -> str:
    lines = []
    for name, one in keys.items():
        default = f"`{_plain(one['default'])}`" if "default" in one else ""
        kind = _type(one).removesuffix(" or null") if default == "`null`" else _type(one)
        sentence = " ".join(one.get("description", "").split())
        lines.append(f"- **`{prefix}{name}`** ({'; '.join(filter(None, (default, kind)))}): {sentence}\n")
    return "".join(lines)


def _type(one: dict[str, Any]) -> str:
    if "$ref" in one:
        model = one["$ref"].rpartition("/")[2]
        path = sections().get(model, "").rstrip(".")
        last = path.rpartition(".")[2].removesuffix("[]")
        return f"[{last}](#{re.sub(r'[^a-z0-9_]', '', path)})" if path else model
    if "enum" in one:
        return ", ".join(f"`{_plain(value)}`" for value in one["enum"])
    if either := one.get("anyOf") or one.get("oneOf"):
        return " or ".join(map(_type, either))
    kind = one.get("type", "any")
    return f"list of {_type(one['items'])}" if kind == "array" else NAMES.get(kind, kind) + _limits(one)


def _limits(one: dict[str, Any]) -> str:
    low, high = one.get("minimum"), one.get("maximum", UNBOUNDED)
    if low is not None and high < UNBOUNDED:
        return f" {low:,g}–{high:,g}"
    return "".join(f" {word} {one[end]:,g}" for end, word in BOUNDS.items() if one.get(end, UNBOUNDED) < UNBOUNDED)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(v) for v in value)}]"
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, float):
        return f"{value:g}"
    return value or '""' if isinstance(value, str) else json.dumps(value)


def missing() -> Iterator[str]:
    """Keys of which nothing is said."""
    for _, prefix, keys in chapters():
        yield from (f"{prefix}{name}" for name, one in keys.items() if not one.get("description"))


def main() -> None:
    if bare := list(missing()):
        sys.exit(f"say what these are (harness/suite/schema.py: in the description): {', '.join(bare)}")
    PAGE.write_text(page(), "utf-8")
    print(f"{PAGE.name}: written")


if __name__ == "__main__":
    main()
