"""What a cell's key knows of the code (docs/versions.md).

`versions.toml` has each package's number, raised by hand, and a syntax digest, by which a test finds changed code.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("versions.toml")

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "evaluation": ("harness/evaluation", "harness/session/cell/evaluate.py"),
    "exchange": ("harness/exchange", "harness/experience"),
    "learning": ("harness/learning",),
    "tokenization": ("harness/tokenization",),
    "verification": ("harness/verification",),
    "verification/symbolic": ("harness/verification/algebra.py", "harness/verification/expression.py"),
    "scoring": tuple(
        f"harness/verification/{name}.py"
        for name in ("compared", "countdown", "graders", "literal", "programs", "sandbox")
    ),
    "engines": ("harness/engines",),
    "engines/embedded": ("harness/engines/embedded", "harness/allocation/shapes.py"),
    "engines/openrlhf": ("harness/engines/openrlhf",),
    "stage0": tuple(f"harness/engines/embedded/{name}.py" for name in ("families", "presets", "warmup")),
    "tasks": ("harness/tasks",),
    "session": ("harness/session",),
    "seeds": ("harness/suite/seeds.py",),
    **{
        f"regimes/{file.stem}": (f"regimes/{file.name}",)
        for file in sorted((ROOT / "regimes").glob("*.py"))
        if file.stem != "__init__"
    },
}
"""What computes results: folders and files by package. The longest path that fits a file says whose it is."""
BESIDE = (
    "harness/learning/conformance.py",
    *(f"harness/engines/{name}.py" for name in ("catalogue", "conformance")),
    "harness/engines/embedded/account.py",
    *(f"harness/engines/openrlhf/{name}.py" for name in ("account", "local_ray")),
    *(f"harness/verification/{name}.py" for name in ("catalogue", "conformance")),
    "harness/tasks/conformance.py",
    *(f"harness/session/cell/{name}.py" for name in ("log", "manifests")),
    *(f"harness/session/{part}" for part in ("driver", "single", "suite")),
)
"""What plans, watches, lists or checks: no number of a cell is made here."""

BASE = ("evaluation", "seeds", "tasks", "verification", "engines")
"""What computes the measurement of a base checkpoint, with its engine; a cell needs all of these and the following."""
CELL = (*BASE, "exchange", "learning", "tokenization", "session")


class Recorded(NamedTuple):
    """A package's entry of `versions.toml`. line: where its version stands, from 1."""

    version: int
    syntax: str
    line: int


@cache
def recorded_versions() -> dict[str, Recorded]:
    """Read `versions.toml`: what is recorded of each package, by its name."""
    return parse_versions(TABLE.read_text("utf-8"))


def parse_versions(text: str) -> dict[str, Recorded]:
    """Read the text of a table of versions, by package.

    It is read line by line and not as TOML, so that one with the marks of a merge conflict reads too: of two versions of a
    package the higher counts."""
    table: dict[str, Recorded] = {}
    package = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.fullmatch(r'\["?([\w/]+)"?\]', line)
        if header:
            package = header[1]
            table.setdefault(package, Recorded(0, "", number))
        elif entry := re.fullmatch(r"version = (\d+)", line):
            before = table[package]
            if int(entry[1]) > before.version:
                table[package] = Recorded(int(entry[1]), before.syntax, number)
        elif entry := re.fullmatch(r'syntax = "(\w*)"', line):
            table[package] = table[package]._replace(syntax=entry[1])
    return table


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the packages' recorded versions, by package, as keys hold them."""
    table = recorded_versions()
    return {name: str(table[name].version) for name in sorted(packages)}


def files_of(package: str) -> list[Path]:
    """List the files of a package, without those that lie below its folders but are another's, or nobody's."""
    places = [ROOT / place for place in PACKAGES[package]]
    files = (file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    return sorted(file for file in files if owner_of(file) == package)


def owner_of(file: Path) -> str | None:
    """Name the package whose file this is; None where no number depends on the file."""
    path = file.relative_to(ROOT).as_posix()
    if any(_lies_within(path, place) for place in BESIDE):
        return None
    places = [(place, name) for name, own in PACKAGES.items() for place in own if _lies_within(path, place)]
    if places:
        return max(places, key=lambda place: len(place[0]))[1]
    return None


def _lies_within(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def syntax_of(package: str) -> str:
    """Digest the syntax of a package's present code, as `versions.toml` records it."""
    return syntax_digest({file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files_of(package)})


def syntax_digest(sources: Mapping[str, str]) -> str:
    """Digest syntax trees, without docstrings, comments and layout: 16 hexadecimal digits, the same from Python 3.11 to 3.13."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(sources):
        digest.update(f"{name}\0{_shape_of_tree(ast.parse(sources[name]))}\0".encode())
    return digest.hexdigest()


def _shape_of_tree(node: object) -> str:
    """Write a syntax tree out, without what says nothing: empty fields, docstrings, `pass`, and fields that other Pythons
    lack."""
    if isinstance(node, ast.AST):
        fields = [(name, _shape_of_tree(value)) for name, value in ast.iter_fields(node) if name not in _UNREAD]
        inner = ", ".join(f"{name}={shape}" for name, shape in fields if shape not in ("[]", "None"))
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{', '.join(_shape_of_tree(item) for item in node if not _says_nothing(item))}]"
    return repr(node)


_UNREAD = {"ctx", "kind", "type_comment", "type_ignores"}


def _says_nothing(node: object) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Pass)
