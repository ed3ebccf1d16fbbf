"""Which levels a policy can learn from, and which of two could help the other (`harness tasks --calibrate`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
from pydantic import ValidationError

from harness.allocation.shapes import MICRO, load_shape
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import cut_at
from harness.engines.vocabulary import open_vocabulary
from harness.errors import CellError, DataError, EngineError, UsageError
from harness.experience.answers import Prompt
from harness.session.cell.judge import judge_of
from harness.session.policy import base_folder
from harness.session.single.levels import LevelResult, Solved, measure_level, questions_of, sample_answers
from harness.suite.load import first_error
from harness.suite.schema import Policy
from harness.tasks import ladder, micro
from harness.tasks.registry import get_task, names_of_levels, training_source
from harness.verification.verifier import Verifier

# Tokens of the longest answer, by task
LONGEST_ANSWER = {"micro": 44, "ladder": 48}
NEXT_QUESTION = ("\n\nQ:",)


class Rescue(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of prompts. failed: all the learner's answers are wrong; rescued: a peer's is right."""

    level: str
    learner: str
    peer: str
    prompts: int
    answers: int
    failed: float
    rescued: float


class Calibration(msgspec.Struct, frozen=True):
    """What was measured. chat: policies asked through their template."""

    standings: list[LevelResult]
    rescues: list[Rescue]
    few_shot: int
    chat: list[str]


def calibrate_models(
    models: Sequence[str],
    task: str,
    levels: Sequence[str] = (),
    *,
    prompts: int,
    answers: int,
    few_shot: int = 0,
    plain: bool = False,
    max_new_tokens: int | None = None,
) -> Calibration:
    """Sample answers to training questions at temperature 1. few_shot: worked questions before each. plain: without chat
    templates. max_new_tokens: of the longest answer; None is the task's own. Raises UsageError, PluginError, DataError."""
    asked, shots = _questions_and_shots(task, levels, prompts, few_shot)
    folders = _open_folders(models)
    solved: dict[str, dict[str, Solved]] = {name: {} for name in folders}
    standings = []
    chats = []
    with Verifier(workers=1) as verifier:
        for name, folder in folders.items():
            try:
                chat = not plain and bool(open_vocabulary(folder, chat=False).tokenizer.chat_template)
                engine = EmbeddedEngine(name, folder, chat=chat)
            except EngineError as error:
                raise UsageError(str(error)) from None
            if chat:
                chats.append(name)
            for level, questions in asked.items():
                longest = max_new_tokens or _longest_answer(task, level)
                judge = judge_of(task if task in LONGEST_ANSWER or ladder.is_ladder(task) else level, verifier)
                shown = [replace(prompt, text=shots[level] + prompt.text) for prompt in questions]
                drawn = sample_answers(engine, level, shown, answers, longest, "calibrate")
                if few_shot:
                    drawn = [[cut_at(sample, NEXT_QUESTION) for sample in row] for row in drawn]
                standing, solved[name][level] = measure_level(name, level, questions, drawn, judge)
                standings.append(standing)
                print(f"{name} {level}: pass@1 {standing.pass1:.0%}", file=sys.stderr)
            engine.close()
            del engine
    return Calibration(standings, count_rescues(solved, answers), few_shot, chats)


def _questions_and_shots(
    task: str, levels: Sequence[str], prompts: int, few_shot: int
) -> tuple[dict[str, list[Prompt]], dict[str, str]]:
    """Choose by level the questions, and the worked questions before each, none of which is asked. Raises UsageError."""
    asked = {name: questions_of(task, name, prompts) for name in _chosen_levels(task, levels)}
    if few_shot and not ladder.is_ladder(task):
        raise UsageError("--few-shot: works only with the ladder")
    shots = {name: ladder.worked_examples(name, few_shot) if few_shot else "" for name in asked}
    asked = {name: [prompt for prompt in own if prompt.text not in shots[name]] for name, own in asked.items()}
    for name, own in asked.items():
        if not own:
            raise UsageError(
                f"--few-shot {few_shot}: shows the solution of every question of {name} that would be asked"
            )
    return asked, shots


def _longest_answer(task: str, level: str) -> int:
    """Return the tokens of the longest answer to a level's questions."""
    if task == "micro":
        return LONGEST_ANSWER["micro"]
    return LONGEST_ANSWER["ladder"] if ladder.is_ladder(task) else get_task(level).max_new_tokens


def _open_folders(models: Sequence[str]) -> dict[str, Path]:
    """Return each model's folder by the last part of its name. Raises UsageError."""
    folders: dict[str, Path] = {}
    for model in models:
        name = model.rstrip("/").rsplit("/", 1)[-1]
        if name in folders:
            raise UsageError(f"{model}: another policy has the name {name!r}")
        if model.startswith(MICRO):
            load_shape(model)  # refuses an unknown family
        try:
            folders[name] = base_folder(Policy(name="policy", model=model), seed=0)
        except ValidationError as error:
            raise first_error(error, "--calibrate") from None
        except (DataError, CellError) as error:
            raise UsageError(str(error)) from None
    return folders


def count_rescues(solved_by: Mapping[str, Mapping[str, Solved]], answers: int) -> list[Rescue]:
    """Return, for each ordered pair of policies and each level, how often the peer is right where the learner never is."""
    found = []
    for learner, peer in permutations(solved_by, 2):
        for level, solved in solved_by[learner].items():
            failed = (solved == 0).all(axis=1)
            helped = failed & (solved_by[peer][level] == 1).any(axis=1)
            found.append(
                Rescue(
                    level=level,
                    learner=learner,
                    peer=peer,
                    prompts=len(solved),
                    answers=answers,
                    failed=float(np.mean(failed)),
                    rescued=float(np.mean(helped)),
                )
            )
    return found


def _chosen_levels(task: str, levels: Sequence[str]) -> list[str]:
    """Return the levels that are named, or all of the task. Raises UsageError."""
    if task == "micro":
        known = tuple(micro.SKILLS)
    elif ladder.is_ladder(task):
        known = ladder.levels_of(task)
    else:
        known = tuple(names_of_levels(task))
        if "*" not in task and not training_source(task).generated:
            raise UsageError(
                f"--task {task}: has no levels; ladder, micro, countdown and gym.NAME have (or gym.*: all puzzles)"
            )
    unknown = [name for name in levels if name not in known]
    if unknown:
        raise UsageError(f"--levels: unknown level {unknown[0]!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(levels)) or list(known)
