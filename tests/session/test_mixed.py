"""Mixed training: several tasks in one run, each question asked and judged as its own task does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from running import TABLES, Killed, here, rows, run, weights
from streamlit.testing.v1 import AppTest
from synthetic_results import write_rows

from harness.errors import SuiteError
from harness.experience.answers import Prompt
from harness.phases import Interrupted
from harness.session.cell import resume_point
from harness.session.cell.judge import judge_of, same_of
from harness.session.cell.questions import as_asked, training_prompts
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.store.by_task import read_task_help, read_task_rewards
from harness.store.ingest import ingest_journals
from harness.store.read import Snapshot
from harness.store.rows import CurveRow, Row, StepRow, TaskCurveRow, TaskRow
from harness.suite.cells import cell_of, fields_of_model
from harness.suite.load import load_suite
from harness.suite.schema import Policy, Training
from harness.tasks.mixed import Mixed, task_of_id
from harness.tasks.registry import get_task, training_source
from harness.verification.verifier import Verifier

SUITE = """
name: mixed
groups:
  - name: pair
    policies: [{{name: a, model: {llama}}}, {{name: b, model: {qwen}}}]
regimes: [independent, sgt, rlccf]
seeds: [3]
training:
  task:
    - {{name: micro, share: 0.5}}
    - {{name: ladder.add1, share: 0.25}}
    - {{file: signs.jsonl, scorer: exact, held_out: 0.3, share: 0.25}}
  steps: 4
  prompts: 8
  rollouts: 6
  max_new_tokens: 12
  learning_rate: 0.001
  checkpoint_every: 2
  measure_every: 0
evaluation:
  tasks: [micro, {{file: signs.jsonl, scorer: exact, held_out: 0.3}}]
  k: 2
  limit: 6
  max_new_tokens: 12
  curve_every: 2
  curve_prompts: 6
"""
SHARES = {"micro": 0.5, "ladder.add1": 0.25, "signs": 0.25}


@pytest.fixture(scope="session")
def mixed(folders: dict[str, Path], shared: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The suite's file, beside its results."""

    def make(root: Path) -> None:
        lines = [
            {"question": f"Q: {a} + {b} = ?\nA:", "answer": str(a + b)} for a in range(2, 12) for b in range(2, 12)
        ]
        (root / "signs.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (root / "mixed.yaml").write_text(SUITE.format(**folders))
        run(root / "mixed.yaml", root / "results")

    return shared("mixed", make) / "mixed.yaml"


@pytest.fixture
def done(mixed: Path) -> Prepared:
    return prepare_named(str(mixed), mixed.parent / "results")


def test_every_question_carries_its_task_and_shares_hold_over_the_steps(done: Prepared) -> None:
    (cell, *_) = done.cells
    counts: Counter[str] = Counter()
    for step in range(1, 201):
        asked = training_prompts(cell, step)
        assert len(asked) == len({prompt.id for prompt in asked}) == 8
        assert asked == training_prompts(cell, step)
        of_step = Counter(prompt.task for prompt in asked)
        assert all(abs(of_step[task] - 8 * share) <= 1 for task, share in SHARES.items())
        assert all(task_of_id(prompt.id) == prompt.task for prompt in asked)
        counts += of_step
    assert counts == {task: 1600 * share for task, share in SHARES.items()}
    orders = {tuple(prompt.task for prompt in training_prompts(cell, step)) for step in range(1, 20)}
    assert len(orders) > 5, "the tasks stand in another order at every step"


def test_a_share_that_is_no_whole_number_of_questions_holds_on_average() -> None:
    training = Training.model_validate({"task": [{"name": "micro", "share": 2}, {"name": "ladder", "share": 1}]})
    source = training_source(training.task)
    counts = Counter(prompt.task for seed in range(400) for prompt in source.draw(seed, 4))
    assert counts.total() == 1600
    assert counts["micro"] / 1600 == pytest.approx(2 / 3, abs=0.02)


def test_answers_are_judged_by_the_scorer_of_the_task_that_asks(done: Prepared) -> None:
    task = done.suite.training.task
    asked = {name: Prompt(f"{name}/1", "", "1/2", task=name) for name in SHARES}
    with Verifier(workers=1) as verifier:
        said = judge_of(task, verifier).verify([(asked[name], "\\boxed{0.5}") for name in ("signs", "micro", "signs")])
    assert [verdict.value for verdict in said] == ["wrong", "right", "wrong"]
    same = same_of(task)
    assert same["micro"]("1/2", "0.5")
    assert not same["signs"]("1/2", "0.5")


def test_a_question_is_asked_as_its_own_task_asks_it() -> None:
    training = Training.model_validate({"task": ["micro", "countdown"]})
    source, policy = training_source(training.task), Policy(name="a", model="./m", style="zero-shot")
    for prompt in as_asked(source.draw(1, 8), training.task, policy):
        own = get_task(prompt.task)
        assert prompt.text.endswith(own.instruction)
        assert prompt.text == own.render(prompt, "zero-shot")


def test_rows_are_kept_by_task(done: Prepared) -> None:
    for cell in done.cells:
        steps = {(row["policy"], row["step"]): row for row in rows(done, cell, "steps")}
        by_task = rows(done, cell, "task_steps")
        assert {row["task"] for row in by_task} == {*SHARES}
        for column in (
            "prompts",
            "answers",
            "right",
            "wrong",
            "invalid",
            "truncated",
            "prompts_all_wrong",
            "prompts_rescued",
        ):
            for (policy, step), row in steps.items():
                of_step = [one[column] for one in by_task if (one["policy"], one["step"]) == (policy, step)]
                assert sum(of_step) == row[column], column
        curves = {(row["policy"], row["step"]): row for row in rows(done, cell, "curves")}
        points = rows(done, cell, "task_curves")
        assert {row["task"] for row in points} == {"micro", "signs"}
        for (policy, step), row in curves.items():
            own = [one for one in points if (one["policy"], one["step"]) == (policy, step)]
            assert [one["answers"] for one in own] == [3, 3]
            assert sum(one["accuracy"] for one in own) / 2 == pytest.approx(row["accuracy"])
        exchanged = {task_of_id(row["prompt_id"]) for row in rows(done, cell, "exchanges") if row["accepted"]}
        assert exchanged <= {*SHARES}


def test_show_has_rewards_by_task_and_who_helps_whom_on_what(mixed: Path, done: Prepared) -> None:
    code, shown, _ = here("show", mixed, "--results", mixed.parent / "results", "--full")
    assert code == 0
    assert "pair: training by task" in shown
    assert "pair: who helps whom on what" in shown
    with Snapshot(mixed.parent / "results") as snapshot:
        rewards = read_task_rewards(snapshot, "mixed")
        helped = read_task_help(snapshot, "mixed")
    assert {(one.regime, one.policy, one.task) for one in rewards} == {
        (cell.variant.name, policy, task) for cell in done.cells for policy in "ab" for task in SHARES
    }
    assert {one.regime for one in helped} == {"sgt", "rlccf"}, "of policies alone nobody is sent anything"
    (sgt,) = [cell for cell in done.cells if cell.variant.name == "sgt"]
    exchanged = [row for row in rows(done, sgt, "exchanges") if row["accepted"] and row["messages"]]
    for one in (one for one in helped if one.regime == "sgt"):
        own = [row for row in exchanged if (row["author"], row["receiver"]) == (one.author, one.receiver)]
        own = [row for row in own if row["prompt_id"].startswith(f"{one.task}/")]
        assert (one.received, one.used) == (len(own), sum(row["used"] for row in own))
    for one in (one for one in rewards if one.regime == "sgt"):
        own = [row for row in rows(done, sgt, "task_steps") if (row["policy"], row["task"]) == (one.policy, one.task)]
        answered = [row["right"] + row["wrong"] for row in own]
        assert one.last == (own[-1]["right"] / answered[-1] if answered[-1] else None)


def draw(results: str, slug: str, suite: str) -> None:
    """One page of the board, as an app of its own."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.page import draw_page
    from leaderboard.views import PAGES

    draw_page(next(page for page in PAGES if page.slug == slug), open_store(Path(results)), suite)


def open_board(results: Path, slug: str, suite: str, **query: str) -> AppTest:
    app = AppTest.from_function(draw, args=(str(results), slug, suite), default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def test_the_board_says_who_helps_whom_on_what(mixed: Path, done: Prepared) -> None:
    ingest_journals(mixed.parent / "results")
    with Snapshot(mixed.parent / "results") as snapshot:
        helped = [one for one in read_task_help(snapshot, "mixed") if one.regime == "sgt"]
    app = open_board(mixed.parent / "results", "exchange", "mixed", regime="sgt")
    tables = [frame.value for frame in app.dataframe]
    (drawn,) = [table for table in tables if {"author", "task"} <= {*table}]
    assert [
        tuple(row) for row in drawn[["author", "receiver", "task", "received", "used"]].itertuples(index=False)
    ] == [(one.author, one.receiver, one.task, one.received, one.used) for one in helped]
    (rewards,) = [table for table in tables if "curve_last" in table]
    assert {*rewards["task"]} == {*SHARES}
    assert {*rewards["regime"]} == {"sgt"}


@pytest.mark.parametrize(
    ("kind", "adds", "signs"),
    # the area under lines through 0.5 and 0.75, and through 0 and 0.25
    [("held-out accuracy, accuracy", 62.5, 12.5), ("training reward", 62.5, 12.5)],
)
def test_the_board_draws_a_curve_of_each_task(tmp_path: Path, kind: str, adds: float, signs: float) -> None:
    rows: list[Row] = []
    for step, more in ((1, 0), (2, 1)):
        rows.append(StepRow(policy="a", step=step, rollouts=8, reward_mean=0.9, answers=8))
        rows.append(CurveRow(policy="a", step=step, metric="accuracy", accuracy=0.9, answers=8))
        for task, right in (("adds", 2 + more), ("signs", more)):
            rows.append(TaskRow(policy="a", step=step, task=task, right=right, wrong=4 - right))
            rows.append(TaskCurveRow(policy="a", step=step, task=task, accuracy=right / 4, answers=4))
    write_rows(tmp_path, rows, regime="independent", seed=1)
    ingest_journals(tmp_path)
    found = {}
    for task in ("all", "adds", "signs"):
        app = open_board(tmp_path, "curves", "hand", curve=kind, task=task)
        (table,) = [frame.value for frame in app.dataframe if "area" in frame.value]
        (found[task],) = table["area"]
    assert found == pytest.approx({"all": 90, "adds": adds, "signs": signs})


@pytest.mark.parametrize("moment", ["stopped", "before"])
def test_a_cut_off_cell_resumes_exactly(
    mixed: Path, done: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def killed(*arguments: object) -> None:
        raise Killed

    if moment == "before":
        monkeypatch.setattr(resume_point, "save_resume_point", killed)
    with pytest.raises((Interrupted, Killed)):
        run(mixed, tmp_path, only="sgt", stop_after=3)
    monkeypatch.undo()
    resumed = run(mixed, tmp_path, only="sgt")
    (one,) = resumed.cells
    (before,) = [cell for cell in done.cells if cell.variant.name == "sgt"]
    assert one.key == before.key
    for table in (*TABLES, "task_steps", "task_curves"):
        assert rows(resumed, one, table) == rows(done, before, table), table
    assert weights(resumed, "sgt") == weights(done, "sgt")


def test_a_cell_keeps_its_mixture_on_its_way_to_a_worker(done: Prepared) -> None:
    (cell, *_) = done.cells
    fields = json.loads(json.dumps(msgspec.to_builtins(cell, enc_hook=fields_of_model)))
    assert cell_of(fields) == cell
    assert isinstance(training_source(cell.training.task), Mixed)


def test_the_key_follows_tasks_and_shares_but_not_the_place_of_a_file(mixed: Path, tmp_path: Path) -> None:
    def key(file: Path, *overrides: str) -> str:
        return prepare_named(str(file), tmp_path / "r", overrides=list(overrides)).cells[0].key

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (mixed, mixed.with_name("signs.jsonl")):
        (elsewhere / file.name).write_bytes(file.read_bytes())
    first = key(mixed)
    assert key(elsewhere / mixed.name) == first
    assert key(mixed, "training.task[0].share=0.4") != first
    assert key(mixed, "training.task[1].name=ladder.add2") != first
    (elsewhere / "signs.jsonl").write_text(
        '{"question": "x", "answer": 1}\n' * 1 + (elsewhere / "signs.jsonl").read_text()
    )
    assert key(elsewhere / mixed.name) != first


@pytest.mark.parametrize(
    ("tasks", "place", "problem"),
    [
        ("[{name: micro}]", "training.task", "at least 2 items"),
        ("[micro, micro]", "training.task", "the task 'micro' occurs twice"),
        ("[micro, {name: ladder, share: 0}]", "training.task[1].share", "greater than 0"),
        ("[micro, {name: no such}]", "training.task[1].task", "should match pattern"),
        ("[micro, math500]", "training.task[1]", "unknown training task 'math500'"),
        ("[micro, laddr]", "training.task[1]", "unknown training task 'laddr'"),
        ("[micro, {name: countdown, digits: 3}]", "training.task[1]", "its one setting is numbers"),
        ("[micro, {file: nowhere.jsonl}]", "training.task[1].file", "nowhere.jsonl"),
    ],
)
def test_a_fault_is_named_with_its_place(
    folders: dict[str, Path], tmp_path: Path, tasks: str, place: str, problem: str
) -> None:
    file = tmp_path / "m.yaml"
    head, _, rest = SUITE.format(**folders).partition("  task:\n")
    rest = rest[rest.index("  steps") :].replace(
        "tasks: [micro, {file: signs.jsonl, scorer: exact, held_out: 0.3}]", "tasks: [micro]"
    )
    file.write_text(f"{head}  task: {tasks}\n{rest}")
    with pytest.raises(SuiteError) as caught:
        prepare_named(str(file), tmp_path / "r")
    assert caught.value.path == place
    assert problem in caught.value.problem


def test_a_suite_writes_its_mixture_as_it_was_given(mixed: Path) -> None:
    written = load_suite(str(mixed)).training.model_dump(mode="json")["task"]
    assert written[0] == {"name": "micro", "share": 0.5}
    assert written[2]["file"] == "signs.jsonl"
    assert Training.model_validate({"task": written}) == Training.model_validate({"task": written[:]})
