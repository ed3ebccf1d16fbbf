"""The DeepSpeed side: OpenRLHF's policy and reference actors, learning by the harness's surrogate loss."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from deepspeed.runtime.zero import GatheredParameters
from jaxtyping import Float, Float32
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from harness.engines.openrlhf import flash

flash.stand_in()

from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor  # noqa: E402

from harness.engines.openrlhf import moments, seams  # noqa: E402
from harness.engines.openrlhf.away import Away, all_tensors, release  # noqa: E402
from harness.engines.openrlhf.base import base_weights, forget_gathered, stored_names, weights  # noqa: E402
from harness.engines.openrlhf.batches import MicroBatch  # noqa: E402
from harness.engines.openrlhf.checksums import checksum  # noqa: E402
from harness.engines.openrlhf.measuring import UNMEASURED, Apart, Norms, Sums  # noqa: E402
from harness.engines.openrlhf.remote import Process, cpu_seconds, processes  # noqa: E402
from harness.engines.openrlhf.strategy import Strategy  # noqa: E402
from harness.engines.openrlhf.turns import Held  # noqa: E402
from harness.engines.protocol import Optimisation  # noqa: E402
from harness.errors import EngineError  # noqa: E402
from harness.learning.surrogate import AnswerStatistics, surrogate  # noqa: E402

NEVER = -1e9
"""Added to the logits of ids that are never content, as in the embedded engine."""
Plan = tuple[Sequence[MicroBatch], Sequence[MicroBatch]]
"""One rank's micro-batches of one update: own answers', peer answers'."""


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """One update on one rank: statistics of each micro-batch that was not idle, own ones first; the global gradient norm
    before clipping; norms of own and peer gradients alone and their cosine, NaN where absent or not measured."""

    statistics: list[AnswerStatistics]
    gradient_norm: float
    apart: Apart


class Trainer(ActorPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's trainer of one rank, its weight sync included; what it minimises is the surrogate."""

    def learn(
        self, own: Sequence[MicroBatch], peer: Sequence[MicroBatch], forbidden: Tensor, optimisation: Optimisation
    ) -> Learnt:
        """One optimiser update, left out where the gradient is not finite. The loss is the sum over all ranks' micro-batches;
        DeepSpeed averages over ranks."""
        statistics: list[AnswerStatistics] = []
        norms = Norms(self.actor.model.module)
        sums = Sums(self.actor.model.module) if optimisation.measure else None
        for source, batches in (("own", own), ("peer", peer)):
            with norms.collect(), sums.collect(source) if sums else nullcontext():
                for batch in batches:
                    logp = logprobs(self.actor, batch, forbidden)
                    if batch.packed is None:
                        loss = logp.sum() * 0.0
                    else:
                        loss, found = surrogate(logp, batch.packed)
                        statistics.append(found)
                    self.strategy.backward(loss * self.strategy.world_size, self.actor, self.actor_optim)
        if not math.isfinite(together := norms.sum()):
            return Learnt(statistics, together, UNMEASURED)
        apart = sums.apart() if sums else UNMEASURED
        sums = None  # its memory is the step's
        return Learnt(statistics, self._step(optimisation), apart)

    def _step(self, optimisation: Optimisation) -> float:
        engine = self.actor.model
        for group in engine.optimizer.param_groups:
            group["lr"], group["betas"] = optimisation.learning_rate, optimisation.betas
            group["weight_decay"] = optimisation.weight_decay
        self.actor_scheduler.base_lrs = [optimisation.learning_rate] * len(self.actor_scheduler.base_lrs)
        seams.clip_at(engine, optimisation.clip_norm)
        norm = self._plain_norm() if self.strategy.stage == 0 and self.strategy.param_dtype == "fp32" else None
        self.strategy.optimizer_step(self.actor_optim, self.actor, self.actor_scheduler)
        return self.strategy.get_grad_norm(self.actor) if norm is None else norm

    def _plain_norm(self) -> float:
        """Without ZeRO and in fp32 DeepSpeed reports no norm."""
        seams.reduce_gradients(self.actor.model)
        gradients = [p.grad for p in self.actor.model.module.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))


class PolicyWorker(seams.plain_class(PolicyModelActor)):  # type: ignore[misc]
    """One rank of a policy's trainer."""

    forbidden: Tensor
    trainer: Any
    actor: Any
    actor_optim: Any
    actor_scheduler: Any
    _away: dict[Held, Away]

    def init_model_from_pretrained(
        self, strategy: Strategy, pretrain: str, max_steps: int, vllm_engines: None = None
    ) -> None:
        """Load the weights, or load them again: everything of an earlier call is dropped."""
        seams.adapt_trainer(strategy.deadline)
        if getattr(self, "actor", None) is not None:
            self.actor.model.destroy()  # DeepSpeed's hooks would keep everything
        self.trainer = self.actor = self.actor_optim = self.actor_scheduler = None
        self._away = {}
        release()  # the next model is not to stand beside this one
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None)
        _without_dropout(self.actor, training=strategy.args.actor.gradient_checkpointing_enable)

    def join(self, engines: list[Any], forbidden: Collection[int]) -> None:
        """Form the weight-sync group with the rollout engines, which must be up."""
        strategy = self.strategy
        self.vllm_engines = engines
        self.trainer = Trainer(
            strategy,
            self.actor,
            ema_model=None,
            actor_optim=self.actor_optim,
            actor_scheduler=self.actor_scheduler,
            micro_train_batch_size=strategy.args.train.micro_batch_size,
            tokenizer=self.tokenizer,
            vllm_engines=engines or None,
        )
        self.forbidden = _penalty(self.actor, forbidden)
        if engines and torch.distributed.get_rank() == 0:  # even an empty ray.get would join whatever cluster is about
            names = stored_names(self.actor.model.module)
            ray.get([engine.name_weights.remote(names) for engine in engines], timeout=strategy.deadline)

    def learn(self, plan: Sequence[Plan], optimisation: Optimisation) -> list[Learnt]:
        """This rank's part of a step: for each update its own and its peer micro-batches."""
        return [self.trainer.learn(own, peer, self.forbidden, optimisation) for own, peer in plan]

    def logprobs(self, batches: Sequence[MicroBatch], raw: bool = False) -> list[Float32[np.ndarray, "N"]]:
        """Log-probabilities of the tokens asked for, per micro-batch. raw: of the model alone, at temperature 1 and
        with no id ruled out."""
        return _scores(self.actor, batches, None if raw else self.forbidden)

    def base_logprobs(self, batches: Sequence[MicroBatch], folder: str) -> list[Float32[np.ndarray, "N"]]:
        """The same under the weights of `folder`, from which the policy once started."""
        with base_weights(self.actor.model, Path(folder)):
            return _scores(self.actor, batches, self.forbidden)

    def hold(self, wanted: Held) -> None:
        """Have so much on the device from now on; the rest of this process's tensors is put away (`Away`)."""
        model = self.actor.model
        scoring = [*weights(model.module), *model.module.buffers(), self.forbidden]
        if wanted < Held.ALL and Held.ALL not in self._away:
            forget_gathered(model)
            kept = {tensor.untyped_storage().data_ptr() for tensor in scoring}
            everything = all_tensors(scoring[0].device.type)
            self._away[Held.ALL] = Away(t for t in everything if t.untyped_storage().data_ptr() not in kept)
        if wanted < Held.WEIGHTS and Held.WEIGHTS not in self._away:
            for tensor in scoring:
                if not tensor.untyped_storage().resizable():  # still mapped from the checkpoint's file
                    tensor.data = tensor.data.clone()
            self._away[Held.WEIGHTS] = Away(scoring)
        for held in (Held.WEIGHTS, Held.ALL):
            if wanted >= held and held in self._away:
                self._away.pop(held).back()

    def save(self, folder: str, moments_file: str) -> None:
        """Weights as a Hugging Face folder and the optimiser's state; rank 0 writes, all take part."""
        config = self.actor.model.module.config
        config.use_cache = True
        if self.strategy.stage == 3 or torch.distributed.get_rank() == 0:
            self.strategy.save_model(self.actor, self.tokenizer, folder)
        else:  # OpenRLHF would copy all weights to the host's memory here too; rank 0 waits at its end
            torch.distributed.barrier()
        config.use_cache = False
        moments.save(Path(folder, moments_file), self.actor.model)

    def checksums(self) -> dict[str, str]:
        """Of the weights, by the names of a checkpoint; every rank takes part."""
        module = self.actor.model.module
        stored, found = stored_names(module), {}
        for name, parameter in module.named_parameters():
            with GatheredParameters([parameter], enabled=self.strategy.stage == 3):
                found[stored.get(name, name)] = checksum(parameter)
        return found

    def load_moments(self, file: str) -> None:
        """Put the optimiser's state back; the weights are those that `init_model_from_pretrained` has just loaded."""
        moments.load(Path(file), self.actor.model)

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def pulse(self) -> int:
        """A sign of life, given while other methods run."""
        return os.getpid()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def processes(self) -> list[Process]:
        """This process and all it started."""
        return processes()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def cpu_seconds(self) -> float:
        """CPU time of these processes so far."""
        return cpu_seconds()


def worker_type(worker: type, environment: dict[str, str]) -> Any:
    """The Ray actor class of a worker; it answers `pulse` beside its work."""
    return ray.remote(num_gpus=1, concurrency_groups={"pulse": 1}, runtime_env={"env_vars": environment})(worker)


class WorkerGroup:
    """A policy's ranks, in given bundles of a cell's placement group.

    share: of each bundle's device. Raises EngineError if the first rank does not come up within `deadline` seconds.
    handles: the actors, by rank.
    """

    def __init__(
        self, worker: Any, group: PlacementGroup, bundles: Sequence[int], share: float, deadline: float
    ) -> None:
        self._worker, self._bundles = worker, bundles
        first = self._start(group, share, 0, None, None)
        self.handles = [first]
        if len(bundles) == 1:
            return
        try:
            address = ray.get(first.get_master_addr_port.remote(), timeout=deadline)
        except RayError as error:
            ray.kill(first)
            raise EngineError(f"trainer rank 0 did not start: {type(error).__name__}") from None
        self.handles += [self._start(group, share, rank, *address) for rank in range(1, len(bundles))]

    def _start(self, group: PlacementGroup, share: float, rank: int, host: str | None, port: int | None) -> Any:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=self._bundles[rank])
        options = {"num_cpus": share, "num_gpus": share, "scheduling_strategy": place}
        return self._worker.options(**options).remote(len(self._bundles), rank, host, port)


def logprobs(actor: Any, batch: MicroBatch, forbidden: Tensor | None) -> Float[Tensor, "N"]:
    """Log-probabilities of the tokens asked for, row after row. `forbidden` None: at temperature 1, no id ruled out."""
    device = torch.cuda.current_device()
    asked = batch.experience.action_mask.to(device)
    sequences = batch.experience.sequences.to(device)
    # OpenRLHF's forward divides by its temperature; only the positions asked for go through the softmax.
    output: dict[str, Tensor] = actor(
        sequences, attention_mask=batch.experience.attention_mask.to(device), return_output=True
    )
    logits = output["logits"][:, :-1][asked]
    logits = logits * actor.temperature if forbidden is None else logits + forbidden
    scores: Tensor = -torch.nn.functional.cross_entropy(logits, sequences[:, 1:][asked], reduction="none")
    # Of an idle micro-batch nothing is asked, but its zero must be connected to every parameter.
    return scores if len(scores) else output["logits"][:1, 0].sum(dim=1) * 0.0


def _scores(actor: Any, batches: Sequence[MicroBatch], forbidden: Tensor | None) -> list[Float32[np.ndarray, "N"]]:
    with torch.no_grad():
        return [logprobs(actor, batch, forbidden).float().cpu().numpy() for batch in batches]


def _penalty(actor: Any, forbidden: Collection[int]) -> Float32[Tensor, "V"]:
    config = actor.model.module.config.get_text_config()
    penalty = torch.zeros(config.vocab_size, device=torch.cuda.current_device())
    penalty[list(forbidden)] = NEVER
    return penalty


def _without_dropout(actor: Any, training: bool) -> None:
    """Dropout is off, so that a policy's log-probabilities are the same whether scored or trained. `training` is only the
    switch that gradient checkpointing listens to."""
    for module in actor.model.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    actor.train(training)
