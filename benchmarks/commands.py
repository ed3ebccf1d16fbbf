"""What commands cost that look, start or run all, each in a process of its own. Run by `bench.py`.

starts: CPU-seconds from the command to its end. many: the same on a suite of many finished cells, beside a plain loop that reads
the same manifests and asks DuckDB one question; keys and manifests are those of a real suite, journals are synthetic. quickstart:
from nothing but an installation, by the clock, compared with the stored accuracies; needs idle cores.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import NotHere, Row, Size, costs, machine, takes
from synthetic_results import Regime, write_base, write_cell

from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.suite.prepare import prepare_named
from harness.store.ingest import ingest_journals
from harness.store.read import Snapshot

STARTS = {
    "harness --help": (["--help"], "Usage", 0.3),
    "harness plan cross_family": (["plan", "cross_family", "--inventory", "8xH100-80G"], "cross_family", 1.0),
}
GROUPS = 10
REGIMES = ("independent", "naive", "sgt", "hacpo", "prp", "xgrpo", "graft", "sapo")
REFERENCE = Path(__file__).parents[1] / "results" / "reference"
SCORES = """
SELECT regime, seed, policy, task, metric, checkpoint_step, right_answers, answers
FROM scores JOIN cells USING (suite, cell) WHERE kind = 'cell' ORDER BY ALL
"""


def used() -> float:
    """CPU-seconds of ended children."""
    book = resource.getrusage(resource.RUSAGE_CHILDREN)
    return book.ru_utime + book.ru_stime


def spent(arguments: list[str], says: str) -> float:
    """CPU-seconds of one command, which must say this. Its modules are compiled before, as an installation's are."""
    before = used()
    code = "import sys; from harness.cli import main; sys.argv[0] = 'harness'; main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout + done.stderr, done.stdout
    return used() - before


def starts(size: Size, commands: dict[str, tuple[list[str], str, float]] = STARTS) -> list[Row]:
    """Arguments, what must be said, and the bar, by name. The first round fills caches."""
    rounds = [{name: spent(*words) for name, (*words, _) in commands.items()} for _ in range(size.rounds + 1)]
    return [takes(name, [r[name] for r in rounds[1:]], bar) for name, (*_, bar) in commands.items()]


def write(folder: Path, count: int) -> None:
    groups = "\n".join(
        f"  - name: g{i}\n    policies:\n"
        f"      - {{name: a, model: micro/llama, stage0: {{preset: trap, strong: add, seed: {i}}}}}\n"
        f"      - {{name: b, model: micro/qwen, stage0: {{preset: trap, strong: mul, seed: {i}}}}}"
        for i in range(GROUPS)
    )
    seeds = ", ".join(map(str, range(1, 1 + max(2, count // GROUPS // len(REGIMES)))))
    file = folder / "many.yaml"
    file.write_text(f"groups:\n{groups}\nregimes: [{', '.join(REGIMES)}]\nseeds: [{seeds}]\n")
    results = folder / "results"
    prepared = prepare_named(str(file), results)
    prepared.write_suite_file()
    regimes = {v.name: Regime(v.name, v.regime, 0.01, shares="") for v in prepared.suite.regimes}
    cells = [
        write_cell(results, "many", c.group.name, ("a", "b"), regimes[c.variant.name], c.seed, 3, 4, 1, ("micro",), 0)
        for c in prepared.cells
    ]
    bases = [write_base(results, "many", b.group.name, b.policy.name, ("micro",), 4, 1) for b in prepared.bases]
    for work, written in zip([*prepared.cells, *prepared.bases], [*cells, *bases], strict=True):
        (prepared.folder / written).rename(prepared.folder / work.key)
        manifest = manifest_of(work)
        # Every cell starts from its base checkpoint: such as cannot be paired would be looked at one by one
        policies = tuple(replace(policy, start=f"of-{policy.name}") for policy in manifest.policies)
        mark_state(prepared.folder / work.key, replace(manifest, policies=policies), "done", attempts=1)


LOOP = """
import json, sys
from pathlib import Path
import duckdb
results = Path(sys.argv[1])
manifests = [json.loads(file.read_bytes()) for file in results.glob("many/*/manifest.json")]
with duckdb.connect(str(results / "harness.duckdb"), read_only=True) as database:
    rows = database.execute("SELECT regime, count(*) FROM cells GROUP BY regime").fetchall()
print(len(manifests), rows)
"""


def many(size: Size) -> list[Row]:
    cells = 160 if size.smoke else 10_000
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), cells)
        where = ["--results", f"{name}/results"]
        asked = {
            f"run, nothing to do, {cells:,} cells": (["run", f"{name}/many.yaml", *where], "many", 3.0),
            f"status, {cells:,} cells": (["status", "many", *where], "many", 2.0),
            f"show, {cells:,} cells": (["show", "many", *where], "many", 3.0),
        }
        plain = list[float]()
        rounds = list[dict[str, float]]()
        for _ in range(size.rounds + 1):
            rounds.append({command: spent(words, says) for command, (words, says, _) in asked.items()})
            before = used()
            subprocess.run([sys.executable, "-c", LOOP, f"{name}/results"], check=True, stdout=subprocess.DEVNULL)
            plain.append(used() - before)
        return [
            costs(command, "a plain loop", [r[command] for r in rounds[1:]], plain[1:], bar)
            for command, (*_, bar) in asked.items()
        ]


def scores(results: Path) -> list[dict[str, object]]:
    ingest_journals(results)
    with Snapshot(results) as snapshot:
        return snapshot.query(SCORES).to_pylist()


def read_first_comparison(said: str) -> float:
    """Seconds after which a run has told its first comparison, from what it printed."""
    told = re.search(r"first comparison, after ([\d.]+) (s|min):", said)
    assert told, said
    number, unit = told.groups()
    return float(number) * (60 if unit == "min" else 1)


def quickstart(size: Size) -> list[Row]:
    if size.smoke:
        raise NotHere("not in short")
    whole = 300.0 if "Intel" in machine()["cpu"] else 200.0
    with tempfile.TemporaryDirectory() as name:
        results, stored = Path(name) / "results", Path(name) / "stored"
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "quickstart", "--results", str(results)],
            env=os.environ | {"HARNESS_CACHE": f"{name}/cache"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        assert done.returncode == 0, done.stdout
        (stored / "reference").mkdir(parents=True)
        (stored / "reference" / "quickstart").symlink_to(REFERENCE / "quickstart")
        assert scores(results) == scores(stored), "other accuracies than the stored ones"
    first = read_first_comparison(done.stdout)
    return [
        takes("quickstart, its first comparison", [first], 60.0, "seconds"),
        takes("quickstart, everything", [seconds], whole, "seconds", "equal to the stored table"),
    ]
