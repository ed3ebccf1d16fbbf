"""The embedded engine beside what a user would take instead, from the same weights. Run by `bench.py`.

sampling: against `transformers.generate`, on the two base checkpoints of the `trap` pair: tokens per CPU-second at temperature 1,
beside the faster of its two caches. Greedy answers must be equal.
steps: whole GRPO steps of the micro setting, 16 prompts x 8 answers sampled and learnt once, in lock step with TRL's GRPOTrainer in
fp32. All sides have the same prompts, rewards, rate and optimiser, and sample for themselves. `equal rows` trains every answer, as
TRL does; `as run` leaves out groups that are all right or all wrong. Rewards of the last quarter are compared.
real: `as run` of the two pretrained models after their supervised start, 8 prompts x 8 answers, all weights trained, in bf16,
where TRL is twice as fast as in fp32; and steps of the start itself beside TRL's SFTTrainer on the same examples."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from bench import NotHere, Row, Size, faster, seconds, turns
from transformers import TrainerCallback, logging

from harness.cache import cache_folder
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.engines.embedded.warmup import RATE, MicroSpec, Warmup, _learn_examples, base_checkpoint, warmup_checkpoint
from harness.engines.protocol import Optimisation, Sampling
from harness.experience.answers import Prompt
from harness.learning.advantages import GRPO, standardise
from harness.learning.terms import OLD, Term, TermAnswer
from harness.tasks import ladder
from harness.tasks.micro import training_prompts

GROUP, MAX_NEW_TOKENS = 8, 44
PAIR = (MicroSpec("llama", "add"), MicroSpec("qwen", "mul"))


def random_policy(folder: Path, family: str) -> Path:
    tokenizer = build_tokenizer(family)
    build_model(family, 0, tokenizer).save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


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


def per_token(spent: list[float], tokens: list[int]) -> list[float]:
    return [cpu / count for cpu, count in zip(spent, tokens, strict=True)]


def compare(folder: Path, rollouts: int, rounds: int) -> Row:
    engine = EmbeddedEngine(folder.name, folder, device="cpu")
    logging.set_verbosity_error()  # of both lengths, at every call
    engine.model.generation_config.max_length = None
    prompts = training_prompts(0, rollouts // GROUP)
    assert own(engine, prompts, 0.0, 1) == generate(engine, prompts, 0.0, 1), "greedy answers differ"
    works = {
        "own": partial(own, engine, prompts, 1.0, GROUP),
        "dynamic": partial(generate, engine, prompts, 1.0, GROUP),
        "static": partial(generate, engine, prompts, 1.0, GROUP, cache="static"),
    }
    tokens: dict[str, list[int]] = {name: [] for name in works}

    def counted(name: str) -> None:
        tokens[name].append(sum(map(len, works[name](seed=len(tokens[name])))))

    spent = turns({name: partial(counted, name) for name in works}, rounds)
    rates = {name: per_token(spent[name], tokens[name][1:]) for name in works}
    best = min(("dynamic", "static"), key=lambda name: median(rates[name]))
    family = str(engine.model.config.model_type)
    return faster(f"sampling, {family}, {rollouts} rollouts", f"generate, {best} cache", rates["own"], rates[best], 3.0)


def sampling(size: Size) -> list[Row]:
    torch.set_num_threads(1)
    if size.smoke:
        with tempfile.TemporaryDirectory() as folder:
            return [compare(random_policy(Path(folder), "llama"), 16, size.rounds)]
    return [compare(base_checkpoint(spec), count, size.rounds) for spec in PAIR for count in (128, 256, 1024)]


# Of `equal rows`, instead of zero, so that the row is trained
ADVANTAGE_OF_NONE = 1e-9
# How far apart mean rewards may be
APART = 0.15


@dataclass(frozen=True, slots=True)
class Work:
    """Of all sides. asked: prompts of each step."""

    asked: Sequence[Sequence[Prompt]]
    tokens: int = MAX_NEW_TOKENS
    rate: float = 1e-4
    dtype: str = "float32"


def judge(texts: list[str], golds: list[str]) -> list[float]:
    return [float(text.rstrip().endswith(f"\\boxed{{{gold}}}")) for text, gold in zip(texts, golds, strict=True)]


class Side:
    def __init__(self, folder: Path, every_row: bool, work: Work) -> None:
        self._engine, self._every_row, self._work = EmbeddedEngine("own", folder, device="cpu"), every_row, work
        self.spent, self.tokens, self.rewards = list[float](), list[int](), list[float]()

    def step(self, number: int) -> None:
        """Prepared here, timed where the other side is: from sampling to the update's end."""
        prompts = self._work.asked[number]
        seeds = np.random.default_rng(number).integers(0, 2**64, (len(prompts), GROUP), dtype=np.uint64)
        self.spent.append(seconds(lambda: self._step(prompts, seeds)))

    def _step(self, prompts: Sequence[Prompt], seeds: np.ndarray) -> None:
        groups = self._engine.sample(prompts, seeds, Sampling(1.0, self._work.tokens))
        answers, every = list[TermAnswer](), list[float]()
        for prompt, group in zip(prompts, groups, strict=True):
            rewards = np.array(judge([sample.text for sample in group], [prompt.gold] * GROUP))
            every += rewards.tolist()
            for sample, advantage in zip(group, standardise(rewards, rewards), strict=True):
                given = float(advantage) or (ADVANTAGE_OF_NONE if self._every_row else 0.0)
                answers.append(TermAnswer(prompt.id, sample.tokens, given, OLD, sampled=sample.logprobs))
        settings = Optimisation(learning_rate=self._work.rate, max_tokens=self._work.tokens)
        self._engine.update(prompts, [Term("own", "own", GRPO, tuple(answers))], settings)
        self.tokens.append(sum(len(answer.tokens) for answer in answers))
        self.rewards.append(mean(every))


class Turn(TrainerCallback):  # type: ignore[misc]  # transformers types it as Any
    """Times the steps of TRL's trainer; the others have their turn after each."""

    def __init__(self, others: Callable[[int], None]) -> None:
        self.spent, self._others, self._start = list[float](), others, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.spent.append(time.process_time() - self._start)
        self._others(len(self.spent) - 1)


def settings_of(folder: str, rows: int, steps: int, rate: float, dtype: str) -> dict[str, Any]:
    """Of any trainer of TRL."""
    return {
        "output_dir": folder, "use_cpu": True, "per_device_train_batch_size": rows, "max_steps": steps, "bf16": False,
        "report_to": "none", "save_strategy": "no", "logging_steps": 1000, "disable_tqdm": True, "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": dtype}, "learning_rate": rate, "lr_scheduler_type": "constant", "adam_beta2": 0.99,
    }  # fmt: skip


class Rival(Turn):
    def __init__(self, others: Callable[[int], None]) -> None:
        super().__init__(others)
        self.tokens, self.rewards = list[int](), list[float]()

    def train(self, folder: Path, work: Work) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        def reward(completions: list[str], completion_ids: list[list[int]], gold: list[str], **_: Any) -> list[float]:
            self.tokens.append(sum(map(len, completion_ids)))
            rewards = judge(completions, gold)
            self.rewards.append(mean(rewards))
            return rewards

        with tempfile.TemporaryDirectory() as temporary:
            settings = GRPOConfig(
                **settings_of(temporary, len(work.asked[0]) * GROUP, len(work.asked), work.rate, work.dtype), num_generations=GROUP,
                temperature=1.0, top_k=0, max_completion_length=work.tokens, beta=0.0, shuffle_dataset=False, epsilon_high=0.28,
            )  # fmt: skip
            data = Dataset.from_list([{"prompt": p.text, "gold": p.gold} for step in work.asked for p in step])
            GRPOTrainer(str(folder), reward_funcs=reward, args=settings, train_dataset=data, callbacks=[self]).train()


def race(title: str, folder: Path, work: Work, bars: Mapping[str, float], smoke: bool) -> list[Row]:
    """bars: of `equal rows`, `as run` or both."""
    torch.set_num_threads(1)
    sides = {name: Side(folder, name == "equal rows", work) for name in bars}

    def others(number: int) -> None:
        for side in list(sides.values())[:: 1 - 2 * (number % 2)]:
            side.step(number)

    rival = Rival(others)
    rival.train(folder, work)
    quarter = len(work.asked) // 4 or 1
    last = {name: mean(side.rewards[-quarter:]) for name, side in {"TRL": rival, **sides}.items()}
    print("mean reward of the last quarter:", {name: round(value, 3) for name, value in last.items()}, file=sys.stderr)
    for name, side in sides.items():
        assert 0.8 < sum(side.tokens) / sum(rival.tokens) < 1.25, f"{name}: the answers are not as long as TRL's"
        assert smoke or abs(last[name] - last["TRL"]) < APART, f"{name}: another reward curve than TRL's"
    rates = {one: per_token(one.spent[1:], one.tokens[1:]) for one in (rival, *sides.values())}
    return [
        faster(f"GRPO step, {title}{name}, per token", "TRL GRPOTrainer", rates[side], rates[rival], bars[name])
        for name, side in sides.items()
    ]


def steps(size: Size) -> list[Row]:
    if find_spec("trl") is None:
        raise NotHere("TRL: make bench installs it")
    count, prompts = (2, 2) if size.smoke else (42, 16)
    with tempfile.TemporaryDirectory() as temporary:
        folder = random_policy(Path(temporary), "llama")
        if not size.smoke:
            shutil.copytree(base_checkpoint(PAIR[0]), folder, dirs_exist_ok=True)
        work = Work([training_prompts(step, prompts) for step in range(count)])
        return race("", folder, work, {"equal rows": 3.0, "as run": 3.5}, size.smoke)


LEVELS = "ladder.add1+add2+sub2"
REAL = {"SmolLM2": "smollm2-135m-instruct", "Gemma 3": "gemma-3-270m"}


def real(size: Size) -> list[Row]:
    folders = {title: cache_folder() / "models" / name for title, name in REAL.items()}
    if size.smoke or find_spec("trl") is None or not all(folder.is_dir() for folder in folders.values()):
        raise NotHere("TRL, and both models of `make pretrained ACCEPT_GEMMA_TERMS=yes`")
    rows = list[Row]()
    for title, folder in folders.items():
        warmup = Warmup(title, title, chat=False, task=LEVELS)
        rows.append(starts(title, folder, warmup))
        asked = [ladder.training_prompts(step, 8, ladder.levels_of(LEVELS)) for step in range(12)]
        work = Work(asked, 24, 5e-6, "bfloat16")
        rows += race(f"{title}, ", warmup_checkpoint(warmup, folder), work, {"as run": 3.5}, size.smoke)
    return rows


def starts(title: str, folder: Path, warmup: Warmup) -> Row:
    """Steps of a supervised start, both sides in bf16."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(1)
    engine, examples, spent = EmbeddedEngine("own", folder, device="cpu"), warmup.examples(), list[float]()
    asked = [list(islice(examples, warmup.batch)) for _ in range(12)]

    def own_step(number: int) -> None:
        spent.append(seconds(lambda: _learn_examples(engine, asked[number], warmup, number, len(asked))))

    turn = Turn(own_step)
    with tempfile.TemporaryDirectory() as temporary:
        settings = SFTConfig(**settings_of(temporary, warmup.batch, len(asked), RATE, "bfloat16"))
        data = Dataset.from_list([{"prompt": e.prompt, "completion": e.response} for step in asked for e in step])
        SFTTrainer(str(folder), args=settings, train_dataset=data, callbacks=[turn]).train()
    return faster(f"supervised start, {title}", "TRL SFTTrainer", spent[1:], turn.spent[1:], 2.0)
