"""Each tutorial runs whole, command by command as printed, in a folder and an environment of its own."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "engines"))
from models import TURNS, byte_level, write

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def commands(page: Path) -> list[str]:
    return [line.strip() for line in page.read_text("utf-8").splitlines() if line.startswith("    ")]


@pytest.fixture
def reader(tmp_path: Path) -> dict[str, str]:
    """An environment in which pip asks nobody, with this harness in it, and its empty working folder."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=200)
    packages = next((environment / "lib").glob("python*/site-packages"))
    places = [str(ROOT), *site.getsitepackages(), *(p for p in sys.path if p.endswith("site-packages"))]
    (packages / "harness.pth").write_text("\n".join(dict.fromkeys(places)))
    for name, code in (
        ("pip", "import sys; from pip._internal.cli.main import main; sys.exit(main())"),
        ("harness", "from harness.cli import main; main()"),
        ("pytest", "import sys, pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', '-n', '0', *sys.argv[1:]]))"),
    ):
        program = environment / "bin" / name
        program.write_text(f"#!{environment / 'bin' / 'python'}\n{code}\n")
        program.chmod(0o755)
    (tmp_path / "work" / "results").mkdir(parents=True)
    (tmp_path / "work" / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | pip | {"PATH": path, "PWD": str(tmp_path / "work")}


def test_there_are_four_and_the_documentation_lists_them() -> None:
    index, site_map = ((ROOT / name).read_text("utf-8") for name in ("docs/index.md", "mkdocs.yml"))
    assert len(TUTORIALS) == 4
    for page in TUTORIALS:
        assert f"({page.name})" in index
        assert f": {page.name}\n" in site_map
        assert len(commands(page)) >= 4
        assert re.match(r"# Tutorial: .+\n\n\S.*\.\n\n", page.read_text("utf-8")), "its purpose is its first line"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_printed(page: Path, reader: dict[str, str]) -> None:
    work = Path(reader["PWD"])
    if "./model-a" in page.read_text("utf-8"):
        for name in ("model-a", "model-b"):
            write(work / name, byte_level(), TURNS, ends=["<|done|>"], positions=2048, eos_token="<|eos|>")
    for command in commands(page):
        done = subprocess.run(command, shell=True, cwd=work, env=reader, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr
        if command.startswith(("harness show", "harness sql", "harness plan", "ls ")):
            assert done.stdout.strip(), command
