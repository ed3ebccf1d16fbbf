"""Sampling and whole GRPO steps of a pretrained policy against `transformers.generate` and, where installed, TRL's GRPOTrainer.

    python benchmarks/pretrained.py FOLDER [--threads 2] [--rounds 5] [--new-tokens 40] [--trl] [--vllm]

FOLDER: a converted model (`make pretrained`). 8 prompts x 8 answers at temperature 1. Everything runs in its best precision
(`--precisions`), found by a first pass of each, and takes turns within a round; ratios are medians over the rounds, of CPU-seconds
and of seconds by the clock. `--vllm`, in the environment of the OpenRLHF engine (docs/openrlhf.md), takes vLLM's CPU build into the
sampling's rounds, in bf16. Answers end where the model ends them, so rates are per token. A step samples, and learns every answer
once. TRL trains in fp32, in fp32 under bf16 autocast, and on bf16 weights. `--peak NAME` runs two steps of one side and prints its
process's peak memory. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench import NotHere, Row, Size, faster

os.environ |= {
    "OMP_NUM_THREADS": (sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "2"),
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from harness.cache import model_folder
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Optimisation, Sampling
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer
from harness.tasks.micro import LEVELS, SKILLS

PROMPTS, GROUP = 8, 8
Work = Callable[[int], int]
"""A round's work by its seed; returns tokens, EOS included."""


def prompts() -> list[Prompt]:
    rng, skills = Random(0), list(SKILLS.values())
    drawn = [skills[i % len(skills)].draw(rng, rng.choice(LEVELS), held_out=False) for i in range(PROMPTS)]
    return [Prompt(f"p{i}", problem.prompt, "") for i, problem in enumerate(drawn)]


def own_sampling(engine: EmbeddedEngine, length: int, seed: int) -> int:
    seeds = np.random.default_rng(seed).integers(0, 2**64, (PROMPTS, GROUP), dtype=np.uint64)
    groups = engine.sample(prompts(), seeds, Sampling(1.0, length))
    return sum(len(sample.tokens) for group in groups for sample in group)


def own_step(engine: EmbeddedEngine, length: int, seed: int) -> int:
    seeds = np.random.default_rng(seed).integers(0, 2**64, (PROMPTS, GROUP), dtype=np.uint64)
    groups = engine.sample(prompts(), seeds, Sampling(1.0, length))
    answers = tuple(
        TermAnswer(prompt.id, sample.tokens, 1.0 - 2.0 * (index % 2), sample.logprobs)
        for prompt, group in zip(prompts(), groups, strict=True)
        for index, sample in enumerate(group)
    )
    settings = Optimisation(learning_rate=1e-6, max_tokens=length)
    engine.update(prompts(), [Term("own", "own", Objective(), answers)], settings)
    return sum(len(answer.tokens) for answer in answers)


def generate(model: Any, tokenizer: Any, length: int, seed: int) -> int:
    torch.manual_seed(seed)
    batch = tokenizer([p.text for p in prompts()], return_tensors="pt", padding=True)
    output = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, num_return_sequences=GROUP, max_new_tokens=length,
    )[:, batch["input_ids"].shape[1] :]  # fmt: skip
    ends = (output == tokenizer.eos_token_id).int()
    return int(((ends.cumsum(1) - ends) == 0).sum())


TRL: dict[str, dict[str, Any]] = {
    "trl fp32": {"bf16": False, "model_init_kwargs": {"dtype": "float32"}},
    "trl autocast": {"bf16": True, "model_init_kwargs": {"dtype": "float32"}},
    "trl bf16": {"bf16": False, "model_init_kwargs": {"dtype": "bfloat16"}},
}


class Turns(TrainerCallback):  # type: ignore[misc]
    """Times the trainer's steps, and gives the others their turn after each."""

    def __init__(self, tokens: list[int], others: Callable[[int], None]) -> None:
        self.spent: list[tuple[float, float, int]] = []
        self._tokens, self._others, self._start = tokens, others, (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.process_time(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        cpu, wall = time.process_time() - self._start[0], time.perf_counter() - self._start[1]
        self.spent.append((cpu, wall, self._tokens[-1]))
        self._others(len(self.spent) - 1)


def alternate(texts: list[str], golds: list[str]) -> list[float]:
    """Rewards without a group that is all right or all wrong."""
    return [float(index % 2) for index in range(len(texts))]


def run_trl(
    name: str, folder: Path, length: int, steps: int, others: Callable[[int], None], asked: Sequence[Prompt] = (),
    judge: Callable[[list[str], list[str]], list[float]] = alternate, **changed: Any,
) -> Turns:  # fmt: skip
    """asked: the steps' prompts, in their order; by default the same ones in each. judge: rewards of texts, by their golds.
    changed: other settings of the trainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokens: list[int] = []

    def reward(completions: list[str], completion_ids: list[list[int]], gold: list[str], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return judge(completions, gold)

    turns = Turns(tokens, others)
    with tempfile.TemporaryDirectory() as temporary:
        settings = GRPOConfig(
            output_dir=temporary, use_cpu=True, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
            max_completion_length=length, max_steps=steps, beta=0.0, temperature=1.0, top_k=0,
            gradient_checkpointing=False, report_to="none", save_strategy="no", logging_steps=1000, disable_tqdm=True,
            **{"learning_rate": 1e-6} | TRL[name] | changed,
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": p.text, "gold": p.gold} for p in asked or prompts()])
        GRPOTrainer(str(folder), reward_funcs=reward, args=settings, train_dataset=data, callbacks=[turns]).train()
    return turns


def timed(work: Work, seed: int, name: str = "own step") -> tuple[float, float, int]:
    """CPU-seconds, seconds, tokens."""
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = work(seed)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"  round {seed}: {name}: {tokens} tokens, {cpu:.1f} CPU-s, {wall:.1f} s", flush=True)
    return cpu, wall, tokens


def per_token(spent: list[tuple[float, float, int]], clock: int) -> float:
    return median(s[clock] / s[2] for s in spent)


def bench(size: Size) -> list[Row]:
    """A whole step of SmolLM2-135M on two threads against TRL's in its fastest precision; of `bench.py`."""
    folder = model_folder("pretrained/smollm2-135m-instruct")
    if not folder.exists():
        raise NotHere(f"{folder}: make pretrained fetches it")
    if find_spec("trl") is None:
        raise NotHere("TRL: make bench installs it")
    if size.smoke:
        raise NotHere("not in short")
    torch.set_num_threads(2)
    with redirect_stdout(sys.stderr):  # the last line of the output is the rows
        _, best, ours, theirs = steps_beside_trl(folder, 40, size.rounds, list(TRL))
    spent = [[cpu / tokens for cpu, _, tokens in side] for side in (ours, theirs)]
    return [faster("GRPO step, SmolLM2-135M, per token", best, *spent, 2.5)]


def ratio(theirs: list[tuple[float, float, int]], ours: list[tuple[float, float, int]]) -> dict[str, float]:
    """How many times ours is as fast, per token, by CPU-seconds and by the clock; medians over the rounds."""
    pairs = list(zip(theirs, ours, strict=True))
    return {
        clock: round(median((t[index] / t[2]) / (o[index] / o[2]) for t, o in pairs), 2)
        for index, clock in enumerate(("cpu", "wall"))
    }


def peak(name: str, folder: Path, length: int) -> None:
    """Two steps of one side alone in this process."""
    if name in TRL:
        run_trl(name, folder, length, 2, lambda _: None)
    else:
        engine = EmbeddedEngine("own", folder, device="cpu", dtype=name.removeprefix("own ") or None)  # type: ignore[arg-type]
        for seed in range(2):
            own_step(engine, length, seed)
    print(json.dumps({"peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)}))


def vllm(folder: Path, length: int, threads: str) -> Work:
    """In this process, so that its CPU-seconds are counted."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    from vllm import LLM, SamplingParams

    model = LLM(str(folder), dtype="bfloat16", max_model_len=512, max_num_seqs=PROMPTS * GROUP, disable_log_stats=True)
    torch.set_num_threads(int(threads))
    texts = [prompt.text for prompt in prompts()]

    def work(seed: int) -> int:
        asked = SamplingParams(n=GROUP, temperature=1.0, max_tokens=length, seed=seed, logprobs=0)
        found = model.generate(texts, asked, use_tqdm=False)
        return sum(len(answer.token_ids) for request in found for answer in request.outputs)

    return work


def compare_sampling(
    folder: Path, length: int, rounds: int, precisions: list[str], beside: dict[str, Work]
) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    works = dict(beside)
    for dtype in precisions:
        works[f"own {dtype}"] = partial(own_sampling, EmbeddedEngine("own", folder, device="cpu", dtype=dtype), length)  # type: ignore[arg-type]
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        )
        works[f"generate {dtype}"] = partial(generate, model.eval(), tokenizer, length)
    first = {name: timed(work, 0, name) for name, work in works.items()}
    best = {
        side: min((n for n in works if n.startswith(side)), key=lambda n: first[n][0] / first[n][2])
        for side in ("own", "generate", *beside)
    }
    spent: dict[str, list[tuple[float, float, int]]] = {side: [] for side in best}
    for seed in range(1, rounds + 1):
        for side, name in best.items():
            spent[side].append(timed(works[name], seed, name))
    return {
        "best": best,
        "first_cpu_ms_per_token": {name: round(1e3 * s[0] / s[2], 2) for name, s in first.items()},
        "cpu_ms_per_token": {side: round(1e3 * per_token(s, 0), 2) for side, s in spent.items()},
        **{f"own / {side}": ratio(spent[side], spent["own"]) for side in best if side != "own"},
    }


def steps_beside_trl(
    folder: Path, length: int, rounds: int, names: list[str]
) -> tuple[dict[str, tuple[float, float, int]], str, list[tuple[float, float, int]], list[tuple[float, float, int]]]:
    """A step of each of TRL's precisions, the best of them, and the steps of both sides in turn: CPU-seconds, seconds, tokens."""
    engine = EmbeddedEngine("own", folder, device="cpu")
    first = {name: run_trl(name, folder, length, 2, lambda _: None).spent[-1] for name in names if len(names) > 1}
    best = min(first, key=lambda name: first[name][0] / first[name][2], default=names[0])
    ours: list[tuple[float, float, int]] = []
    turns = run_trl(
        best, folder, length, rounds + 1, lambda seed: ours.append(timed(partial(own_step, engine, length), seed))
    )
    return first, best, ours[1:], turns.spent[1:]


def compare_steps(folder: Path, length: int, rounds: int, names: list[str]) -> dict[str, Any]:
    first, best, ours, theirs = steps_beside_trl(folder, length, rounds, names)
    return {
        "best": best,
        "first_cpu_seconds": {name: round(s[0], 1) for name, s in first.items()},
        "cpu_seconds": {"own": round(median(s[0] for s in ours), 1), "trl": round(median(s[0] for s in theirs), 1)},
        "tokens": {"own": [s[2] for s in ours], "trl": [s[2] for s in theirs]},
        "own / trl": ratio(theirs, ours),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument(
        "--trl", nargs="*", choices=list(TRL), help="compare whole steps with TRL's; by default all three"
    )
    parser.add_argument("--vllm", action="store_true", help="compare sampling with vLLM's too")
    parser.add_argument("--peak", metavar="NAME", help=f"peak memory of one of: own fp32, own bf16, {', '.join(TRL)}")
    arguments = parser.parse_args()
    torch.set_num_threads(int(arguments.threads))
    folder, length = arguments.folder, arguments.new_tokens
    if arguments.peak:
        peak(arguments.peak, folder, length)
        return
    found: dict[str, Any] = {"policy": folder.name, "threads": int(arguments.threads), "rounds": arguments.rounds}
    beside = {"vllm": vllm(folder, length, arguments.threads)} if arguments.vllm else {}
    found["sampling"] = compare_sampling(folder, length, arguments.rounds, arguments.precisions, beside)
    print(found["sampling"], flush=True)
    if arguments.trl is not None:
        found["steps"] = compare_steps(folder, length, arguments.rounds, arguments.trl or list(TRL))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
