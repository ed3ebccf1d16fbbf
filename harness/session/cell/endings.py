"""Where a few-shot policy's answers end in training (`training.answer_ends`): a base model seldom writes its EOS, and goes on with
the next example instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.experience.answers import Prompt
from harness.suite.cells import Cell
from harness.suite.schema import Policy
from harness.tokenization.codec import TokenCodec

if TYPE_CHECKING:
    from harness.engines.protocol import PolicyEngine, Sample

__all__ = ["cut_at", "ended", "stops"]


def stops(cell: Cell, policy: Policy) -> tuple[str, ...]:
    """Strings that end this policy's answers, by the same rule as in evaluation; none by default."""
    if cell.training.answer_ends == "eos" or policy.style is None:
        return ()
    from harness.tasks.registry import get_task

    return get_task(cell.training.task).stop(policy.style)


def ended(
    codec: TokenCodec,
    engine: PolicyEngine,
    prompts: Sequence[Prompt],
    sampled: Sequence[Sequence[Sample]],
    strings: Sequence[str],
) -> list[list[tuple[Sample, bool]]]:
    """Answers up to the first of `strings`, and whether each was ended by one.

    Such an answer has its policy's EOS in place of the string, with the log-probability (nats) that the policy gives it there. The
    policy did not choose that EOS, so it is not learnt (`Answer.closed`). Tokens are kept whole: one that reaches over the
    string's beginning stays.

    Raises
    ------
    TokenizationError
        The tokenizer decodes otherwise than its tokens say.
    """
    cut = [[cut_at(codec, sample, strings) for sample in row] for row in sampled]
    asked = [(p, sample) for p, row in zip(prompts, cut, strict=True) for sample, closed in row if closed]
    scores = iter(engine.score([p for p, _ in asked], [sample.tokens for _, sample in asked]) if asked else [])
    return [
        [(_scored(sample, next(scores)[-1]) if closed else sample, closed) for sample, closed in row] for row in cut
    ]


def cut_at(codec: TokenCodec, sample: Sample, strings: Sequence[str]) -> tuple[Sample, bool]:
    """The answer up to the first of `strings`, and whether there is one; its EOS has no log-probability yet."""
    import numpy as np

    starts = [at for string in strings if (at := sample.text.find(string)) >= 0]
    if not starts:
        return sample, False
    content = sample.tokens[: sample.tokens.size - sample.finished]
    size = len(sample.text[: min(starts)].encode())
    kept = int(np.searchsorted(np.cumsum(codec.pieces(content)), size)) + 1 if size else 0
    tokens = np.append(content[:kept], np.int32(codec.eos_id)).astype(np.int32)
    text = codec.decode(content[:kept])
    return replace(sample, tokens=tokens, logprobs=sample.logprobs[:kept], text=text, finished=True), True


def _scored(sample: Sample, eos: float) -> Sample:
    import numpy as np

    return replace(sample, logprobs=np.append(sample.logprobs, np.float32(eos)).astype(np.float32))
