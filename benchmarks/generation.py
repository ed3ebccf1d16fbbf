"""The engine's sampling loop against `transformers.generate`, on the two base checkpoints of the `trap` pair: tokens per
CPU-second at temperature 1, beside the faster of its two caches. Greedy answers must be equal. Run by `bench.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import torch
from bench import Row, Size, faster, turns

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.engines.embedded.warmup import MicroSpec, base_checkpoint
from harness.engines.protocol import Sampling
from harness.experience.answers import Prompt
from harness.tasks.micro import LEVELS, SKILLS

GROUP, MAX_NEW_TOKENS = 8, 44
PAIR = (MicroSpec("llama", "add"), MicroSpec("qwen", "mul"))


def random_policy(folder: Path, family: str) -> Path:
    tokenizer = build_tokenizer(family)
    build_model(family, 0, tokenizer).save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


def micro_prompts(count: int) -> list[Prompt]:
    rng, skills = Random(0), list(SKILLS.values())
    drawn = [skills[i % len(skills)].draw(rng, rng.choice(LEVELS), held_out=False) for i in range(count)]
    return [Prompt(f"p{i}", problem.prompt, "") for i, problem in enumerate(drawn)]


def own(
    engine: EmbeddedEngine, prompts: list[Prompt], temperature: float, group: int, seed: int = 0
) -> list[list[int]]:
    seeds = np.random.default_rng(seed).integers(0, 2**64, (len(prompts), group), dtype=np.uint64)
    groups = engine.sample(prompts, seeds, Sampling(temperature, MAX_NEW_TOKENS))
    return [sample.tokens.tolist() for row in groups for sample in row]


def generate(
    engine: EmbeddedEngine,
    prompts: list[Prompt],
    temperature: float,
    group: int,
    seed: int = 0,
    cache: str | None = None,
) -> list[list[int]]:
    torch.manual_seed(seed)
    tokenizer = engine.tokenizer
    tokenizer.padding_side = "left"
    batch = tokenizer([p.text for p in prompts], return_tensors="pt", padding=True, add_special_tokens=False)
    drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    output = engine.model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        num_return_sequences=group,
        max_new_tokens=MAX_NEW_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        cache_implementation=cache,
        do_sample=temperature > 0,
        **drawn,
    )[:, batch["input_ids"].shape[1] :]
    tokenizer.batch_decode(output, skip_special_tokens=True)
    stop = torch.isin(output, torch.tensor(engine.stop)).int()
    lengths = ((stop.cumsum(1) - stop) == 0).sum(1).tolist()
    return [row[:length] for row, length in zip(output.tolist(), lengths, strict=True)]


class Counted:
    def __init__(self, work: Callable[..., list[list[int]]]) -> None:
        self._work, self.tokens = work, list[int]()

    def __call__(self) -> None:
        self.tokens.append(sum(map(len, self._work(seed=len(self.tokens)))))

    def per_token(self, spent: list[float]) -> list[float]:
        return [one / tokens for one, tokens in zip(spent, self.tokens[1:], strict=True)]


def compare(folder: Path, rollouts: int, rounds: int) -> Row:
    engine = EmbeddedEngine(folder.name, folder, device="cpu")
    engine.model.generation_config.max_length = None
    prompts = micro_prompts(rollouts // GROUP)
    assert own(engine, prompts, 0.0, 1) == generate(engine, prompts, 0.0, 1), "greedy answers differ"
    works = {
        "own": Counted(partial(own, engine, prompts, 1.0, GROUP)),
        "dynamic": Counted(partial(generate, engine, prompts, 1.0, GROUP)),
        "static": Counted(partial(generate, engine, prompts, 1.0, GROUP, cache="static")),
    }
    spent = turns(works, rounds)
    rates = {name: work.per_token(spent[name]) for name, work in works.items()}
    best = min(("dynamic", "static"), key=lambda name: median(rates[name]))
    family = str(engine.model.config.model_type)
    return faster(f"sampling, {family}, {rollouts} rollouts", f"generate, {best} cache", rates["own"], rates[best], 4.0)


def bench(size: Size) -> list[Row]:
    torch.set_num_threads(1)
    if size.smoke:
        with tempfile.TemporaryDirectory() as folder:
            return [compare(random_policy(Path(folder), "llama"), 16, size.rounds)]
    return [compare(base_checkpoint(spec), count, size.rounds) for spec in PAIR for count in (128, 256, 1024)]
