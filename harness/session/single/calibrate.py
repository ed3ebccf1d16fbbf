"""Where a policy stands on the ladder: which levels it can learn from, and which of two policies could help the other.

RL learns from questions that a policy answers right sometimes. Of each level are measured: pass@1, pass@k, how many answers have
the form that is scored, and for each pair of policies how often one's whole group fails where the other has a success.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Bool

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sample, Sampling
from harness.errors import CellError, DataError, EngineError, UsageError
from harness.experience.answers import Prompt
from harness.phases import phase
from harness.session.cell.learners import verdicts
from harness.session.policy.models import base_folder
from harness.suite.schema import Policy
from harness.suite.seeds import derive, derive_many
from harness.tasks import ladder, micro
from harness.verification.verifier import Verifier

SEED = 20_263
LEAST, MOST = 0.1, 0.5
"""Of pass@1, between which RL finds both successes and failures."""
ROWS = 512
"""Answers that are sampled at once."""
Solved = Bool[np.ndarray, "prompts answers"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one level. pass1: share of right answers (boxed or not, but finished), error: its standard error over prompts;
    pass_any: share of prompts with a right answer among `answers`. boxed, finished: shares of all answers."""

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
    """Shares of a level's prompts. failed: all of the learner's answers are wrong. rescued: and one of the peer's is right."""

    level: str
    learner: str
    peer: str
    prompts: int
    answers: int
    failed: float
    rescued: float


class Calibration(msgspec.Struct, frozen=True):
    """What was measured, and with which settings. chat: policies that were asked through their chat template."""

    standings: list[Standing]
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
    """Sample `answers` at temperature 1 to up to `prompts` training questions of each level, one policy after another.

    Parameters
    ----------
    models
        Folders, `pretrained/NAME`, `micro/FAMILY` or hub names.
    levels
        Of the task: the ladder's levels, the micro task's skills; all where none is named.
    few_shot
        Worked questions of the same level before each.
    plain
        Leave out the chat template of those that have one.

    Raises
    ------
    UsageError
        An unknown task or level, the same policy twice, or a model that does not open.
    """
    asked = {name: _questions(task, name, prompts) for name in _levels(task, levels)}
    shots = {name: _shots(task, name, few_shot) for name in asked}
    folders = _folders(models)
    found: dict[str, dict[str, Solved]] = {}
    standings, chats = [], []
    length = 44 if task == "micro" else 48
    with Verifier(workers=1) as verifier:
        for name, folder in folders.items():
            chat = not plain and _has_template(folder)
            chats += [name] if chat else []
            try:
                engine = EmbeddedEngine(name, folder, chat=chat)
            except EngineError as error:
                raise UsageError(str(error)) from None
            found[name] = {}
            for level, questions in asked.items():
                drawn = _drawn(engine, questions, shots[level], answers, length)
                standing, found[name][level] = _standing(name, level, questions, drawn, verifier)
                standings.append(standing)
                print(f"{name} {level}: pass@1 {standing.pass1:.0%}", file=sys.stderr)
            engine.close()
            del engine
    return Calibration(standings, rescues(found, answers), few_shot, chats)


def rescues(found: Mapping[str, Mapping[str, Solved]], answers: int) -> list[Rescue]:
    """Both ways for each pair, from what each policy solved of each level's same prompts."""
    return [
        Rescue(
            level=level,
            learner=learner,
            peer=peer,
            prompts=len(solved),
            answers=answers,
            failed=float(np.mean(~solved.any(axis=1))),
            rescued=float(np.mean(~solved.any(axis=1) & found[peer][level].any(axis=1))),
        )
        for learner, peer in permutations(found, 2)
        for level, solved in found[learner].items()
    ]


def _levels(task: str, levels: Sequence[str]) -> list[str]:
    if task == "micro":
        known = tuple(micro.SKILLS)
    elif ladder.is_ladder(task):
        known = ladder.levels_of(task)
    else:
        raise UsageError(f"--task {task}: ladder or micro, whose levels can be told apart")
    unknown = [name for name in levels if name not in known]
    if unknown:
        raise UsageError(f"--levels: unknown level {unknown[0]!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(levels)) or list(known)


def _questions(task: str, level: str, count: int) -> list[Prompt]:
    """Of the training side, so that a choice of levels never looks at evaluation; fewer where the level is small."""
    seed = derive(SEED, level)
    for fewer in range(count, 0, -1):
        try:
            if task == "micro":
                return micro.training_prompts(seed, fewer, [level])
            return ladder.training_prompts(seed, fewer, [level])
        except DataError:
            continue
    raise UsageError(f"--prompts {count}: at least 1")


def _shots(task: str, level: str, count: int) -> str:
    if not count:
        return ""
    if task == "micro":
        raise UsageError("--few-shot: of the ladder only")
    return ladder.worked(level, count)


def _folders(models: Sequence[str]) -> dict[str, Path]:
    """By a short name. Raises UsageError for what cannot be had, or comes twice."""
    found: dict[str, Path] = {}
    for model in models:
        name = model.rstrip("/").rsplit("/", 1)[-1]
        if name in found:
            raise UsageError(f"{model}: a policy named {name!r} is there already")
        try:
            found[name] = base_folder(Policy(name="policy", model=model), seed=0)
        except (DataError, CellError) as error:
            raise UsageError(str(error)) from None
    return found


def _has_template(folder: Path) -> bool:
    from harness.engines.vocabulary import open_vocabulary

    try:
        return bool(open_vocabulary(folder, chat=False).tokenizer.chat_template)
    except EngineError as error:
        raise UsageError(str(error)) from None


def _drawn(
    engine: EmbeddedEngine, questions: Sequence[Prompt], shots: str, answers: int, length: int
) -> list[list[Sample]]:
    prompts = [replace(p, text=shots + p.text) for p in questions]
    drawn: list[list[Sample]] = []
    size = max(1, ROWS // answers)
    with phase(f"{engine.name}: {questions[0].labels['skill']}", len(prompts)) as sampling:
        for start in range(0, len(prompts), size):
            part = prompts[start : start + size]
            seeds = np.stack([derive_many(answers, "calibrate", p.id) for p in part])
            drawn += engine.sample(part, seeds, Sampling(max_new_tokens=length))
            sampling.count(len(drawn))
    return drawn if not shots else [[_first(sample) for sample in row] for row in drawn]


def _first(sample: Sample) -> Sample:
    """What comes before another question: with that a base model, which has seen some, ends its answer."""
    text, cut, _ = sample.text.partition("\n\nQ:")
    return replace(sample, text=text, finished=sample.finished or bool(cut))


def _standing(
    policy: str, level: str, questions: Sequence[Prompt], drawn: Sequence[Sequence[Sample]], verifier: Verifier
) -> tuple[Standing, Solved]:
    """Right is what RL rewards: finished, and right by the verifier."""
    flat = [(prompt, sample) for prompt, row in zip(questions, drawn, strict=True) for sample in row]
    said = verdicts(verifier, [p.gold for p, _ in flat], [s.text for _, s in flat], [s.finished for _, s in flat])
    solved = np.array([verdict.value == "right" for verdict in said]).reshape(len(drawn), -1)
    each = solved.mean(axis=1)
    standing = Standing(
        policy=policy,
        level=level,
        prompts=len(drawn),
        answers=solved.shape[1],
        pass1=float(each.mean()),
        error=float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else float("nan"),
        pass_any=float(solved.any(axis=1).mean()),
        boxed=float(np.mean(["\\boxed{" in s.text for _, s in flat])),
        finished=float(np.mean([s.finished for _, s in flat])),
    )
    return standing, solved
