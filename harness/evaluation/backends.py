"""A checkpoint that answers: the embedded engine, or transformers and vLLM through lm-eval."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np

from harness.engines.protocol import PolicyEngine, Sample, Sampling, cut_at
from harness.engines.vocabulary import has_template
from harness.errors import EngineError, InfeasibleError, RoomError, UsageError
from harness.evaluation import Backend
from harness.experience.answers import Prompt
from harness.phases import announce_phase, stop_if_asked
from harness.suite.seeds import derive_many


class BackendAnswer(NamedTuple):
    """An answer and the prompt that the model read for it. finished: None where it is not known whether it was cut off."""

    text: str
    tokens: int
    finished: bool | None
    prompt: str


class Room(NamedTuple):
    """Tokens of the longest question, and all that the model's positions hold: a question and its answer."""

    longest: int
    positions: int

    @property
    def new_tokens(self) -> int:
        """That fit behind the longest question."""
        return self.positions - self.longest


class Answerer(Protocol):
    def answer(
        self, name: str, prompts: Sequence[Prompt], repeats: int, sampling: Sampling, stops: Sequence[str]
    ) -> list[list[BackendAnswer]]:
        """Give `repeats` answers to each prompt. name: of task and mode."""
        ...

    def room(self, name: str, prompts: Sequence[Prompt]) -> Room | None:
        """Return what the longest of these prompts leaves to an answer; None where the model states no positions. Samples
        nothing. name: of the task. Raises RoomError where no answer fits."""
        ...


class EngineBackend:
    """Answers of `engine.sample`, at most `rows` a call, by its chat template.

    Questions are never cut. Raises RoomError where the model's positions hold no answer to one, EngineError where they end an
    answer: it would count as wrong. Seeds derive from (seed, name, prompt, repeat) alone.
    """

    def __init__(self, engine: PolicyEngine, seed: int = 0, rows: int = 1_024) -> None:
        self.engine = engine
        self.seed = seed
        self.rows = rows
        self.positions: int | None = getattr(engine, "positions", None)

    def answer(
        self, name: str, prompts: Sequence[Prompt], repeats: int, sampling: Sampling, stops: Sequence[str]
    ) -> list[list[BackendAnswer]]:
        """Sample answers in chunks of about `rows` answers; each answer has a seed of its own, whatever the chunks.

        Raises EngineError where the model's positions have ended answers that might have gone on.
        """
        wanted = sampling.max_new_tokens
        step = max(1, self.rows // repeats)
        answers: list[list[BackendAnswer]] = []
        cut = 0
        shortest = wanted
        with announce_phase(f"generating {name}", len(prompts) * repeats) as generation:
            for start in range(0, len(prompts), step):
                stop_if_asked()
                chunk = prompts[start : start + step]
                seeds = np.stack([derive_many(repeats, "evaluation", self.seed, name, prompt.id) for prompt in chunk])
                room = self.room(name, chunk)
                length = wanted if room is None else min(wanted, room.new_tokens)
                shortest = min(shortest, length)
                rows = self.engine.sample(chunk, seeds, replace(sampling, max_new_tokens=length))
                for prompt, row in zip(chunk, rows, strict=True):
                    read = self.engine.reads(prompt)
                    answers.append([_end_answer(sample, stops, read) for sample in row])
                    cut += sum(not a.finished and a.tokens < wanted for a in answers[-1])
                generation.count(len(answers) * repeats)
        if cut:
            raise EngineError(
                f"{name}: {cut:,} of {len(prompts) * repeats:,} answers were ended by the model's {self.positions:,} positions, "
                f"before their {wanted:,} new tokens; ask for at most {shortest:,} (evaluation.max_new_tokens, --max-new-tokens)"
            )
        return answers

    def room(self, name: str, prompts: Sequence[Prompt]) -> Room | None:
        """Return the room behind the longest of the prompts; texts whose bytes cannot be the longest in tokens are not
        tokenized."""
        if self.positions is None:
            return None
        longest = 0
        opening = len(self.engine.tokenizer.encode("a"))
        for prompt in prompts:
            text = self.engine.reads(prompt)
            if len(text.encode()) + opening > longest:  # a token has at least one byte: shorter texts are skipped
                # What a chat template wrote has its opening tokens in it; the tokenizer adds them to a bare question.
                ids = self.engine.tokenizer.encode(text, add_special_tokens=text == prompt.text, verbose=False)
                longest = max(longest, len(ids))
        return _room_behind(name, longest, self.positions)


def check_room(name: str, room: Room, length: int) -> None:
    """Check that answers of so many tokens fit. Raises RoomError."""
    if length > room.new_tokens:
        raise RoomError(
            f"{name}: the longest question takes {room.longest:,} tokens and an answer up to {length:,}, but the model has "
            f"{room.positions:,} positions; ask for at most {room.new_tokens:,} (evaluation.max_new_tokens, --max-new-tokens)"
        )


def _room_behind(name: str, longest: int, positions: int) -> Room:
    if longest >= positions:
        raise RoomError(
            f"{name}: a question takes {longest:,} tokens, and the model has {positions:,} positions: no answer fits. "
            "Ask it without worked examples, or take another model"
        )
    return Room(longest, positions)


def _end_answer(sample: Sample, stops: Sequence[str], prompt: str) -> BackendAnswer:
    """Return an answer up to the first of the stop strings."""
    ended = cut_at(sample, stops)
    return BackendAnswer(ended.text, int(ended.tokens.size), ended.finished, prompt)


class LmEvalBackend:
    """By a model of lm-eval's. One generator, seeded once: samples depend on order and batch size."""

    def __init__(self, lm: Any, chat: bool | None) -> None:
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.lm = lm
        self.chat = bool(lm.tokenizer.chat_template) if chat is None else chat

    def answer(
        self, name: str, prompts: Sequence[Prompt], repeats: int, sampling: Sampling, stops: Sequence[str]
    ) -> list[list[BackendAnswer]]:
        """Have lm-eval's model generate the answers. It is not known which of them were cut off."""
        from lm_eval.api.instance import Instance

        settings = {
            "until": list(stops),
            "max_gen_toks": sampling.max_new_tokens,
            "do_sample": sampling.temperature > 0,
            "temperature": sampling.temperature,
            **({"top_p": sampling.top_p} if sampling.top_p < 1 else {}),
        }
        read = self._texts_of_prompts(prompts)
        room = self.room(name, prompts)
        if room is not None:
            check_room(name, room, sampling.max_new_tokens)  # lm-eval would cut the questions
        requests = [
            Instance("generate_until", {}, (text, settings), 0, metadata=(name, i, repeats))
            for i, text in enumerate(read)
            for _ in range(repeats)
        ]
        said = self.lm.generate_until(requests)
        answers = [
            BackendAnswer(text, len(self.lm.tokenizer.encode(text, add_special_tokens=False)), None, request.args[0])
            for text, request in zip(said, requests, strict=True)
        ]
        return [answers[start : start + repeats] for start in range(0, len(answers), repeats)]

    def room(self, name: str, prompts: Sequence[Prompt]) -> Room | None:
        longest = max((len(self.lm.tok_encode(text)) for text in self._texts_of_prompts(prompts)), default=0)
        return _room_behind(name, longest, int(self.lm.max_length))

    def _texts_of_prompts(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return the texts that the model reads."""
        if not self.chat:
            return [prompt.text for prompt in prompts]
        return [
            self.lm.apply_chat_template([{"role": "user", "content": prompt.text}], add_generation_prompt=True)
            for prompt in prompts
        ]


def open_backend(backend: str, checkpoint: Path, *, seed: int = 0, chat: bool | None = None) -> Answerer:
    """Open a checkpoint folder. chat: None where the tokenizer has a template. Raises UsageError, InfeasibleError,
    EngineError."""
    if backend not in get_args(Backend):
        raise UsageError(f"unknown back end {backend!r}; there are {', '.join(get_args(Backend))}")
    if not (checkpoint / "config.json").is_file():
        raise UsageError(f"{checkpoint} is no checkpoint: it holds no config.json")
    if backend == "embedded":
        from harness.engines.embedded.engine import EmbeddedEngine

        chat = has_template(checkpoint) if chat is None else chat
        return EngineBackend(EmbeddedEngine(checkpoint.name, checkpoint, chat=chat), seed)
    if backend == "hf":
        import torch
        from lm_eval.models.huggingface import HFLM
        from transformers import GenerationConfig

        torch.manual_seed(seed)
        device, dtype = ("cuda", "auto") if torch.cuda.is_available() else ("cpu", "float32")
        lm = HFLM(pretrained=str(checkpoint), device=device, batch_size=16, dtype=dtype)
        # Without the folder's settings but for its tokens, and without the library's top_k of 50
        names = [f"{role}_token_id" for role in ("bos", "eos", "pad", "decoder_start")]
        ids = {name: getattr(lm.model.generation_config, name) for name in names}
        lm.model.generation_config = GenerationConfig(top_k=0, **ids)  # type: ignore[no-untyped-call]  # its __init__ has no types
        return LmEvalBackend(lm, chat)
    if find_spec("vllm") is None:
        raise InfeasibleError(
            "the vllm back end needs vLLM, which is not installed: pip install vllm, or use --backend hf"
        )
    from lm_eval.models.vllm_causallms import VLLM

    return LmEvalBackend(VLLM(pretrained=str(checkpoint), seed=seed, dtype="auto", gpu_memory_utilization=0.85), chat)
