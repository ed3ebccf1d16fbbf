"""The house's rules: imports point downward, light packages stay light, every shipped suite loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEVELS = {
    "cache": 0,
    "errors": 0,
    "versions": 0,
    "limits": 0,
    "files": 1,
    "plugins": 1,
    "scaffold": 2,
    "phases": 0,
    "reading": 0,
    "suite": 1,
    "verification": 2,
    "statistics": 1,
    "experience": 3,
    "scoring": 3,
    "store": 3,
    "published": 3,
    "exchange": 5,
    "allocation": 4,
    "learning": 5,
    "tokenization": 4,
    "tasks": 5,
    "engines": 6,
    "formats": 6,
    "bandit": 6,
    "regimes": 6,
    "evaluation": 7,
    "session": 8,
    "clusters": 9,
    "leaderboard": 9,
    "tuning": 9,
    "rehearsal": 9,
    "submission": 10,
    "cli": 11,
}
"""A package imports only packages of a lower level. The harness itself reaches regimes by their entry points alone. `exchange` is
above `tokenization`, as its receiving half retokenises; neither it nor `learning` knows the other: both stand on `experience`."""
OUTSIDE = {"regimes", "leaderboard"}
PARTS = ("policy", "cell", "single", "suite", "driver")
"""Of `harness.session`: what a model is; one cell's training; commands on one checkpoint; what a suite needs and is; worker
processes. A room imports only rooms before it."""


def _imports(file: Path) -> set[str]:
    """Dotted modules imported anywhere in the file, for its types alone too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _files(package: str) -> list[Path]:
    place = (ROOT if package in OUTSIDE else ROOT / "harness") / package
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def _package(module: str) -> str | None:
    """The package of this project that a dotted module belongs to."""
    first, *rest = module.split(".")
    return rest[0] if first == "harness" and rest else first if first in OUTSIDE | {"tests", "benchmarks"} else None


@pytest.mark.parametrize("package", sorted(LEVELS))
def test_imports_point_downward(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in _files(package)
        for name in sorted(_imports(file))
        if (other := _package(name)) not in {None, package}
        and (LEVELS.get(str(other), 99) >= LEVELS[package] or other == "regimes")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_level() -> None:
    packages = {p.stem for p in (ROOT / "harness").iterdir() if (p.is_dir() or p.suffix == ".py") and p.name[0] != "_"}
    assert packages | OUTSIDE == set(LEVELS)


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_the_session_import_downward(part: str) -> None:
    above = PARTS[PARTS.index(part) + 1 :]
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in _files(f"session/{part}")
        for name in sorted(_imports(file))
        if name.startswith("harness.session.") and name.split(".")[2] in above
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_of_the_session_is_in_a_part() -> None:
    here = {p.stem for p in (ROOT / "harness/session").iterdir() if p.is_dir() or p.suffix == ".py"} - {"__pycache__"}
    assert here == {"__init__", *PARTS}


def test_regimes_need_no_torch() -> None:
    for file in (ROOT / "regimes").rglob("*.py"):
        assert not {n.split(".")[0] for n in _imports(file)} & {"torch", "transformers", "ray"}, file


LIGHT = (
    "harness.suite.load",
    "harness.session.suite.prepare",
    "harness.session.suite.gaps",
    "harness.session.driver.matrix",
    "harness.session.suite.preflight",
    "harness.learning.registry",
    "harness.store.read",
    "harness.statistics",
    "harness.cli.app",
    "regimes.hacpo",
    "harness.engines.embedded.presets",
    "harness.learning.minibatches",
    "harness.session.suite.planning",
    "leaderboard.views",
    "leaderboard.report",
    "harness.store.imported_results",
)


def test_light_modules_import_without_torch() -> None:
    code = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module)\n"
        "    if heavy := sorted({'torch', 'transformers', 'lm_eval', 'ray', 'mpmath'} & set(sys.modules)):\n"
        "        sys.exit(f'{module} imports {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", code, *LIGHT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound(tree: ast.AST) -> set[str]:
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _changed(tree: ast.AST) -> list[ast.expr]:
    """Attributes and items of imported things that are assigned to."""
    imported = _bound(tree) - {"self"}
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        changed = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        targets += [t for each in changed for t in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return [t for t in targets if isinstance(t, ast.Attribute | ast.Subscript) and _root(t) in imported]


ENGINE = sorted((ROOT / "harness" / "engines" / "openrlhf").glob("*.py"))


@pytest.mark.parametrize("file", [f for f in ENGINE if f.stem != "seams"], ids=lambda f: f.stem)
def test_openrlhf_is_touched_inside_in_one_module(file: Path) -> None:
    tree = ast.parse(file.read_text())
    changed = [ast.unparse(target) for target in _changed(tree)]
    assert not [c for c in changed if not c.startswith(("os.environ[", "sys.modules["))]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    private = [node for node in attributes if node.attr.startswith("_") and not node.attr.endswith("__")]
    assert not [ast.unparse(n) for n in private if ast.unparse(n.value) not in ("self", "super()")]
    assert not [name for name in _imports(file) if "._" in name]
    assert "__ray_metadata__" not in file.read_text()


@pytest.mark.parametrize("package", ["harness", "regimes", "leaderboard"])
def test_the_product_mocks_nothing(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
        assert not [name for name in _imports(file) if name.startswith(("unittest", "mock"))], file
        module = ast.parse(file.read_text())
        bare = ast.Module([n for n in module.body if not isinstance(n, ast.FunctionDef | ast.ClassDef)], [])
        assert not [ast.unparse(t) for t in _changed(bare)], file


def test_the_page_on_architecture_has_every_package_in_its_layer() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.M)
    assert {package: int(layer) for layer, packages in rows for package in re.findall(r"`(\w+)`", packages)} == LEVELS


JOURNEYS = {"From a suite file to its row": 25, "From a peer's answer to the loss": 18}
"""Most modules of a journey that docs/architecture.md lists."""


def _read_journey(title: str) -> tuple[list[str], list[str], int]:
    """The names in a journey's third column, the modules in its fourth, and how many modules the text counts."""
    text = (ROOT / "docs/architecture.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    names: list[str] = []
    modules: list[str] = []
    for line in text.splitlines():
        if not re.match(r"\| \d+ \|", line):
            continue
        _, _, _, functions, places, _ = line.split("|")
        names += re.findall(r"`([\w.]+)`", functions)
        folder = ""
        for place in re.findall(r"`([\w/]+)`", places):
            if "/" in place:
                folder = place.rpartition("/")[0]
                modules.append(place)
            else:
                modules.append(f"{folder}/{place}")
    counted = re.search(r"These are (\d+) modules", text)
    assert counted is not None
    return names, modules, int(counted[1])


def _names_defined_in(module: str) -> set[str]:
    """Functions, classes and `Class.method`s of a module that a journey names."""
    base = ROOT if module.startswith("regimes/") else ROOT / "harness"
    names: set[str] = set()
    for node in ast.parse((base / f"{module}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            names |= methods | {f"{node.name}.{method}" for method in methods}
    return names


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_journey_names_what_is_there(title: str) -> None:
    names, modules, counted = _read_journey(title)
    assert len(set(modules)) == counted <= JOURNEYS[title]
    defined = set[str]()
    for module in set(modules) - {"regimes/NAME"}:
        defined |= _names_defined_in(module)
    assert set(names) <= defined
