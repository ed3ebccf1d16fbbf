"""Public names are those in `__all__` of the modules in docs/api."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import griffe

from harness import scaffold
from harness.engines.catalogue import PLUGINS as ENGINES
from harness.learning.registry import PLUGINS as REGIMES
from harness.tasks.registry import PLUGINS as TASKS

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    m for page in (ROOT / "docs" / "api").glob("*.md") for m in re.findall(r"(?m)^::: (\S+)$", page.read_text())
)


@cache
def package(root: Path = ROOT) -> griffe.Module:
    found = griffe.load(
        "harness", search_paths=[root], docstring_parser="numpy", allow_inspection=False, try_relative_path=False
    )
    assert isinstance(found, griffe.Module)
    return found


def _imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of all that is imported from the harness."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom) and n.module]
    return [(str(n.module), alias.name) for n in nodes if str(n.module).startswith("harness") for alias in n.names]


def _samples() -> list[tuple[str, str]]:
    found = [
        (str(f.relative_to(ROOT)), f.read_text())
        for folder in ("regimes", "examples")
        for f in (ROOT / folder).rglob("*.py")
    ]
    for registry in (REGIMES, ENGINES, TASKS):
        for flavour in ("", *scaffold.flavours(registry)):
            files = scaffold.rendered(registry, "a-b", flavour).items()
            found += [(f"{registry.noun} {flavour}: {path}", text) for path, text in files if path.endswith(".py")]
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text())
        found += [(str(page.relative_to(ROOT)), block) for block in blocks]
    return found


def test_what_readers_copy_uses_public_names_only() -> None:
    places: Sequence[tuple[str, str, str]] = [
        (place, module, name) for place, source in _samples() for module, name in _imported(source)
    ]
    assert len(places) > 50
    public = {m: {str(n) for n in package()[m.removeprefix("harness.")].exports or ()} for m in MODULES}
    wrong = [
        f"{place}: {module}.{name}" for place, module, name in places if module in public and name not in public[module]
    ]
    assert not wrong, wrong
