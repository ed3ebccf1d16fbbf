"""CPU-seconds from the command to its end, processes of their own: `harness --help`, and `plan` of a shipped suite."""

from __future__ import annotations

import resource
import subprocess
import sys

from bench import Row, Size, takes

COMMANDS = {
    "harness --help": (["--help"], 0.3),
    "harness plan cross_family": (["plan", "cross_family", "--inventory", "8xH100-80G"], 1.0),
}


def spent(arguments: list[str]) -> float:
    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    code = "import sys; from harness.cli import main; sys.argv[0] = 'harness'; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cross_family" in done.stdout or "Usage" in done.stdout, done.stdout
    return children() - before


def bench(size: Size) -> list[Row]:
    rounds = [{name: spent(arguments) for name, (arguments, _) in COMMANDS.items()} for _ in range(size.rounds + 1)]
    return [takes(name, [r[name] for r in rounds[1:]], bar) for name, (_, bar) in COMMANDS.items()]
