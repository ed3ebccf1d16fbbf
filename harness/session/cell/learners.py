"""The learners of a cell: each policy with its engine, its regime's instance and its tokenizer's codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.engines.protocol import PolicyEngine
from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import Pieces
from harness.learning.regime import Regime
from harness.session.cell.clock import Clock
from harness.session.cell.endings import ended, stops
from harness.suite.cells import Cell
from harness.suite.schema import Policy
from harness.suite.seeds import derive_many
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

TRUNCATED = Verdict("wrong", "truncated")


@dataclass(slots=True)
class Learner:
    """One policy of a running cell."""

    policy: Policy
    engine: PolicyEngine
    regime: Regime
    rollouts: int
    base: Path
    clock: Clock = field(default_factory=Clock)
    _codec: TokenCodec | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def codec(self) -> TokenCodec:
        """Made when first asked: a policy that exchanges no text needs none. Raises TokenizationError."""
        if self._codec is None:
            self._codec = TokenCodec(self.engine.tokenizer, self.engine.stop)
        return self._codec

    def pieces(self, groups: Sequence[Group]) -> Pieces:
        """Byte length of each token of these groups' answers, final EOS left out; all are read at once, when first asked."""
        table: dict[int, list[int]] = {}

        def of(answer: Answer) -> list[int]:
            if not table:
                answers = [a for g in groups for a in g.answers if a.text]
                read = self.codec.read([a.tokens[: a.tokens.size - a.finished] for a in answers])
                table.update({id(a): r.pieces.tolist() for a, r in zip(answers, read, strict=True)})
            return table[id(answer)]

        return of


def verdicts(verifier: Verifier, golds: Sequence[str], texts: Sequence[str], finished: Sequence[bool]) -> list[Verdict]:
    """The verifier's word on finished answers; one cut off at the token limit is wrong, whatever it contains."""
    asked = [i for i, done in enumerate(finished) if done]
    found = verifier.verify([(golds[i], texts[i]) for i in asked])
    result = [TRUNCATED] * len(texts)
    for i, verdict in zip(asked, found, strict=True):
        result[i] = verdict
    return result


def roll_out(learner: Learner, cell: Cell, step: int, prompts: Sequence[Prompt], verifier: Verifier) -> list[Group]:
    """The learner's groups of this step, verified. Seeds derive from (seed, stream, group, policy, step, prompt, sample)."""
    import numpy as np

    from harness.engines.protocol import Sampling

    stream = cell.variant.sampling_stream
    seeds = np.stack([
        derive_many(learner.rollouts, cell.seed, stream, cell.group.name, learner.name, step, p.id) for p in prompts
    ])  # fmt: skip
    sampling = Sampling(cell.training.temperature, cell.training.max_new_tokens)
    version = learner.engine.version
    with learner.clock.phase("generate"):
        sampled = learner.engine.sample(prompts, seeds, sampling)
    closed: set[int] = set()
    if strings := stops(cell, learner.policy):
        with learner.clock.phase("score"):
            answers = ended(learner.codec, learner.engine, prompts, sampled, strings)
        sampled = [[sample for sample, _ in row] for row in answers]
        closed = {id(sample) for row in answers for sample, was in row if was}
    with learner.clock.phase("verify"):
        flat = [(prompt, s) for prompt, samples in zip(prompts, sampled, strict=True) for s in samples]
        said = iter(
            verdicts(verifier, [p.gold for p, _ in flat], [s.text for _, s in flat], [s.finished for _, s in flat])
        )
    return [
        Group(
            prompt,
            learner.name,
            version,
            step,
            tuple(Answer(s.tokens, s.logprobs, s.text, s.finished, next(said), id(s) in closed) for s in samples),
        )
        for prompt, samples in zip(prompts, sampled, strict=True)
    ]
