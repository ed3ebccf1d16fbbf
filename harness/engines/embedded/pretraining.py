"""Supervised stage 0: a few hundred AdamW steps that give a tiny model latent competence.

Only response tokens enter the loss and the output layer, and every batch is cut into two halves of similar length: the
gradient is that of the whole batch, in four fifths of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import cos, pi
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.engines.embedded.mixture import Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Progress = Callable[[int], None]
"""Called with the number of steps done."""
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Schedule:
    """AdamW at `learning_rate` after a linear warm-up, then by a cosine down to `floor` times that. Batch in examples."""

    batch: int = 32
    learning_rate: float = 2e-3
    warmup: int = 40
    floor: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of `step` (from 0) of `steps`."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return self.learning_rate * (self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2)


class Pretrainer:
    """Trains one model; `run` may be called again for more steps, each time with a schedule of its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        examples: Iterator[Example],
        schedule: Schedule,
    ) -> None:
        self._model, self._tokenizer, self._examples, self._schedule = model, tokenizer, examples, schedule
        self._optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=schedule.learning_rate,
            betas=schedule.betas,
            weight_decay=schedule.weight_decay,
            fused=True,
        )

    def run(self, steps: int, progress: Progress | None = None) -> None:
        """`steps` optimiser steps. One thread, so that the result does not depend on the number of cores."""
        self._model.train()
        with one_thread():
            for step in range(steps):
                for group in self._optimiser.param_groups:
                    group["lr"] = self._schedule.rate(step, steps)
                self._step()
                if progress:
                    progress(step + 1)
        self._model.train(False)

    def _step(self) -> None:
        batch = sorted(self._encode(list(islice(self._examples, self._schedule.batch))), key=lambda row: row[0].size)
        targets = sum(row.size - start for row, start in batch)
        half = (len(batch) + 1) // 2
        for rows in (batch[:half], batch[half:]):
            (self._loss(rows) / targets).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._schedule.clip_norm)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def _encode(self, examples: list[Example]) -> list[tuple[Int64[np.ndarray, "T"], int]]:
        """Ids of prompt, response and EOS, and where the response starts."""
        texts = [example.prompt for example in examples] + [example.response for example in examples]
        ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        end = [self._tokenizer.eos_token_id]
        pairs = zip(ids[: len(examples)], ids[len(examples) :], strict=True)
        return [(np.array(prompt + response + end, dtype=np.int64), len(prompt)) for prompt, response in pairs]

    def _loss(self, rows: list[tuple[Int64[np.ndarray, "T"], int]]) -> Tensor:
        """Summed cross entropy of the response tokens. Padding is on the right, where a causal model cannot see it."""
        width = max(row.size for row, _ in rows) - 1
        inputs = np.full((len(rows), width), self._tokenizer.eos_token_id, dtype=np.int64)
        labels = np.full((len(rows), width), _IGNORED, dtype=np.int64)
        for index, (row, start) in enumerate(rows):
            inputs[index, : row.size - 1] = row[:-1]
            labels[index, start - 1 : row.size - 1] = row[start:]
        hidden = self._model.base_model(input_ids=torch.from_numpy(inputs), use_cache=False).last_hidden_state
        taken = torch.from_numpy(labels != _IGNORED)
        logits = self._model.get_output_embeddings()(hidden[taken])  # type: ignore[no-untyped-call]
        return cross_entropy(logits, torch.from_numpy(labels)[taken], reduction="sum")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
