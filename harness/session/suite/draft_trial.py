"""The trial of `harness new-suite`: each model answers a few dozen questions, in every style and on every level, and the settings
are chosen on which both models can learn."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from harness.engines.protocol import Sample, cut_at
from harness.errors import CellError, EngineError, UsageError
from harness.experience.answers import Prompt
from harness.limits import every_core
from harness.session.cell.judge import Judge, judge_of
from harness.session.policy import at_hand, base_folder
from harness.session.suite.draft_text import Findings, styles_to_ask
from harness.session.suite.prepare import prepare_suite
from harness.store.sentences import count_of, joined
from harness.suite.schema import AnyTask, FileTask, Policy, Suite, TaskShare
from harness.suite.seeds import derive_seed
from harness.tasks import ladder
from harness.tasks.mixed import carry_task
from harness.tasks.registry import get_task, has_examples, is_puzzle, training_source
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier

if TYPE_CHECKING:
    from harness.engines.embedded.engine import EmbeddedEngine

# A level fits a model that answers at least and at most these shares right: then most questions have right and wrong answers
LEAST = 0.2
MOST = 0.7
# Questions that are asked of each level
PROMPTS = 8
# Answers to each of them at first
ANSWERS = 1
# Further answers to each, on levels with right and wrong ones: only there do they decide anything
MORE = 3
# Answers to each of 2 PROMPTS mixed questions, in every style
OF_STYLE = 2
# Levels that are trained on at most where none fits
MOST_LEVELS = 3
# Puzzles that fit and are trained on at most: of more, those on which both models are nearest to the middle of these shares
MOST_PUZZLES = 4
# Share of answers that go on with a question of their own, above which answers end at it
GOES_ON = 0.1
WARM_WHY = "a supervised start first, because RL learns nothing from groups that are all wrong."


@dataclass(frozen=True, slots=True)
class TriedLevel:
    """A model on a level. right, cut (by the next worked example): shares of its answers. tokens: that 95 % of its
    finished answers need, 0 where fewer than half finished; worked: that the longest worked solution needs, 0 without
    one."""

    policy: str
    level: str
    style: Style
    right: float
    cut: float
    tokens: int
    worked: int = 0


def why_untried(suite: Suite) -> str:
    """Return why nothing can be measured on this machine; empty where it can."""
    if suite.engine != "embedded":
        return "a model is too large for a trial in one process"
    for policy in suite.groups[0].policies:
        if policy.is_micro:
            return f"{policy.model} has no weights before its first run"
        if at_hand(policy) is None:
            return f"{policy.model} is not on this machine yet"
    return ""


def try_models(suite: Suite, puzzles: Sequence[str] = ()) -> Findings:
    """Try the models of a draft that `why_untried` has nothing against: on its task, and on the ladder where a model has too few
    right answers; or on these puzzles, to choose among them. Raises UsageError where a model cannot be opened, DataError."""
    policies = suite.groups[0].policies
    (task,) = suite.training.tasks
    tried = list[TriedLevel]()
    if puzzles:
        return choose_settings(_try_puzzles(policies, puzzles, suite), task, suite.training.max_new_tokens)
    for policy in policies:
        tried += _try_policy(policy, task, suite)
    if isinstance(task, str) and not has_examples(task) and min(one.right for one in tried) < LEAST:
        for policy in policies:
            tried += _try_policy(policy, ladder.NAME, suite)
    return choose_settings(tried, task, suite.training.max_new_tokens)


def _try_policy(policy: Policy, task: str | FileTask, suite: Suite) -> Iterator[TriedLevel]:
    """Try each level of the task, in the style in which most mixed questions are answered right; other tasks have one level."""
    mixed = _mixed_questions(task)
    name = task if isinstance(task, str) else Path(task.file).name
    styles = styles_to_ask(policy, task, suite.training.max_new_tokens)
    with Verifier(workers=1) as verifier, every_core():
        trial = _open_trial(policy, task, suite, verifier)
        in_styles = [AskedLevel(name, style, mixed) for style in styles]
        trial.ask(in_styles, OF_STYLE)
        best = max((trial.measure(asked) for asked in in_styles), key=lambda tried: tried.right)
        if isinstance(task, str) and ladder.is_ladder(task):
            yield from _try_levels(trial, task, best)
        else:
            yield best
        trial.engine.close()


def _try_puzzles(policies: Sequence[Policy], puzzles: Sequence[str], suite: Suite) -> list[TriedLevel]:
    """Ask the models the puzzles, each in the first style that has room. The smallest model is asked all of them, the next one
    what `_worth_asking` leaves; what is left after all models gets more answers of each. Dozens of puzzles would take an hour
    otherwise: on most, one of two models has nothing right."""
    from harness.session.single.levels import questions_of

    questions = {name: [carry_task(prompt, name) for prompt in questions_of(name, name, PROMPTS)] for name in puzzles}
    left = list(puzzles)
    trials: list[tuple[DraftTrial, dict[str, AskedLevel]]] = []
    with Verifier(workers=1) as verifier, every_core():
        for policy in sorted(policies, key=_bytes_of_weights):
            style = styles_to_ask(policy, puzzles[0], suite.training.max_new_tokens)[0]
            levels = {name: AskedLevel(name, style, questions[name]) for name in left}
            trial = _open_trial(policy, [TaskShare(task=name) for name in puzzles], suite, verifier)
            trial.ask([*levels.values()], ANSWERS)
            trials.append((trial, levels))
            left = _worth_asking({name: trial.measure(asked, told=False).right for name, asked in levels.items()})
        for trial, levels in trials:
            trial.ask([levels[name] for name in left], MORE)
        tried = [trial.measure(asked) for trial, levels in trials for asked in levels.values()]
        for trial, _ in trials:
            trial.engine.close()
    order = [policy.name for policy in policies]
    return sorted(tried, key=lambda one: order.index(one.policy))


def _open_trial(policy: Policy, task: AnyTask, suite: Suite, verifier: Verifier) -> DraftTrial:
    """Open a model for its trial on a task. Raises UsageError where it cannot be opened."""
    from harness.engines.embedded.engine import EmbeddedEngine

    dtype = suite.engine_options.get("dtype")
    try:
        engine = EmbeddedEngine(policy.name, base_folder(policy, 0), chat=policy.chat, dtype=dtype)
    except EngineError as error:
        raise UsageError(str(error)) from error
    return DraftTrial(engine, judge_of(task, verifier), get_task(task), suite.training.max_new_tokens)


def _bytes_of_weights(policy: Policy) -> int:
    return sum(file.stat().st_size for file in base_folder(policy, 0).glob("*.safetensors"))


def _worth_asking(right: Mapping[str, float]) -> list[str]:
    """Return the puzzles on which a model has right and wrong answers; where there is none, those on which it has most right, so
    that the nearest ones are known of all models. right: its share of right answers by puzzle."""
    partly = [name for name, share in right.items() if 0 < share < 1]
    if partly:
        return partly
    return sorted(right, key=lambda name: right[name], reverse=True)[:MOST_PUZZLES]


def _mixed_questions(task: str | FileTask) -> list[Prompt]:
    """Draw a few training questions of all levels."""
    source = training_source(task)
    count = 2 * PROMPTS
    if not source.generated:
        count = min(count, len(source.pool(None).prompts))
    return source.draw(derive_seed(0, "trial"), count)


def _try_levels(trial: DraftTrial, task: str, best: TriedLevel) -> Iterator[TriedLevel]:
    """Try each level of the ladder in the style of `best`. Where no mixed question was answered right more answers say nothing.
    Levels with right and wrong answers get more."""
    from harness.session.single.levels import questions_of

    levels = [AskedLevel(name, best.style, questions_of(task, name, PROMPTS)) for name in ladder.levels_of(task)]
    if best.right:
        trial.ask(levels, ANSWERS)
        undecided = [asked for asked in levels if 0 < trial.measure(asked, told=False).right < 1]
        trial.ask(undecided, MORE)
    for asked in levels:
        tried = trial.measure(asked) if best.right else replace(best, level=asked.level)
        yield replace(tried, worked=trial.longest_worked(asked.level))


@dataclass(frozen=True, slots=True)
class AskedLevel:
    """Questions of a level in one style. drawn: of each question, its answers so far."""

    level: str
    style: Style
    questions: Sequence[Prompt]
    drawn: list[list[Sample]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drawn.extend([] for _ in self.questions)


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """One model that is asked. limit: tokens of the longest answer."""

    engine: EmbeddedEngine
    judge: Judge
    task: Task
    limit: int

    def ask(self, levels: Sequence[AskedLevel], answers: int) -> None:
        """Draw so many more answers to each question of all these levels; sampling all together takes less time."""
        from harness.session.single.levels import sample_answers

        texts = []
        answered = []
        for asked in levels:
            for prompt, row in zip(asked.questions, asked.drawn, strict=True):
                texts.append(replace(prompt, text=self.task.render(prompt, asked.style)))
                answered.append(row)
        if texts:
            size = count_of(answers * len(texts), "answer")
            print(f"{self.engine.name}: samples {size} of at most {self.limit} tokens", file=sys.stderr)
        # Another stream of random numbers than that of the answers so far: with the same one they would be drawn again
        stream = f"trial-{max(map(len, answered), default=0)}"
        more = sample_answers(self.engine, "trial", texts, answers, self.limit, stream)
        for row, drawn in zip(answered, more, strict=True):
            row += drawn

    def measure(self, asked: AskedLevel, told: bool = True) -> TriedLevel:
        """Judge the answers of a level so far. told: print the share of right ones."""
        from harness.session.single.levels import measure_level

        stops = self.task.stop(asked.style)
        ended = [[cut_at(sample, stops) for sample in row] for row in asked.drawn]
        result, _ = measure_level(self.engine.name, asked.level, asked.questions, ended, self.judge)
        pairs = list[tuple[Sample, Sample]]()
        for whole, cut in zip(asked.drawn, ended, strict=True):
            pairs += zip(whole, cut, strict=True)
        # A cut answer has fewer tokens, about in proportion to its text
        sizes = [a.tokens.size * (len(b.text) + 1) / (len(a.text) + 1) for a, b in pairs if b.finished]
        tokens = 0
        if 2 * len(sizes) >= len(pairs):  # else most answers are longer than those that finished
            tokens = int(np.quantile(sizes, 0.95))
        was_cut = float(np.mean([a is not b for a, b in pairs]))
        if told:
            share = f"{result.pass1:.0%} of {len(pairs)} answers right"
            print(f"{self.engine.name}, {asked.level}, {asked.style}: {share}", file=sys.stderr)
        return TriedLevel(self.engine.name, asked.level, asked.style, result.pass1, was_cut, tokens)

    def longest_worked(self, level: str) -> int:
        """Return the tokens of the longest worked solution of a level, with its end."""
        solutions = [problem.chain_of_thought for problem in ladder.evaluation_problems((level,), PROMPTS)]
        return 1 + max(len(self.engine.tokenizer.encode(text, add_special_tokens=False)) for text in solutions)


# What follows from a trial --------------------------------------------------------------------------------------------


def choose_settings(tried: Sequence[TriedLevel], task: str | FileTask, limit: int) -> Findings:
    """Choose, of the levels that all models were asked, those on which each has LEAST to MOST of its answers right; else the
    nearest ones, with a supervised start for each model below. limit: tokens of the longest answer so far."""
    why = _shares_by_level(tried)
    policies = {one.policy for one in tried}
    by_all = {one.level for one in tried}  # levels that every model was asked
    for policy in policies:
        by_all &= {one.level for one in tried if one.policy == policy}
    levels, fits, reasons = _choose_levels([one for one in tried if one.level in by_all])
    why += reasons
    here = [one for one in tried if one.level in levels]
    name = f"{ladder.NAME}.{'+'.join(levels)}" if levels[0] in ladder.LEVELS else None
    puzzles = tuple(levels) if is_puzzle(levels[0]) else ()
    low = tuple(dict.fromkeys(one.policy for one in here if one.right < LEAST))
    warm = low if has_examples(name or str(task)) and not fits else ()
    why += _why_starts(low, warm, fits)
    tokens, reasons = _choose_length(here, bool(warm), limit)
    why += reasons
    ends = "eos"
    if any(one.cut > GOES_ON for one in here):
        ends = "example"
        why.append("answer_ends: example, because answers went on with a question of their own.")
    styles = {one.policy: one.style for one in here if one.policy not in warm}
    if styles:
        named = ", ".join(f"{policy} {style}" for policy, style in styles.items())
        why.append(f"style: {named} had most right answers.")
    return Findings(
        task=name,
        styles=styles,
        warm=warm,
        answer_ends=ends,
        tokens=tokens,
        why=tuple(why),
        tasks=puzzles,
    )


def _choose_length(tried: Sequence[TriedLevel], warm: bool, limit: int) -> tuple[int, list[str]]:
    """Choose the tokens of the longest answer, at most `limit`, with the reason; 0 without one where a length is not known.

    A quarter more than the longest worked solution where policies start from these (`warm`), else than their own answers."""
    lengths = [one.worked if warm else one.tokens for one in tried]
    if not all(lengths):
        return 0, []
    longest = max(lengths)
    wanted = int(1.25 * longest)
    tokens = min(limit, 8 * -(-wanted // 8))  # up to a multiple of 8
    if not tokens:
        return 0, []
    which = "the worked solutions" if warm else "95 % of the finished answers"
    return tokens, [f"max_new_tokens {tokens}: {which} take at most {longest} tokens; a quarter is spare."]


def _shares_by_level(tried: Sequence[TriedLevel]) -> list[str]:
    """Write a line for each level: `add2: a 30% right, b 60% right`."""
    lines = []
    for level in dict.fromkeys(one.level for one in tried):
        shares = ", ".join(f"{one.policy} {one.right:.0%} right" for one in tried if one.level == level)
        lines.append(f"{level}: {shares}")
    return lines


def _choose_levels(tried: Sequence[TriedLevel]) -> tuple[list[str], bool, list[str]]:
    """Choose the levels to be trained on; say whether they fit each model, and why they were chosen.

    A level fits where each model has LEAST to MOST of its answers right. All that fit are taken; of puzzles the MOST_PUZZLES on
    which the models are nearest to the middle of these shares.

    Where none fits, the nearest are taken. Where levels of the ladder were tried, only these count, since they have worked
    examples to start with. Levels on which a model has more than MOST right are left out, unless that is all of them: little is
    left to learn there. Of the rest those are nearest on which the weaker model has most right; at most MOST_LEVELS of equal
    ones."""
    levels = list(dict.fromkeys(one.level for one in tried))
    right: dict[str, list[float]] = {}  # each model's share of right answers, by level
    for one in tried:
        right.setdefault(one.level, []).append(one.right)
    fitting = [level for level in levels if all(LEAST <= share <= MOST for share in right[level])]
    if fitting and is_puzzle(fitting[0]):
        middle = (LEAST + MOST) / 2
        fitting.sort(key=lambda level: max(abs(share - middle) for share in right[level]))
        fitting = fitting[:MOST_PUZZLES]
    if fitting:
        why = f"Trained on {joined(fitting)}: each model has {LEAST:.0%} to {MOST:.0%} of its answers right there."
        return fitting, True, [why]
    considered = [level for level in levels if level in ladder.LEVELS] or levels
    not_too_easy = [level for level in considered if max(right[level]) <= MOST]
    possible = not_too_easy or considered
    of_weaker = {level: min(right[level]) for level in possible}  # the weaker model's share of right answers
    most = max(of_weaker.values())
    chosen = [level for level in possible if of_weaker[level] == most][:MOST_LEVELS]
    reasons = [f"No level has {LEAST:.0%} to {MOST:.0%} of both models' answers right. Nearest: {joined(chosen)}."]
    ever_right = {one.policy for one in tried if one.right}
    policies = dict.fromkeys(one.policy for one in tried)
    never = [policy for policy in policies if policy not in ever_right]
    if never:
        reasons.append(f"{joined(never)}: no answer right on any level.")
    return chosen, False, reasons


def _why_starts(low: Sequence[str], warm: Sequence[str], fits: bool) -> list[str]:
    """Say why policies get a supervised start, or what to do where one would help and cannot be had. low: policies with too few
    right answers; warm: those that get one. fits: whether the levels fit each model."""
    if warm:
        return [f"{joined(warm)}: {WARM_WHY}"]
    if low:
        return [
            f"{joined(low)}: too few right answers to learn from, and the task has no worked examples to start with. Take a larger "
            f"model, easier questions, or --task {ladder.NAME}."
        ]
    if not fits:
        return ["More than that are right: little is left to learn. Take a harder task: --task gsm8k or math."]
    return []


def try_starts(findings: Findings, suite: Suite, source: str) -> Findings:
    """Try the supervised starts that findings propose; a run finds them in the cache. One that fails is left out, and the reason
    says so."""
    if not findings.warm:
        return findings
    with TemporaryDirectory() as results:
        prepared = prepare_suite(suite, source, Path(results))
    failed: dict[str, str] = {}
    for policy in prepared.all_cells[0].group.policies:
        if policy.name not in findings.warm:
            continue
        print(f"{policy.name}: trying its supervised start", file=sys.stderr)
        try:
            with every_core():
                base_folder(policy, prepared.suite.seeds[0], options=prepared.suite.engine_options)
        except CellError as error:
            failed[policy.name] = " ".join(str(error).split())
    why = []
    for name, problem in failed.items():
        why.append(
            f"{name} cannot learn this here: its supervised start was tried and failed ({problem}). Without right answers RL "
            "teaches nothing; take a larger model or easier questions (--task ladder.add1)."
        )
    works = [name for name in findings.warm if name not in failed]
    if works:
        why.insert(0, f"The supervised start of {joined(works)} was tried: it works, and a run goes on from it.")
    before = findings.why
    if failed:
        before = tuple(line for line in before if not line.endswith(WARM_WHY))
    return replace(findings, warm=tuple(works), why=(*before, *why))
