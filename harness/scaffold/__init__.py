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

import yaml

from harness.errors import UsageError
from harness.plugins import PluginRegistry

TEMPLATES = Path(__file__).parent
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
RESERVED = {"setup", "conftest", "evaluations"}


def write_package(plugins: PluginRegistry[Any], name: str, into: Path, flavour: str = "") -> Path:
    """Returns `into`/NAME. Raises UsageError for a name that is unfit or taken, or a folder that exists or cannot be
    written."""
    module = name.replace("-", "_")
    noun = _with_article(plugins.noun)
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(module):
        form = f"lower-case letters, digits and single hyphens, a letter first, at most {LONGEST}"
        raise UsageError(f"{name!r} cannot name {noun}: {form}")
    texts = render_package(plugins, name, flavour)
    for kind in re.findall(r'^\[project\.entry-points\."harness\.(\w+)s"', texts["pyproject.toml"], re.MULTILINE):
        taken = PluginRegistry(f"harness.{kind}s", kind, object).installed().get(name)
        if taken is not None:
            raise UsageError(f"{_with_article(kind)} {name!r} is installed already ({taken.value})")
    if (
        yaml.safe_load(name) != name
        or module in RESERVED
        or any(_clashes_with_text(text, name) for text in texts.values())
    ):
        raise UsageError(f"{name!r} cannot name {noun}: it means something else in Python, in YAML or in the package")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UsageError(f"{name!r}: a Python module {module!r} exists already; its name would be ambiguous")
    folder = into / name
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists already") from None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from None
    return folder


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _clashes_with_text(text: str, name: str) -> bool:
    """Whether the class has a keyword's name, or one that the text defines or imports."""
    title = _class_name(name)
    module = name.replace("-", "_")
    named = re.findall(rf"^(?:class|from (?!{module}\b)\S+ import\b.*) {title}\b", text, re.MULTILINE)
    return keyword.iskeyword(title) or len(named) > 1


def list_flavours(plugins: PluginRegistry[Any]) -> list[str]:
    kind = plugins.group.removeprefix("harness.").removesuffix("s")
    return sorted(folder.name.removeprefix(f"{kind}-") for folder in TEMPLATES.glob(f"{kind}-*"))


def render_package(plugins: PluginRegistry[Any], name: str, flavour: str = "") -> dict[str, str]:
    kind = plugins.group.removeprefix("harness.").removesuffix("s")
    module = name.replace("-", "_")
    title = _class_name(name)
    words = {"name": name, "module": module, "title": title, "group": plugins.group, "kind": kind, "noun": plugins.noun}
    return {
        file.relative_to(root).as_posix().removesuffix(".tmpl").replace("NAME", module): Template(
            file.read_text(encoding="utf-8")
        ).substitute(words)
        for root in (TEMPLATES / kind, *([TEMPLATES / f"{kind}-{flavour}"] if flavour else []))
        for file in sorted(root.rglob("*.tmpl"))
    }
