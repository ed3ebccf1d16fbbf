"""A JSONL file as a task."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness.errors import DataError, PluginError, SuiteError
from harness.session.cell.questions import as_asked
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.suite.schema import FileTask, Policy, Training
from harness.tasks import jsonl
from harness.tasks.overlap import find_overlaps
from harness.tasks.registry import get_task, source_of, task_of_text, training_source
from harness.tasks.source import part_of
from harness.tasks.task import Task
from harness.versions import recorded_versions

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ROWS = [{"question": f"{a} plus {b} is", "answer": i + j + 2} for i, a in enumerate(WORDS) for j, b in enumerate(WORDS)]
SUITE = """
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, style: raw}
      - {name: b, model: micro/qwen, style: raw}
regimes: [independent]
seeds: [1]
training: {steps: 1, prompts: 8, task: TRAINED}
evaluation: {tasks: [EVALUATED], k: 1}
"""
FILE = "{file: my.jsonl, scorer: exact, held_out: 0.2}"


def write(folder: Path, rows: object = ROWS, name: str = "my.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))  # type: ignore[attr-defined]
    return file


def suite(folder: Path, trained: str = FILE, evaluated: str = FILE) -> Path:
    file = folder / "s.yaml"
    file.write_text(SUITE.replace("TRAINED", trained).replace("EVALUATED", evaluated))
    return file


def task_of(file: Path, scorer: str = "exact", **more: object) -> FileTask:
    return jsonl.pin_file(FileTask(file=str(file), scorer=scorer, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "Input data was truncated"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"answer": "1"}', "there is no question"),
        (b'{"question": " ", "answer": "1"}', "there is no question"),
        (b'{"question": "a"}', "there is no `answer`"),
        (b'{"question": "a", "answer": " "}', "the answer is empty"),
        (b'{"question": "a", "prompt": "b", "answer": "1"}', "`prompt` and `question` say different things"),
        (b'{"question": "a", "answer": {"x": 1}}', "Expected"),
        (b'{"question": "a", "answer": "1", "split": "dev"}', "Invalid enum value 'dev'"),
        (b'{"question": "a", "answer": "1", "id": "1"}', "the id '1' is that of line 1"),
        (b'{"question": "\xff", "answer": "1"}', "invalid"),
        (b'{"question": "\\ud800", "answer": "1"}', "urrogate"),
        (b'{"question": "' + b"a" * 40_000 + b'", "answer": "1"}', "length <= 32768"),
        (b'{"question": "a", "x": "' + b"a" * (1 << 20) + b'"}', "at most 1,048,576"),
        (b'{"question": "a", "x": ' + b"[" * 100_000, "ecursion"),
        (b'{"question": "a", "answer": "E", "choices": ["x", "y"]}', "none of the 2 choices"),
        (b'{"question": "a", "answer": "A", "choices": ["x", "A"]}', "more than one of the 2 choices"),
        (b'{"question": "a", "answer": "A", "choices": ["x"]}', "length >= 2"),
    ],
)
def test_every_fault_is_said_with_its_line(tmp_path: Path, line: bytes, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b'{"question": "good", "answer": 1}\n\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        task_of(file)
    said = str(caught.value)
    assert said.startswith(f"{file}:3: ")
    assert words.lower() in said.lower()
    assert "\n" not in said
    assert caught.value.exit_code == 2
    assert len(said) < 400


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n \n")
    for path, words in {
        tmp_path / "no.jsonl": "No such file",
        tmp_path: "is a directory",
        Path("/dev/zero"): "not a regular",
        tmp_path / "empty.jsonl": "holds no question",
    }.items():
        with pytest.raises(DataError, match=words):
            task_of(path)
    with pytest.raises(PluginError, match="unknown scorer"):
        task_of(write(tmp_path), "exakt")


@pytest.mark.parametrize(
    ("scorer", "row", "words"),
    [
        ("python", {"question": "f", "answer": 1}, "there are no `tests`"),
        ("python", {"question": "f", "tests": "assert ("}, "the tests are no Python"),
        ("choice", {"question": "f", "answer": "Paris"}, "the answer is no letter from A to Z"),
    ],
)
def test_scorers_need_their_own_fields(tmp_path: Path, scorer: str, row: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=f":1: {words}"):
        task_of(write(tmp_path, [row]), scorer)


def test_choices_and_tests(tmp_path: Path) -> None:
    choice = {"question": "Capital?", "choices": ["Rome", "Paris"], "answer": "Paris"}
    program = {"prompt": "Square.", "tests": ["assert f(2) == 4", "f(3)"]}
    for scorer, row, text, gold in (
        ("choice", choice, "Capital?\n\nA. Rome\nB. Paris", "B"),
        ("python", program, "Square.", "assert f(2) == 4\nf(3)"),
    ):
        (prompt,) = get_task(task_of(write(tmp_path, [row]), scorer)).documents(None)
        assert (prompt.text, prompt.gold) == (text, gold)


def test_questions_are_held_out_by_their_text_alone(tmp_path: Path) -> None:
    task = task_of(write(tmp_path), held_out=0.2)
    shuffled = task_of(write(tmp_path, ROWS[::-1], "other.jsonl"), held_out=0.2)
    asked, again = ({p.text for p in get_task(t).documents(None)} for t in (task, shuffled))
    assert asked == again
    assert 10 < len(asked) < 32
    trained = {p.text.partition("\n")[0] for p in source_of(task).pool().prompts}
    assert not asked & trained
    assert asked | trained == {str(row["question"]) for row in ROWS}
    assert training_source(task).draw(3, 8) == training_source(task).draw(3, 8)
    tuning, final = ({p.id for p in part_of(source_of(task).pool(), part).prompts} for part in ("tuning", "final"))
    assert (len(tuning | final), len(tuning & final), 8 < len(tuning) < 32) == (len(trained), 0, True)
    with pytest.raises(DataError, match="no levels"):
        training_source(task).draw(3, 8, min_level=2)


def test_a_split_that_repeats_itself_is_left_out_of_training(tmp_path: Path) -> None:
    rows = [
        {"question": "What is 2 + 2?", "answer": 4, "split": "test"},
        {"question": "what is $2+2$ ", "answer": 4, "split": "train"},
        {"question": "What is the capital of France, the country?", "answer": "Paris", "split": "train"},
    ]
    source = source_of(task_of(write(tmp_path, rows)))
    assert [p.id for p in source.pool().prompts] == ["3"]
    assert [o.training for o in source.pool().overlaps] == ["2"]
    assert "2 questions for training, 1 held out; 1 of the former are left out" in source.remarks()[0]


def test_every_step_draws_without_a_comparison_of_all_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"question": f"What is the sum of {i} and {i + 9}?", "answer": 2 * i + 9, "split": ("train", "test")[i % 2]}
        for i in range(4_000)
    ]
    task, begin, compared = task_of(write(tmp_path, rows)), time.process_time(), []
    original = find_overlaps
    monkeypatch.setattr(jsonl, "find_overlaps", lambda *sides: compared.append(1) or original(*sides))
    assert [len(source_of(task).draw(step, 8)) for step in range(3)] == [8] * 3
    assert len(compared) == 1
    assert time.process_time() - begin < 5.0, "not every question of a template with every other one"


def test_the_key_follows_content_and_scorer_and_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(tmp_path), write(tmp_path / "b")
    first, moved = (prepare_named(str(suite(folder)), tmp_path / "r") for folder in (tmp_path, tmp_path / "b"))
    assert (moved.cells[0].key, moved.bases[0].key) == (first.cells[0].key, first.bases[0].key)
    assert first.cells[0].identity.versions["scoring"] == str(recorded_versions()["scoring"].version)
    other = suite(tmp_path, *[FILE.replace("exact", "math")] * 2)
    assert prepare_named(str(other), tmp_path / "r").cells[0].key != first.cells[0].key
    write(tmp_path, [*ROWS, {"question": "eleven plus one is", "answer": 12}])
    assert prepare_named(str(suite(tmp_path)), tmp_path / "r").cells[0].key != first.cells[0].key


def test_a_file_that_is_altered_after_the_plan_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    cell = prepare_named(str(suite(tmp_path)), tmp_path / "r").cells[0]
    write(tmp_path, ROWS[:-1])
    jsonl.read_questions.cache_clear()  # as in a worker
    with pytest.raises(DataError, match="its content was altered"):
        training_source(Training.model_validate(cell.training.model_dump(mode="json")).task).draw(1, 2)
    assert training_source(cell.training.task).pool_digest() == cell.identity.pool


def test_training_on_what_is_evaluated_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, [{"question": row["question"].upper(), "answer": 0} for row in ROWS[:3]], "other.jsonl")
    same, other = "{file: my.jsonl, scorer: exact}", "{file: other.jsonl, scorer: exact}"
    for evaluated, words in (
        (same, r"evaluation.tasks\[0\]: 100 of the 100 training questions of my .* `held_out: 0.2`"),
        (other, "3 of the 100"),
    ):
        with pytest.raises(SuiteError, match=words):
            check_before_run(prepare_named(str(suite(tmp_path, same, evaluated)), tmp_path / "r"), about_to_run=False)
    micro = get_task("micro")
    write(tmp_path, [{"question": micro.bare(p.text), "answer": 0} for p in micro.documents(None)], "other.jsonl")
    with pytest.raises(SuiteError, match="questions of micro too"):
        check_before_run(prepare_named(str(suite(tmp_path, other, "micro")), tmp_path / "r"), about_to_run=False)
    remarks = check_before_run(prepare_named(str(suite(tmp_path)), tmp_path / "r"), about_to_run=False)
    assert any("questions for training, " in remark and "held out" in remark for remark in remarks)


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        ("{file: my.jsonl, scorer: exakt}", "training.task.scorer: unknown scorer 'exakt'; did you mean 'exact'"),
        ("{file: my.jsonl, scorers: exact}", "training.task.scorers: unknown key; did you mean 'scorer'"),
        ("{scorer: exact}", "training.task.file: Field required"),
        ("{file: gone.jsonl}", "gone.jsonl: No such file"),
        ("{file: my.jsonl, sha256: '00'}", "training.task.sha256: "),
        ("7", "training.task: "),
        ("my.jsonl", "unknown training task 'my.jsonl'"),
        ("{file: /etc/passwd}", "/etc/passwd:1: "),
    ],
)
def test_suites_are_refused_in_one_line(tmp_path: Path, trained: str, words: str) -> None:
    write(tmp_path)
    with pytest.raises((SuiteError, DataError)) as caught:
        prepare_named(str(suite(tmp_path, trained, "micro")), tmp_path / "r")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_on_a_command_line(tmp_path: Path) -> None:
    task = task_of_text(f"{write(tmp_path)}:exact")
    assert isinstance(task, FileTask)
    assert (task.name, task.scorer, task_of_text("math500")) == ("my", "exact", "math500")
    with pytest.raises(PluginError, match="unknown scorer 'no name'"):
        task_of_text(f"{tmp_path / 'my.jsonl'}:no name")


@pytest.mark.parametrize("frame", ["{}", "Q: {}", "Q: {}\nA:"])
def test_a_frame_may_end_with_the_question(frame: str) -> None:
    task = Task("t", "T", lambda data_dir, fetch=True: [], frame=frame)
    assert task.bare(frame.format("why?")) == "why?"


@pytest.mark.parametrize("question", ["{} plus 1 is", "{} plus 1 is\n\nPut your final answer within \\boxed{{}}."])
def test_training_asks_what_evaluation_asks_in_every_style(tmp_path: Path, question: str) -> None:
    """Also where a question ends with the words of the instruction."""
    rows = [
        {"question": question.format(word), "answer": i, "split": "test" if i % 2 else "train"}
        for i, word in enumerate(WORDS)
    ]
    task = task_of(write(tmp_path, rows))
    known, drawn = get_task(task), training_source(task).draw(1, 4)
    plain = {row["question"] for row in rows}
    for style in known.styles:
        trained = [p.text for p in as_asked(drawn, task, Policy(name="x", model="./m", style=style))]
        asked = [known.render(p, style) for p in known.documents(None)]
        behind = {text.partition(" plus 1 is")[2] for text in (*trained, *asked)}
        assert len(behind) == 1, style
        if style == "raw":
            assert {*trained, *asked} <= plain
    assert [p.text for p in drawn] == [known.render(p, known.styles[0]) for p in drawn], "as before without a style"
