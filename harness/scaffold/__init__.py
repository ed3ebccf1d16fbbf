"""`harness new-regime NAME` and its like: a plugin package that installs, runs and passes its contract's test.

Templates are in the folders of its kind and flavour (`regime-hints`); NAME in a path is the module.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

from harness.errors import UsageError
from harness.plugins import PluginRegistry

TEMPLATES = Path(__file__).parent
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40


def write_package(plugins: PluginRegistry[Any], name: str, into: Path, flavour: str = "") -> Path:
    """Returns `into`/NAME. Raises UsageError for a name that is unfit or taken, or a folder that exists or cannot be
    written."""
    module = name.replace("-", "_")
    noun = f"{'an' if plugins.noun[0] in 'aeiou' else 'a'} {plugins.noun}"
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(module):
        form = f"lower-case letters, digits and single hyphens, a letter first, at most {LONGEST}"
        raise UsageError(f"{name!r} cannot name {noun}: {form}")
    if (taken := plugins.installed().get(name)) is not None:
        raise UsageError(f"{noun} {name!r} is installed already ({taken.value})")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UsageError(f"{name!r}: a Python module {module!r} exists already; its name would be ambiguous")
    folder = into / name
    try:
        folder.mkdir(parents=True)
        for path, text in rendered(plugins, name, flavour).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists already") from None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from None
    return folder


def flavours(plugins: PluginRegistry[Any]) -> list[str]:
    """Possible values of `flavour`."""
    kind = plugins.group.removeprefix("harness.").removesuffix("s")
    return sorted(folder.name.removeprefix(f"{kind}-") for folder in TEMPLATES.glob(f"{kind}-*"))


def rendered(plugins: PluginRegistry[Any], name: str, flavour: str = "") -> dict[str, str]:
    """Texts by path."""
    kind, module = plugins.group.removeprefix("harness.").removesuffix("s"), name.replace("-", "_")
    title = "".join(part.capitalize() for part in name.split("-"))
    words = {"name": name, "module": module, "title": title, "group": plugins.group, "kind": kind, "noun": plugins.noun}
    return {
        file.relative_to(root).as_posix().removesuffix(".tmpl").replace("NAME", module): Template(
            file.read_text(encoding="utf-8")
        ).substitute(words)
        for root in (TEMPLATES / kind, *([TEMPLATES / f"{kind}-{flavour}"] if flavour else []))
        for file in sorted(root.rglob("*.tmpl"))
    }
