"""Checks of a pretrained model against a suite: its folder and weights, its chat template, its positions, and whether its
tokenizer can carry peers' texts. They import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from harness.allocation.shapes import load_shape
from harness.engines.checkpoint import INDEX, OTHER_WEIGHTS, WEIGHTS
from harness.errors import DataError, EngineError, SuiteError, TokenizationError, UsageError
from harness.experience.records import Rollout, Success, TextRollout
from harness.session.policy import hub_folder, local_folder, required_folder
from harness.session.suite.places import faults_at
from harness.session.suite.resolved import ResolvedSuite
from harness.suite.cells import Cell
from harness.suite.schema import Policy

# Records whose text receivers encode again
TEXTS = {Rollout, TextRollout, Success}
# Of the shipped full-size suites
LEARNING_RATE = 1e-6
# Parameters; the micro families have 0.4 M
SMALL = 5_000_000
# Longest answer of a full-size model on micro arithmetic
TOKENS = 512


def check_model(
    policy: Policy,
    cells: Sequence[Cell],
    resolved: ResolvedSuite,
    place: str,
    about_to_run: bool,
    weights: bool = True,
) -> list[str] | None:
    """Check one policy's model for the cells of its group, and return remarks; None where its folder is not here to be checked.

    place: of the policy in the suite. about_to_run: what is not here is fetched. weights: whether they are here. Raises
    SuiteError."""
    source = resolved.source
    with faults_at(source, f"{place}.model", (DataError, EngineError)):
        folder, whole = _find_folder(policy, about_to_run)
        if folder is None:
            return None
        config, tokenizer = resolved.engine.check(folder, resolved.suite.engine_options)
        if whole and weights:
            from harness.engines.vocabulary import check_weights

            check_weights(folder)
    if policy.chat and not tokenizer.chat_template:
        raise SuiteError(source, f"{place}.chat", f"the tokenizer of {policy.model} has no chat template")
    _check_answer_fits(policy, config, resolved)
    carrying = [cell for cell in cells if resolved.records_shared(cell) & TEXTS]
    remarks = [f"{place}.chat: {words}" for words in _check_template(policy, folder, source, place, bool(carrying))]
    _check_positions(policy, folder, cells, resolved)
    if carrying:
        _check_carries_text(policy, tokenizer, carrying[0], source, place)
    return remarks


def _find_folder(policy: Policy, about_to_run: bool) -> tuple[Path | None, bool]:
    """Find the folder of a model, None where it can only be checked by a run; and say whether the folder has all that a run
    needs. Raises DataError."""
    from huggingface_hub import is_offline_mode

    folder = required_folder(policy)
    if folder is not None:
        return folder, True
    with nullcontext() if about_to_run else suppress(DataError):
        folder = hub_folder(policy, fetch=about_to_run)
    if folder is None or not (about_to_run or (folder / "tokenizer_config.json").is_file()):
        return None, False
    return folder, is_offline_mode()


def _check_answer_fits(policy: Policy, config: Any, resolved: ResolvedSuite) -> None:
    """Check that a model has positions for more than the longest answer in training. Raises SuiteError."""
    positions = getattr(config, "max_position_embeddings", None)
    answer = resolved.suite.training.max_new_tokens
    if positions and answer >= positions:
        problem = f"{answer} leave no room for a prompt: {policy.model} has {positions} positions"
        raise SuiteError(resolved.source, "training.max_new_tokens", problem)


def _check_carries_text(policy: Policy, tokenizer: Any, cell: Cell, source: str, place: str) -> None:
    """Check that a tokenizer can encode peers' texts byte for byte. Raises SuiteError."""
    from harness.tokenization.codec import TokenCodec

    try:
        TokenCodec(tokenizer)
    except TokenizationError as error:
        name = cell.variant.name
        problem = f"{name!r} shares text, which cannot be carried to the tokenizer of {policy.model}: {error}"
        raise SuiteError(source, f"{place}.model", problem) from None


def _check_template(policy: Policy, folder: Path, source: str, place: str, carries: bool) -> Iterator[str]:
    """Check that the chat template can ask a question, and yield remarks on what it does besides. carries: peers' texts reach
    this policy. Raises SuiteError."""
    from harness.engines.vocabulary import open_vocabulary
    from harness.tokenization.codec import TokenCodec, leaves_thought_open

    with faults_at(source, f"{place}.model", EngineError):
        vocabulary = open_vocabulary(folder, policy.chat)
    if not policy.chat:
        return
    template = vocabulary.template
    fault = template.fault()
    if fault:
        raise SuiteError(source, f"{place}.chat", f"{policy.model}: {fault}")
    behind = template.behind_question()
    if carries and leaves_thought_open(behind):
        switch = "where the template has a switch, such as `chat: {enable_thinking: false}`, it is asked without"
        codec = TokenCodec(vocabulary.tokenizer, vocabulary.stop, vocabulary.closing)
        mark = codec.closing_of_thought(behind)
        if mark:
            said = "".join(map(str, vocabulary.tokenizer.convert_ids_to_tokens(list(mark))))
            yield f"{policy.name}'s prompts open a thought: {said} closes it before a peer's answer that closes none; {switch}"
        else:
            yield (
                f"{policy.name}'s prompts open a thought, which its tokenizer cannot close: peers' answers that close none are "
                f"refused (open_thought); {switch}"
            )
    if template.date is None and template.writes_date():
        yield (
            f"{policy.name}'s template writes the day: each cell keeps that of its start; `chat: {{date: 2026-01-31}}` gives all "
            "cells the same"
        )


def _check_positions(policy: Policy, folder: Path, cells: Sequence[Cell], resolved: ResolvedSuite) -> None:
    """Check that questions and answers fit the model. Raises SuiteError where the model has too few positions for the longest
    question and its answer. Questions that are not on this machine are not measured."""
    from harness.engines.vocabulary import open_vocabulary
    from harness.session.cell.questions import longest_prompts

    positions = open_vocabulary(folder, policy.chat).positions
    if positions is None:
        return
    alike = {(cell.training.model_dump_json(), cell.variant.regime): cell for cell in cells}
    wanted: dict[str, tuple[int, int]] = {}
    with suppress(DataError):
        lengths = longest_prompts(policy, folder, resolved.suite.evaluation, list(alike.values()))
        for of_evaluation, question, answer in lengths:
            where = "evaluation.max_new_tokens" if of_evaluation else "training.max_new_tokens"
            wanted[where] = max(wanted.get(where, (0, 0)), (question, answer), key=sum)
    for where, (question, answer) in wanted.items():
        if question + answer > positions:
            room = positions - question
            remedy = f"at most {room:,} fit" if room > 0 else "no answer fits; take shorter questions or another model"
            problem = (
                f"the longest question of {policy.name} takes {question:,} tokens and an answer up to {answer:,}, but the model "
                f"has {positions:,} positions: {remedy}"
            )
            raise SuiteError(resolved.source, where, problem)


def parts_lacking(policy: Policy) -> str:
    """Return which of weights and tokenizer a model's folder lacks, in words; empty where it lacks none, or is no folder here."""
    folder = local_folder(policy.model)
    if folder is None or not (folder / "config.json").is_file():
        return ""
    names = {file.name for file in folder.iterdir()}
    lacks = [] if names & {"tokenizer.json", "tokenizer_config.json"} else ["tokenizer"]
    if not (names & {WEIGHTS, INDEX} or any(name.endswith(OTHER_WEIGHTS) for name in names)):
        lacks.insert(0, "weights")
    return " and no ".join(lacks)


def has_whole_tokenizer(policy: Policy) -> bool:
    """Return whether a model's folder has the one file from which its tokenizer can be opened."""
    folder = local_folder(policy.model)
    return folder is not None and (folder / "tokenizer.json").is_file()


def is_small(policy: Policy) -> bool:
    """Return whether a model is about as small as the micro families; one of unknown size counts as small."""
    try:
        return load_shape(policy.model, policy.revision).parameters < SMALL
    except UsageError:
        return True


def default_remarks(resolved: ResolvedSuite, policy: Policy) -> Iterator[str]:
    """Yield a remark for each default of training that fits micro models and not this one."""
    training = resolved.suite.training
    short = training.task == "micro" and not policy.stage0
    tokens = TOKENS if short else resolved.training.task.max_new_tokens
    for name, value in (("max_new_tokens", tokens), ("learning_rate", LEARNING_RATE)):
        if name not in training.model_fields_set:
            yield f"training.{name}: {getattr(training, name)} is for micro models; {value} fits {policy.model}"
