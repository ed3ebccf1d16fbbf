"""A policy's frozen base, as far as a session uses a PolicyEngine that never learns: it is scored, and sampled before it moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import Float32, Int32, UInt64
from transformers import PreTrainedTokenizerFast

from harness.engines.openrlhf.engine import OpenRLHFEngine
from harness.engines.protocol import Optimisation, Sample, Sampling, UpdateReport
from harness.errors import EngineError
from harness.experience.answers import Prompt
from harness.learning.terms import Term


class Frozen:
    """What a model that never learns refuses."""

    name: str

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """Refused: a reference does not learn."""
        self._refuse()

    def save(self, folder: Path) -> None:
        """Refused: a reference is the folder that it was opened from."""
        self._refuse()

    def restore(self, folder: Path) -> None:
        """Refused, see `save`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise EngineError(f"policy {self.name!r}: a reference neither learns nor is stored")


class Base(Frozen):
    """The base of an open engine, in the engine's own processes and memory (`base.base_weights`)."""

    version = 0

    def __init__(self, engine: OpenRLHFEngine) -> None:
        self._engine, self.name = engine, engine.name

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self._engine.tokenizer

    @property
    def stop(self) -> tuple[int, ...]:
        return self._engine.stop

    @property
    def gpus(self) -> int:
        return self._engine.gpus

    def reads(self, prompt: Prompt) -> str:
        """See `PolicyEngine.reads`."""
        return self._engine.reads(prompt)

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """See `PolicyEngine.sample`; while the engine still is its base. Raises EngineError afterwards."""
        if self._engine.version:
            raise EngineError(f"policy {self.name!r}: its base can be sampled only before the first update")
        return self._engine.sample(prompts, seeds, sampling)

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """See `PolicyEngine.score`; the engine's own weights are away meanwhile."""
        return self._engine.score_base(prompts, answers)

    def close(self) -> None:
        """Nothing to free that is not the engine's."""


class OpenRLHFReference(Frozen, OpenRLHFEngine):
    """A frozen folder by itself, to be sampled: rollout engines without a trainer. Parameters as for the engine."""

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Refused: what is scored is the base of an open engine."""
        raise EngineError(f"policy {self.name!r}: a reference without a trainer is only sampled")

    def _start(self) -> None:
        self._open_rollouts()
