"""Write docs/keys.md from the schema: every key of a suite with its type, its default and a sentence. A test says when it is not
current: `python tools/suite_keys.py`."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from harness.engines.embedded.plugin import EmbeddedOptions
from harness.engines.openrlhf.plugin import Settings
from harness.suite import schema

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
HEAD = """\
# Every key of a suite

Written by `python tools/suite_keys.py` from the schema; [suites](suites.md) says how a suite works. In brackets: default and type.
A key without a default is required, unless its line says otherwise. Limits of a million and more are left out. To override a key
for one run: `harness run SUITE --set training.steps=10`. Training samples at `training.temperature` from the whole distribution,
without top-p or top-k. Evaluation samples at temperature 1.
"""
UNBOUNDED = 1_000_000
ENGINES: dict[str, type[msgspec.Struct]] = {"embedded": EmbeddedOptions, "openrlhf": Settings}
NAMES = {str: "text", int: "integer", float: "number", bool: "boolean", dict: "mapping", Any: "any"}


@cache
def sections() -> dict[type[BaseModel], str]:
    found: dict[type[BaseModel], str] = {schema.Suite: ""}
    waiting: list[type[BaseModel]] = [schema.Suite]
    while waiting:
        outer = waiting.pop(0)
        for name, field in outer.model_fields.items():
            path = f"{found[outer]}{name}{'[]' if 'list' in str(field.annotation) else ''}."
            new = {model: path for model in _models(field.annotation) if model not in found}
            found |= new
            waiting += new
    return found


def page() -> str:
    parts = [HEAD]
    for model, prefix in sections().items():
        rows = [
            (
                prefix + name,
                _type(field.annotation) + _limits(field.annotation, tuple(field.metadata)),
                _value(field.default),
                field.description or "",
            )
            for name, field in model.model_fields.items()
        ]
        title = f"`{prefix.rstrip('.')}`" if prefix else "The file"
        parts.append(f"\n## {title}\n\n{_list(rows)}")
    for engine, options in ENGINES.items():
        told = _told(options)
        rows = [
            (f"engine_options.{f.name}", _type(f.type), _value(f.default), _sentence(told.get(f.name, "")))
            for f in msgspec.structs.fields(options)
        ]
        parts.append(f"\n## Options of the {engine} engine\n\n{_list(rows)}")
    return "".join(parts)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _models(argument)


def _list(rows: list[tuple[str, str, str, str]]) -> str:
    lines = []
    for key, kind, default, sentence in rows:
        kind = kind.removesuffix(" or null") if default == "`null`" else kind
        lines.append(f"- **`{key}`** ({'; '.join(filter(None, (default, kind)))}): {' '.join(sentence.split())}\n")
    return "".join(lines)


def _told(options: type[msgspec.Struct]) -> dict[str, str]:
    names = "|".join(f.name for f in msgspec.structs.fields(options))
    parts = re.split(
        rf"(?:^|(?<=\s)|(?<=, ))((?:(?:{names}), )*(?:{names})): ", " ".join((options.__doc__ or "").split())
    )
    listed = zip(parts[1::2], parts[2::2], strict=True)
    return {name: text.strip() for names, text in listed for name in names.split(", ")}


def _sentence(text: str) -> str:
    text = text.replace("None ", "null ")
    return text if text.startswith("vLLM") else text[:1].upper() + text[1:]


def _type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(arguments[0]) + _limits(arguments[0], arguments[1:])
    if origin is Literal:
        return ", ".join(f"`{_plain(a)}`" for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if a is type(None) else _type(a) for a in arguments)
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        path = sections()[kind].rstrip(".")
        return f"[{path.rpartition('.')[2].removesuffix('[]')}](#{re.sub(r'[^a-z0-9_]', '', path)})"
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _limits(kind: Any, metadata: tuple[Any, ...]) -> str:
    if kind not in (int, float):
        return ""
    bounds: dict[str, Any] = {}
    for one in metadata:
        for inner in getattr(one, "metadata", [one]):
            bounds |= {n: v for n in ("ge", "gt", "le", "lt") if (v := getattr(inner, n, None)) is not None}
    low, high = bounds.get("ge"), bounds.get("le")
    if low is not None and high is not None:
        return f" {low:,g}–{high:,g}" if high < UNBOUNDED else f" from {low:,g}"
    words = {"ge": " from ", "gt": " above ", "le": " to ", "lt": " below "}
    return "".join(f"{word}{bounds[end]:,g}" for end, word in words.items() if bounds.get(end, UNBOUNDED) < UNBOUNDED)


def _value(value: Any) -> str:
    if value is PydanticUndefined or value is msgspec.NODEFAULT:
        return ""
    return "`{}`" if isinstance(value, BaseModel) else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_plain(v) for v in value)}]"
    return '""' if value == "" else "{}" if value == {} else f"{value:g}" if isinstance(value, float) else str(value)


def missing() -> Iterator[str]:
    for model in sections():
        yield from (f"{model.__name__}.{name}" for name, field in model.model_fields.items() if not field.description)
    for options in ENGINES.values():
        told = _told(options)
        yield from (f"{options.__name__}.{f.name}" for f in msgspec.structs.fields(options) if f.name not in told)


def main() -> None:
    if bare := list(missing()):
        sys.exit(f"say what these are (harness/suite/schema.py: in the description): {', '.join(bare)}")
    PAGE.write_text(page(), "utf-8")
    print(f"{PAGE.name}: written")


if __name__ == "__main__":
    main()
