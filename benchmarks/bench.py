"""Every benchmark that has a rival or a bar, in one run: ratios with their spread, kept, and compared with the committed ones.

    make bench                                            everything, with the rivals; about half an hour of two idle cores
    make bench-smoke                                      tiny sizes and one round: do the benchmarks work?
    python benchmarks/bench.py --only sampling steps      some of them

Both sides take turns within a round, in CPU-seconds of one thread unless a row says otherwise; the first round fills caches
and compares results. A row is the median of the rounds' ratios with their quartiles. Each run is written to
benchmarks/results/, and what the programs say besides to NAME.log there. Exit code 1: a benchmark failed, or a row is more than
20 % worse, beyond both spreads, than in benchmarks/baselines/ on the same CPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0",
               "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from harness.limits import LARGE_BLOCKS  # noqa: E402  # of this tree, whatever is installed

ENTRIES = {"starts": "commands.starts", "verdicts": "verifying", "alignment": "alignment", "sampling": "embedded.sampling",
           "steps": "embedded.steps", "real": "embedded.real", "sharing": "sharing", "peers": "sharing.peers",
           "beyond": "sharing.beyond", "portable": "sharing.portable", "many": "commands.many",
           "quickstart": "commands.quickstart", "board": "leaderboard_speed"}  # fmt: skip
QUIET = {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""For programs whose warnings have nothing to do with speed: `generate` has one for each of some hundred calls."""
COLUMNS = (29, 17, 6, 13, 11)
"""Widths in characters: with the spaces between them a line of the table fits a terminal of 80."""
WORSE = 0.2
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "msgspec", "duckdb", "trl")


class NotHere(Exception):
    """What a benchmark needs is not installed; the message says what, and how it is had."""


@dataclass(frozen=True, slots=True)
class Size:
    """rounds: after the first, which is not counted. smoke: as little as shows that it works."""

    rounds: int = 5
    smoke: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A ratio with its quartiles, and what it is to reach. at_least: more is better. ours, theirs: CPU-seconds."""

    name: str
    against: str
    value: float
    low: float
    high: float
    bar: float
    at_least: bool
    ours: float
    theirs: float = float("nan")
    unit: str = "x"

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def worse(self, before: Row) -> bool:
        if self.at_least:
            return self.high < before.low * (1 - WORSE)
        return self.low > before.high * (1 + WORSE)


def turns(
    sides: Mapping[str, Callable[[], Any]], rounds: int, check: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, list[float]]:
    """CPU-seconds of each side in each round, in turn. check: of the first, uncounted round's results."""
    results = {name: work() for name, work in sides.items()}
    if check is not None:
        check(results)
    del results
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 - 2 * (number % 2)]:
            spent[name].append(seconds(sides[name]))
    return spent


def seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def faster(name: str, against: str, ours: list[float], theirs: list[float], bar: float) -> Row:
    return _row(name, against, [t / o for o, t in zip(ours, theirs, strict=True)], bar, True, ours, theirs)


def costs(name: str, against: str, ours: list[float], theirs: list[float], bar: float) -> Row:
    return _row(name, against, [o / t for o, t in zip(ours, theirs, strict=True)], bar, False, ours, theirs)


def takes(name: str, values: list[float], bar: float, unit: str = "CPU-s", against: str = "-") -> Row:
    return _row(name, against, values, bar, False, values, [float("nan")], unit)


def _row(
    name: str, against: str, values: list[float], bar: float, at_least: bool, ours: list[float], theirs: list[float],
    unit: str = "x",
) -> Row:  # fmt: skip
    ordered = sorted(values)
    last = len(ordered) - 1
    low, high = ordered[last // 4], ordered[last - last // 4]
    return Row(name, against, median(values), low, high, bar, at_least, median(ours), median(theirs), unit)


# The run --------------------------------------------------------------------------------------------------------------


def run_entry(name: str, size: Size) -> tuple[list[Row], str]:
    """In a process of its own: its rows, and why there are none. What the programs say besides goes into a file, whose end is shown
    where one fails."""
    code = f"import bench; bench.print_entry({name!r}, bench.Size({size.rounds}, {size.smoke}))"
    path = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    environment = os.environ | LARGE_BLOCKS | QUIET | path
    (HERE / "results").mkdir(exist_ok=True)
    file = HERE / "results" / f"{name}.log"
    with file.open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
    if done.returncode:
        end = "\n".join(file.read_text(errors="replace").splitlines()[-12:])
        return [], f"exit code {done.returncode}; {file} ends with\n{end}"
    rows, absent = json.loads(done.stdout.splitlines()[-1])
    return [Row(**row) for row in rows], absent


def print_entry(name: str, size: Size) -> None:
    module, _, function = ENTRIES[name].partition(".")
    try:
        rows = getattr(importlib.import_module(module), function or "bench")(size)
        print(json.dumps([[asdict(row) for row in rows], ""]))
    except NotHere as why:
        print(json.dumps([[], str(why)]))


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = dict(map(str.strip, line.split(":", 1)) for line in reversed(lines) if ":" in line)
    flags = [flag for flag in facts.get("flags", "").split() if flag.startswith(("avx", "amx", "fma", "sse4"))]
    return {"cpu": facts.get("model name", platform.machine()), "flags": flags, "cores": os.cpu_count()}


def about() -> dict[str, Any]:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True).stdout.strip()

    versions = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"] in PACKAGES}
    return {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain", "--untracked-files=no")), "machine": machine(),
            "python": platform.python_version(), "versions": versions, "load": os.getloadavg()}  # fmt: skip


def table(rows: Iterable[Row], smoke: bool) -> str:
    """Lines of at most 80 characters; words that are longer than their column go on in the next line."""
    lines = [_line("work", "against", "ratio", "spread", "bar")]
    for row in rows:
        unit = "" if row.unit == "x" else f" {row.unit}"
        missed = "" if smoke or row.reached else " missed"
        texts = [textwrap.wrap(text, width) for text, width in zip((row.name, row.against), COLUMNS, strict=False)]
        numbers = [f"{row.value:.3g}", f"{row.low:.3g} .. {row.high:.3g}"]
        bar = textwrap.wrap(f"{'>=' if row.at_least else '<='} {row.bar:g}{unit}{missed}", COLUMNS[-1])
        cells = [*texts, *([number] for number in numbers), bar]
        lines += [_line(*parts) for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join(lines)


def _line(*cells: str) -> str:
    """One line of the table; numbers stand to the right."""
    left = [f"{cell:<{width}}" for cell, width in zip(cells[:2], COLUMNS, strict=False)]
    right = [f"{cell:>{width}}" for cell, width in zip(cells[2:4], COLUMNS[2:4], strict=True)]
    return " ".join([*left, *right, cells[4]]).rstrip()


def slower(rows: Iterable[Row], cpu: str, folder: Path = HERE / "baselines") -> list[str]:
    """Rows that are worse than in a committed run on the same CPU, in words."""
    lines: list[str] = []
    for file in sorted(folder.glob("*.json")):
        kept = json.loads(file.read_text())
        before = {row["name"]: Row(**row) for row in kept["rows"]} if kept["machine"]["cpu"] == cpu else {}
        worse = [row for row in rows if row.name in before and row.worse(before[row.name])]
        lines += [f"{row.name}: {before[row.name].value:.3g} -> {row.value:.3g} ({file.name})" for row in worse]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ENTRIES), default=list(ENTRIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    size = Size(1 if asked.smoke else asked.rounds, asked.smoke)
    facts, rows, absent = about(), list[Row](), dict[str, str]()
    for name in asked.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        made, why = run_entry(name, size)
        rows += made
        if why:
            absent[name] = why
    print(table(rows, size.smoke))
    for name, why in absent.items():
        print(f"{name}: not measured: {why}")
    failed = any(why.startswith("exit code") for why in absent.values())
    if size.smoke:
        return int(failed)
    file = HERE / "results" / f"{facts['made'].replace(':', '')}.json"
    file.write_text(json.dumps(facts | {"load_after": os.getloadavg(), "absent": absent,
                                        "rows": [asdict(row) for row in rows]}, indent=1) + "\n")  # fmt: skip
    print(f"{sum(r.reached for r in rows)} of {len(rows)} bars reached; {file}")
    worse = slower(rows, facts["machine"]["cpu"])
    for line in worse:
        print(f"slower than before: {line}")
    return int(failed or bool(worse))


if __name__ == "__main__":
    sys.exit(main())
