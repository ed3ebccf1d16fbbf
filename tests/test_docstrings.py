"""Public names are those in `__all__` of the modules in docs/api: each has a docstring, which invents nothing."""

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
from harness.engines.catalogue import DOOR as ENGINES
from harness.learning.registry import DOOR as REGIMES
from harness.tasks.registry import DOOR as TASKS

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    m for page in (ROOT / "docs" / "api").glob("*.md") for m in re.findall(r"(?m)^::: (\S+)$", page.read_text())
)


@cache
def package(root: Path = ROOT) -> griffe.Module:
    """The harness as written, nothing imported."""
    found = griffe.load(
        "harness", search_paths=[root], docstring_parser="numpy", allow_inspection=False, try_relative_path=False
    )
    assert isinstance(found, griffe.Module)
    return found


def described(found: griffe.Object, kind: griffe.DocstringSectionKind) -> list[str] | None:
    """Names that a section of the docstring lists; None without such a section."""
    sections = [s for s in (found.docstring.parsed if found.docstring else []) if s.kind is kind]
    return (
        [name.lstrip("*") for s in sections for item in s.value for name in item.name.split(", ")] if sections else None
    )


def overridden(found: griffe.Object) -> list[griffe.Object]:
    """What bases say of the same name, where they say something."""
    bases = found.parent.mro() if isinstance(found.parent, griffe.Class) else []
    same = [base.members[found.name] for base in bases if found.name in base.members]
    return [m for m in same if isinstance(m, griffe.Object) and m.docstring]


def invented(found: griffe.Function | griffe.Class) -> Iterator[str]:
    listed = described(found, griffe.DocstringSectionKind.parameters) or []
    taken = {p.name for p in found.parameters}
    yield from (
        f"{found.path}: `Parameters` has {name}, it takes no such thing" for name in listed if name not in taken
    )


def class_faults(kind: griffe.Class) -> Iterator[str]:
    if not described(kind, griffe.DocstringSectionKind.parameters) or "dataclass" not in kind.labels:
        yield from invented(kind)
    known = {n for base in (kind, *kind.mro()) for n in (*base.members, *_set_on_self(base))}
    named = described(kind, griffe.DocstringSectionKind.attributes) or []
    yield from (f"{kind.path}: `Attributes` has {name}, the class has not" for name in named if name not in known)
    for name, member in kind.members.items():
        if not member.is_alias and (not name.startswith("_") or (name == "__init__" and member.docstring)):
            yield from faults(member)


def _set_on_self(kind: griffe.Class) -> set[str]:
    return set(re.findall(r"self\.(\w+)\b[^=\n]*=[^=]", kind.source))


def faults(found: griffe.Object | griffe.Alias) -> Iterator[str]:
    """What the docstring of a public name lacks or invents."""
    target = found.final_target if isinstance(found, griffe.Alias) else found
    if not target.docstring and not overridden(target):
        inside = isinstance(target.parent, griffe.Class) and target.is_attribute and "property" not in target.labels
        if not inside:  # fields stand in their class's `Attributes`
            yield f"{target.path}: no docstring"
    if isinstance(target, griffe.Function):
        yield from invented(target)
    elif isinstance(target, griffe.Class):
        yield from class_faults(target)


def parsing_faults(found: griffe.Object | griffe.Alias) -> None:
    """Parse each docstring below, for griffe's warnings."""
    target = found.final_target if isinstance(found, griffe.Alias) else found
    if target.docstring:
        _ = target.docstring.parsed
    for member in target.members.values() if isinstance(target, griffe.Class) else ():
        if not member.is_alias:
            parsing_faults(member)


def module_faults(module: griffe.Module) -> list[str]:
    if module.exports is None:
        return [f"{module.path}: no `__all__`"]
    names = [str(name) for name in module.exports]
    found = [f"{module.path}: `__all__` names {n}, which does not exist" for n in names if n not in module.members]
    if not module.docstring:
        found.append(f"{module.path}: no docstring")
    return found + [fault for name in names if name in module.members for fault in faults(module.members[name])]


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings_that_invent_nothing(module: str, caplog: pytest.LogCaptureFixture) -> None:
    loaded = package()[module.removeprefix("harness.")]
    with caplog.at_level(logging.WARNING, "griffe"):
        for name in loaded.exports or ():
            if str(name) in loaded.members:
                parsing_faults(loaded.members[str(name)])
    found = [*module_faults(loaded), *(record.getMessage() for record in caplog.records)]
    assert not found, "\n".join(found)


def _imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of all that is imported from the harness."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom) and n.module]
    return [(str(n.module), alias.name) for n in nodes if str(n.module).startswith("harness") for alias in n.names]


def _samples() -> list[tuple[str, str]]:
    """Everything that a reader copies from: (place, source)."""
    found = [
        (str(f.relative_to(ROOT)), f.read_text())
        for folder in ("regimes", "examples")
        for f in (ROOT / folder).rglob("*.py")
    ]
    for door in (REGIMES, ENGINES, TASKS):
        files = scaffold.rendered(door, "a-b").items()
        found += [(f"{door.noun}: {path}", text) for path, text in files if path.endswith(".py")]
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


BROKEN = '''"""A module."""
__all__ = ["Missing", "Two", "bare", "half"]


class Two:
    """Of two fields.

    Attributes
    ----------
    left
        The left one.
    middle
        There is none.
    """

    left: int
    right: int


def bare(): ...


def half(x: int, y: int) -> int:
    """Half of it.

    Parameters
    ----------
    x
        A number.
    z
        No such thing.
    """
'''


def test_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text(BROKEN)
    found = "\n".join(module_faults(package(tmp_path)))
    for fault in (
        "`__all__` names Missing, which does not exist",
        "bare: no docstring",
        "half: `Parameters` has z, it takes no such thing",
        "`Attributes` has middle, the class has not",
    ):
        assert fault in found
