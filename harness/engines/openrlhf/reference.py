"""A policy's frozen base on the cluster: OpenRLHF's reference actor, as far as a session uses a PolicyEngine that never learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import UInt64

from harness.engines.openrlhf import cpu
from harness.engines.openrlhf.cluster import Slot
from harness.engines.openrlhf.engine import REFERENCE_SHARE, OpenRLHFEngine
from harness.engines.openrlhf.remote import Call
from harness.engines.openrlhf.rollout import open_rollouts
from harness.engines.openrlhf.trainer import ReferenceWorker, WorkerGroup, worker_type
from harness.engines.protocol import Optimisation, Sample, Sampling, UpdateReport
from harness.errors import EngineError
from harness.learning.experience import Prompt
from harness.learning.terms import Term


class OpenRLHFReference(OpenRLHFEngine):
    """Scores, and samples by a rollout engine that starts at the first sample; parameters as for the engine itself."""

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """See `OpenRLHFEngine.sample`; the first call takes as long as a start."""
        if not self._rollouts:
            handles = open_rollouts(
                self._folder, self._settings, self._slot, cpu.environment(self._settings.sync_seconds)
            )
            self._rollouts = self._members("reference rollout engine", handles)
            up = [Call(member, member.handle.processes.remote()) for member in self._rollouts]
            self._processes += [
                p for found in self._gather(up, "starting", self._settings.start_seconds, watch=[]) for p in found
            ]
        return super().sample(prompts, seeds, sampling)

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

    def _start(self, folder: str, slot: Slot) -> None:
        settings = self._settings
        self._folder, self._slot = folder, slot
        worker = worker_type(ReferenceWorker, cpu.environment(settings.sync_seconds))
        self._group = WorkerGroup(worker, slot.group, slot.trainers, REFERENCE_SHARE, settings.start_seconds)
        self._trainers = self._members("reference rank", self._group.handles)
        up = [Call(member, member.handle.processes.remote()) for member in self._trainers]
        self._processes = [
            p for found in self._gather(up, "starting", self._settings.start_seconds, watch=[]) for p in found
        ]
        refs = self._group.async_init_model_from_pretrained(self._strategy, folder, self._vocabulary.forbidden)
        calls = [Call(m, ref) for m, ref in zip(self._trainers, refs, strict=True)]
        self._gather(calls, "loading weights", settings.start_seconds)
