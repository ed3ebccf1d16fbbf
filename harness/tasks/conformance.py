"""Checks of a task; they raise AssertionError, or DataError where its data is absent.

@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_task(check): check("my-task")
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import get_args

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks.overlap import tokens_of
from harness.tasks.registry import get_task, results_versions, source_of
from harness.tasks.task import Style
from harness.verification.catalogue import scorer_called, scorer_of
from harness.verification.verifier import Verifier

DRAWN = 8


def is_described(name: str) -> None:
    """Check that a task says what listings, tables and keys need of it."""
    source, task = source_of(name), get_task(name)
    assert (type(source).__doc__ or "").strip(), "its docstring's first line is its summary"
    assert task.name == source.name == name
    assert task.title.strip(), "a title for tables"
    assert task.styles, "a style in which it is asked"
    assert set(task.styles) <= set(get_args(Style)), f"styles: of {get_args(Style)}"
    assert "few-shot" not in task.styles or task.examples, "few-shot needs worked examples"
    assert task.k >= 1
    assert task.max_new_tokens >= 1
    assert not {"unknown"} & {*results_versions(name).values()}
    assert not source.trains or source.pool_digest() == source.pool_digest()


def refuses_parts_that_it_has_not(name: str) -> None:
    """Check that a part that there is not is refused."""
    with suppress(PluginError):
        source_of(f"{name}.no-such-part")
        raise AssertionError("a part that there is not was accepted")


def holds_out_the_same_questions(name: str) -> None:
    """Check that the held-out questions are the same every time, and as many as the task says."""
    task = get_task(name)
    documents = task.documents(None, fetch=False)
    assert documents == get_task(name).documents(None, fetch=False)
    assert documents, "questions"
    assert task.size in (None, len(documents))
    _in_order(name, documents)


def asks_in_every_style(name: str) -> None:
    """Check that each style contains the bare question, which can be found in it again, and that asking twice adds nothing."""
    task = get_task(name)
    for style in task.styles:
        for prompt in task.documents(None, fetch=False)[:20]:
            asked = task.render(prompt, style)
            assert task.bare(prompt.text) in asked
            again = task.render(Prompt(prompt.id, asked, prompt.gold), style)
            assert style == "few-shot" or again == asked


def is_scored(name: str) -> None:
    """Check that perfect answers are right and silence is wrong."""
    task = get_task(name)
    scorer = scorer_of(task.scorer)
    golds = [prompt.gold for prompt in task.documents(None, fetch=False)[:60]]
    perfect = [(gold, text) for gold in golds if (text := scorer.perfect(gold)) is not None]
    with Verifier(workers=1) as verifier:
        judge = verifier.by(scorer_called(task.scorer))
        assert all(verdict.value == "right" for verdict in judge.verify(perfect))
        assert all(verdict.value == "wrong" for verdict in judge.verify([(gold, "") for gold in golds]))


def draws_by_the_seed_alone_and_never_what_it_holds_out(name: str) -> None:
    """Check that training draws the same questions for one seed and others for another, and none that is held out."""
    source, task = source_of(name), get_task(name)
    if not source.trains:
        return
    first = source.draw(1, DRAWN)
    assert len(first) == DRAWN
    assert first == source_of(name).draw(1, DRAWN)
    assert {p.id for p in first} != {p.id for p in source.draw(2, DRAWN)}
    _in_order(name, first)
    held_out = {"".join(tokens_of(task.bare(p.text))) for p in task.documents(None, fetch=False)}
    drawn = {"".join(tokens_of(task.bare(p.text))) for seed in range(20) for p in source.draw(seed, DRAWN)}
    assert not held_out & drawn


def keeps_tuning_apart(name: str) -> None:
    """Check that questions for tuning are never those of final runs."""
    source = source_of(name)
    if not source.trains:
        return
    with suppress(DataError):  # of a task that has no parts
        parts = ([source.draw(seed, DRAWN, part=p) for seed in range(10)] for p in ("tuning", "final"))
        tuning, final = ({prompt.text for drawn in part for prompt in drawn} for part in parts)
        assert not tuning & final


def _in_order(name: str, prompts: list[Prompt]) -> None:
    """Check that ids are distinct, and that each prompt has a question and a gold without fault."""
    scorer = scorer_of(get_task(name).scorer)
    assert len({prompt.id for prompt in prompts}) == len(prompts), "an id occurs twice"
    for prompt in prompts:
        assert prompt.text.strip(), f"{prompt.id}: no question"
        assert not scorer.fault(prompt.gold), f"{prompt.id}: {scorer.fault(prompt.gold)}"


DESCRIBED: tuple[Callable[[str], None], ...] = (is_described, refuses_parts_that_it_has_not)
"""These need no data."""
CHECKS: tuple[Callable[[str], None], ...] = (
    *DESCRIBED,
    holds_out_the_same_questions,
    asks_in_every_style,
    is_scored,
    draws_by_the_seed_alone_and_never_what_it_holds_out,
    keeps_tuning_apart,
)


def name_of(check: Callable[[str], None]) -> str:
    return check.__name__
