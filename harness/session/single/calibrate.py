"""Which levels a policy can learn from, and which of two could help the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float
from pydantic import ValidationError

from harness.allocation.shapes import MICRO, load_shape
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sample, Sampling, cut_at
from harness.engines.vocabulary import open_vocabulary
from harness.errors import CellError, DataError, EngineError, UsageError
from harness.experience.answers import Prompt
from harness.phases import phase
from harness.session.cell.learners import verdicts
from harness.session.policy import base_folder
from harness.suite.load import first_error
from harness.suite.schema import Policy
from harness.suite.seeds import derive, derive_many
from harness.tasks import ladder, micro
from harness.verification.verifier import Verifier

SEED = 20_263
# Of pass@1: RL needs successes and failures
LEAST, MOST = 0.1, 0.5
ANSWERS_AT_ONCE = 512
NEXT_QUESTION = ("\n\nQ:",)
# NaN: no verdict
Solved = Float[np.ndarray, "prompts answers"]


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of answers with a verdict. pass1, pass_any: shares of right ones, of prompts with one; error: standard error of
    pass1 over prompts."""

    policy: str
    level: str
    prompts: int
    answers: int
    pass1: float
    error: float
    pass_any: float
    boxed: float
    finished: float

    @property
    def fits(self) -> bool:
        """Whether RL has something to learn from here."""
        return LEAST <= self.pass1 <= MOST and self.pass_any > self.pass1


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
    """chat: policies asked through their template."""

    standings: list[LevelResult]
    rescues: list[Rescue]
    few_shot: int
    chat: list[str]


def calibrate(
    models: Sequence[str],
    task: str,
    levels: Sequence[str] = (),
    *,
    prompts: int,
    answers: int,
    few_shot: int = 0,
    plain: bool = False,
) -> Calibration:
    """Sample training questions at temperature 1. plain: without chat templates. Raises UsageError."""
    asked = {name: questions_of(task, name, prompts) for name in _chosen_levels(task, levels)}
    if few_shot and task == "micro":
        raise UsageError("--few-shot: works only with the ladder")
    shots = {name: ladder.worked(name, few_shot) if few_shot else "" for name in asked}
    asked = {name: [p for p in own if p.text not in shots[name]] for name, own in asked.items()}
    if bare := [name for name, own in asked.items() if not own]:
        raise UsageError(
            f"--few-shot {few_shot}: shows the solution of every question of {bare[0]} that would be asked"
        )
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
    solved: dict[str, dict[str, Solved]] = {name: {} for name in folders}
    standings, chats = [], []
    with Verifier(workers=1) as verifier:
        for name, folder in folders.items():
            try:
                chat = not plain and bool(open_vocabulary(folder, chat=False).tokenizer.chat_template)
                engine = EmbeddedEngine(name, folder, chat=chat)
            except EngineError as error:
                raise UsageError(str(error)) from None
            chats += [name] * chat
            for level, questions in asked.items():
                shown = [replace(p, text=shots[level] + p.text) for p in questions]
                drawn = sample_answers(engine, level, shown, answers, 44 if task == "micro" else 48, "calibrate")
                if few_shot:
                    drawn = [[cut_at(sample, NEXT_QUESTION) for sample in row] for row in drawn]
                standing, solved[name][level] = measure_level(name, level, questions, drawn, verifier)
                standings.append(standing)
                print(f"{name} {level}: pass@1 {standing.pass1:.0%}", file=sys.stderr)
            engine.close()
            del engine
    return Calibration(standings, count_rescues(solved, answers), few_shot, chats)


def count_rescues(solved_by: Mapping[str, Mapping[str, Solved]], answers: int) -> list[Rescue]:
    return [
        Rescue(
            level=level,
            learner=learner,
            peer=peer,
            prompts=len(solved),
            answers=answers,
            failed=float(np.mean(failed := (solved == 0).all(axis=1))),
            rescued=float(np.mean(failed & (solved_by[peer][level] == 1).any(axis=1))),
        )
        for learner, peer in permutations(solved_by, 2)
        for level, solved in solved_by[learner].items()
    ]


def _chosen_levels(task: str, levels: Sequence[str]) -> list[str]:
    if task == "micro":
        known = tuple(micro.SKILLS)
    elif ladder.is_ladder(task):
        known = ladder.levels_of(task)
    else:
        raise UsageError(f"--task {task}: only ladder and micro have levels")
    if unknown := [name for name in levels if name not in known]:
        raise UsageError(f"--levels: unknown level {unknown[0]!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(levels)) or list(known)


def questions_of(task: str, level: str, count: int) -> list[Prompt]:
    """For training; fewer where the level is small."""
    seed, source = derive(SEED, level), micro if task == "micro" else ladder
    prompts, few, asked, many = list[Prompt](), 0, count, count
    while few < many:  # by halves: a search that fails is slow
        try:
            prompts, few = source.training_prompts(seed, asked, [level]), asked
        except DataError:
            many = asked - 1
        asked = (few + many + 1) // 2
    if prompts:
        return prompts
    raise UsageError(f"--prompts {count}: at least 1")


def sample_answers(
    engine: EmbeddedEngine, name: str, prompts: Sequence[Prompt], answers: int, length: int, stream: str
) -> list[list[Sample]]:
    drawn: list[list[Sample]] = []
    size = max(1, ANSWERS_AT_ONCE // answers)
    with phase(f"{engine.name}: {name}", len(prompts)) as sampling:
        for start in range(0, len(prompts), size):
            part = prompts[start : start + size]
            seeds = np.stack([derive_many(answers, stream, p.id) for p in part])
            drawn += engine.sample(part, seeds, Sampling(max_new_tokens=length))
            sampling.count(len(drawn))
    return drawn


def measure_level(
    policy: str, level: str, questions: Sequence[Prompt], drawn: Sequence[Sequence[Sample]], verifier: Verifier
) -> tuple[LevelResult, Solved]:
    flat = [(prompt, sample) for prompt, row in zip(questions, drawn, strict=True) for sample in row]
    said = verdicts(verifier, [p.gold for p, _ in flat], [s.text for _, s in flat], [s.finished for _, s in flat])
    solved = np.array([float(v.value == "right") if v.valid else np.nan for v in said]).reshape(len(drawn), -1)
    judged = solved[~np.isnan(solved).all(axis=1)]
    if not judged.size:
        raise UsageError(f"{level}: the verifier decided on no answer of {policy}: {said[0].reason}")
    each = np.nanmean(judged, axis=1)
    standing = LevelResult(
        policy=policy,
        level=level,
        prompts=len(judged),
        answers=solved.shape[1],
        pass1=float(each.mean()),
        error=float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else float("nan"),
        pass_any=float((judged == 1).any(axis=1).mean()),
        boxed=float(np.mean(["\\boxed{" in s.text for _, s in flat])),
        finished=float(np.mean([s.finished for _, s in flat])),
    )
    return standing, solved
