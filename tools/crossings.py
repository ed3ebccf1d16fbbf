"""How many rooms a run walks through before it computes: calls from one package of `harness` into another, counted.

    python tools/crossings.py quickstart                         of `harness run`, until its first worker process starts
    python tools/crossings.py quickstart --results FOLDER        over results that are there: where all is done, until the end
    python tools/crossings.py quickstart --tree FOLDER           of another working tree, such as an earlier commit's

A call counts where the function that calls and the one that is called are both of `harness`, and of different packages; a module
at the top, such as `errors`, is a package. Calls by way of a library's function do not count, nor do imports.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

WATCHED = """
import sys; sys.path.insert(0, {tree!r}); sys.path.insert(1, {tools!r})
import crossings; crossings.watch({tree!r}, {suite!r}, {results!r}, {shown})
"""


def watch(tree: str, suite: str, results: str, shown: int) -> None:
    """`harness run suite` in this process, its crossings on stdout; the process ends where a worker would start."""
    calls: Counter[tuple[str, str]] = Counter()
    functions: Counter[tuple[str, str]] = Counter()
    root, packages = f"{tree}/harness/", dict[Any, str]()

    def package(frame: FrameType) -> str:
        code = frame.f_code
        if code not in packages:
            inside = code.co_filename.startswith(root) and code.co_name != "<module>"
            packages[code] = code.co_filename.removeprefix(root).split("/")[0].removesuffix(".py") if inside else ""
        return packages[code]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (callee := package(frame)) and frame.f_back is not None:
            caller = package(frame.f_back)
            if caller and caller != callee:
                calls[caller, callee] += 1
                functions[frame.f_back.f_code.co_qualname, f"{callee}: {frame.f_code.co_qualname}"] += 1

    def tell(end: str) -> None:
        sys.setprofile(None)
        print(f"{sum(calls.values())} calls between packages until {end}")
        for (caller, callee), number in calls.most_common(shown):
            print(f"{number:8d}  {caller} -> {callee}")
        for (caller, callee), number in functions.most_common(shown):
            print(f"{number:8d}  {caller} -> {callee}")
        sys.stdout.flush()

    def started(event: str, found: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and any("worker" in str(word) for word in found[1]):
            tell("the first worker process")
            os._exit(0)

    from harness.cli import main

    sys.addaudithook(started)
    sys.argv = ["harness", "run", suite, "--results", results]
    sys.setprofile(count)
    try:
        main()
    except SystemExit as end:
        tell(f"the end (exit code {end.code})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--results", type=Path, help="default: an empty folder")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="default: this one")
    parser.add_argument("--shown", type=int, default=0, metavar="N", help="the N most frequent pairs too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        code = WATCHED.format(
            tree=str(chosen.tree.resolve()), tools=str(Path(__file__).parent), suite=chosen.suite,
            results=str(chosen.results or empty), shown=chosen.shown,
        )  # fmt: skip
        return subprocess.run([sys.executable, "-c", code], cwd=chosen.tree, timeout=600, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
