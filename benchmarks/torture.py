"""A small suite, run again and again while things go wrong at random moments; its tables must come out as if nothing had.

    python benchmarks/torture.py --short --seed 1            a dozen faults: what the tests run
    python benchmarks/torture.py --kills 200 --seed 1        hundreds; an hour or more
    python benchmarks/torture.py --only flips --seed 1       one kind

Faults: SIGKILL of workers, of the parent, of both, and while the store is written; EIO and steps of the wall clock from an
LD_PRELOAD shim (needs a C compiler); flipped bytes of journals, manifests, suite files and the store.

After each the suite is run until it is done. Then every table of the store, times left out, equals that of an undisturbed run;
the cost ledger holds all work that survived and no more CPU time than the processes used; no command ended in a traceback, and
each that failed said why. The first violation ends it with exit code 1, the results folder and the seed. The last line is one
JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import typer

from harness.errors import StoreError
from harness.store.database import CELL_TABLES, VIEWS
from harness.store.ingest import STORE, ingest_journals
from harness.store.read import Snapshot

ROOT = Path(__file__).parents[1]
SUITE = """
name: torture
groups:
  - name: pair
    policies:
    - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
    - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
REGIMES
seeds: [3]
keep: none
training: {steps: 4, prompts: 4, rollouts: 4, max_new_tokens: 8, learning_rate: 0.001, checkpoint_every: 2, measure_every: 2}
evaluation: {k: 2, limit: 6, curve_every: 2, curve_prompts: 4}
"""
STEP_PHASES = ("generate", "verify", "exchange", "score", "train")
UNCOMPARED = {
    "cells": {"reason", "attempts", "code_version", "commit_hash", "dirty", "packages", "machine", "python", "started",
              "finished", "fingerprint"},
    "suites": {"fingerprint"},
    "steps": {f"{phase}_seconds" for phase in STEP_PHASES},
}  # fmt: skip
UNCOMPARED["placed_cells"] = UNCOMPARED["cells"]  # which has the same columns
COMPARED = [t for t in dict.fromkeys((*CELL_TABLES, "suites", *VIEWS)) if t not in ("costs", "spent", "current_cells")]
Tables = dict[str, list[tuple[str, ...]]]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
RUN_SECONDS = 600.0
PER_FOLDER = 6
WORKER = "harness.session.driver.jobs"
COUNTS = {"kills": 200, "input_errors": 6, "clock_steps": 3, "flips": 200}
SHORT = {"kills": 5, "input_errors": 1, "clock_steps": 1, "flips": 6}
Kind = StrEnum("Kind", list(COUNTS))


class Violation(Exception):
    """What must not be."""


# Tables and costs -----------------------------------------------------------------------------------------------------


def tables(results: Path) -> Tables:
    by_name: Tables = {}
    with Snapshot(results) as snapshot:
        for table in COMPARED:
            rows, skip = snapshot.query(f"FROM {table}").to_pylist(), UNCOMPARED.get(table, set())
            kept = ([v for k, v in row.items() if k not in skip] for row in rows)
            by_name[table] = sorted(tuple(f"{v:.10g}" if isinstance(v, float) else str(v) for v in row) for row in kept)
    return by_name


def differences(ours: Tables, reference: Tables) -> str:
    for table, expected in reference.items():
        rows = ours[table]
        if rows != expected:
            there, lacking = ([r[:6] for r in a if r not in b][:2] for a, b in ((rows, expected), (expected, rows)))
            return f"table {table}: {len(rows)} rows instead of {len(expected)}; there: {there}; not there: {lacking}"
    return ""


def check_costs(results: Path, used: float) -> None:
    spent = " UNION ALL ".join(
        f"SELECT cell, policy, '{p}' AS phase, {p}_seconds AS seconds FROM steps" for p in STEP_PHASES
    )
    wrong = {
        "costs of surviving steps are not in the ledger": f"""
            SELECT s.*, c.cpu FROM (SELECT cell, policy, phase, sum(seconds) AS cpu FROM ({spent}) GROUP BY ALL) s
            LEFT JOIN (SELECT cell, policy, phase, sum(cpu_seconds) AS cpu FROM costs GROUP BY ALL) c
            USING (cell, policy, phase) WHERE s.cpu > coalesce(c.cpu, 0) + 1e-6""",
        "the same cost twice": """
            SELECT attempt, policy, phase, wall_seconds FROM costs GROUP BY ALL HAVING count(*) > 1 AND wall_seconds > 0""",
        "an evaluation's costs are not what it sampled": """
            SELECT * FROM (SELECT cell, policy, count(*) AS n, sum(tokens) AS tokens FROM samples GROUP BY ALL) s
            FULL JOIN (SELECT cell, policy, attempt, count(*) AS times, sum(rollouts) AS rollouts, sum(tokens) AS counted
                FROM costs WHERE phase = 'evaluate' AND rollouts > 0 GROUP BY ALL) c USING (cell, policy)
            WHERE (s.n = c.rollouts AND s.tokens = c.counted AND c.times = 1) IS NOT TRUE""",
        "the ledger has more CPU-seconds than the processes used": f"""
            SELECT sum(cpu_seconds) AS ledger, {used} AS used FROM costs HAVING ledger > used""",
    }  # fmt: skip
    with Snapshot(results) as snapshot:
        for problem, query in wrong.items():
            if rows := snapshot.query(query).to_pylist():
                raise Violation(f"{problem}: {rows[:3]}")


# Processes ------------------------------------------------------------------------------------------------------------


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Command:
    def __init__(self, *arguments: object, env: dict[str, str] | None = None) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the command
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from harness.cli import main; main()", "run", *map(str, arguments)],
            stdout=subprocess.DEVNULL, stderr=self.stderr, env={**os.environ, **ENVIRONMENT, **(env or {})},
        )  # fmt: skip
        self.known: set[psutil.Process] = set()

    def workers(self) -> list[psutil.Process]:
        alive = []
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if WORKER in process.cmdline():
                        alive.append(process)
        self.known.update(alive)
        return alive

    def going(self) -> bool:
        return self.process.poll() is None

    def let_pass(self, seconds: float) -> None:
        """Look for workers meanwhile: the orphans of a killed parent are found no more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.going():
            self.workers()
            time.sleep(0.05)

    def ended(self) -> tuple[int, str]:
        """Its exit code and what it said, once its orphans are gone. Raises Violation for a traceback, a failure without a
        sentence, and what does not end."""
        try:
            code = self.process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Violation(f"did not end within {RUN_SECONDS:.0f} s") from None
        self.stderr.seek(0)
        said = self.stderr.read()
        if "Traceback" in said or code not in (0, 1, 2, 130, -signal.SIGKILL):
            raise Violation(f"exit code {code}:\n{said[-3000:]}")
        if code in (1, 2) and not any(line.startswith("harness: ") for line in said.splitlines()):
            raise Violation(f"exit code {code} without a sentence: {said[-500:]!r}")
        _, left = psutil.wait_procs(self.known, timeout=60)
        if left:
            raise Violation(f"the worker {left[0].pid} outlives its driver")
        return code, said


# The benchmark --------------------------------------------------------------------------------------------------------


class Torture:
    def __init__(self, work: Path, seed: int, short: bool = False) -> None:
        self.work, self.seed, self.short = work, seed, short
        self.rng = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.compared = self.folders = 0
        self.suite = work / "torture.yaml"
        regimes = "regimes: [hacpo]\nbaseline: hacpo" if short else "regimes: [independent, hacpo]"
        self.suite.write_text(SUITE.replace("REGIMES", regimes))

    def undisturbed(self) -> None:
        self.whole = self.fresh()
        began = time.monotonic()
        self.finish(self.whole)
        self.seconds = time.monotonic() - began
        begun = min(place.stat().st_ctime for place in self.whole.glob("*/base-*/manifest.json"))
        self.seconds_at_work = time.time() - begun
        self.reference = tables(self.whole)
        if self.reference["problems"] or not self.reference["scores"]:
            raise Violation(f"the undisturbed run is not whole: {self.reference['problems']}")
        check_costs(self.whole, cpu_of_children() - self.before)

    def fresh(self) -> Path:
        self.folders += 1
        self.before = cpu_of_children()
        self.current = self.work / f"results-{self.folders:03d}"
        return self.current

    def start(self, results: Path, env: dict[str, str] | None = None) -> Command:
        jobs = 1 if self.short else self.rng.choice([1, 1, 2])
        return Command(self.suite, "--results", results, "--jobs", jobs, env=env)

    def finish(self, results: Path, tries: int = 3) -> None:
        if not any(self.start(results).ended()[0] == 0 for _ in range(tries)):
            raise Violation(f"not done after {tries} more runs")

    def compare(self, results: Path) -> None:
        self.finish(results)
        for anew in (False, True):
            ingest_journals(results, rebuild=anew)
            if difference := differences(tables(results), self.reference):
                raise Violation(f"{'built anew: ' if anew else ''}{difference}")
        check_costs(results, cpu_of_children() - self.before)
        self.compared += 1
        shutil.rmtree(results)
        made = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        print(f"seed {self.seed}: {self.compared} comparisons; {made}", file=sys.stderr, flush=True)

    def kills(self, count: int) -> None:
        stored = max(1, count // 10)
        kinds = [self.rng.choice(["worker", "worker", "parent", "both"]) for _ in range(count - stored)]
        while kinds or stored:
            results, commands = self.fresh(), list[Command]()
            for kind in kinds[:PER_FOLDER]:
                commands.append(self.start(results))
                if self.killed(commands[-1], results, kind):
                    kinds.remove(kind)
                    self.faults[f"kill {kind}"] += 1
                elif commands[-1].process.wait(RUN_SECONDS) == 0:
                    break  # done before its moment: another folder
            self.finish(results)
            for _ in range(min(stored, 1 if kinds else 3)):
                commands.append(self.start(results))
                if self.killed_storing(commands[-1], results):
                    stored -= 1
                    self.faults["kill while the store is written"] += 1
            for command in commands:
                command.ended()
            self.compare(results)

    def killed(self, command: Command, results: Path, kind: str) -> bool:
        """Kill at a random moment; whether there was anything left to kill."""
        if self.rng.random() < 0.2:  # while libraries are imported, too
            command.let_pass(self.rng.uniform(0, self.seconds))
        else:
            self.wait_for_work(command, results)
            command.let_pass(self.rng.expovariate(2 / self.seconds_at_work))
        workers = command.workers()
        if not command.going() or (kind != "parent" and not workers):
            return False
        chosen = {"worker": [self.rng.choice(workers)] if workers else [], "parent": [], "both": workers}[kind]
        with suppress(OSError, psutil.Error):
            for process in (*([] if kind == "worker" else [command.process]), *chosen):
                process.send_signal(signal.SIGKILL)
        command.process.wait(RUN_SECONDS)
        return True

    def killed_storing(self, command: Command, results: Path) -> bool:
        """The parent, while the new state of the store lies beside the old one."""
        (results / STORE).unlink(missing_ok=True)
        while command.going():
            if any(results.glob(f"{STORE}.*")):
                time.sleep(self.rng.uniform(0, 0.1))
                command.process.kill()
                return True
            time.sleep(0.002)
        return False

    def wait_for_work(self, command: Command, results: Path) -> None:
        before = {log: log.stat().st_mtime_ns for log in results.glob("*/*/log")}
        while command.going():
            with suppress(FileNotFoundError):  # logs are renamed
                if any(log.stat().st_mtime_ns != before.get(log) for log in results.glob("*/*/log")):
                    return
            command.let_pass(0.05)

    def shim(self) -> str:
        compiler, shim, source = shutil.which("cc"), self.work / "shim.so", Path(__file__).with_name("torture_shim.c")
        built = compiler and not subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"]).returncode
        if not built:
            print("no C compiler: without EIO and steps of the clock", file=sys.stderr)
        return str(shim) if built else ""

    def input_errors(self, count: int) -> None:
        for _ in range(count if (shim := self.shim()) else 0):
            results, rate, drawn = self.fresh(), self.rng.choice([30, 100, 300]), self.rng.randrange(1 << 30)
            env = {"LD_PRELOAD": shim, "EIO_BELOW": str(results), "EIO_ONE_IN": str(rate), "EIO_SEED": str(drawn)}
            self.start(results, env).ended()
            self.faults["EIO"] += 1
            self.compare(results)

    def clock_steps(self, count: int) -> None:
        for _ in range(count if (shim := self.shim()) else 0):
            results, ahead = self.fresh(), self.work / "ahead"
            ahead.write_text("0")
            command = self.start(results, {"LD_PRELOAD": shim, "CLOCK_AHEAD": str(ahead)})
            while command.going():
                ahead.write_text(str(self.rng.choice([0, -10800, 10800, -34560000, 34560000, -2, 2])))
                self.faults["clock step"] += 1
                command.let_pass(self.rng.uniform(0.3, 3.0))
            command.ended()
            self.compare(results)

    def flips(self, count: int) -> None:
        patterns = ("*/*/journal/*/*", "*/*/manifest.json", STORE, "*/suite.json")
        for i in range(count):
            results, pattern = self.fresh(), patterns[i % 4]
            shutil.copytree(self.whole, results)
            victim = self.rng.choice(sorted(results.glob(pattern)))
            data = bytearray(victim.read_bytes())
            at, mask = self.rng.randrange(len(data)), self.rng.randrange(1, 256)
            data[at] ^= mask
            victim.write_bytes(data)
            if pattern != STORE:
                (results / STORE).unlink()
            self.faults[f"flip {victim.name if pattern != patterns[0] else 'journal'}"] += 1
            where = f"{victim.relative_to(results)}: byte {at} of {len(data)} xor {mask}"
            self.examined(results, victim, where)
            if pattern == STORE:  # and a store that is brought up to date upon the damage
                os.utime(next(results.glob("*/*/")))
                self.examined(results, victim, where)
            shutil.rmtree(results)

    def examined(self, results: Path, victim: Path, where: str) -> None:
        """In a process of its own: damage that kills the reader must not kill the benchmark."""
        code = "import sys; sys.path[:0] = sys.argv[2:]; import torture; torture.examine(sys.argv[1])"
        reader = subprocess.run([sys.executable, "-c", code, results, Path(__file__).parent], capture_output=True, text=True,
                                env={**os.environ, **ENVIRONMENT}, timeout=RUN_SECONDS)  # fmt: skip
        if reader.returncode != 0:
            raise Violation(f"{where}: the reader ended with {reader.returncode}: {reader.stderr[-1500:]}")
        read, words = json.loads(reader.stdout)
        same = read and not differences({k: [tuple(r) for r in v] for k, v in read.items()}, self.reference)
        if not same and not any(victim.name in said for said in words):
            raise Violation(f"{where}: another table, and no word of it: {words}")


def examine(results: str) -> None:
    """Print, as JSON, the tables of a store (null if it cannot be read) and what was said."""
    words, read = [], None
    try:
        ingest_journals(Path(results))
        read = tables(Path(results))
        words += [" ".join(row) for row in read["problems"]]
    except StoreError as error:
        words.append(str(error))
    print(json.dumps([read, words]))


def main(
    kills: int = COUNTS["kills"],
    seed: int = 0,
    short: Annotated[bool, typer.Option("--short", help="A dozen faults.")] = False,
    only: Annotated[list[Kind] | None, typer.Option(help="One kind; may be given several times.")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder to work in.")] = None,
) -> None:
    counts = SHORT if short else COUNTS | {"kills": kills}
    with suppress(OSError, AttributeError):  # orphans become children of this process, so that their CPU time is known
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    began, place = time.monotonic(), work or Path(tempfile.mkdtemp(prefix="torture-"))
    place.mkdir(parents=True, exist_ok=True)
    torture = Torture(place, seed, short)
    problem = kind = ""
    try:
        torture.undisturbed()
        for kind in only or Kind:
            torture.rng = random.Random(f"{seed} {kind}")
            getattr(torture, kind)(counts[kind])
    except Violation as violation:
        problem = str(violation)
    print(json.dumps({"seed": seed, "faults": dict(torture.faults), "comparisons": torture.compared,
                      "seconds": round(time.monotonic() - began, 1), "violation": problem}))  # fmt: skip
    if problem:
        words = f"--seed {seed} --kills {kills} --only {kind}{' --short' * short}"
        print(f"VIOLATION: {problem}\n  results: {torture.current}\n  again:   torture.py {words}", file=sys.stderr)
        sys.exit(1)
    if work is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    typer.run(main)
