"""CPU-seconds from the command to its end, processes of their own: `harness --help`, and `plan` of a shipped suite."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from bench import Row, Size, takes

COMMANDS = {
    "harness --help": (["--help"], "Usage", 0.3),
    "harness plan cross_family": (["plan", "cross_family", "--inventory", "8xH100-80G"], "cross_family", 1.0),
}


def spent(arguments: list[str], says: str) -> float:
    """CPU-seconds of one command, which must say this. Its modules are compiled before, as an installation's are."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    code = "import sys; from harness.cli import main; sys.argv[0] = 'harness'; main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout + done.stderr, done.stdout
    return children() - before


def bench(size: Size) -> list[Row]:
    rounds = [{name: spent(*words) for name, (*words, _) in COMMANDS.items()} for _ in range(size.rounds + 1)]
    return [takes(name, [r[name] for r in rounds[1:]], bar) for name, (*_, bar) in COMMANDS.items()]
