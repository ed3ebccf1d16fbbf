"""Results versions: what a cell's key knows of the code that computes it (docs/versions.md).

`versions.toml` holds a number for each package, raised by hand when results change, beside a digest of the package's syntax,
by which a test finds code that changed under the same number. The digest reads neither docstrings nor comments nor layout.
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
    "scoring": ("harness/scoring",),
    "engines": ("harness/engines",),
    "engines/embedded": ("harness/engines/embedded", "harness/allocation/chunks.py"),
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
    *(f"harness/learning/{name}.py" for name in ("conformance", "situations")),
    *(f"harness/engines/{name}.py" for name in ("catalogue", "conformance")),
    "harness/engines/openrlhf/local_ray.py",
    *(f"harness/scoring/{name}.py" for name in ("catalogue", "conformance")),
    *(f"harness/tasks/{name}.py" for name in ("conformance", "listing")),
    *(f"harness/session/cell/{name}.py" for name in ("log", "manifests", "provenance")),
    *(f"harness/session/policy/{name}.py" for name in ("roots", "weights")),
    *(
        f"harness/session/driver/{name}.py"
        for name in ("__init__", "jobs", "matrix", "worker_messages", "process", "progress", "worker")
    ),
    *(f"harness/session/single/{name}.py" for name in ("__init__", "calibrate", "rescoring", "standalone")),
    *(
        f"harness/session/suite/{name}.py"
        for name in (
            "__init__",
            "demands",
            "draft",
            "identity",
            "lock",
            "planning",
            "preflight",
            "prepare",
            "room",
            "rules",
        )
    ),
)
"""What plans, watches, lists or checks: no number of a cell is made here."""

BASE = ("evaluation", "seeds", "tasks", "verification", "engines")
"""What computes the measurement of a base checkpoint, with its engine; a cell needs all of these and the following."""
CELL = (*BASE, "exchange", "learning", "tokenization", "session")


class Recorded(NamedTuple):
    """A package's line in the table. `line`: where its version stands, from 1."""

    version: int
    syntax: str
    line: int


@cache
def recorded() -> dict[str, Recorded]:
    """The table. It is read line by line, so that one with the marks of a merge conflict reads too: the higher version counts."""
    return parse(TABLE.read_text("utf-8"))


def parse(text: str) -> dict[str, Recorded]:
    """The table from its text."""
    found: dict[str, Recorded] = {}
    package = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r'\["?([\w/]+)"?\]', line):
            package = header[1]
            found.setdefault(package, Recorded(0, "", number))
        elif entry := re.fullmatch(r"version = (\d+)", line):
            before = found[package]
            if int(entry[1]) > before.version:
                found[package] = Recorded(int(entry[1]), before.syntax, number)
        elif entry := re.fullmatch(r'syntax = "(\w*)"', line):
            found[package] = found[package]._replace(syntax=entry[1])
    return found


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Results versions by package, as a key holds them."""
    table = recorded()
    return {name: str(table[name].version) for name in sorted(packages)}


def files_of(package: str) -> list[Path]:
    """The package's Python files."""
    return sorted(file for place in PACKAGES[package] for file in _python(ROOT / place) if owner(file) == package)


def owner(file: Path) -> str | None:
    """The package that a file belongs to; None where no number of a cell depends on it."""
    path = file.relative_to(ROOT).as_posix()
    if path in BESIDE:
        return None
    places = [
        (place, name)
        for name, own in PACKAGES.items()
        for place in own
        if path == place or path.startswith(place + "/")
    ]
    return max(places, key=lambda found: len(found[0]))[1] if places else None


def _python(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("*.py"))


def syntax_of(package: str) -> str:
    """Digest of a package's syntax trees and of its files' names."""
    return syntax_digest({file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files_of(package)})


def syntax_digest(sources: Mapping[str, str]) -> str:
    """16 hexadecimal digits over syntax trees by file name. Docstrings (of attributes too), comments, layout, and fields that only
    some versions of Python write are left out: 3.11 to 3.13 give the same digest."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(sources):
        digest.update(f"{name}\0{_shape(ast.parse(sources[name]))}\0".encode())
    return digest.hexdigest()


def _shape(node: object) -> str:
    if isinstance(node, ast.AST):
        fields = [(name, _shape(value)) for name, value in ast.iter_fields(node) if name not in _UNREAD]
        inner = ", ".join(f"{name}={shape}" for name, shape in fields if shape not in ("[]", "None"))
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{', '.join(_shape(item) for item in node if not _says_nothing(item))}]"
    return repr(node)


_UNREAD = {"ctx", "kind", "type_comment", "type_ignores"}


def _says_nothing(node: object) -> bool:
    """A docstring, or a `pass`."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Pass)
