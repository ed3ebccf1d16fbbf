"""A small suite, run again and again while everything that can go wrong does; its tables must come out as if nothing had.

    python benchmarks/torture.py --kills 200 --seed 1            all faults; an hour or more
    python benchmarks/torture.py --short --seed 1                a dozen faults, two minutes
    python benchmarks/torture.py --only flips --seed 1           one kind of fault

Faults: SIGKILL of workers, of the parent, of both, of the verifier's processes, and while the store is written; SIGSTOP
beyond the limit on silence, and of a worker whose cell is given to another; a full disk (a tmpfs that is filled: needs root);
EIO and steps of the wall clock from an LD_PRELOAD shim (needs a C compiler; libfaketime also moves the ends of sleeps, which no
clock step does); two runs of one suite at once; bytes of journals, manifests and the store flipped. What cannot be done here is
skipped with the reason.

After each fault the suite is run again until it is done. Then
  * every table of the store, times left out, equals that of an undisturbed run, as it is and built anew from the journals;
  * the cost ledger holds all of the work that survived, exactly what each evaluation sampled, and no more CPU time than the
    processes used (docs/recovery.md says what is counted);
  * no command has ended in a traceback, and each that failed has said why.
The first violation ends it with exit code 1, the results folder and the seed that leads there. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from harness.cache import cache_folder
from harness.errors import StoreError
from harness.store.database import DERIVED
from harness.store.ingest import STORE, ingest
from harness.store.read import Snapshot
from harness.store.rows import SCHEMAS

ROOT = Path(__file__).parents[1]
SUITE = """
name: torture
groups:
  - name: pair
    policies: [{{name: a, model: {llama}}}, {{name: b, model: {qwen}}}]
regimes: [independent, hacpo]
seeds: [3]
keep: none
training: {{steps: 4, prompts: 4, rollouts: 4, max_new_tokens: 8, learning_rate: 0.001, checkpoint_every: 2, measure_every: 2}}
evaluation: {{k: 2, limit: 6, curve_every: 2, curve_prompts: 4}}
"""
STEP_PHASES = ("generate", "verify", "exchange", "score", "train")
UNCOMPARED = {
    "cells": {"reason", "attempts", "code_version", "commit_hash", "dirty", "packages", "machine", "python", "started",
              "finished", "fingerprint"},
    "suites": {"fingerprint"},
    "steps": {f"{phase}_seconds" for phase in STEP_PHASES},
}  # fmt: skip
COMPARED = [t for t in (*SCHEMAS, *DERIVED, "cells", "suites", "questions", "problems") if t not in ("costs", "spent")]
Table = list[tuple[str, ...]]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
RUN_SECONDS = 600.0
PER_FOLDER = 6
"""Kills after which a folder is run to its end and compared."""


class Violation(Exception):
    """What must not be."""


class Skipped(Exception):
    """A fault that this machine cannot make."""


def policies() -> dict[str, Path]:
    """Two tiny policies that guess right now and then, made once and kept in the harness's cache."""
    made = cache_folder() / "torture"
    for family in ("llama", "qwen"):
        if not (made / family).is_dir():
            _make(family, made / family)
    return {family: made / family for family in ("llama", "qwen")}


def _make(family: str, folder: Path) -> None:
    import torch

    from harness.engines.embedded.families import build_model, build_tokenizer
    from harness.tasks.micro import SKILLS

    torch.set_num_threads(1)
    tokenizer = build_tokenizer(family)
    model = build_model(family, 0, tokenizer=tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rng = random.Random(0)
    for _ in range(40):
        problems = [skill.draw(rng, 1, held_out=False) for skill in SKILLS.values() for _ in range(6)]
        ids = [[*tokenizer.encode(p.prompt + p.direct), tokenizer.eos_token_id] for p in problems]
        width = max(map(len, ids))
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
        optimiser.zero_grad()
        model(input_ids=labels.clamp(min=0), labels=labels).loss.backward()
        optimiser.step()
    new = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    new.rename(folder)


# Tables and costs -----------------------------------------------------------------------------------------------------


def tables(results: Path) -> dict[str, Table]:
    """Every table of the store as sorted rows, what differs between equal runs left out."""
    found = {}
    with Snapshot(results) as snapshot:
        for table in COMPARED:
            rows = snapshot.query(f"FROM {table}").to_pylist()
            skip = UNCOMPARED.get(table, set())
            found[table] = sorted(tuple(_plain(v) for k, v in row.items() if k not in skip) for row in rows)
    return found


def _plain(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def differences(ours: dict[str, Table], reference: dict[str, Table]) -> str:
    """The first difference, in words; empty where there is none."""
    for table, expected in reference.items():
        found = ours[table]
        if found != expected:
            extra, missing = [r for r in found if r not in expected], [r for r in expected if r not in found]
            return (
                f"table {table}: {len(found)} rows instead of {len(expected)}; "
                f"there: {[r[:6] for r in extra[:2]]}; not there: {[r[:6] for r in missing[:2]]}"
            )
    return ""


def ledger(results: Path) -> dict[str, Any]:
    """The costs: CPU-seconds in all; where they fall short of the surviving steps; evaluations as counts of what they sampled."""
    with Snapshot(results) as snapshot:
        (total,) = snapshot.query("SELECT coalesce(sum(cpu_seconds), 0) AS s FROM costs").to_pylist()
        spent = {
            (r["cell"], r["policy"], r["phase"]): r["cpu"]
            for r in snapshot.query(
                "SELECT cell, policy, phase, sum(cpu_seconds) AS cpu FROM costs GROUP BY ALL"
            ).to_pylist()
        }
        columns = ", ".join(f"coalesce(sum({p}_seconds), 0) AS {p}" for p in STEP_PHASES)
        steps = snapshot.query(f"SELECT cell, policy, {columns} FROM steps GROUP BY ALL").to_pylist()
        evaluations = snapshot.query(
            "SELECT cell, policy, attempt, count(*) AS n, sum(rollouts) AS rollouts, sum(tokens) AS tokens FROM costs "
            "WHERE phase = 'evaluate' GROUP BY ALL"
        ).to_pylist()
        samples = snapshot.query("SELECT cell, policy, count(*) AS n, sum(tokens) AS tokens FROM samples GROUP BY ALL")
        doubled = snapshot.query(
            "SELECT attempt, policy, phase, wall_seconds FROM costs GROUP BY ALL HAVING count(*) > 1 AND wall_seconds > 0"
        ).to_pylist()
    return {
        "total": total["s"],
        "short": [
            (row["cell"], row["policy"], p, row[p], spent.get((row["cell"], row["policy"], p), 0.0))
            for row in steps for p in STEP_PHASES
            if row[p] > spent.get((row["cell"], row["policy"], p), 0.0) + 1e-6
        ],
        "evaluations": evaluations,
        "samples": {(r["cell"], r["policy"]): (r["n"], r["tokens"]) for r in samples.to_pylist()},
        "doubled": doubled,
    }  # fmt: skip


def check_costs(results: Path, used: float) -> None:
    """used: CPU-seconds of all processes that worked on these results. Raises Violation."""
    found = ledger(results)
    if found["short"]:
        raise Violation(f"costs of surviving steps are not in the ledger: {found['short'][:3]}")
    if found["doubled"]:
        raise Violation(f"the same cost twice: {found['doubled'][:3]}")
    evaluated = set()
    for row in found["evaluations"]:
        place = row["cell"], row["policy"]
        evaluated.add(place)
        if row["n"] != 1 or (row["rollouts"], row["tokens"]) != found["samples"][place]:
            raise Violation(f"an evaluation's costs {row} are not what it sampled, {found['samples'][place]}")
    if evaluated != found["samples"].keys():
        raise Violation(f"evaluations without costs: {sorted(found['samples'].keys() - evaluated)}")
    if found["total"] > used:
        raise Violation(f"the ledger has {found['total']:.1f} CPU-s, the processes used {used:.1f}")


# Processes ------------------------------------------------------------------------------------------------------------


def adopt() -> None:
    """Orphans become children of this process, so that their CPU time is known and none is left behind."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def cpu_of_children() -> float:
    """CPU-seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Command:
    """`harness ...` as a process of its own, with the worker processes below it."""

    def __init__(self, *arguments: object, env: dict[str, str] | None = None) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the command
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from harness.cli import main; main()", *map(str, arguments)],
            stdout=subprocess.DEVNULL, stderr=self.stderr, env={**os.environ, **ENVIRONMENT, **(env or {})},
        )  # fmt: skip
        self.known: dict[int, psutil.Process] = {}

    def below(self, module: str = "harness.session.driver.worker") -> list[psutil.Process]:
        """Its descendants that run a module."""
        found = []
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if module in process.cmdline():
                        self.known[process.pid] = process
                        found.append(process)
        return found

    def going(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float = RUN_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Violation(f"did not end within {seconds:.0f} s: {self.said()[-500:]}") from None

    def said(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def close(self) -> None:
        """Wait for its orphans: they leave when they see that it is gone, or at once if they were killed."""
        end = time.monotonic() + 60
        for process in self.known.values():
            while time.monotonic() < end:
                with suppress(ChildProcessError):
                    if os.waitpid(process.pid, os.WNOHANG)[0]:
                        break
                if not process.is_running():
                    break
                time.sleep(0.05)
            else:
                raise Violation(f"the worker {process.pid} outlives its driver")
        self.stderr.close()


def kill(process: psutil.Process | subprocess.Popen[bytes], signum: int = signal.SIGKILL) -> bool:
    with suppress(OSError, psutil.Error):
        process.send_signal(signum)
        return True
    return False


# The benchmark --------------------------------------------------------------------------------------------------------


class Torture:
    """One suite, its undisturbed tables, and the faults that have been made."""

    def __init__(self, work: Path, seed: int, short: bool = False) -> None:
        self.work, self.seed, self.short = work, seed, short
        self.rng = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.sentences: Counter[str] = Counter()
        self.compared = 0
        self.current = Path()
        self.suite = work / "torture.yaml"
        suite = SUITE.format(**policies())
        self.suite.write_text(suite.replace("[independent, hacpo]", "[hacpo]\nbaseline: hacpo") if short else suite)
        self.folders = 0
        self.before = cpu_of_children()

    def undisturbed(self) -> None:
        """The reference, and how long it takes."""
        results = self.fresh()
        began = time.monotonic()
        self.finish(results)
        self.seconds = time.monotonic() - began
        self.seconds_at_work = time.time() - min(log.stat().st_ctime for log in results.glob("*/base-*/manifest.json"))
        self.reference = tables(results)
        if self.reference["problems"] or not self.reference["scores"]:
            raise Violation(f"the undisturbed run is not whole: {self.reference['problems']}")
        check_costs(results, cpu_of_children() - self.before)
        self.whole = results

    def fresh(self, under: Path | None = None) -> Path:
        """A new results folder. It is the one that a violation speaks of."""
        self.folders += 1
        self.before = cpu_of_children()
        self.current = (under or self.work) / f"results-{self.folders:03d}"
        return self.current

    def start(self, results: Path, *more: object, env: dict[str, str] | None = None) -> Command:
        return Command(
            "run",
            self.suite,
            "--results",
            results,
            "--jobs",
            1 if self.short else self.rng.choice([1, 1, 2]),
            *more,
            env=env,
        )

    def finish(self, results: Path, tries: int = 3) -> None:
        """Run until it is done; each try that fails must say why."""
        for _ in range(tries):
            command = self.start(results)
            code = command.wait()
            self.heard(command, code)
            command.close()
            if code == 0:
                return
        raise Violation(f"not done after {tries} more runs")

    def heard(self, command: Command, code: int, failing: bool = True) -> None:
        """What a command said: no traceback, and a sentence where it failed."""
        said = command.said()
        if "Traceback" in said or code not in (0, 1, 2, 130, -signal.SIGKILL):
            raise Violation(f"exit code {code}:\n{said[-3000:]}")
        if code in (1, 2):
            lines = [line for line in said.splitlines() if line.startswith("harness: ")]
            if not lines:
                raise Violation(f"exit code {code} without a sentence: {said[-500:]!r}")
            for line in lines:
                self.sentences[_kind(line)] += 1

    def compare(self, results: Path, again: bool = True) -> None:
        """Against the undisturbed run: the store as it is, then built anew from the journals."""
        for anew in (False, True):
            ingest(results, rebuild=anew)
            if found := differences(tables(results), self.reference):
                raise Violation(f"{'built anew: ' if anew else ''}{found}")
        check_costs(results, cpu_of_children() - self.before)
        self.compared += 1
        shutil.rmtree(results)

    # Kills

    def kills(self, count: int) -> None:
        """`count` kills of processes of the run, a tenth of them while the store is written."""
        stored = max(1, count // 10)
        kinds = [self.rng.choice(["worker", "worker", "parent", "both"]) for _ in range(count - stored)]
        while kinds or stored:
            results = self.fresh()
            commands: list[Command] = []
            for kind in kinds[:PER_FOLDER]:
                command = self.start(results)
                commands.append(command)
                if self.killed(command, results, kind):
                    kinds.remove(kind)
                    self.faults[f"kill {kind}"] += 1
                elif command.wait() == 0:
                    break  # done before its moment: another folder
            self.finish(results)
            for _ in range(min(stored, 1 if kinds else 3)):
                command = self.start(results)
                commands.append(command)
                if self.killed_storing(command, results):
                    stored -= 1
                    self.faults["kill while the store is written"] += 1
            self.finish(results)
            for command in commands:
                self.heard(command, command.wait())
                command.close()
            self.compare(results)
            self.tell()

    def killed(self, command: Command, results: Path, kind: str) -> bool:
        """Kill at a random moment; whether there was anything left to kill. A killed parent's workers may still be there."""
        if self.rng.random() < 0.2:  # while libraries are imported, too
            self.let_pass(command, self.rng.uniform(0, self.seconds))
        else:
            self.at_work(command, results)
            self.let_pass(command, self.rng.expovariate(2 / self.seconds_at_work))
        workers = command.below()
        if not command.going() or (kind != "parent" and not workers):
            return False
        if kind == "worker":
            done = kill(self.rng.choice(workers))
            command.wait()
            return done
        done = kill(command.process)
        for worker in workers if kind == "both" else ():
            kill(worker)
        command.wait()
        return done

    def killed_storing(self, command: Command, results: Path) -> bool:
        """The parent, while the new state of the store lies beside the old one; it is removed before, so one is made."""
        (results / STORE).unlink(missing_ok=True)
        while command.going():
            if any(results.glob(f"{STORE}.*")):
                time.sleep(self.rng.uniform(0, 0.1))
                return kill(command.process)
            time.sleep(0.002)
        return False

    def verifier(self, count: int) -> None:
        """SIGKILL and SIGSTOP of the verifier's processes while they decide: the same verdicts."""
        from harness.verification.messages import Limits
        from harness.verification.verifier import Verifier

        pairs = [  # sums need the algebra system, so they are decided in a process of the pool
            (f"\\sum_{{i=1}}^{{{n}}} i^2", f"The answer is \\boxed{{{n * (n + 1) * (2 * n + 1) // 6 + off}}}")
            for n in range(3, 51)
            for off in (0, 1)
        ]
        limits = Limits(wall_seconds=3.0)
        with Verifier(workers=2, limits=limits) as quiet:
            expected = quiet.verify(pairs)
        if {v.value for v in expected} != {"right", "wrong"}:
            raise Violation(f"undisturbed verdicts are {Counter(v.value for v in expected)}")
        made = 0
        while made < count:
            with Verifier(workers=2, limits=limits) as tortured:
                over = threading.Event()
                found: list[Any] = []
                asking = threading.Thread(
                    target=lambda v=tortured, f=found, o=over: (f.extend(v.verify(pairs)), o.set())
                )
                asking.start()
                for _ in range(self.rng.randint(1, 4)):
                    over.wait(self.rng.uniform(0.0, 2.5))
                    for process in psutil.Process().children():
                        with suppress(psutil.Error):
                            if "harness.verification.worker" in process.cmdline() and not over.is_set():
                                stopped = self.rng.random() < 0.2
                                made += kill(process, signal.SIGSTOP if stopped else signal.SIGKILL)
                                self.faults["stop verifier" if stopped else "kill verifier"] += 1
                                break
                asking.join(RUN_SECONDS)
                if found != expected:
                    wrong = [(p, f, e) for p, f, e in zip(pairs, found, expected, strict=False) if f != e]
                    raise Violation(f"the verifier, killed at work, says otherwise: {wrong[:2]}")
            self.tell()

    # Stops

    def stops(self, count: int) -> None:
        """SIGSTOP beyond the limit on silence; every other time of a worker that is left alone, and wakes up after the end."""
        for i in range(count):
            results = self.fresh()
            command = self.start(results, "--silence", 4)
            worker = self.worker_at_work(command, results)
            if worker is not None and kill(worker, signal.SIGSTOP):
                self.faults["stop worker" if i % 2 == 0 else "stop worker, its cell given to another"] += 1
                if i % 2 == 0:
                    self.heard(command, command.wait())
                else:
                    kill(command.process)
                    command.wait()
            self.finish(results)
            if worker is not None:
                kill(worker, signal.SIGCONT)
            command.close()
            self.compare(results)
            self.tell()

    def at_work(self, command: Command, results: Path) -> None:
        """Wait until a log is written, by a worker that this command has started."""
        before = {log: log.stat().st_mtime_ns for log in results.glob("*/*/log")}
        while command.going():
            with suppress(FileNotFoundError):  # logs are renamed
                if any(log.stat().st_mtime_ns != before.get(log) for log in results.glob("*/*/log")):
                    return
            self.let_pass(command, 0.05)

    def let_pass(self, command: Command, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and command.going():
            command.below()
            time.sleep(0.05)

    def worker_at_work(self, command: Command, results: Path) -> psutil.Process | None:
        """One of the workers, at a random moment after the first of them has begun."""
        self.at_work(command, results)
        self.let_pass(command, self.rng.expovariate(2 / self.seconds_at_work))
        workers = command.below()
        return self.rng.choice(workers) if workers and command.going() else None

    # The surroundings

    def full_disks(self, count: int) -> None:
        """A small tmpfs that something else fills, and that is emptied again."""
        place = self.work / "small"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", place], capture_output=True).returncode:
            raise Skipped("mounting a tmpfs needs root")
        try:
            for _ in range(count):
                results = self.fresh(place)
                command = self.start(results)
                time.sleep(self.rng.uniform(0, self.seconds))
                balloon = place / "balloon"
                left = self.rng.choice([0, 0, 1 << 12, 1 << 16, 1 << 20])
                with suppress(OSError), balloon.open("wb") as file:
                    free = shutil.disk_usage(place).free
                    os.posix_fallocate(file.fileno(), 0, max(1, free - left))
                self.faults["full disk"] += 1
                code = command.wait()
                self.heard(command, code)
                command.close()
                balloon.unlink(missing_ok=True)
                self.finish(results)
                self.compare(results)
                self.tell()
        finally:
            subprocess.run(["umount", "-l", place], capture_output=True)

    def shim(self) -> Path:
        """`torture_shim.c`, built. Raises Skipped."""
        compiler, shim = shutil.which("cc"), self.work / "shim.so"
        source = Path(__file__).with_name("torture_shim.c")
        if not compiler or subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"]).returncode:
            raise Skipped("no C compiler")
        return shim

    def input_errors(self, count: int) -> None:
        """One write, flush or rename in so many ends with EIO."""
        shim = self.shim()
        for _ in range(count):
            results = self.fresh()
            rate = self.rng.choice([30, 100, 300])
            drawn = self.rng.randrange(1 << 30)
            env = {"LD_PRELOAD": str(shim), "EIO_BELOW": str(results), "EIO_ONE_IN": str(rate), "EIO_SEED": str(drawn)}
            for _ in range(1 if self.short else 2):
                command = self.start(results, env=env)
                self.heard(command, command.wait())
                command.close()
            self.faults["EIO"] += 1
            self.finish(results)
            self.compare(results)
            self.tell()

    def clock_steps(self, count: int) -> None:
        """The wall clock jumps while the suite runs, by seconds, hours and a year, and back."""
        shim = self.shim()
        for _ in range(count):
            results, ahead = self.fresh(), self.work / "ahead"
            ahead.write_text("0")
            env = {"LD_PRELOAD": str(shim), "CLOCK_AHEAD": str(ahead)}
            command = self.start(results, env=env)
            while command.going():
                ahead.write_text(str(self.rng.choice([0, -10800, 10800, -34560000, 34560000, -2, 2])))
                self.faults["clock step"] += 1
                with suppress(subprocess.TimeoutExpired):
                    command.process.wait(self.rng.uniform(0.3, 3.0))
            self.heard(command, command.wait())
            command.close()
            self.finish(results)
            self.compare(results)
            self.tell()

    def pairs(self, count: int) -> None:
        """Two runs of the suite at once: one works, the other one says so."""
        for _ in range(count):
            results = self.fresh()
            first = self.start(results)
            time.sleep(self.rng.choice([0.0, 0.0, self.rng.uniform(0, self.seconds)]))
            second = self.start(results)
            codes = [command.wait() for command in (first, second)]
            for command, code in zip((first, second), codes, strict=True):
                self.heard(command, code)
                command.close()
            if not set(codes) <= {0, 2} or 0 not in codes:
                raise Violation(f"two runs at once ended with {codes}")
            self.faults["two runs"] += 1
            self.compare(results)
            self.tell()

    # Damage

    def flips(self, count: int) -> None:
        """One byte of a finished journal, manifest, suite file or store altered, anywhere: the same table, or a sentence."""
        for i in range(count):
            results = self.fresh()
            shutil.copytree(self.whole, results)
            kind = ("journal", "manifest", "store", "suite")[i % 4]
            pattern = {
                "journal": "*/*/journal/*/*",
                "manifest": "*/*/manifest.json",
                "store": STORE,
                "suite": "*/suite.json",
            }
            victim = self.rng.choice(sorted(results.glob(pattern[kind])))
            data = bytearray(victim.read_bytes())
            at, mask = self.rng.randrange(len(data)), self.rng.randrange(1, 256)
            data[at] ^= mask
            victim.write_bytes(data)
            if kind != "store":
                (results / STORE).unlink()
            self.faults[f"flip {kind}"] += 1
            where = f"{victim.relative_to(results)}: byte {at} of {len(data)} xor {mask}"
            self._told(results, victim, where)
            if i % 4 == 2:  # and a store that is brought up to date upon the damage
                os.utime(next(results.glob("*/*/")))
                self._told(results, victim, where)
            shutil.rmtree(results)
        self.tell()

    def _told(self, results: Path, victim: Path, where: str) -> None:
        """In a process of its own: damage that kills the reader must not kill the benchmark."""
        code = "import sys; sys.path[:0] = sys.argv[2:]; import torture; torture.examine(sys.argv[1])"
        reader = subprocess.run([sys.executable, "-c", code, results, Path(__file__).parent], capture_output=True, text=True,
                                env={**os.environ, **ENVIRONMENT}, timeout=RUN_SECONDS)  # fmt: skip
        if reader.returncode != 0:
            raise Violation(f"{where}: the reader ended with {reader.returncode}: {reader.stderr[-1500:]}")
        found = json.loads(reader.stdout)
        named = any(victim.name in words for words in found["words"])
        if named:
            self.sentences[_kind(found["words"][0])] += 1
        elif found["tables"] is None or differences(
            {k: [tuple(r) for r in v] for k, v in found["tables"].items()}, self.reference
        ):
            raise Violation(f"{where}: another table, and no word of it: {found['words']}")

    def tell(self) -> None:
        """Where it stands, on stderr."""
        made = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        print(
            f"{time.strftime('%H:%M:%S')} seed {self.seed}: {self.compared} comparisons; {made}",
            file=sys.stderr,
            flush=True,
        )


def examine(results: str) -> None:
    """Bring the store of `results` up to date and print, as JSON, its tables (null if it cannot be read) and what was said."""
    words, found = [], None
    try:
        words += ingest(Path(results)).problems
        found = tables(Path(results))
        words += [row[-1] for row in found["problems"]]
    except StoreError as error:
        words.append(str(error))
    print(json.dumps({"tables": found, "words": words}))


def _kind(line: str) -> str:
    """A sentence without its numbers and paths."""
    return " ".join("…" if "/" in w or any(c.isdigit() for c in w) else w for w in line.split())[:120]


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # after a violation it stays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a dozen faults")
    parser.add_argument(
        "--only", nargs="*", metavar="KIND", help="kills verifier stops full_disks input_errors clock_steps pairs flips"
    )
    parser.add_argument("--work", type=Path, help="folder to work in; it stays")
    chosen = parser.parse_args()
    counts = {"kills": chosen.kills - chosen.kills // 10, "verifier": chosen.kills // 10, "stops": 6, "full_disks": 6,
              "input_errors": 6, "clock_steps": 3, "pairs": 4, "flips": 200}  # fmt: skip
    if chosen.short:
        counts = {"kills": 3, "verifier": 3, "input_errors": 1, "clock_steps": 1, "flips": 6}
    for unknown in set(chosen.only or ()) - counts.keys():
        parser.error(f"--only {unknown}: one of {', '.join(counts)}")
    adopt()
    began = time.monotonic()
    with workplace(chosen.work) as work:
        print(f"torture: seed {chosen.seed}, in {work}", file=sys.stderr, flush=True)
        torture = Torture(work, chosen.seed, chosen.short)
        problem = kind = ""
        try:
            torture.undisturbed()
            print(f"undisturbed: {torture.seconds:.1f} s", file=sys.stderr, flush=True)
            for kind, count in counts.items():
                if chosen.only is None or kind in chosen.only:
                    torture.rng = random.Random(f"{chosen.seed} {kind}")
                    made: Callable[[int], None] = getattr(torture, kind)
                    try:
                        made(count)
                    except Skipped as reason:
                        torture.skipped[kind] = str(reason)
        except Violation as violation:
            problem = str(violation)
        summary = {
            "seed": chosen.seed, "faults": dict(torture.faults), "skipped": torture.skipped, "comparisons": torture.compared,
            "sentences": dict(torture.sentences.most_common()), "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(cpu_of_children(), 1), "violation": problem,
        }  # fmt: skip
        print(json.dumps(summary))
        if problem:
            again = (
                f"python benchmarks/torture.py --seed {chosen.seed} --kills {chosen.kills} --only {kind}"
                + " --short" * chosen.short
            )
            print(f"VIOLATION: {problem}\n  results: {torture.current}\n  again:   {again}", file=sys.stderr)
            os._exit(1)  # the folder stays


if __name__ == "__main__":
    main()
