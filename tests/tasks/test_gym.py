"""Puzzles of reasoning-gym: every entry of the allow-list keeps what the module promises of it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import DataError, PluginError, SuiteError
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.suite.load import load_suite
from harness.tasks.gym import ALLOWED, REFUSED, Gym, _digest_questions
from harness.tasks.registry import get_task, results_versions, source_of
from harness.tasks.settings import read_settings
from harness.verification.literal import Exact

ENTRIES = sorted(name for names in ALLOWED.values() for name in names)
installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed (extra `gym`)"
)
# A question takes a tenth of a second, and 1,000 are drawn
LENGTHY = [pytest.param(name, marks=pytest.mark.slow if name == "zebra_puzzles" else ()) for name in ENTRIES]
HOSTILE = (
    "", " ", "nan", "inf", "None", "True", "False", "0", "1", "[]", "{}", "()", "'", '"', "\\boxed{}", "a" * 10_000,
    "__import__('os').system('touch {place}')", "open('{place}','w')", "2**10**9", "9" * 5_000, "lambda: 0", "\x00", "\ufffe",
    "1e999", "[" * 2_000,
)  # fmt: skip


def questions(name: str, count: int = 12) -> list:
    return Gym(f"gym.{name}").draw(7, count)


def test_the_list_is_long_enough_and_no_generator_is_both_taken_and_refused() -> None:
    refused = [name for names in REFUSED.values() for name in names]
    assert len(ENTRIES) == len(set(ENTRIES)) >= 30
    assert not {*ENTRIES} & {*refused}


@pytest.mark.parametrize("name", sorted(name for names in REFUSED.values() for name in names))
def test_another_generator_is_refused_by_name_with_the_reason(name: str) -> None:
    with pytest.raises(PluginError, match=f"task 'gym.{name}': not taken, for it"):
        source_of(f"gym.{name}")
    with pytest.raises(PluginError, match="not taken: no single line states its answer"):
        source_of("gym.tower_of_hanoi")


@installed
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_one_readable_answer_that_its_own_scorer_and_ours_agree_on(name: str, tmp_path: Path) -> None:
    from reasoning_gym.factory import DATASETS

    make, configure = DATASETS[name]
    own, ours = make(configure(seed=0, size=10)), Exact()
    made = [own[index] for index in range(6)]
    for entry in made:
        gold = " ".join(str(entry["answer"]).split())
        assert gold.isprintable()
        assert "\n" not in str(entry["answer"]).strip(), "one line states it"
        assert ours.judge(f"So it is \\boxed{{{gold}}}.", gold).right
        assert own.score_answer(entry["answer"], entry) >= 0.99
        for other in made:
            if " ".join(str(other["answer"]).split()) != gold:
                assert not ours.judge(f"\\boxed{{{other['answer']}}}", gold).right
                assert own.score_answer(other["answer"], entry) < 0.99, "another answer is right by its own scorer too"
        place = tmp_path / "written"
        paid = [
            text
            for text in HOSTILE
            if text.strip() != gold and ours.judge(text.replace("{place}", str(place)), gold).right
        ]
        assert paid == []
        assert not place.exists()


@installed
@pytest.mark.parametrize("name", LENGTHY)
def test_training_and_held_out_share_no_question(name: str) -> None:
    source = Gym(f"gym.{name}")
    held_out = {prompt.text for prompt in source.held_out()}
    assert len(held_out) == source.size == len({prompt.id for prompt in source.held_out()})
    task = source.evaluation()
    trained = [task.bare(prompt.text) for prompt in source.draw(1, 100)]
    assert len(set(trained)) == 100
    assert not held_out & {*trained}
    assert not {prompt.text for prompt in source.draw(2, 40, part="tuning")} & {
        prompt.text for prompt in source.draw(2, 40, part="final")
    }


# These take a tenth of a second each: 2,000 with HARNESS_ALL_PUZZLES=1 in the environment, in a quarter of an hour
FEWER = {} if os.environ.get("HARNESS_ALL_PUZZLES") else {"zebra_puzzles": 40}


@installed
@pytest.mark.slow
@pytest.mark.timeout(600 if FEWER else 7200)
@pytest.mark.parametrize("name", ENTRIES)
def test_2_000_of_each_share_no_question(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = FEWER.get(name, 2_000)
    monkeypatch.setattr(Gym, "size", size)
    source = Gym(f"gym.{name}")
    task = source.evaluation()
    held_out = {prompt.text for prompt in source.held_out()}
    trained = {task.bare(prompt.text) for prompt in source.draw(1, size)}
    assert len(held_out) == len(trained) == size
    assert not held_out & trained


DIGESTS = """
import hashlib
from harness.tasks.gym import ALLOWED, Gym
for name in sorted(name for names in ALLOWED.values() for name in names):
    given = "".join(prompt.text + prompt.gold for prompt in Gym(f"gym.{name}").draw(5, 8))
    print(name, hashlib.sha256(given.encode()).hexdigest())
"""


@installed
@pytest.mark.slow
def test_questions_do_not_follow_the_interpreters_hash_seed() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS], capture_output=True, text=True, check=True, timeout=600,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "77")
    ]  # fmt: skip
    assert said[0].count("\n") == len(ENTRIES)
    assert said[0] == said[1] == said[2]


@installed
def test_settings_are_levels_and_checked_by_the_generators_own() -> None:
    source = Gym("gym.knights_knaves:n_people=2..3")
    prompts = source.draw(3, 12)
    assert {prompt.labels["n_people"] for prompt in prompts} == {"2", "3"}
    assert all(prompt.labels["skill"] == "knights_knaves" for prompt in prompts)
    with pytest.raises(DataError, match=r"knights_knaves has no setting 'people'; there are .*n_people"):
        Gym("gym.knights_knaves:people=2").draw(1, 1)
    with pytest.raises(DataError, match="n_people=99: at most 8, 4 times the generator's default"):
        Gym("gym.knights_knaves:n_people=99").draw(1, 1)
    with pytest.raises(DataError, match="gcd refuses min_numbers=1"):
        Gym("gym.gcd:min_numbers=1").draw(1, 1)
    assert read_settings("gym", "a=1..3,b=0.5,c=true,d=word") == {
        "a": [1, 2, 3],
        "b": [0.5],
        "c": [True],
        "d": ["word"],
    }
    for wrong in ("n_people", "n_people=3..2", "a=1,a=2", "a b=1"):
        with pytest.raises(PluginError):
            read_settings("gym", wrong)


@installed
def test_training_asks_as_evaluation_does() -> None:
    source = Gym("gym.gcd")
    task = source.evaluation()
    assert all(prompt.text == task.render(prompt, "zero-shot") for prompt in source.draw(1, 5))


@installed
def test_other_questions_are_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest of them is in the key, since another release of the library may ask others."""
    before = results_versions("gym.gcd")
    assert before.keys() == {"tasks", "scoring", "questions of gym.gcd"}
    assert results_versions("gym.gcd:max_numbers=3").keys() >= {"questions of gym.gcd:max_numbers=3"}
    ask = Gym._ask
    monkeypatch.setattr(
        Gym, "_ask", lambda self, level, number: (ask(self, level, number)[0] + " ", ask(self, level, number)[1])
    )
    _digest_questions.cache_clear()
    after = results_versions("gym.gcd")
    _digest_questions.cache_clear()
    assert {name for name in before if before[name] != after[name]} == {"questions of gym.gcd"}


@installed
def test_a_number_of_which_no_question_can_be_made_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one maze in thousands, whose search for a goal ends without one."""
    ask, asked = Gym._ask, []

    def fail_first(self: Gym, level: dict, number: int) -> tuple[str, str]:
        asked.append(number)
        if len(asked) == 1:
            raise RuntimeError("no path")
        return ask(self, level, number)

    monkeypatch.setattr(Gym, "_ask", fail_first)
    assert len(Gym("gym.maze").draw(1, 2)) == 2
    assert len(set(asked)) == len(asked) >= 3
    monkeypatch.setattr(Gym, "_ask", lambda *_: [][0])
    with pytest.raises(DataError, match="maze makes no question: IndexError"):
        Gym("gym.maze").draw(1, 1)


UNUSED = """
import sys
from harness.cli import main
sys.argv = ["harness", *sys.argv[1:]]
try:
    main()
finally:
    assert not [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]
"""


@pytest.mark.parametrize(
    "command", [["tasks"], ["tasks", "--like", "puzzle"], ["plan", "smoke"]], ids=lambda words: words[-1]
)
def test_the_library_is_not_imported_where_no_puzzle_is_asked(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNUSED, *command], capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert "AssertionError" not in done.stderr
    assert done.returncode == 0, done.stderr


@installed
def test_a_level_that_has_too_few_questions_is_refused(tmp_path: Path) -> None:
    few = "{name: gym.gcd, max_value: 9, max_numbers: 2}"
    file = tmp_path / "puzzles.yaml"
    for suite in (
        SUITE.replace("task: TASK", "task: micro").replace("TASK", few),
        SUITE.replace("tasks: [TASK]", "tasks: [micro]").replace("TASK", few),
    ):
        file.write_text(suite)
        place = "evaluation.tasks\\[0\\]" if "task: micro" in suite else "training.prompts"
        with pytest.raises(SuiteError, match=f"{place}: .*distinct questions asked for, only"):
            check_before_run(prepare_named(str(file), tmp_path / "r"), about_to_run=False)
    with pytest.raises(DataError, match="distinct questions asked for, only"):
        Gym("gym.gcd:max_value=2,max_numbers=2,min_numbers=2,min_value=1").draw(1, 40)


SUITE = """
name: puzzles
groups:
  - name: pair
    policies: [{name: a, model: micro/llama}, {name: b, model: micro/qwen}]
regimes: [independent]
seeds: [1]
training: {task: TASK, max_new_tokens: 16, prompts: 64}
evaluation: {tasks: [TASK]}
"""


def test_a_mapping_in_a_suite_names_the_task_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "puzzles.yaml"
    file.write_text(SUITE.replace("TASK", "{name: gym.knights_knaves, n_people: 2..3, depth_constraint: 2}"))
    suite = load_suite(str(file))
    assert suite.training.task == "gym.knights_knaves:depth_constraint=2,n_people=2..3"
    assert suite.evaluation.tasks == [suite.training.task]
    assert get_task(suite.training.task).scorer == "exact"
    file.write_text(SUITE.replace("TASK", "{name: gym.knights_knaves, n_people: [2, 3]}"))
    with pytest.raises(SuiteError, match="n_people: a number, a word or a range"):
        load_suite(str(file))


@installed
def test_the_same_step_draws_the_same_questions() -> None:
    first, again = questions("syllogism"), questions("syllogism")
    assert first == again
    digest = hashlib.sha256("".join(prompt.text + prompt.gold for prompt in first).encode()).hexdigest()
    assert (
        digest
        != hashlib.sha256("".join(p.text + p.gold for p in Gym("gym.syllogism").draw(8, 12)).encode()).hexdigest()
    )
