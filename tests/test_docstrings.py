"""Public names are those in `__all__` of the modules in docs/api."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import griffe
import pytest

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
    loaded = griffe.load(
        "harness", search_paths=[root], docstring_parser="numpy", allow_inspection=False, try_relative_path=False
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def public(thing: griffe.Object | griffe.Alias) -> Iterator[griffe.Object]:
    """The object, and of a class what is public in it."""
    target = thing.final_target if isinstance(thing, griffe.Alias) else thing
    assert isinstance(target, griffe.Object)
    yield target
    for name, member in target.members.items() if isinstance(target, griffe.Class) else ():
        if not member.is_alias and (name[0] != "_" or (name == "__init__" and member.docstring)):
            yield from public(member)


def faults(target: griffe.Object) -> Iterator[str]:
    """That it has no docstring, nor do bases say anything of the name, or lists a name that does not exist."""
    bases = target.parent.mro() if isinstance(target.parent, griffe.Class) else []
    field = isinstance(target.parent, griffe.Class) and target.is_attribute and "property" not in target.labels
    told = target.module.docstring
    if told and f" {target.name} " in told.value:  # as of `harness.errors`
        return
    if not target.docstring:
        if not field and not any(base.members[target.name].docstring for base in bases if target.name in base.members):
            yield f"{target.path}: no docstring"
        return
    known = {p.name for p in target.parameters} if isinstance(target, griffe.Function | griffe.Class) else set()
    for base in (target, *target.mro()) if isinstance(target, griffe.Class) else ():
        known |= {*base.members, *re.findall(r"self\.(\w+)\b[^=\n]*=[^=]", base.source)}
    for section in target.docstring.parsed:
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes):
            names = {name.lstrip("*") for item in section.value for name in item.name.split(", ")}
            yield from (f"{target.path}: the docstring lists {name}, which does not exist" for name in names - known)


def module_faults(module: griffe.Module) -> list[str]:
    names = [str(name) for name in module.exports or ()]
    of_module = [] if names and module.docstring else [f"{module.path}: no `__all__`, or no docstring"]
    of_module += [f"{module.path}: `__all__` names {n}, which does not exist" for n in names if n not in module.members]
    there = (target for name in names if name in module.members for target in public(module.members[name]))
    return of_module + [fault for target in there for fault in faults(target)]


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings_that_invent_nothing(module: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "griffe"):
        of_module = module_faults(package()[module.removeprefix("harness.")])
    assert not [*of_module, *(record.getMessage() for record in caplog.records)]


def _imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of all that is imported from the harness."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom) and n.module]
    return [(str(n.module), alias.name) for n in nodes if str(n.module).startswith("harness") for alias in n.names]


def _samples() -> list[tuple[str, str]]:
    samples = [
        (str(f.relative_to(ROOT)), f.read_text())
        for folder in ("regimes", "examples")
        for f in (ROOT / folder).rglob("*.py")
    ]
    for registry in (REGIMES, ENGINES, TASKS):
        for flavour in ("", *scaffold.list_flavours(registry)):
            files = scaffold.render_package(registry, "a-b", flavour).items()
            samples += [(f"{registry.noun} {flavour}: {path}", text) for path, text in files if path.endswith(".py")]
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text())
        samples += [(str(page.relative_to(ROOT)), block) for block in blocks]
    return samples


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
