"""What `harness new-suite` measures before it writes: a few dozen answers of each model, and the time that a step takes."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import EngineError, UsageError
from harness.experience.answers import Prompt
from harness.session.policy.models import at_hand
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_suite
from harness.suite.schema import FileTask, Policy, Suite
from harness.suite.seeds import derive, derive_many
from harness.tasks import ladder
from harness.tasks.registry import get_task, has_examples, training_source
from harness.tasks.task import Style, Task

if TYPE_CHECKING:
    from harness.engines.embedded.engine import EmbeddedEngine
    from harness.verification.verifier import Verifier

LEAST, MOST = 0.2, 0.7
"""Of right answers, between which most questions have right and wrong ones."""
PROMPTS, ANSWERS = 8, 4
"""Of each model on each level."""
STEPS = (8, 200)
"""The fewest and the most that a suite is given."""
EXTENTS = (
    (("independent", "naive", "sgt", "hacpo"), (1, 2, 3)),
    (("independent", "sgt", "hacpo"), (1, 2, 3)),
    (("independent", "sgt"), (1, 2, 3)),
    (("independent", "sgt"), (1, 2)),
)
"""Regimes and seeds of a suite, the next ones where the fewest steps of these take too long."""
WARM_UP = "{preset: format, gate: 0.2}"
"""Worked examples of the training side, until a fifth of its sampled answers is right (docs/pretrained.md)."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Of one model on one level. right, finished, cut: shares of its answers; cut: ended by the next worked example. tokens:
    that 95 % of its finished answers need, 0 where fewer than half finished. worked: that the longest worked solution needs,
    0 where the task has none."""

    policy: str
    level: str
    style: Style
    right: float
    finished: float
    cut: float
    tokens: int
    worked: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """Settings that were measured, and why. task: None where the drafted one stays; tokens, steps: 0 where the drafted ones
    stay. warm: policies that need a supervised start. styles: by policy."""

    task: str | None = None
    styles: Mapping[str, Style] = field(default_factory=dict)
    warm: tuple[str, ...] = ()
    answer_ends: str = "eos"
    tokens: int = 0
    steps: int = 0
    regimes: tuple[str, ...] = EXTENTS[0][0]
    seeds: tuple[int, ...] = EXTENTS[0][1]
    why: tuple[str, ...] = field(default=())


def style_of(chat: bool, task: str | FileTask) -> Style:
    """How a pretrained model is asked: a base model sees worked examples of short arithmetic first."""
    short = isinstance(task, str) and has_examples(task)
    style: Style = "few-shot" if short and not chat else "zero-shot"
    known = get_task(task).styles
    return style if style in known else known[0]


def untried(suite: Suite) -> str:
    """Why nothing can be measured here; empty where it can."""
    if suite.engine != "embedded":
        return "a model is too large for a trial in one process"
    for policy in suite.groups[0].policies:
        if policy.is_micro:
            return f"{policy.model} has no weights before its first run"
        if at_hand(policy) is None:
            return f"{policy.model} is not on this machine yet"
    return ""


def try_models(suite: Suite) -> Findings:
    """Of a draft for which `untried` says nothing. Raises UsageError where a model cannot be opened, DataError."""
    policies, task = suite.groups[0].policies, suite.training.task
    tried = [found for policy in policies for found in _tried(policy, task, suite)]
    if isinstance(task, str) and not has_examples(task) and min(found.right for found in tried) < LEAST:
        tried += [found for policy in policies for found in _tried(policy, ladder.NAME, suite)]
    return settled(tried, task, suite.training.max_new_tokens)


def _tried(policy: Policy, task: str | FileTask, suite: Suite) -> Iterator[Tried]:
    """Each level, asked in the style that has most right answers over all of them."""
    from harness.engines.embedded.engine import EmbeddedEngine
    from harness.session.cell.questions import scored_as
    from harness.session.policy.models import base_folder
    from harness.verification.verifier import Verifier

    known, drafted, dtype = get_task(task), style_of(policy.chat, task), suite.engine_options.get("dtype")
    source = training_source(task)
    count = 2 * PROMPTS if source.generated else min(2 * PROMPTS, len(source.pool(None).prompts))
    mixed = source.draw(derive(0, "trial"), count)
    name = task if isinstance(task, str) else Path(task.file).name
    try:
        engine = EmbeddedEngine(policy.name, base_folder(policy, 0), chat=policy.chat, dtype=dtype)
    except EngineError as error:
        raise UsageError(str(error)) from error
    with Verifier(workers=1) as verifier:
        measure = partial(_measured, engine, scored_as(task, verifier), known, suite.training.max_new_tokens)
        styles = [drafted, *(style for style in known.styles if style != drafted)]
        found = [measure(mixed, style, name) for style in styles]
        best = max(found, key=lambda tried: tried.right)
        if isinstance(task, str) and ladder.is_ladder(task):
            from harness.session.single.calibrate import questions_of

            for level in ladder.levels_of(task):
                solved = [p.chain_of_thought for p in ladder.evaluation_problems((level,), PROMPTS)]
                worked = max(len(engine.tokenizer.encode(text, add_special_tokens=False)) for text in solved)
                # where all of the mixed answers are wrong, more of them say no more
                of_level = measure(questions_of(task, level, PROMPTS), best.style, level) if best.right else best
                yield replace(of_level, level=level, worked=worked + 1)
        else:
            yield best
    engine.close()


def _measured(
    engine: EmbeddedEngine,
    judge: Verifier,
    task: Task,
    limit: int,
    questions: Sequence[Prompt],
    style: Style,
    level: str,
) -> Tried:
    from harness.engines.protocol import Sampling
    from harness.session.cell.learners import verdicts

    asked = [Prompt(p.id, task.render(p, style), p.gold) for p in questions]
    seeds = np.stack([derive_many(ANSWERS, "trial", p.id) for p in asked])
    answers = [a for row in engine.sample(asked, seeds, Sampling(max_new_tokens=limit)) for a in row]
    texts, finished, cut, sizes = [], [], [], []
    for answer in answers:
        end = min((at for stop in task.stop(style) if (at := answer.text.find(stop)) >= 0), default=None)
        texts.append(answer.text[:end])
        cut.append(end is not None)
        finished.append(answer.finished or cut[-1])
        sizes.append(answer.tokens.size * (len(texts[-1]) + 1) / (len(answer.text) + 1))
    golds = [p.gold for p in asked for _ in range(ANSWERS)]
    right = [verdict.value == "right" for verdict in verdicts(judge, golds, texts, finished)]
    needed = np.quantile(np.array(sizes)[finished], 0.95) if 2 * sum(finished) >= len(answers) else 0.0
    shares = [float(np.mean(values)) for values in (right, finished, cut)]
    found = Tried(engine.name, level, style, shares[0], shares[1], shares[2], int(needed))
    print(f"{engine.name}, {level}, {style}: {found.right:.0%} of {len(texts)} answers right", file=sys.stderr)
    return found


def settled(tried: Sequence[Tried], task: str | FileTask, limit: int) -> Findings:
    """A level on which each model has LEAST to MOST of its answers right; else the levels nearest to that, with a supervised
    start for each model below."""
    levels = list(dict.fromkeys(found.level for found in tried))
    right = {level: [found.right for found in tried if found.level == level] for level in levels}
    why = [f"{level}: " + _shares(tried, level) for level in levels]
    fits = [level for level in levels if all(LEAST <= share <= MOST for share in right[level])]
    steps = [level for level in levels if level in ladder.LEVELS]
    if fits:
        chosen = fits
        why.append(
            f"Trained on {_listed(chosen)}: each model has {LEAST:.0%} to {MOST:.0%} of its answers right there."
        )
    else:
        possible = [level for level in steps or levels if max(right[level]) <= MOST] or steps or levels
        nearest = max(min(right[level]) for level in possible)
        chosen = [level for level in possible if min(right[level]) == nearest][:3]
        why.append(f"No level has {LEAST:.0%} to {MOST:.0%} of both models' answers right. Nearest: {_listed(chosen)}.")
    here = [found for found in tried if found.level in chosen]
    low = tuple(dict.fromkeys(f.policy for f in here if f.right < LEAST))
    name = f"{ladder.NAME}.{'+'.join(chosen)}" if chosen[0] in ladder.LEVELS else None
    warm = low if has_examples(name or str(task)) and not fits else ()
    if warm:
        why.append(
            f"{_listed(warm)}: a supervised start first, because RL learns nothing from groups that are all wrong."
        )
    elif low:
        why.append(
            f"{_listed(low)}: too few right answers to learn from, and the task has no worked examples to start with."
        )
    if not low and not fits:
        why.append("More than that are right: little is left to learn. A harder task would show more.")
    longest = [found.worked if warm else found.tokens for found in here]
    tokens = min(limit, 8 * -(-int(1.25 * max(longest)) // 8)) if all(longest) else 0
    if tokens:
        which = "the worked solutions" if warm else "95 % of the finished answers"
        why.append(f"max_new_tokens {tokens}: {which} take at most {max(longest)} tokens; a quarter is spare.")
    ends = "example" if any(found.cut > 0.1 for found in here) else "eos"
    if ends == "example":
        why.append("answer_ends: example, because answers went on with a question of their own.")
    styles = {found.policy: found.style for found in here if found.policy not in warm}
    if styles:
        why.append(
            f"style: {', '.join(f'{policy} {style}' for policy, style in styles.items())} had most right answers."
        )
    return Findings(name, styles, warm, ends, tokens, why=tuple(why))


def _shares(tried: Sequence[Tried], level: str) -> str:
    return ", ".join(f"{found.policy} {found.right:.0%} right" for found in tried if found.level == level)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def fitted(found: Findings, suite_of: Callable[[Findings], Suite], source: str, minutes: float) -> Findings:
    """The first of EXTENTS whose fewest steps take at most `minutes` by `harness plan` on this machine, and the most steps that do,
    between the bounds of STEPS."""

    def predicted(changed: Findings) -> float:
        with TemporaryDirectory() as results:
            return plan_for(prepare_suite(suite_of(changed), source, Path(results)), None).predicted.wall_seconds / 60

    fewest, most = STEPS
    for regimes, seeds in EXTENTS:
        found = replace(found, regimes=regimes, seeds=seeds, steps=fewest)
        if predicted(found) <= minutes:
            break
    steps = range(fewest, most + 1)
    fits = bisect_right(steps, minutes, key=lambda n: predicted(replace(found, steps=n)))
    found = replace(found, steps=steps[max(0, fits - 1)])
    takes, every = predicted(found), EXTENTS[0]
    told = [f"steps {found.steps}: the plan says {takes:.0f} minutes on this machine, and {minutes:g} were given."]
    if takes > minutes:
        told.append(f"Fewer than {fewest} steps show nothing.")
    if (found.regimes, found.seeds) != every:
        told.append(
            f"{_listed(found.regimes)} on {len(found.seeds)} seeds: with {_listed(every[0])} on {len(every[1])} seeds "
            f"{fewest} steps would take longer than that. --minutes N gives more time."
        )
    return replace(found, why=(*found.why, *told))
