"""One policy on a Ray cluster: DeepSpeed trains by the embedded engine's surrogate, vLLM samples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Float32, Int32, UInt64
from vllm import SamplingParams

from harness.engines import checkpoint, lora
from harness.engines.learner import check_norm
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.cluster import Reservation, connect_to_cluster
from harness.engines.openrlhf.offload import DeviceLease, MemoryState
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.remote import Call, Process, RemoteActor, end_actors, gather_results
from harness.engines.openrlhf.rollout import open_rollouts
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.openrlhf.trainer import (
    AnswerRow,
    RankReport,
    learning_splits,
    make_report,
    open_trainers,
    scoring_split,
)
from harness.engines.protocol import Optimisation, Sample, Sampling, UpdateReport
from harness.engines.templates import Chat
from harness.engines.vocabulary import open_vocabulary
from harness.errors import CheckpointError, EngineError
from harness.experience.answers import Prompt
from harness.learning.minibatches import MiniBatch, cut_into_minibatches, fill_old_logprobs
from harness.learning.terms import Term

PROBES = 4  # answers compared after a weight sync
USUAL = 4  # times the difference before the first update
TRAINER_SHARE = 0.4  # of a bundle's device, in Ray's books
METER_SECONDS = 5.0  # to ask for CPU times
STEPS = 1 << 30  # of OpenRLHF's learning-rate schedule, constant here


class OpenRLHFEngine:
    """A PolicyEngine over a Hugging Face folder that every node reads. Raises EngineError where it does not open
    in time."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        settings: OpenRLHFSettings,
        temperature: float = 1.0,
        chat: Chat = False,
        reservation: Reservation,
        trained: bool = True,
        ends_are_one: bool = True,
    ) -> None:
        """Open a policy on the cluster's devices. trained: False is only sampled: rollout engines without a trainer.
        ends_are_one: as `Backend.ends_are_one`."""
        self.name = name
        self.trained = trained
        self._settings = settings
        vocabulary = self._vocabulary = open_vocabulary(folder, chat, name)
        self._ends = vocabulary.ends(ends_are_one)
        self.version = 0
        self.tokenizer = vocabulary.tokenizer
        self.stop = vocabulary.stop
        self.reads = vocabulary.reads
        self.closing = vocabulary.closing
        self.positions = vocabulary.positions
        self._closed = False
        self._used = 0.0
        self._before: float | None = None
        self._processes: list[Process] = []
        self._trainers: list[RemoteActor] = []
        self._rollouts: list[RemoteActor] = []
        connect_to_cluster()  # what the cluster has decides the settings
        self.gpus = 0 if seams.uses_cpu_devices() else settings.devices
        self._strategy = Strategy(settings, temperature)
        rollouts = settings.rollout_engines * settings.tensor_parallel
        if self.gpus and settings.colocate and settings.trainers != rollouts:
            raise EngineError(
                f"policy {name!r}: with colocate weights pass within a device, so rollout engines need as many devices as "
                f"there are trainers; {rollouts} and {settings.trainers} are given"
            )
        self._folder = str(folder.resolve())
        self._group = reservation.group
        self._slot = reservation.slots[name]
        self._lease = DeviceLease(
            name, self._slot.devices, settings, partial(self._hold_memory, True), partial(self._hold_memory, False)
        )
        try:
            with self._lease.whole_turn():
                self._start_actors()
        except BaseException:
            self.close()
            raise

    def cpu_seconds(self) -> float:
        """Return the CPU-seconds of the engine's actors; the last known where they do not answer."""
        everyone = [*self._trainers, *self._rollouts]
        with suppress(EngineError):  # the call that is being timed says better what is wrong
            calls = [member.call("cpu_seconds") for member in everyone]
            self._used = sum(self._gather_answers(calls, "counting CPU time", METER_SECONDS, watch=[]))
        return self._used

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """Sample answers. vLLM draws other random numbers from a seed than the embedded engine."""
        ids = [self._vocabulary.model_ids(prompt) for prompt in prompts]
        asked: list[tuple[list[int], Any]] = []
        for prompt, group in zip(ids, seeds, strict=True):
            asked += [(prompt, self._sampling_params(int(seed), sampling)) for seed in group]
        many = len(self._rollouts)
        # Answer by answer in turn, so that every rollout engine has questions of all kinds.
        shares = [asked[index::many] for index in range(many)]
        with self._lease.turn(MemoryState.NOTHING, MemoryState.ALL):
            calls = []
            for member, share in zip(self._rollouts, shares, strict=True):
                if share:
                    calls.append(member.call("sample", *zip(*share, strict=True)))
            answers = self._gather_answers(calls, "sampling", watch=self._rollout_cores())
        in_order = [answers[index % many][index // many] for index in range(len(asked))]
        cut = sum(not one.finished and len(one.tokens) < sampling.max_new_tokens for one in in_order)
        if cut:
            raise EngineError(
                f"policy {self.name!r}: {cut:,} of {len(asked):,} answers were ended by the rollout engine's own limit "
                f"(engine_options.max_length: {self._settings.max_length or 'the model has no more positions'}), before their "
                f"{sampling.max_new_tokens:,} new tokens: they would count as wrong"
            )
        samples = [replace(one, text=self._vocabulary.text(one.tokens, one.finished)) for one in in_order]
        size = seeds.shape[1]
        return [samples[number * size : (number + 1) * size] for number in range(len(prompts))]

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        return self._answer_scores(prompts, answers, "logprobs")

    def score_base(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Score under the weights that the policy was opened with."""
        if not self.trained:
            raise EngineError(f"policy {self.name!r}: a reference without a trainer is only sampled")
        return self._answer_scores(prompts, answers, "base_logprobs", self._folder)

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """Make one step's updates on all trainers, and sync the weights to the rollout engines. How far these were apart from the
        trainer before the first update is noted, to tell later what is usual."""
        with self._lease.whole_turn():
            ids = {prompt.id: self._vocabulary.model_ids(prompt) for prompt in prompts}
            batches = cut_into_minibatches(terms, optimisation.updates, optimisation.max_tokens)
            batches = fill_old_logprobs(
                batches, prompts, self.score, optimisation.old_logprobs, optimisation.sampler_correction
            )
            rows = [self._rows_of_batch(batch, ids) for batch in batches]
            answers = list(itertools.chain.from_iterable(rows))
            if self._before is None and answers:
                _, self._before = self._largest_difference(answers)
            ranks = len(self._trainers)
            budget = self._settings.micro_batch_tokens
            splits = [learning_splits(batch, own, ranks, budget) for batch, own in zip(batches, rows, strict=True)]
            with self._lease.turn(MemoryState.ALL, MemoryState.NOTHING):
                calls = []
                for rank, member in enumerate(self._trainers):
                    share = [tuple(split.batches[rank] for split in own) for own in splits]
                    calls.append(member.call("learn", share, optimisation))
                learnt: list[list[RankReport]] = self._gather_answers(calls, "updating")
            for index, one in enumerate(learnt[0]):
                check_norm(self.name, self.version + index, one.gradient_norm)
            self.version += optimisation.updates
            self.sync()
            self.check_sync(answers)
            return make_report(terms, batches, rows, splits, learnt)

    def _rows_of_batch(self, batch: MiniBatch, ids: Mapping[str, list[int]]) -> list[AnswerRow]:
        """Return the answers of a mini-batch that can move the policy, as a trainer takes them. ids: of prompts, by the prompt's
        id."""
        rows = []
        for _, answer in batch.live():
            tokens = self._vocabulary.checked(answer.tokens)
            rows.append(AnswerRow(ids[answer.prompt_id], tokens, answer.mask))
        return rows

    def sync(self) -> None:
        """Send the trainer's weights to the rollout engines. Raises EngineError where a tensor did not arrive as the trainer has
        it."""
        suspects = [*self._trainers, *self._rollout_cores()]
        with self._lease.turn(MemoryState.WEIGHTS, MemoryState.WEIGHTS):
            self._on_workers("expect")
            calls = [member.call("broadcast_to_vllm") for member in self._trainers]
            self._gather_answers(calls, "syncing weights", self._settings.sync_seconds, suspects=suspects)
            calls = [member.call("checksums") for member in self._trainers]
            sent, *_ = self._gather_answers(calls, "checking the weight sync")
            for member, arrived in self._on_workers("arrived"):
                wrong = seams.list_differing(sent, arrived)
                if wrong:
                    raise EngineError(
                        f"{member.name}: {len(wrong)} of {len(sent)} tensors of a weight sync did not arrive as the trainer has "
                        f"them, {wrong[0]} the first"
                    )

    def _rehearse_sync(self) -> None:
        """Check the transfer of weights: lose the rollout engines' parameters and sync them, which must then be what vLLM itself
        has read."""
        with self._lease.turn(MemoryState.WEIGHTS, MemoryState.WEIGHTS):
            read = self._on_workers("held")
            self._on_workers("lose")
            self.sync()
            for (member, before), (_, after) in zip(read, self._on_workers("held"), strict=True):
                wrong = seams.list_differing(before, after)
                if wrong:
                    raise EngineError(
                        f"{member.name}: a weight sync leaves out {', '.join(wrong[:5])} of its parameters"
                    )

    def check_sync(self, rows: Sequence[AnswerRow]) -> float:
        """Return the largest mean difference per token (nats) of a rollout engine from the trainer. Raises EngineError beyond
        `USUAL` times that before the first update plus `settings.tolerance`."""
        member, worst = self._largest_difference(rows)
        before = self._before or 0.0
        allowed = USUAL * before + self._settings.tolerance
        if not worst <= allowed:
            raise EngineError(
                f"{member}: after the weight sync its log-probabilities are {worst:.3g} nats per token from the trainer's; "
                f"before the first update they were {before:.3g}, and at most {allowed:.3g} is allowed "
                "(engine_options.sync_tolerance)"
            )
        return worst

    def _largest_difference(self, rows: Sequence[AnswerRow]) -> tuple[str, float]:
        """Return the rollout engine that differs most from the trainer on these answers, and by how many nats."""
        room = self._settings.max_length or math.inf  # for a token that vLLM must add
        probes = [row for row in rows if 1 < row.length < room][: PROBES * len(self._rollouts) : len(self._rollouts)]
        if not probes:
            return "", 0.0
        # Whole sequences: one call gives all there is to compare.
        sequences = [[*row.prompt, *row.answer.tolist()] for row in probes]
        mine = self._ask_scores(
            [AnswerRow(ids[:1], np.array(ids[1:], np.int32)) for ids in sequences], "logprobs", True
        )
        with self._lease.turn(MemoryState.NOTHING, MemoryState.ALL):
            theirs = self._gather_answers(
                [member.call("prompt_logprobs", sequences) for member in self._rollouts],
                "checking the weight sync",
                watch=self._rollout_cores(),
            )
        differences = []  # by rollout engine: the mean over a sequence's tokens, of the sequence where it is largest
        for scores in theirs:
            of_sequences = [float(np.abs(a - b).mean()) for a, b in zip(mine, scores, strict=True)]
            differences.append(max(of_sequences))
        furthest = int(np.argmax(differences))  # NaN counts as the largest
        return self._rollouts[furthest].name, differences[furthest]

    def save(self, folder: Path) -> None:
        """Save an ordinary model folder, with the optimiser's state beside it; every trainer takes part."""

        def fill(new: Path) -> None:
            with self._lease.turn(MemoryState.ALL, MemoryState.NOTHING):
                target = str(new.resolve())
                calls = [member.call("save", target, checkpoint.OPTIMISER) for member in self._trainers]
                self._gather_answers(calls, "saving")
            checkpoint.keep_generation(Path(self._folder), new)
            self.tokenizer.save_pretrained(new)

        checkpoint.write(folder, self.name, self.version, fill)

    def restore(self, folder: Path) -> None:
        """Take up a checkpoint of either engine; without an optimiser's state with a fresh one."""
        seal = checkpoint.check(folder, self.name)
        tokenizer = open_vocabulary(folder, self._vocabulary.chat, self.name).tokenizer
        if tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise CheckpointError(f"{folder}: another tokenizer than that of policy {self.name!r}")
        if self._settings.lora and lora.ADAPTERS not in seal.files:
            raise CheckpointError(f"{folder}: another model than the policy's: there are no adapters")
        path = str(folder.resolve())
        with self._lease.turn(MemoryState.ALL, MemoryState.NOTHING):
            if self._settings.lora:
                self._strategy.adapters = folder.resolve()
                self._load_weights(self._folder)
            else:
                self._load_weights(path)
            if checkpoint.OPTIMISER in seal.files:
                moments = f"{path}/{checkpoint.OPTIMISER}"
                self._gather_answers([member.call("load_moments", moments) for member in self._trainers], "restoring")
        self.version = seal.version
        self.sync()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        end_actors([*self._trainers, *self._rollouts], self._processes)
        self._lease.leave()

    def _start_actors(self) -> None:
        """Start trainers and rollout engines, load the weights and join them."""
        settings = self._settings
        if self.trained:
            environment = seams.environment_of_actors(settings.sync_seconds)
            share = self._slot.part(TRAINER_SHARE)
            handles = open_trainers(self._group, self._slot.trainers, share, environment, settings.start_seconds)
            self._trainers = self._name_members("trainer rank", handles)
        self._open_rollouts()
        if self.trained:
            if settings.sleep:
                self._lease.hold(MemoryState.ALL, MemoryState.NOTHING)
            self._load_weights(self._folder)
            self._rehearse_sync()

    def _open_rollouts(self) -> None:
        """Open the rollout engines, and wait until all members have told their processes, which shows that they are up."""
        environment = seams.environment_of_actors(self._settings.sync_seconds) | seams.runner_environment(
            len(self._vocabulary.forbidden)
        )
        handles = open_rollouts(self._folder, self._settings, self._group, self._slot, environment)
        self._rollouts = self._name_members("rollout engine", handles)
        up = [member.call("processes") for member in (*self._trainers, *self._rollouts)]
        started = self._gather_answers(up, "starting", self._settings.start_seconds, watch=[])
        self._processes = [process for processes in started for process in processes]

    def _hold_memory(self, trainers: bool, held: MemoryState) -> None:
        """Let trainers or rollout engines keep only `held` on their GPUs."""
        members = self._trainers if trainers else self._rollouts
        watch = None if trainers else self._trainers
        calls = [member.call("hold", held) for member in members]
        self._gather_answers(calls, "falling asleep or waking up", watch=watch)

    def _load_weights(self, folder: str) -> None:
        """Load a folder's weights, and let the engines find each other."""
        loading = ("init_model_from_pretrained", self._strategy, folder, STEPS, None)
        joining = ("join", [member.handle for member in self._rollouts], self._vocabulary.forbidden, self._ends)
        for doing, asked in (("loading weights", loading), ("joining the engines", joining)):
            calls = [member.call(*asked) for member in self._trainers]
            self._gather_answers(calls, doing, self._settings.start_seconds)

    def _sampling_params(self, seed: int, sampling: Sampling) -> SamplingParams:
        """Make vLLM's parameters for one answer with this seed."""
        bias = dict.fromkeys(self._vocabulary.forbidden, -100.0)  # the lowest that vLLM takes
        # The drawn token's; and with several ends also theirs, which `rollout` adds up where one of them was drawn
        logprobs = None if self._ends else 0
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seed & (2**63 - 1),  # vLLM takes a signed number
            logprobs=logprobs,
            logprob_token_ids=list(self._ends) or None,
            ignore_eos=True,
            stop_token_ids=list(self._vocabulary.stop),
            logit_bias=bias or None,
            detokenize=False,
        )

    def _answer_scores(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]], method: str, *arguments: Any
    ) -> list[Float32[np.ndarray, "T"]]:
        """Score answers to prompts, in order, by a method of the trainers; an empty answer has no scores, and is not asked."""
        ids = {prompt.id: self._vocabulary.model_ids(prompt) for prompt in prompts}
        rows = []
        for prompt, tokens in zip(prompts, answers, strict=True):
            if len(tokens):
                rows.append(AnswerRow(ids[prompt.id], self._vocabulary.checked(tokens)))
        scores = iter(self._ask_scores(rows, method, *arguments) if rows else [])
        return [next(scores) if len(tokens) else np.zeros(0, np.float32) for tokens in answers]

    def _ask_scores(self, rows: Sequence[AnswerRow], method: str, *arguments: Any) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities of the rows' tokens in nats, by a method of the trainers."""
        split = scoring_split(rows, len(self._trainers), self._settings.micro_batch_tokens)
        with self._lease.turn(MemoryState.WEIGHTS, MemoryState.NOTHING):
            calls = [member.call(method, split.batches[rank], *arguments) for rank, member in enumerate(self._trainers)]
            scored = self._gather_answers(calls, "scoring")
        scores: list[Float32[np.ndarray, "T"]] = [np.zeros(0, np.float32)] * len(rows)
        for groups, flats in zip(split.places, scored, strict=True):
            for group, flat in zip(groups, flats, strict=False):
                ends = np.cumsum([len(rows[index].answer) for index in group])  # (A,) of each answer in `flat` (N,)
                parts = np.split(flat, ends[:-1])
                for index, values in zip(group, parts, strict=True):
                    scores[index] = values
        return scores

    def _name_members(self, kind: str, handles: Sequence[Any]) -> list[RemoteActor]:
        """Return actors with the names that errors call them by."""
        return [RemoteActor(f"policy {self.name!r}: {kind} {index}", handle) for index, handle in enumerate(handles)]

    def _on_workers(self, method: str) -> list[tuple[RemoteActor, Any]]:
        """Ask the workers of every rollout engine; return their replies, each with the engine's actor."""
        calls = [member.call("on_workers", method) for member in self._rollouts]
        answers = self._gather_answers(calls, "checking the weight sync", self._settings.sync_seconds)
        replies = []
        for call, of_engine in zip(calls, answers, strict=True):
            replies += [(call.member, reply) for reply in of_engine]
        return replies

    def _rollout_cores(self) -> list[RemoteActor]:
        """Return the rollout engines to be watched, each down to vLLM's own process, which hears nothing while it takes
        weights."""
        return [replace(member, sign="core_pulse") for member in self._rollouts]

    def _gather_answers(
        self,
        calls: Sequence[Call],
        doing: str,
        deadline: float | None = None,
        watch: Sequence[RemoteActor] | None = None,
        suspects: Sequence[RemoteActor] | None = None,
    ) -> list[Any]:
        if self._closed:
            raise EngineError(f"policy {self.name!r}: the engine is closed")
        return gather_results(
            calls,
            doing=doing,
            deadline=deadline or self._settings.call_seconds,
            silence=self._settings.silence_seconds,
            watch=[*self._trainers, *self._rollouts] if watch is None else watch,
            suspects=suspects,
            reported_state=seams.reported_state,
        )


class BaseScorer:
    """An engine's base, in the engine's own memory; sampled before the first update."""

    version = 0

    def __init__(self, engine: OpenRLHFEngine) -> None:
        self._engine = engine
        self.name = engine.name
        self.tokenizer = engine.tokenizer
        self.stop = engine.stop
        self.gpus = engine.gpus
        self.closing = engine.closing
        self.positions = engine.positions
        self.reads = engine.reads
        self.score = engine.score_base

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        if self._engine.version:
            raise EngineError(f"policy {self.name!r}: its base can be sampled only before the first update")
        return self._engine.sample(prompts, seeds, sampling)

    def _refuse_training(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse what is not for a reference, which neither learns nor is stored."""
        raise EngineError(f"policy {self.name!r}: a reference neither learns nor is stored")

    update = save = restore = _refuse_training

    def close(self) -> None:
        if not self._engine.trained:
            self._engine.close()
