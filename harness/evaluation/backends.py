"""Ways to run a checkpoint through lm-eval: the embedded engine, transformers, vLLM. All are scored alike, on their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

import numpy as np
from jaxtyping import UInt64
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from harness.engines.folder import has_template
from harness.engines.protocol import PolicyEngine, Sample, Sampling
from harness.errors import EngineError, InfeasibleError, UsageError
from harness.evaluation import Backend
from harness.experience.answers import Prompt
from harness.phases import halt, phase
from harness.suite.seeds import derive_many


class Generation(str):
    """A sampled text that remembers its length in tokens, whether it ended by itself, and the prompt as the policy read it.
    lm-eval passes it on untouched."""

    __slots__ = ("finished", "prompt", "tokens")
    tokens: int
    finished: bool
    prompt: str

    def __new__(cls, text: str, tokens: int, finished: bool, prompt: str) -> Generation:
        generation = super().__new__(cls, text)
        generation.tokens, generation.finished, generation.prompt = tokens, finished, prompt
        return generation


class EngineLM(LM):  # type: ignore[misc]  # lm-eval is untyped
    """Generates by `engine.sample`, at most `rows` answers a call. The engine applies its own chat template.

    An answer gets at most three quarters of the model's context, and a prompt longer than the rest loses its beginning. Where that
    ends an answer, the evaluation fails with EngineError: it would count as wrong.
    A sample's seed derives from (seed, task, document, repeat) alone: neither order, limit nor batching changes a sample.
    """

    def __init__(self, engine: PolicyEngine, seed: int = 0, rows: int = 1_024) -> None:
        super().__init__()
        self.engine, self.seed, self.rows = engine, seed, rows

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text per request, in order. A request that appears k times gets repeats 0 .. k-1."""
        texts: list[str] = []
        for (task, _), same in groupby(requests, key=lambda r: (r.task_name, id(r.args[1]))):
            texts += self._generate(str(task), list(same))
        return texts

    def _generate(self, task: str, requests: Sequence[Instance]) -> list[str]:
        settings = requests[0].args[1]
        repeats = Counter(id(request) for request in requests)
        unique = list({id(request): request for request in requests}.values())
        width = max(repeats.values())
        length = min(int(settings["max_gen_toks"]), 3 * self._context // 4)
        sampling = Sampling(temperature=float(settings["temperature"]), max_new_tokens=length)
        generated: dict[int, list[str]] = {}
        cut = 0
        with phase(f"generating {task}", len(unique) * width) as generation:
            for chunk in _chunks(unique, max(1, self.rows // width)):
                halt()
                prompts = [Prompt(r.doc.id, self._fit(r.args[0], length), r.doc.gold, r.doc.labels) for r in chunk]
                seeds: UInt64[np.ndarray, "P G"] = np.stack(
                    [derive_many(width, "evaluation", self.seed, task, prompt.id) for prompt in prompts]
                )
                answers = self.engine.sample(prompts, seeds, sampling)
                cut += sum(not a.finished and a.tokens.size < settings["max_gen_toks"] for row in answers for a in row)
                for request, prompt, row in zip(chunk, prompts, answers, strict=True):
                    read = self.engine.reads(prompt)
                    generated[id(request)] = [_cut(answer, settings["until"], read) for answer in row]
                generation.count(generation.done + len(chunk) * width)
        if cut:
            raise EngineError(
                f"{task}: {cut:,} of {len(unique) * width:,} answers were ended by the model's context of {self._context:,} "
                f"tokens, before their {settings['max_gen_toks']:,} new tokens; ask for at most {length:,} "
                "(evaluation.max_new_tokens, --max-new-tokens)"
            )
        taken: Counter[int] = Counter()
        texts = []
        for request in requests:
            texts.append(generated[id(request)][taken[id(request)]])
            taken[id(request)] += 1
        return texts

    @property
    def _context(self) -> int:
        """The model's context in tokens, as far as its tokenizer tells."""
        return min(int(self.engine.tokenizer.model_max_length), 1 << 20)

    def _fit(self, text: str, answer: int) -> str:
        """The end of a prompt that leaves room for `answer` tokens, as lm-eval's own back ends cut it."""
        room = self._context - answer
        if len(text.encode()) <= room:
            return text  # a token is at least one byte long
        offsets = self.engine.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        ).offset_mapping
        return text if len(offsets) <= room else text[offsets[-room][0] :]

    def loglikelihood(self, requests: Any) -> NoReturn:
        raise NotImplementedError("the harness's tasks are generative")

    def loglikelihood_rolling(self, requests: Any) -> NoReturn:
        raise NotImplementedError("the harness's tasks are generative")


def _chunks(items: list[Instance], size: int) -> Iterator[list[Instance]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _cut(sample: Sample, stops: Sequence[str], prompt: str) -> Generation:
    """The text up to the first stop string; an answer that a stop string ends is finished."""
    ends = [position for stop in stops if (position := sample.text.find(stop)) >= 0]
    text = sample.text[: min(ends)] if ends else sample.text
    return Generation(text, int(sample.tokens.size), sample.finished or bool(ends), prompt)


def open_lm(
    backend: str,
    checkpoint: Path,
    *,
    seed: int = 0,
    chat: bool | None = None,
    device: str | None = None,
    batch_size: int = 16,
) -> LM:
    """A checkpoint folder as an lm-eval model.

    chat: whether prompts go through the chat template; None where the tokenizer has one. Samples of `embedded` depend on their
    seed alone; those of `hf` and `vllm` come from one generator seeded once, so they also depend on order and batch size.

    Raises
    ------
    UsageError
        An unknown back end, or no checkpoint in that folder.
    InfeasibleError
        vLLM is not installed.
    EngineError
        The checkpoint does not open.
    """
    if backend not in get_args(Backend):
        raise UsageError(f"unknown back end {backend!r}; there are {', '.join(get_args(Backend))}")
    if not (checkpoint / "config.json").is_file():
        raise UsageError(f"{checkpoint} is no checkpoint: it holds no config.json")
    if backend == "embedded":
        from harness.engines.embedded.engine import EmbeddedEngine

        chat = has_template(checkpoint) if chat is None else chat
        return EngineLM(EmbeddedEngine(checkpoint.name, checkpoint, device=device, chat=chat), seed)
    if backend == "hf":
        import torch
        from lm_eval.models.huggingface import HFLM

        torch.manual_seed(seed)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = "auto" if device.startswith("cuda") else "float32"
        return cast(LM, HFLM(pretrained=str(checkpoint), device=device, batch_size=batch_size, dtype=dtype))
    if find_spec("vllm") is None:
        raise InfeasibleError(
            "the vllm back end needs vLLM, which is not installed: pip install vllm, or use --backend hf"
        )
    from lm_eval.models.vllm_causallms import VLLM

    return cast(LM, VLLM(pretrained=str(checkpoint), seed=seed, dtype="auto", gpu_memory_utilization=0.85))
