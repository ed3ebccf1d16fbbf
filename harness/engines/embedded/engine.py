"""One policy in this process, on one device, without dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from jaxtyping import Float32, Int32, UInt64
from torch import Tensor
from transformers import PreTrainedModel

from harness.allocation.shapes import Precision
from harness.engines import checkpoint
from harness.engines import lora as adapters
from harness.engines.backend import Lora
from harness.engines.embedded.kernels import with_packed_weights
from harness.engines.embedded.loading import open_policy
from harness.engines.embedded.logprobs import ScoreRequest, answer_logprobs, cut_into_microbatches
from harness.engines.embedded.numerics import Numerics, require_portable
from harness.engines.embedded.sampling import sample_answers
from harness.engines.embedded.sizes import CACHE_BYTES, MICRO_TOKENS
from harness.engines.learner import learn
from harness.engines.masters import Masters
from harness.engines.protocol import Optimisation, Sample, Sampling, UpdateReport
from harness.engines.templates import Chat
from harness.errors import CheckpointError, EngineError
from harness.experience.answers import Prompt
from harness.learning.terms import Term, TermAnswer
from harness.phases import show_inside_phase


class EmbeddedEngine:
    """A PolicyEngine over a Hugging Face folder; options as `EmbeddedOptions`. Raises EngineError where it does not open."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        device: str | None = None,
        temperature: float = 1.0,
        chat: Chat = False,
        micro_tokens: int = MICRO_TOKENS,
        dtype: Precision | None = None,
        threads: int | None = None,
        lora: Mapping[str, Any] | None = None,
        checkpointing: bool = False,
        numerics: Numerics | None = None,
        ends_are_one: bool = True,
    ) -> None:
        """Open a policy's weights. ends_are_one: as `Backend.ends_are_one`."""
        if threads:
            torch.set_num_threads(threads)
        if numerics == "portable":
            _refuse_unportable(folder, dtype or "fp32", device or "cpu")
            require_portable()  # before anything is multiplied
        self.name = name
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._temperature = temperature
        self._micro_tokens = micro_tokens
        self.version, self.gpus = 0, int(self._device.type == "cuda")
        self._folder = folder
        self._lora = msgspec.convert(lora, Lora | None)
        self._open = partial(
            open_policy,
            device=self._device,
            chat=chat,
            name=name,
            lora=self._lora,
            checkpointing=checkpointing,
            ends_are_one=ends_are_one,
        )
        self._policy = self._open(folder, precision=dtype)
        vocabulary = self._vocabulary = self._policy.vocabulary
        self.tokenizer = vocabulary.tokenizer
        self.stop = vocabulary.stop
        self.reads = vocabulary.reads
        self.closing = vocabulary.closing
        self.positions = vocabulary.positions
        if numerics == "portable":
            _refuse_unportable(folder, self.precision, self._device.type)
        self._masters: Masters | None = None

    @property
    def precision(self) -> Precision:
        return "fp32" if self.model.dtype == torch.float32 else "bf16"

    @property
    def model(self) -> PreTrainedModel:
        return self._policy.model

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """Sample answers, chunk by chunk, as many at once as keys and values have room for; a chunk changes no answer."""
        ids = [self._vocabulary.model_ids(prompt) for prompt in prompts]
        group = seeds.shape[1]
        samples: list[list[Sample]] = [[] for _ in prompts]
        with with_packed_weights(self.model, seeds.size):
            for chunk in self._cut_chunks(ids, group, sampling.max_new_tokens):
                drawn = sample_answers(
                    self.model,
                    [ids[index] for index in chunk],
                    seeds[chunk],
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_new_tokens=sampling.max_new_tokens,
                    stop=self._policy.stop,
                    forbidden=self._policy.forbidden,
                    ends=self._policy.ends,
                    own_layers=self._policy.own_layers,
                )
                for row in range(len(chunk) * group):
                    tokens = drawn.tokens[row, : drawn.lengths[row]].astype(np.int32)
                    finished = bool(drawn.finished[row])
                    text = self._vocabulary.text(tokens, finished)
                    own = Sample(tokens, drawn.logprobs[row, : len(tokens)], text, finished)
                    samples[chunk[row // group]].append(own)
        return samples

    @torch.inference_mode()
    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Score answers, each distinct prompt encoded once; an empty answer has no scores, and no pass."""
        ids, place = self._encode_distinct(prompts)
        scores = [np.zeros(0, np.float32) for _ in answers]
        asked = [index for index, answer in enumerate(answers) if len(answer)]
        requests = [self._make_request(place[prompts[index].id], answers[index]) for index in asked]
        for piece, logprobs, _ in self._run_passes(ids, requests):
            for index, values in zip(piece, logprobs, strict=True):
                scores[asked[index]] = values.cpu().numpy()
        return scores

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """Make one step's updates, and count each of them as a version of the policy."""
        ids, place = self._encode_distinct(prompts)

        def forward(answers: Sequence[TermAnswer]) -> Iterator[tuple[list[int], list[Tensor], int]]:
            return self._run_passes(
                ids, [self._make_request(place[answer.prompt_id], answer.tokens) for answer in answers]
            )

        report = learn(
            self.name, self.version, self._masters_of_model(), prompts, terms, optimisation, self.score, forward
        )
        self.version += optimisation.updates
        return report

    def save(self, folder: Path) -> None:
        """Save an ordinary model folder, with the optimiser's state beside it."""

        def fill(new: Path) -> None:
            if self._lora:
                adapters.save_adapters(self.model, new)
            else:
                self.model.save_pretrained(new)
            checkpoint.keep_generation(self._folder, new)
            self.tokenizer.save_pretrained(new)
            self._masters_of_model().save(new / checkpoint.OPTIMISER)

        checkpoint.write(folder, self.name, self.version, fill)

    def restore(self, folder: Path) -> None:
        """Take up a checkpoint; one without an optimiser's state (a finished cell's) with a fresh one."""
        seal = checkpoint.check(folder, self.name)
        policy = self._open(self._folder if self._lora else folder, precision=self.precision)
        if self._lora:
            adapters.load_adapters(policy.model, folder)
        if (
            _shapes_of_parameters(policy.model) != _shapes_of_parameters(self.model)
            or policy.vocabulary.tokenizer.get_vocab() != self.tokenizer.get_vocab()
        ):
            raise CheckpointError(f"{folder}: another model or tokenizer than that of policy {self.name!r}")
        masters = None
        if checkpoint.OPTIMISER in seal.files:
            masters = Masters(policy.model)
            masters.load(folder / checkpoint.OPTIMISER)
        self._policy = policy
        self._masters = masters
        self.version = seal.version

    def close(self) -> None:
        self.__dict__.pop("_policy", None)
        self.__dict__.pop("_masters", None)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _masters_of_model(self) -> Masters:
        """Return the optimiser with its fp32 masters, made at the first update."""
        if self._masters is None:
            self._masters = Masters(self.model)
        return self._masters

    def _run_passes(
        self, ids: Sequence[list[int]], requests: Sequence[ScoreRequest]
    ) -> Iterator[tuple[list[int], list[Tensor], int]]:
        """Yield forward passes over `requests`, as many at once as `micro_tokens` allows: indices, log-probabilities in nats, and
        tokens that went through the model."""
        policy = self._policy
        passed = 0
        for piece in cut_into_microbatches(ids, requests, self._micro_tokens):
            passed += len(piece)
            show_inside_phase(f"answer {passed}/{len(requests)}")
            asked = [requests[index] for index in piece]
            prompts = {request.prompt for request in asked}  # each goes through the model once
            tokens = sum(len(request.tokens) for request in asked) + sum(len(ids[prompt]) for prompt in prompts)
            logprobs = answer_logprobs(
                policy.model,
                policy.head,
                ids,
                asked,
                temperature=self._temperature,
                forbidden=policy.forbidden,
                ends=policy.ends,
            )
            yield piece, logprobs, tokens

    def _make_request(self, prompt: int, tokens: Int32[np.ndarray, "T"]) -> ScoreRequest:
        """Make the request of an answer to the prompt of this index, with ids that the model has. Raises EngineError for
        others."""
        return ScoreRequest(prompt, self._vocabulary.checked(tokens).tolist())

    def _encode_distinct(self, prompts: Sequence[Prompt]) -> tuple[list[list[int]], dict[str, int]]:
        """Return the ids of each distinct prompt, and the place of each prompt by its id."""
        distinct = {prompt.id: prompt for prompt in prompts}
        place = {prompt: index for index, prompt in enumerate(distinct)}
        return [self._vocabulary.model_ids(p) for p in distinct.values()], place

    def _cut_chunks(self, ids: Sequence[list[int]], group: int, max_new_tokens: int) -> Iterator[list[int]]:
        """Cut requests into batches whose keys and values fit `CACHE_BYTES`, longest first."""
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        while order:
            row = (len(ids[order[0]]) + max_new_tokens) * self._policy.cache_bytes
            size = max(1, CACHE_BYTES // (row * max(1, group)))
            yield order[:size]
            order = order[size:]


def _refuse_unportable(folder: Path, precision: Precision, device: str) -> None:
    """Refuse portable numerics where digits depend on the machine: in bf16, and on a GPU."""
    if (device, precision) != ("cpu", "fp32"):
        raise EngineError(f"{folder}: {precision} on {device}; numerics: portable needs device: cpu, dtype: fp32")


def _shapes_of_parameters(model: PreTrainedModel) -> dict[str, torch.Size]:
    """Return the shape of each parameter, by name."""
    return {name: parameter.shape for name, parameter in model.named_parameters()}
