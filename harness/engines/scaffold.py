"""The files of `harness new-engine NAME`: a working engine over transformers' own `generate` and AdamW, its test and a suite."""

from __future__ import annotations

from pathlib import Path

from harness import scaffold
from harness.engines.catalogue import DOOR


def write_package(name: str, into: Path) -> Path:
    """Write the package `into`/NAME and return its folder. Raises UsageError."""
    return scaffold.write_package(DOOR, FILES, name, into)


PYPROJECT = (
    scaffold.PYPROJECT
    + """
[tool.setuptools]
packages = ["$module"]
"""
)

DOOR_MODULE = '''\
"""$title: an engine. This module says what it needs and offers; it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from harness.engines.kind import Engines
from harness.engines.protocol import PolicyEngine
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suite's `engine_options`. rows: answers that go through the model at once."""

    rows: Annotated[int, msgspec.Meta(ge=1)] = 64


class $title(Engines):
    """transformers' own generate and a plain AdamW, on this process's CPU"""

    packages = ("torch", "transformers")
    advice = "pip install torch transformers"
    Options = Options

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        from harness.engines.folder import read_folder

        return read_folder(folder)

    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        from $module.engine import ${title}Engine

        own = self._options[policy.name]
        engine = ${title}Engine(policy.name, folder, temperature=self._temperature, chat=policy.chat, **own)
        self._opened.callback(engine.close)
        return engine

    reference = open
'''

ENGINE = '''\
"""One policy in this process: sampled with `generate`, scored and trained with plain forward and backward passes in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor

from harness.engines import checkpoint
from harness.engines.learner import learn
from harness.engines.masters import Masters
from harness.engines.protocol import Optimisation, Sample, Sampling, UpdateReport
from harness.engines.vocabulary import open_vocabulary
from harness.experience.answers import Prompt
from harness.learning.terms import Term, TermAnswer


transformers.utils.logging.disable_progress_bar()


class Noise(LogitsProcessor):
    """Gumbel noise from a generator of each answer's own: the likeliest token is then a sample that depends on its seed alone."""

    def __init__(self, seeds: Sequence[int], temperature: float) -> None:
        self.temperature = temperature
        self.generators = [torch.Generator().manual_seed(int(seed) % 2**63) for seed in seeds]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        drawn = torch.stack([torch.rand(scores.shape[1], generator=g).clamp_min(1e-30) for g in self.generators])
        return scores / self.temperature - torch.log(-torch.log(drawn))


class ${title}Engine:
    """A PolicyEngine (harness.engines.protocol) over a Hugging Face folder."""

    gpus = 0

    def __init__(self, name: str, folder: Path, *, temperature: float = 1.0, chat: bool = False, rows: int = 64) -> None:
        self.name, self._temperature, self._rows, self._version = name, temperature, rows, 0
        self._vocabulary = open_vocabulary(folder, chat, name)
        self._load(folder)

    @property
    def version(self) -> int:
        return self._version

    @property
    def tokenizer(self):
        return self._vocabulary.tokenizer

    @property
    def stop(self) -> tuple[int, ...]:
        return self._vocabulary.stop

    def reads(self, prompt: Prompt) -> str:
        return self._vocabulary.reads(prompt)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], seeds: np.ndarray, sampling: Sampling) -> list[list[Sample]]:
        samples: list[list[Sample]] = [[] for _ in prompts]
        answers = [(i, seed) for i, own in enumerate(seeds) for seed in own]
        for some in self._parts(answers):
            ids = [self._vocabulary.encode(prompts[i]) for i, _ in some]
            width = max(map(len, ids))
            padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
            noise = [Noise([seed for _, seed in some], sampling.temperature)] if sampling.temperature else []
            settings = GenerationConfig(
                max_new_tokens=sampling.max_new_tokens, eos_token_id=list(self.stop), pad_token_id=self.stop[0],
                suppress_tokens=list(self._vocabulary.forbidden) or None, return_dict_in_generate=True, output_logits=True,
            )
            done = self._model.generate(
                padded, attention_mask=mask, generation_config=settings, logits_processor=noise
            )
            tokens = done.sequences[:, width:]
            logps = self._normalised(torch.stack(done.logits, 1), sampling.temperature or 1.0)
            logps = logps.gather(2, tokens[..., None]).squeeze(2).float().numpy()
            for row, (i, _) in enumerate(some):
                ends = np.isin(tokens[row].numpy(), self.stop).nonzero()[0]
                length, finished = (ends[0] + 1, True) if len(ends) else (tokens.shape[1], False)
                ids_ = tokens[row, :length].numpy().astype(np.int32)
                samples[i].append(Sample(ids_, logps[row, :length], self._vocabulary.text(ids_, finished), finished))
        return samples

    @torch.inference_mode()
    def score(self, prompts: Sequence[Prompt], answers: Sequence[np.ndarray]) -> list[np.ndarray]:
        asked = [(p, a) for p, a in zip(prompts, answers, strict=True) if len(a)]
        scores = [logp.numpy() for some in self._parts(asked) for logp in self._logprobs(some)]
        found = iter(scores)
        return [next(found) if len(a) else np.zeros(0, np.float32) for a in answers]

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        known = {prompt.id: prompt for prompt in prompts}

        def forward(answers: Sequence[TermAnswer]) -> Iterator[tuple[range, list[Tensor], int]]:
            for some in self._parts(range(len(answers))):
                asked = [(known[answers[i].prompt_id], answers[i].tokens) for i in some]
                yield some, self._logprobs(asked), sum(len(self._vocabulary.encode(p)) + len(a) for p, a in asked)

        report = learn(self.name, self._version, self._masters, prompts, terms, optimisation, self.score, forward)
        self._version += optimisation.updates
        return report

    def save(self, folder: Path) -> None:
        def fill(new: Path) -> None:
            self._model.save_pretrained(new)
            self.tokenizer.save_pretrained(new)
            self._masters.save(new / checkpoint.OPTIMISER)

        checkpoint.write(folder, self.name, self._version, fill)

    def restore(self, folder: Path) -> None:
        seal = checkpoint.check(folder, self.name)
        self._load(folder)
        if checkpoint.OPTIMISER in seal.files:
            self._masters.load(folder / checkpoint.OPTIMISER)
        self._version = seal.version

    def close(self) -> None:
        self._model = self._masters = None

    def _load(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        model.generation_config = GenerationConfig()
        self._model, self._masters = model.eval(), Masters(model)
        self._forbidden = torch.zeros(self._vocabulary.size)
        self._forbidden[list(self._vocabulary.forbidden)] = -1e9

    def _logprobs(self, answers: Sequence[tuple[Prompt, np.ndarray]]) -> list[Tensor]:
        """Log-probabilities of each answer's tokens after its prompt, with gradient."""
        ids = [[*self._vocabulary.encode(prompt), *answer.tolist()] for prompt, answer in answers]
        width = max(map(len, ids))
        rows = torch.tensor([row + [0] * (width - len(row)) for row in ids])
        logits = self._model(rows, attention_mask=(torch.arange(width) < torch.tensor([[len(r)] for r in ids])).long()).logits
        places = [slice(len(row) - len(answer) - 1, len(row) - 1) for row, (_, answer) in zip(ids, answers, strict=True)]
        return [
            self._normalised(logits[i, place], self._temperature).gather(1, rows[i, place.start + 1 : place.stop + 1, None])[:, 0]
            for i, place in enumerate(places)
        ]

    def _normalised(self, logits: Tensor, temperature: float) -> Tensor:
        return ((logits.float() + self._forbidden) / temperature).log_softmax(-1)

    def _parts(self, items: Sequence) -> Iterator[Sequence]:
        return (items[at : at + self._rows] for at in range(0, len(items), self._rows))
'''

TEST = '''\
"""$name does what every engine must."""

from __future__ import annotations

import pytest
from $module.engine import ${title}Engine

from harness.engines.catalogue import engines_of
from harness.engines.conformance import CHECKS, Case, name_of, tiny_policy, tiny_prompts


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_conformance(check, policy, tmp_path):
    check(Case(lambda name: ${title}Engine(name, policy), tiny_prompts(7), tmp_path))


def test_is_found_by_name():
    assert engines_of("$name").__name__ == "$title"
'''

README = """\
# $name

An engine for the experience-sharing harness: `$module/__init__.py` says what it needs, `$module/engine.py` is one policy.

    pip install -e .
    pytest
    harness engines
    harness run suite.yaml

What an engine must do is in the harness's `docs/engines.md`.
"""

SUITE = """\
# A few steps of two regimes on one pair, on the engine $name.
name: $name
engine: $name
groups:
  - name: llama-qwen
    policies:
      - {name: llama, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: qwen, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, sgt]
seeds: [1]
training: {steps: 6, prompts: 8, checkpoint_every: 2, measure_every: 3}
evaluation: {k: 2, limit: 48, curve_every: 3, curve_prompts: 24}
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "${module}/__init__.py": DOOR_MODULE,
    "${module}/engine.py": ENGINE,
    "tests/test_${module}.py": TEST,
    "README.md": README,
    "suite.yaml": SUITE,
}
