"""What a cell asks, how long it is, and where answers end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from harness.allocation.cost_model import Lengths
from harness.engines.catalogue import backend_of
from harness.errors import EngineError
from harness.experience.answers import Prompt
from harness.learning import registry
from harness.store.manifest import StatedPool
from harness.suite.cells import Cell
from harness.suite.schema import AnyTask, Evaluation, FileTask, Policy, TaskShare, Training
from harness.suite.seeds import derive_seed
from harness.tasks.data import load_set
from harness.tasks.mixed import carry_task
from harness.tasks.registry import get_task, training_source
from harness.tasks.sets import SOURCES
from harness.tasks.source import fair_part, part_of
from harness.tokenization.codec import TokenCodec

if TYPE_CHECKING:
    from harness.engines.protocol import PolicyEngine, Sample
    from harness.engines.vocabulary import Vocabulary


def training_prompts(cell: Cell, step: int, draw: int = 0) -> list[Prompt]:
    """Draw the step's prompts; a later `draw` offers others for dynamic sampling."""
    training = cell.training
    later = (draw,) if draw else ()  # the first has the seed that it had before there were others
    seed = derive_seed(cell.seed, cell.variant.sampling_stream, "prompts", cell.group.name, step, *later)
    source = training_source(training.task)
    return source.draw(seed, training.prompts, min_level=training.min_level, part=training.part)


def as_asked(prompts: Sequence[Prompt], task: AnyTask, policy: Policy) -> list[Prompt]:
    if policy.style is None:
        return list(prompts)
    known = get_task(task)
    return [replace(p, text=known.render(p, policy.style)) for p in prompts]


def pool_entry(training: Training) -> StatedPool | None:
    """Describe the training pool for the manifest; None where code makes the prompts. Raises DataError."""
    source = training_source(training.task)
    if source.generated:
        return None
    pool = part_of(source.pool(training.min_level), training.part)
    dropped = Counter(overlap.evaluation_set for overlap in pool.overlaps)
    return StatedPool(pool.name, len(pool.prompts), pool.digest(), dict(dropped), len(pool.ambiguous), pool.below_level)


def curve_task(cell: Cell) -> AnyTask:
    """Return what the learning curve asks: evaluation's first task; in mixed training those of its tasks that are evaluated, if
    any."""
    tasks, trained = cell.evaluation.tasks, cell.training.task
    mixed = [TaskShare(task=task) for task in tasks if isinstance(trained, list) and task in cell.training.tasks]
    return mixed or tasks[0]


def curve_prompts(cell: Cell, policy: Policy) -> list[Prompt]:
    """Choose the questions of the learning curve, the same in every cell of a suite; of several tasks as many each, or one
    more."""
    asked, count = curve_task(cell), cell.evaluation.curve_prompts
    if not isinstance(asked, list):
        return _held_out(asked, count, policy)
    prompts = []
    for i, part in enumerate(asked):
        its_count = count // len(asked) + (i < count % len(asked))
        prompts += [carry_task(p, str(part)) for p in _held_out(part.task, its_count, policy)] if its_count else []
    return prompts


def _held_out(name: str | FileTask, count: int, policy: Policy) -> list[Prompt]:
    """Return so many held-out questions of a task, as the policy is asked them."""
    task = get_task(name)
    prompts = fair_part(task.documents(None), count)
    return [replace(p, text=task.render(p, policy.style or task.styles[0])) for p in prompts]


def stop_strings(cell: Cell, policy: Policy) -> tuple[str, ...]:
    if cell.training.answer_ends == "eos" or policy.style is None:
        return ()
    return get_task(cell.training.task).stop(policy.style)


def truncated_answers(
    codec: TokenCodec,
    engine: PolicyEngine,
    prompts: Sequence[Prompt],
    sampled: Sequence[Sequence[Sample]],
    strings: Sequence[str],
) -> list[list[tuple[Sample, bool]]]:
    """Cut answers at the first of `strings`, and say whether one ended them. An EOS with its log-probability (nats) stands for
    it, not learnt (`Answer.closed`). Raises TokenizationError."""
    cut: list[list[tuple[Sample, bool]]] = []
    asked: list[Prompt] = []
    tokens: list[Int32[np.ndarray, "T"]] = []
    for prompt, row in zip(prompts, sampled, strict=True):
        own = [truncate_at_stop(codec, sample, strings) for sample in row]
        ended = [sample for sample, closed in own if closed]
        cut.append(own)
        asked += [prompt] * len(ended)
        tokens += [sample.tokens for sample in ended]
    scores = iter(engine.score(asked, tokens) if asked else [])

    def with_score_of_end(sample: Sample) -> Sample:
        logprobs = np.append(sample.logprobs, next(scores)[-1])
        return replace(sample, logprobs=logprobs.astype(np.float32))

    return [[(with_score_of_end(sample) if closed else sample, closed) for sample, closed in row] for row in cut]


def truncate_at_stop(codec: TokenCodec, sample: Sample, strings: Sequence[str]) -> tuple[Sample, bool]:
    """Cut an answer at a stop text. The EOS has no log-probability yet."""
    starts = [at for string in strings if (at := sample.text.find(string)) >= 0]
    if not starts:
        return sample, False
    content = sample.tokens[: sample.tokens.size - sample.finished]
    size = len(sample.text[: min(starts)].encode())
    kept = int(np.searchsorted(np.cumsum(codec.read([content])[0].pieces), size)) + 1 if size else 0
    tokens = np.append(content[:kept], np.int32(codec.eos_id)).astype(np.int32)
    text = codec.decode(content[:kept])
    return replace(sample, tokens=tokens, logprobs=sample.logprobs[:kept], text=text, finished=True), True


def measure_lengths(
    policy: Policy, folder: Path, evaluation: Evaluation, cell: Cell | None = None, fetch: bool = True
) -> Lengths:
    """Measure the tokens of the longest prompt and answer. folder: may lack weights. Raises EngineError, DataError."""
    from harness.engines.vocabulary import open_vocabulary

    vocabulary = open_vocabulary(folder, policy.chat, policy.name)
    prompt = longest = 0
    if cell is not None:
        prompt = count_longest(vocabulary, as_asked(_training_prompts(cell, fetch), cell.training.task, policy))
        prompt += _hint_tokens(cell, vocabulary)
        longest = prompt + cell.training.max_new_tokens
    for i, task in enumerate(map(get_task, evaluation.tasks)):
        style = policy.style or task.styles[0]
        documents = fair_part(task.documents(None, fetch), evaluation.limit)
        answer = evaluation.max_new_tokens or task.max_new_tokens
        if cell is not None and i == 0:  # of the learning curve
            answer = max(answer, cell.training.max_new_tokens)
        asked = [Prompt(p.id, task.render(p, style), "") for p in documents]
        longest = max(longest, count_longest(vocabulary, asked) + answer)
    return Lengths(prompt, longest)


def longest_prompts(
    policy: Policy, folder: Path, evaluation: Evaluation, cells: Sequence[Cell]
) -> Iterator[tuple[bool, int, int]]:
    """Yield tokens of the longest question and of its longest answer: whether of evaluation, question, answer. folder: may lack
    weights. Raises EngineError, DataError where a data set is not on this machine."""
    from harness.engines.vocabulary import open_vocabulary

    vocabulary = open_vocabulary(folder, policy.chat, policy.name)
    pools: dict[str, int] = {}
    for cell in cells:
        pool = cell.training.model_dump_json(include={"task", "min_level", "part", "prompts", "steps"})
        pool += str(cell.variant.dynamic_sampling)
        if pool not in pools:
            trained = as_asked(_training_prompts(cell, fetch=False), cell.training.task, policy)
            pools[pool] = count_longest(vocabulary, trained)
        yield False, pools[pool] + _hint_tokens(cell, vocabulary), cell.training.max_new_tokens
    for task in map(get_task, evaluation.tasks):
        documents = fair_part(task.documents(None, fetch=False), evaluation.limit)
        style = policy.style or task.styles[0]
        texts = [Prompt(p.id, task.render(p, style), "") for p in documents]
        yield True, count_longest(vocabulary, texts), evaluation.max_new_tokens or task.max_new_tokens


def _hint_tokens(cell: Cell, vocabulary: Vocabulary) -> int:
    """Count the tokens that a second round adds to a question, with the words around the hint."""
    regime = registry.build(cell.variant.regime, cell.variant.options)
    if not regime.hint_tokens:
        return 0
    around = getattr(regime.options, "template", "{question} {hint}").format(question="", hint="")
    words = len(vocabulary.tokenizer.encode(around, add_special_tokens=False))
    return words + min(regime.hint_tokens, 2 * cell.training.max_new_tokens)


def with_checked_length(
    engine: str, options: Mapping[str, Any], policy: Policy, folder: Path, lengths: Lengths
) -> dict[str, Any]:
    """Return options with the needed `max_length`. Raises EngineError where less was stated, or the model holds less."""
    stated = options.get("max_length")
    if stated is not None and stated < lengths.longest:
        raise EngineError(
            f"engine_options.max_length: {stated:,} tokens would cut answers short: the longest question and answer of "
            f"{policy.name} take {lengths.longest:,}. Left out, it is measured"
        )
    backend_of(engine).check(folder, settings := {**options, "max_length": stated or lengths.longest})
    return settings


def with_length(
    engine: str,
    options: Mapping[str, Any],
    policy: Policy,
    folder: Path,
    evaluation: Evaluation,
    cell: Cell | None = None,
) -> dict[str, Any]:
    if "max_length" not in backend_of(engine).Options.__struct_fields__:
        return dict(options)
    return with_checked_length(engine, options, policy, folder, measure_lengths(policy, folder, evaluation, cell))


def _training_prompts(cell: Cell, fetch: bool) -> Sequence[Prompt]:
    """List all questions of which a cell may train on some. fetch: whether data sets that are not here are fetched. Raises
    DataError."""
    source = training_source(cell.training.task)
    for task in cell.training.tasks if not fetch else ():
        if str(task) in SOURCES:
            load_set(SOURCES[str(task)], fetch=False)
    if source.generated:
        dynamic = cell.variant.dynamic_sampling
        draws = range(1 + (dynamic.rounds if dynamic else 0))
        steps = range(1, cell.training.steps + 1)
        return [prompt for step in steps for draw in draws for prompt in training_prompts(cell, step, draw)]
    return part_of(source.pool(cell.training.min_level), cell.training.part).prompts


def count_longest(vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> int:
    """Return the tokens of the longest prompt. A token is at least a byte, so shorter texts are skipped."""
    around = len(vocabulary.encode(Prompt("", "a", "")))
    longest = 0
    for size, prompt in sorted(((len(p.text.encode()), p) for p in prompts), key=lambda pair: -pair[0]):
        if size + around <= longest:
            break
        longest = max(longest, len(vocabulary.encode(prompt)))
    return longest
