"""`harness new-regime NAME` and its like: a plugin package that installs, passes its contract's test and runs as it is."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from harness.errors import UsageError
from harness.plugins import Door

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40


PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "harness-$kind-$name"
version = "0.1.0"
description = "The $noun $name for the experience-sharing harness"
requires-python = ">=3.11"
dependencies = ["experience-sharing-harness"]

[project.entry-points."$group"]
$name = "$module:$title"
"""
"""What each package's pyproject.toml begins with."""


def write_package(door: Door[Any], files: Mapping[str, str], name: str, into: Path) -> Path:
    """Write the package `into`/NAME and return its folder.

    files: templates of text by template of path, with $name, $module, $title, $group, $kind and $noun.

    Raises
    ------
    UsageError
        The name cannot be a plugin's and a module's, is taken, or the folder exists or cannot be written.
    """
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(module):
        raise UsageError(
            f"{name!r} cannot name {_a(door.noun)}: lower-case letters, digits and single hyphens, a letter first, "
            f"at most {LONGEST}"
        )
    taken = door.installed().get(name)
    if taken is not None:
        raise UsageError(f"{_a(door.noun)} {name!r} is installed already ({taken.value})")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UsageError(f"{name!r}: a Python module {module!r} exists already; its name would be ambiguous")
    folder = into / name
    title = "".join(part.capitalize() for part in name.split("-"))
    kind = door.group.removeprefix("harness.").removesuffix("s")
    words = {"name": name, "module": module, "title": title, "group": door.group, "kind": kind, "noun": door.noun}
    try:
        folder.mkdir(parents=True)
        for path, text in files.items():
            file = folder / Template(path).substitute(words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(words), encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists already") from None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from None
    return folder


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
