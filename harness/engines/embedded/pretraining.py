"""Supervised stage 0: a minute of AdamW that gives a tiny model latent competence.

Only response tokens enter the loss and the output layer. Examples are drawn in pools, sorted by length and cut into
batches, so that hardly any padding is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import cos, pi
from random import Random
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
    """AdamW at `learning_rate` after a linear warm-up, then by a cosine down to `floor` times that.

    One step learns `batch` examples of similar length; `pool` batches are drawn together and then learnt in random order.
    """

    batch: int = 16
    pool: int = 4
    learning_rate: float = 2e-3
    warmup: int = 80
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


@dataclass(frozen=True, slots=True, eq=False)
class TokenisedExample:
    """Ids of prompt, response and EOS; the response begins at `start`."""

    ids: Int64[np.ndarray, "T"]
    start: int


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
        self._rng = Random(0)
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
            for step, (rows, scale) in enumerate(islice(self._batches(), steps)):
                for group in self._optimiser.param_groups:
                    group["lr"] = self._schedule.rate(step, steps)
                (self._loss(rows) * scale).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._schedule.clip_norm)
                self._optimiser.step()
                self._optimiser.zero_grad(set_to_none=True)
                if progress:
                    progress(step + 1)
        self._model.train(False)

    def _batches(self) -> Iterator[tuple[list[TokenisedExample], float]]:
        """Batches, and the factor that makes a summed loss the pool's token mean: all tokens weigh the same."""
        batch, pool = self._schedule.batch, self._schedule.pool
        while True:
            rows = sorted(self._encode(list(islice(self._examples, batch * pool))), key=lambda row: row.ids.size)
            scale = pool / sum(row.ids.size - row.start for row in rows)
            cuts = list(range(0, len(rows), batch))
            self._rng.shuffle(cuts)
            for cut in cuts:
                yield rows[cut : cut + batch], scale

    def _encode(self, examples: list[Example]) -> list[TokenisedExample]:
        texts = [example.prompt for example in examples] + [example.response for example in examples]
        encoded = self._tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        end = [self._tokenizer.eos_token_id]
        pairs = zip(encoded[: len(examples)], encoded[len(examples) :], strict=True)
        return [
            TokenisedExample(np.array(prompt.ids + response.ids + end, dtype=np.int64), len(prompt.ids))
            for prompt, response in pairs
        ]

    def _loss(self, rows: list[TokenisedExample]) -> Tensor:
        """Summed cross entropy of the response tokens. Padding is on the right, where a causal model cannot see it."""
        width = max(row.ids.size for row in rows) - 1
        inputs = np.full((len(rows), width), self._tokenizer.eos_token_id, dtype=np.int64)
        labels = np.full((len(rows), width), _IGNORED, dtype=np.int64)
        for index, row in enumerate(rows):
            inputs[index, : row.ids.size - 1] = row.ids[:-1]
            labels[index, row.start - 1 : row.ids.size - 1] = row.ids[row.start :]
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
