"""A JSONL file as a task (docs/tasks.md). Faults name the place in a line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import msgspec

from harness.cache import expand_user
from harness.errors import DataError
from harness.experience.answers import Prompt
from harness.suite.schema import FileTask
from harness.tasks.data_files import content_of
from harness.tasks.overlap import Overlap, find_overlaps, tokens_of
from harness.tasks.source import TaskSource, TrainingPool
from harness.tasks.task import STEP_BY_STEP, Style, Task
from harness.verification.catalogue import same_by, scorer_of
from harness.verification.response import last_box

MAX_BYTES = 64 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # in front of UTF-8 that some editors save
MAX_LINE = 1 << 20
MAX_ROWS = 200_000
BOXED = "Put your final answer within \\boxed{}."
MATHEMATICS = ("math", "math_verify_plain", "qwen_grader")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
INSTRUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(MATHEMATICS, STEP_BY_STEP),
        "choice": "Think step by step, and put the letter of the right option within \\boxed{}.",
        "python": "Answer with a Python program in a ```python block.",
    }
)
Text = Annotated[str, msgspec.Meta(max_length=32_768)]
Gold = Annotated[str, msgspec.Meta(max_length=65_536)]
Option = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class Line(msgspec.Struct, frozen=True):
    """Other fields are ignored. tests: for programs. solution: read where there is no answer beside it."""

    prompt: Text | None = None
    question: Text | None = None
    problem: Text | None = None
    answer: Gold | int | float | bool | None = None
    gold: Gold | int | float | bool | None = None
    solution: Gold | None = None
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | int | None = None
    split: Literal["train", "test"] | None = None
    choices: Annotated[list[Option], msgspec.Meta(min_length=2, max_length=26)] | None = None
    tests: Gold | Annotated[list[Gold], msgspec.Meta(max_length=1_000)] | None = None


class FileQuestion(NamedTuple):
    """split: None where the line does not say."""

    prompt: Prompt
    split: Literal["train", "test"] | None


def pin_file(task: FileTask, folder: Path | None = None) -> FileTask:
    """Return the task with the file's absolute path and SHA-256, its lines checked. folder: where a relative path starts, by
    default here.

    Raises DataError, PluginError.
    """
    path = expand_user(task.file)
    if not path.is_absolute() and folder is not None and (folder / path).is_file():
        path = folder / path
    path = path.resolve()
    scorer_of(task.scorer)
    if task.sha256 is not None and not path.is_file():
        return task  # of results that were made elsewhere
    digest = task.sha256 or content_of(path, MAX_BYTES)[1]
    read_questions(path, digest, task.scorer)
    return task.model_copy(update={"file": str(path), "sha256": digest})


@lru_cache(maxsize=8)
def read_questions(path: Path, sha256: str, scorer: str) -> tuple[FileQuestion, ...]:
    """Read a file's questions, in order. Raises DataError naming the line, also where the content is another one than pinned."""
    data, digest = content_of(path, MAX_BYTES)
    if digest != sha256:
        raise DataError(f"{path}: has SHA-256 {digest[:12]}..., expected {sha256[:12]}...; its content was altered")
    judge = scorer_of(scorer)
    rows: dict[str, tuple[int, FileQuestion]] = {}  # by id, with the line's number
    asked: dict[str, tuple[int, str]] = {}  # by the text without white space, the first line that asks it, and its gold
    for number, line in enumerate(data.removeprefix(BYTE_ORDER_MARK).split(b"\n"), 1):
        if not line.strip():
            continue
        at = f"{path}:{number}"
        question = _read_line(line, number, scorer, at)
        fault = judge.fault(question.prompt.gold)
        if fault:
            raise DataError(f"{at}: {fault}, which the scorer {scorer} needs")
        identifier = question.prompt.id
        gold = question.prompt.gold
        before = rows.get(identifier)
        if before is not None:
            raise DataError(f"{at}: the id {identifier!r:.80} is that of line {before[0]}")
        text = "".join(question.prompt.text.split())
        earlier, other = asked.setdefault(text, (number, gold))
        if scorer != "python" and other != gold and _golds_differ(scorer, other, gold):
            raise DataError(
                f"{at}: asks the question of line {earlier} again and answers it with {gold!r:.80}, there with {other!r:.80}; "
                "one of them is wrong"
            )
        rows[identifier] = number, question
        if len(rows) > MAX_ROWS:
            raise DataError(f"{at}: more than {MAX_ROWS:,} questions")
    if not rows:
        raise DataError(f"{path}: holds no question")
    return tuple(question for _, question in rows.values())


def _read_line(line: bytes, number: int, scorer: str, at: str) -> FileQuestion:
    """Read a line as a question. at: the line's place, for errors. Raises DataError."""
    if len(line) > MAX_LINE:
        raise DataError(f"{at}: a line of {len(line):,} bytes; at most {MAX_LINE:,}")
    try:
        return _make_question(msgspec.json.decode(line, type=Line), number, scorer)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{at}: {error}") from None


def _make_question(line: Line, number: int, scorer: str) -> FileQuestion:
    """Make a question with its gold of a line. Raises DataError with what is wrong in it."""
    text = _one_of_two(line.prompt, line.question, "prompt", "question")
    text = _one_of_two(text, line.problem, "question", "problem")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("there is no question (`prompt`, `question` or `problem`)")
    answer = _one_of_two(line.answer, line.gold, "answer", "gold")
    if scorer == "python":
        tests = line.tests if line.tests is not None else answer
        gold = ""
        if isinstance(tests, list):
            gold = "\n".join(tests)
        elif isinstance(tests, str):
            gold = tests
        if not gold.strip():
            raise ValueError("there are no `tests`")
        if len(gold) > 65_536:
            raise ValueError("tests of more than 65,536 characters")
    elif answer is None and line.solution is None:
        raise ValueError("there is no `answer`")
    elif answer is None:
        gold = _final_answer(line.solution or "")
        if not gold:
            raise ValueError("there is no `answer`, and the `solution` ends in neither `#### ...` nor a `\\boxed{...}`")
    else:
        gold = str(answer)
        names_an_option = scorer == "choice" and line.choices
        if not names_an_option and _is_solution(gold):
            gold = _final_answer(gold)
    if line.choices:
        gold = _letter_of_option(gold, line.choices)
        options = [f"{chr(65 + place)}. {option}" for place, option in enumerate(line.choices)]
        text += "\n\n" + "\n".join(options)
    identifier = str(number if line.id is None else line.id)
    return FileQuestion(Prompt(identifier, text, gold), line.split)


def _is_solution(answer: str) -> bool:
    """Return whether an answer is a whole solution, as GSM8K's rows and others' have."""
    return "####" in answer or "\\boxed" in answer


def _final_answer(solution: str) -> str:
    """Return what stands behind the last `####`, as in GSM8K, else in the last box; empty without."""
    _, mark, final = solution.rpartition("####")
    if mark:
        first_line = final.strip().partition("\n")[0].strip()
        return _GROUPED.sub("", first_line)
    return (last_box(solution) or "").strip()


def _golds_differ(scorer: str, one: str, other: str) -> bool:
    """Return whether two golds of one question are known to be different answers."""
    if scorer not in MATHEMATICS:
        return not same_by(scorer)(one, other)
    # the rules load mpmath, which every command would wait for; golds are compared only where a file asks a question twice
    from harness.verification.equivalence import says_the_same

    try:
        return not says_the_same(one, other)
    except Exception:  # what only algebra could tell, or no rule can read
        return False


def _one_of_two(first: object, second: object, *names: str) -> object:
    """Return what a line has under one of two keys. Raises ValueError where it has other things under both."""
    if first is not None and second is not None and first != second:
        raise ValueError(f"`{names[0]}` and `{names[1]}` say different things")
    return first if first is not None else second


def _letter_of_option(gold: str, options: list[str]) -> str:
    """Return the letter of an option that is given as letter or text."""
    said = gold.strip()
    letters = ((chr(65 + place), option) for place, option in enumerate(options))
    meant = {letter for letter, option in letters if said == option.strip() or said.upper() == letter}
    if len(meant) != 1:
        raise ValueError(
            f"the answer {gold!r:.80} is {'more than one' if meant else 'none'} of the {len(options)} choices"
        )
    return meant.pop()


@dataclass(frozen=True, slots=True)
class FileQuestions(Task):
    """A file's task. `raw` is the line's question, also of a training prompt, which has the instruction with it."""

    asked: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def render(self, prompt: Prompt, style: Style) -> str:
        """Write the question as `Task.render` does; in the style `raw` as the file has it, without the instruction."""
        if style == "raw" and prompt.text == f"{self.asked.get(prompt.id)}\n\n{self.instruction}":
            return self.asked[prompt.id]
        return Task.render(self, prompt, style)


class Jsonl(TaskSource):
    """A JSONL file"""

    trains = True

    def __init__(self, task: FileTask) -> None:
        self.task = task if task.sha256 is not None else pin_file(task)
        super().__init__(task.name)

    def check_name(self) -> None:
        """Accept any name: a file's name may hold dots."""

    def evaluation(self) -> Task:
        task, size, asked = self.task, None, dict[str, str]()
        with suppress(DataError):  # of results that were made elsewhere
            size = len(_split_sides(task)[1])
            asked = _texts_by_id(Path(task.file), str(task.sha256), task.scorer)
        return FileQuestions(
            name=self.name,
            title=Path(task.file).name,
            documents=self._read_documents,
            styles=("zero-shot", "raw"),
            max_new_tokens=task.max_new_tokens,
            source=task.file,
            size=size,
            checksum=task.sha256,
            instruction=task.instruction if task.instruction is not None else INSTRUCTIONS.get(task.scorer, BOXED),
            scorer=task.scorer,
            asked=asked,
        )

    def _read_documents(self, data_dir: Path | None, fetch: bool = True) -> list[Prompt]:
        if not (test := list(_split_sides(self.task)[1])):
            raise DataError(f"{self.task.file}: holds no question for evaluation (`split: test`, or `held_out`)")
        return test

    def pool(self, min_level: int | None = None, data_dir: Path | None = None) -> TrainingPool:
        if min_level is not None:
            raise DataError(f"{self.name} has no levels; leave min_level out")
        return _make_pool(self.task)

    def pool_digest(self) -> str:
        return self.task.sha256 or ""

    def remarks(self) -> list[str]:
        """Say how many questions train and are held out, and how many of them repeat each other; only their number where both
        are the same."""
        (train, test), repeated = _split_sides(self.task), _find_repeated(self.task)
        if len({prompt.id for prompt in (*train, *test)}) < len(train) + len(test):
            return [f"{self.task.file}: {len(train):,} questions"]
        said = f"{self.task.file}: {len(train):,} questions for training, {len(test):,} held out"
        if exact := len(repeated["exact"]):
            said += f"; {exact:,} of the former are left out, since they repeat one of the latter"
        return [said + (f"; {len(repeated['near']):,} nearly do (a few words differ)" if repeated["near"] else "")]


@lru_cache(maxsize=8)
def _texts_by_id(path: Path, sha256: str, scorer: str) -> dict[str, str]:
    """Return questions as the file has them, by id."""
    return {question.prompt.id: question.prompt.text for question in read_questions(path, sha256, scorer)}


@lru_cache(maxsize=8)
def _make_pool(file: FileTask) -> TrainingPool:
    """Return the training pool of a file, without what overlaps with evaluation."""
    train, overlaps, task = _split_sides(file)[0], _find_repeated(file)["exact"], Jsonl(file).evaluation()
    dropped = {overlap.training for overlap in overlaps}
    kept = tuple(replace(p, text=task.render(p, task.styles[0])) for p in train if p.id not in dropped)
    return TrainingPool(file.name, kept, tuple(overlaps))


def _split_sides(task: FileTask) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Training, held out: by the line's word, else the text's share; without either all are both."""
    train, test = list[Prompt](), list[Prompt]()
    for prompt, split in read_questions(Path(task.file), str(task.sha256), task.scorer):
        drawn = hashlib.blake2b("".join(tokens_of(prompt.text)).encode(), digest_size=8).digest()
        held_out = int.from_bytes(drawn) / 2**64 < task.held_out if task.held_out else None
        if split == "train" or (split is None and not held_out):
            train.append(prompt)
        if split == "test" or (split is None and held_out in (True, None)):
            test.append(prompt)
    return tuple(train), tuple(test)


@lru_cache(maxsize=8)
def _find_repeated(task: FileTask) -> dict[str, list[Overlap]]:
    """Training questions that evaluation repeats, by how."""
    train, test = _split_sides(task)
    both = {prompt.id for prompt in train} & {prompt.id for prompt in test}
    evaluated = [(task.name, prompt.id, prompt.text) for prompt in (() if both else test)]
    overlaps = find_overlaps([(prompt.id, prompt.text) for prompt in train], evaluated)
    return {kind: [overlap for overlap in overlaps if overlap.kind == kind] for kind in ("exact", "near")}
