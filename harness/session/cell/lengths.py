"""How many tokens a cell asks of a policy, measured by the policy's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.allocation.demand import Lengths
from harness.engines.catalogue import engines_of
from harness.errors import EngineError
from harness.experience.answers import Prompt
from harness.session.cell.prompt_order import as_asked, training_prompts
from harness.suite.cells import Cell
from harness.suite.schema import Evaluation, Policy
from harness.tasks.choice import fair_part
from harness.tasks.data import load
from harness.tasks.registry import get_task, training_source
from harness.tasks.source import part_of
from harness.tasks.training import SOURCES

if TYPE_CHECKING:
    from harness.engines.vocabulary import Vocabulary


def measured(
    policy: Policy, folder: Path, evaluation: Evaluation, cell: Cell | None = None, fetch: bool = True
) -> Lengths:
    """Of the evaluation, and of a cell's training and learning curve. folder: the policy's, which may lack its weights. fetch: also
    questions that are not on this machine.

    Raises EngineError for a tokenizer that does not open, DataError for questions that cannot be had.
    """
    from harness.engines.vocabulary import open_vocabulary

    vocabulary = open_vocabulary(folder, policy.chat, policy.name)
    prompt = longest = 0
    if cell is not None:
        prompt = _longest(vocabulary, as_asked(_trained(cell, fetch), cell.training.task, policy))
        longest = prompt + cell.training.max_new_tokens
    for i, task in enumerate(map(get_task, evaluation.tasks)):
        style = policy.style or task.styles[0]
        prompts = [
            Prompt(p.id, task.render(p, style), "") for p in fair_part(task.documents(None, fetch), evaluation.limit)
        ]
        answer = evaluation.max_new_tokens or task.max_new_tokens
        if cell is not None and i == 0:  # of which the learning curve is
            answer = max(answer, cell.training.max_new_tokens)
        longest = max(longest, _longest(vocabulary, prompts) + answer)
    return Lengths(prompt, longest)


def checked(engine: str, options: Mapping[str, Any], policy: Policy, folder: Path, lengths: Lengths) -> dict[str, Any]:
    """An engine's options with the `max_length` that is needed, where it has one and nobody stated it.

    Raises EngineError where what was stated, or the model, holds less.
    """
    kind, stated = engines_of(engine), options.get("max_length")
    if stated is not None and stated < lengths.longest:
        raise EngineError(
            f"engine_options.max_length: {stated:,} tokens would cut answers short: the longest question and answer of "
            f"{policy.name} take {lengths.longest:,}. Left out, it is measured"
        )
    found = {**options, "max_length": stated or lengths.longest}
    kind.check(folder, found)
    return found


def with_length(
    engine: str,
    options: Mapping[str, Any],
    policy: Policy,
    folder: Path,
    evaluation: Evaluation,
    cell: Cell | None = None,
) -> dict[str, Any]:
    """`checked`, as `measured`; the options themselves of an engine without a `max_length`."""
    if "max_length" not in engines_of(engine).Options.__struct_fields__:
        return dict(options)
    return checked(engine, options, policy, folder, measured(policy, folder, evaluation, cell))


def _trained(cell: Cell, fetch: bool) -> Sequence[Prompt]:
    source = training_source(cell.training.task)
    if not fetch and str(cell.training.task) in SOURCES:
        load(SOURCES[str(cell.training.task)], fetch=False)
    if source.generated:
        return [p for step in range(1, cell.training.steps + 1) for p in training_prompts(cell, step)]
    return part_of(source.pool(cell.training.min_level), cell.training.part).prompts


def _longest(vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> int:
    """Tokens of the longest prompt. A token is at least a byte long, so those that are too short need not be looked at."""
    around, longest = len(vocabulary.encode(Prompt("", "a", ""))), 0
    for size, prompt in sorted(((len(p.text.encode()), p) for p in prompts), key=lambda pair: -pair[0]):
        if size + around <= longest:
            break
        longest = max(longest, len(vocabulary.encode(prompt)))
    return longest
