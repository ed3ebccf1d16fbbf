"""The DeepSpeed side: OpenRLHF's policy actor with the harness's surrogate.
All ranks run equally many passes, some of them idle, of zero loss."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor, distributed
from torch.nn.utils.rnn import pad_sequence

from harness.engines import checkpoint, lora
from harness.engines.head import NEVER, Head, merge_ends
from harness.engines.head import logprobs_by_parts as in_parts
from harness.engines.learner import Tally, mean_of_measured
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.offload import MemoryState, OffloadedTensors, all_tensors, release_cache
from harness.engines.openrlhf.remote import Process, cpu_seconds, list_own_processes
from harness.engines.openrlhf.state import (
    base_weights,
    forget_gathered,
    load_moments,
    save_moments,
    synced_weights,
    weights_of_rank,
)
from harness.engines.openrlhf.strategy import ActorPPOTrainer, PolicyModelActor, Strategy
from harness.engines.protocol import Optimisation, UpdateReport
from harness.errors import EngineError
from harness.learning.minibatches import MiniBatch, Packed, pack_answers
from harness.learning.surrogate import AnswerStatistics, surrogate_loss
from harness.learning.terms import Term
from harness.limits import without_collection

with without_collection():
    from deepspeed.runtime.zero import GatheredParameters


@dataclass(frozen=True, slots=True, eq=False)
class AnswerRow:
    """An answer behind its prompt, as ids. mask: which of the answer's tokens are asked for; all by default."""

    prompt: Sequence[int]
    answer: Int32[np.ndarray, "T"]
    mask: Bool[np.ndarray, "T"] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


class MicroBatch(NamedTuple):
    """Answers of one forward pass. packed: how they enter the loss; None where they are only scored, or the pass is idle."""

    rows: Sequence[AnswerRow]
    packed: Packed | None = None


class PaddedRows(NamedTuple):
    """A micro-batch's rows as tensors. sequences: (B, L) ids, zeros behind shorter ones. inside: (B, L) 1 at ids, 0 behind them.
    asked: (B, L - 1) whether the log-probability of the id at the next place is asked for."""

    sequences: Int64[Tensor, "B L"]
    inside: Int64[Tensor, "B L"]
    asked: Bool[Tensor, "B M"]


def _pad_rows(batch: MicroBatch, device: int) -> PaddedRows:
    """Put a micro-batch's prompts and answers into one rectangle on the device."""
    unpadded = [torch.tensor([*row.prompt, *row.answer.tolist()]) for row in batch.rows]
    sequences = pad_sequence(unpadded, batch_first=True)
    lengths = torch.tensor([row.length for row in batch.rows])
    inside = torch.arange(sequences.shape[1]) < lengths[:, None]
    asked = torch.zeros_like(inside[:, 1:])
    for place, row in zip(asked, batch.rows, strict=True):
        place[len(row.prompt) - 1 : row.length - 1] = True if row.mask is None else torch.from_numpy(row.mask)
    return PaddedRows(sequences.to(device), inside.long().to(device), asked.to(device))


class Split(NamedTuple):
    """Micro-batches by rank, equally many on each, and the indices of the rows in each."""

    batches: list[list[MicroBatch]]
    places: list[list[list[int]]]


def scoring_split(rows: Sequence[AnswerRow], ranks: int, budget: int) -> Split:
    """Split answers that are only scored. budget: tokens of a micro-batch, at most."""
    return _split_rows(rows, range(len(rows)), ranks, budget, lambda places: None)


def learning_splits(batch: MiniBatch, rows: Sequence[AnswerRow], ranks: int, budget: int) -> tuple[Split, Split]:
    """Split a mini-batch's own and its peer answers, which are learnt in this order. rows: of the answers of `batch.live()`, in
    that order. budget: tokens of a micro-batch, at most."""
    live = list(batch.live())
    sources = [batch.terms[term].source for term, _ in live]
    own = [place for place, source in enumerate(sources) if source == "own"]
    peer = [place for place, source in enumerate(sources) if source == "peer"]

    def packed(places: list[int]) -> Packed:
        return pack_answers(batch, [live[place] for place in places])

    split = partial(_split_rows, rows, ranks=ranks, budget=budget, packed=packed)
    return split(own, fewest=0 if peer else 1), split(peer)


def _split_rows(
    rows: Sequence[AnswerRow],
    chosen: Sequence[int],
    ranks: int,
    budget: int,
    packed: Callable[[list[int]], Packed | None],
    fewest: int = 0,
) -> Split:
    """Split the chosen rows into micro-batches for each rank.

    packed: gives how a micro-batch's rows enter the loss. fewest: passes of each rank at least, idle ones among them."""
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(sorted(chosen, key=lambda i: -rows[i].length)):
        # Back and forth, so that each rank gets long and short rows.
        place = turn % (2 * ranks)
        groups = shares[min(place, 2 * ranks - 1 - place)]
        # A group's longest row is its first; one beyond the budget goes alone.
        if groups and rows[groups[-1][0]].length * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    longest = max(fewest, *map(len, shares))
    idle = MicroBatch([AnswerRow([0], np.zeros(1, np.int32), np.zeros(1, bool))])
    batches = []
    for groups in shares:
        own = [MicroBatch([rows[index] for index in group], packed(group)) for group in groups]
        missing = longest - len(own)  # ranks that have less wait in the others' passes
        batches.append([*own, *[idle] * missing])
    return Split(batches, shares)


Plan = tuple[
    Sequence[MicroBatch], Sequence[MicroBatch]
]  # one rank's micro-batches of one update: own answers', peer answers'


class RankGradients:
    """One update's gradients, before DeepSpeed shards them. With `measure`, those of own and of peer answers add up apart, in
    fp32, and each rank keeps its share of them."""

    def __init__(self, module: torch.nn.Module, measure: bool) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._ranks = distributed.get_world_size()
        self._rank = distributed.get_rank()
        self._measure, self._norms = measure, torch.zeros((), device=self._parameters[0].device)
        self._sums: dict[str, dict[int, Tensor]] = {"own": {}, "peer": {}}
        self._offloaded = OffloadedTensors([])

    @contextmanager
    def collect(self, source: str) -> Iterator[None]:
        """Count backward passes inside for `source`, "own" before "peer"."""
        handles = [
            p.register_hook(partial(self._add_gradient, source, index))  # type: ignore[no-untyped-call]
            for index, p in enumerate(self._parameters)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if self._measure and source == "own":
            self._offloaded = OffloadedTensors(self._sums["own"].values(), least=1)

    def norms(self) -> float:
        """Sum over all ranks: not finite where one is not, which DeepSpeed does not tell. Collective, once."""
        distributed.all_reduce(self._norms)
        return float(self._norms)

    def measure_apart(self) -> tuple[float, float, float]:
        """Measure the norms of own and peer gradients, and their cosine; NaN where absent or not measured. Collective, once."""
        own = self._sums["own"]
        peer = self._sums["peer"]
        has_own = bool(own)  # asked now: the loop below takes the own sums out one by one
        has_peer = bool(peer)
        products = torch.zeros(3, dtype=torch.float64)  # own times own, peer times peer, own times peer
        for index, _ in zip(list(own), self._offloaded.one_by_one(), strict=True):
            mine = own.pop(index).double()
            products[0] += mine.square().sum().cpu()
            if index in peer:
                products[2] += (mine * peer[index].double()).sum().cpu()
        products[1] = sum(share.double().square().sum().cpu() for share in peer.values())
        if self._measure and self._ranks > 1:
            products = products.to(self._norms.device)
            distributed.all_reduce(products)
        own_square, peer_square, product = products.tolist()
        own_norm = sqrt(own_square) if has_own else nan
        peer_norm = sqrt(peer_square) if has_peer else nan
        scale = own_norm * peer_norm
        cosine = product / scale if scale > 0 else nan
        return own_norm, peer_norm, cosine

    def _add_gradient(self, source: str, index: int, gradient: Tensor) -> None:
        """Add a rank's share of a parameter's gradient to the sums of own or peer terms."""
        gradient = gradient.detach()
        self._norms += torch.linalg.vector_norm(gradient, dtype=torch.float32)
        if not self._measure:
            return
        flat = gradient.float().flatten()
        if self._ranks > 1:
            flat = flat.clone()
            distributed.all_reduce(flat)
        size = -(-flat.numel() // self._ranks)
        share = flat[self._rank * size : (self._rank + 1) * size] / self._ranks
        sums = self._sums[source]
        if index in sums:
            sums[index] += share
        elif share.numel():
            sums[index] = share


class RankReport(NamedTuple):
    """What one update did, as one rank tells it.

    statistics: of the rank's own micro-batches, idle ones left out. The rest is of all ranks together: gradient_norm, before
    clipping; own_norm, peer_norm, cosine: of own and peer gradients, NaN where absent or not measured."""

    statistics: list[AnswerStatistics]
    gradient_norm: float
    own_norm: float = nan
    peer_norm: float = nan
    cosine: float = nan


def make_report(
    terms: Sequence[Term],
    batches: Sequence[MiniBatch],
    rows: Sequence[Sequence[AnswerRow]],
    splits: Sequence[tuple[Split, Split]],
    learnt: Sequence[Sequence[RankReport]],
) -> UpdateReport:
    """Put together what all ranks did in a step's updates.

    batches, rows, splits: by update, as `learning_splits` takes and gives them. learnt: what each rank tells, by rank and
    update."""
    tally = Tally(terms, len(batches))
    for index, (batch, split) in enumerate(zip(batches, splits, strict=True)):
        live = list(batch.live())
        for rank, updates in enumerate(learnt):
            groups = [group for part in split for group in part.places[rank]]
            for group, statistics in zip(groups, updates[index].statistics, strict=True):
                chosen = [live[i] for i in group]
                tally.add(chosen, pack_answers(batch, chosen), statistics, sum(rows[index][i].length for i in group))
    updates = learnt[0]  # norms are the same on all ranks
    own_norms = []
    for update, (own, _) in zip(updates, splits, strict=True):
        has_own_answers = any(own.places)  # an idle pass alone measures a norm of 0, which is no answer's
        own_norms.append(update.own_norm if has_own_answers else nan)
    return tally.report(
        norm=mean_of_measured(update.gradient_norm for update in updates),
        own_norm=mean_of_measured(own_norms),
        peer_norm=mean_of_measured(update.peer_norm for update in updates),
        cosine=mean_of_measured(update.cosine for update in updates),
    )


class Trainer(ActorPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's trainer of one rank, with the harness's loss in place of its own.

    forbidden: added to the logits. ends: ids that are one action, as in `head.merge_ends`. head: None under ZeRO 3, where no rank
    has it whole."""

    forbidden: Float32[Tensor, "V"]
    ends: Int64[Tensor, "E"] | None
    head: Head | None

    def learn(self, own: Sequence[MicroBatch], peer: Sequence[MicroBatch], optimisation: Optimisation) -> RankReport:
        """Make one update; none where the gradient is not finite. own, peer: this rank's micro-batches, as many as every rank's.

        The loss is the sum over ranks, and DeepSpeed takes their mean: so each rank's part is multiplied by their number."""
        statistics: list[AnswerStatistics] = []
        gradients = RankGradients(self.actor.model.module, optimisation.measure)
        for source, batches in (("own", own), ("peer", peer)):
            with gradients.collect(source):
                for batch in batches:
                    logp = self.logprobs(batch)
                    if batch.packed is None:
                        loss = logp.sum() * 0.0
                    else:
                        loss, statistic = surrogate_loss(logp, batch.packed)
                        statistics.append(statistic)
                    self.strategy.backward(loss * self.strategy.world_size, self.actor, self.actor_optim)
        sum_of_norms = gradients.norms()
        if not math.isfinite(sum_of_norms):
            return RankReport(statistics, sum_of_norms)
        own_norm, peer_norm, cosine = gradients.measure_apart()
        del gradients  # its memory is the step's
        gradient_norm = self._step_optimiser(optimisation)
        return RankReport(statistics, gradient_norm, own_norm, peer_norm, cosine)

    def logprobs(self, batch: MicroBatch, raw: bool = False) -> Float[Tensor, "N"]:
        """Compute the log-probabilities of the tokens asked for, row after row. raw: at temperature 1, with no id ruled out and
        each end by itself."""
        actor = self.actor
        head = self.head
        forbidden = torch.zeros_like(self.forbidden) if raw else self.forbidden
        ends = None if raw else self.ends
        padded = _pad_rows(batch, torch.cuda.current_device())
        sequences, asked = padded.sequences, padded.asked
        targets = sequences[:, 1:][asked]  # (N,)
        whole = head is None or not len(targets) or head.fits(sequences.numel())
        hidden: list[Tensor] = []
        hook = actor.model.module.base_model.register_forward_hook(
            lambda _, __, out: hidden.append(out.last_hidden_state)
        )
        # OpenRLHF's forward divides by its temperature
        output: dict[str, Tensor] = actor(
            sequences,
            attention_mask=padded.inside,
            return_output=True,
            logits_to_keep=int(not whole),  # 0: of all positions
        )
        hook.remove()
        scores: Tensor
        if whole:
            logits = output["logits"][:, :-1][asked]  # (N, V)
            logits = logits * actor.temperature if raw else logits + forbidden
            scores = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
            scores = merge_ends(scores, logits, targets, ends)
        else:
            assert head is not None
            temperature = 1.0 if raw else actor.temperature
            scores = in_parts(head, hidden[0][:, :-1][asked], targets, temperature, forbidden, ends)
        # An idle micro-batch's zero must be connected to every parameter.
        if len(scores):
            return scores
        return output["logits"][:1, 0].sum(dim=1) * 0.0

    def broadcast_to_vllm(self) -> None:
        """Send the weights to the rollout engines. OpenRLHF goes through the module's parameters: for that time they are those
        that rollouts compute with, adapters added."""
        module = self.actor.model.module
        with synced_weights(self.actor.model) as weights:
            module.named_parameters = weights.items
            try:
                super().broadcast_to_vllm()
            finally:
                del module.named_parameters

    def _step_optimiser(self, optimisation: Optimisation) -> float:
        """Clip, step, and return the norm of the gradient before clipping."""
        engine = self.actor.model
        for group in engine.optimizer.param_groups:
            group["lr"], group["betas"] = optimisation.learning_rate, optimisation.betas
            group["weight_decay"] = optimisation.weight_decay
        self.actor_scheduler.base_lrs = [optimisation.learning_rate] * len(self.actor_scheduler.base_lrs)
        seams.clip_at(engine, optimisation.clip_norm)
        norm = None
        if self.strategy.stage == 0 and self.strategy.param_dtype == "fp32":  # DeepSpeed then reports none
            seams.reduce_gradients(engine)
            gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
        self.strategy.optimizer_step(self.actor_optim, self.actor, self.actor_scheduler)
        return self.strategy.get_grad_norm(self.actor) if norm is None else norm


class PolicyWorker(seams.plain_class(PolicyModelActor)):  # type: ignore[misc]
    trainer: Any
    actor: Any
    actor_optim: Any
    actor_scheduler: Any
    _offloaded: dict[MemoryState, OffloadedTensors]

    @staticmethod
    def _get_free_port() -> int:
        return seams.free_port()

    def init_model_from_pretrained(
        self, strategy: Strategy, pretrain: str, max_steps: int, vllm_engines: None = None
    ) -> None:
        """Open a model, in the place of one that was open before, whose memory is freed first."""
        seams.adapt_trainer(strategy.deadline)
        if getattr(self, "actor", None) is not None:
            self.actor.model.destroy()  # DeepSpeed's hooks would keep everything
        self.trainer = self.actor = self.actor_optim = self.actor_scheduler = None
        self._offloaded = {}
        release_cache()  # before the next model takes memory
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None)
        checkpoint.make_savable(self.actor.model.module)
        _without_dropout(self.actor, training=strategy.args.actor.gradient_checkpointing_enable)

    def join(self, engines: list[Any], forbidden: Collection[int], ends: Sequence[int] = ()) -> None:
        """Make the trainer, once the rollout engines are there. forbidden: ids that are no content. ends: ids that are one
        action."""
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
        config = self.actor.model.module.config.get_text_config()
        self.trainer.forbidden = torch.zeros(config.vocab_size, device=torch.cuda.current_device())
        self.trainer.forbidden[list(forbidden)] = NEVER
        self.trainer.ends = torch.tensor(ends, device=self.trainer.forbidden.device) if ends else None
        self.trainer.head = None if strategy.stage == 3 else Head.of(self.actor.model.module)

    def learn(self, plan: Sequence[Plan], optimisation: Optimisation) -> list[RankReport]:
        return [self.trainer.learn(own, peer, optimisation) for own, peer in plan]

    @torch.no_grad()
    def logprobs(self, batches: Sequence[MicroBatch], raw: bool = False) -> list[Float32[np.ndarray, "N"]]:
        return [self.trainer.logprobs(batch, raw).float().cpu().numpy() for batch in batches]

    def base_logprobs(self, batches: Sequence[MicroBatch], folder: str) -> list[Float32[np.ndarray, "N"]]:
        with base_weights(self.actor.model, Path(folder)):
            return self.logprobs(batches)

    def hold(self, wanted: MemoryState) -> None:
        """Keep this much of the trainer on the GPU. What only training needs goes away first, and what scoring needs last; they
        come back in the other order."""
        model = self.actor.model
        away = self._offloaded
        scoring = [*weights_of_rank(model.module), *model.module.buffers(), self.trainer.forbidden]
        scoring += [] if self.trainer.ends is None else [self.trainer.ends]
        if wanted < MemoryState.ALL and MemoryState.ALL not in away:
            forget_gathered(model)
            kept = {tensor.untyped_storage().data_ptr() for tensor in scoring}
            everything = all_tensors(scoring[0].device.type)
            away[MemoryState.ALL] = OffloadedTensors(
                t for t in everything if t.untyped_storage().data_ptr() not in kept
            )
        if wanted < MemoryState.WEIGHTS and MemoryState.WEIGHTS not in away:
            for tensor in scoring:
                if not tensor.untyped_storage().resizable():  # still mapped from the checkpoint's file
                    tensor.data = tensor.data.clone()
            away[MemoryState.WEIGHTS] = OffloadedTensors(scoring)
        for held in (MemoryState.WEIGHTS, MemoryState.ALL):
            if wanted >= held and held in away:
                away.pop(held).restore()

    def save(self, folder: str, moments_file: str) -> None:
        """Save weights and the optimiser's state; every rank calls it, and takes part where the state is spread over ranks."""
        module = self.actor.model.module
        config = module.config
        config.use_cache = True
        if self.strategy.lora:
            if torch.distributed.get_rank() == 0:
                lora.save_adapters(module, Path(folder))
        elif self.strategy.stage == 3 or torch.distributed.get_rank() == 0:
            self.strategy.save_model(self.actor, self.tokenizer, folder)
        else:  # OpenRLHF would copy all weights here too; rank 0 waits at its end
            torch.distributed.barrier()
        config.use_cache = False
        save_moments(Path(folder, moments_file), self.actor.model)

    def checksums(self) -> dict[str, str]:
        """Compute the checksum of each weight as rollout engines are to have it; collective where weights are sharded."""
        sums = {}
        with synced_weights(self.actor.model) as weights:
            for name, weight in weights.items():
                with GatheredParameters([weight], enabled=self.strategy.stage == 3):
                    sums[name] = seams.checksum_of(weight)
        return sums

    def load_moments(self, file: str) -> None:
        load_moments(Path(file), self.actor.model)

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def pulse(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def processes(self) -> list[Process]:
        return list_own_processes()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def cpu_seconds(self) -> float:
        return cpu_seconds()


def open_trainers(
    group: PlacementGroup, bundles: Sequence[int], share: float, environment: dict[str, str], deadline: float
) -> list[Any]:
    """Start a policy's trainers, and return them while they still start, each booking `share` of a device. Raises EngineError
    where the first is late."""
    actor = ray.remote(num_gpus=1, concurrency_groups={"pulse": 1}, runtime_env={"env_vars": environment})(PolicyWorker)

    def start(rank: int, host: str | None, port: int | None) -> Any:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundles[rank])
        placed = actor.options(num_cpus=share, num_gpus=share, scheduling_strategy=place)
        return placed.remote(len(bundles), rank, host, port)

    first = start(0, None, None)
    if len(bundles) == 1:
        return [first]
    try:
        address = ray.get(first.get_master_addr_port.remote(), timeout=deadline)
    except RayError as error:
        ray.kill(first)
        raise EngineError(f"trainer rank 0 did not start: {type(error).__name__}") from None
    return [first, *(start(rank, *address) for rank in range(1, len(bundles)))]


def _without_dropout(actor: Any, training: bool) -> None:
    """Take dropout out of a model. `training` is only the switch that gradient checkpointing listens to."""
    for module in actor.model.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    actor.train(training)
