"""Which styles of asking leave a model room for its answer: question and answer must fit the model's positions together."""

from __future__ import annotations

from harness.errors import DataError, EngineError
from harness.experience.answers import Prompt
from harness.session.cell.questions import count_longest
from harness.session.policy import at_hand
from harness.suite.schema import FileTask, Policy
from harness.suite.seeds import derive_seed
from harness.tasks.registry import get_task, training_source
from harness.tasks.task import Style

# Questions that are drawn of a generated task, to find its longest
DRAWN = 240
# Tokens to spare, since a run draws other questions than these
SPARE = 4


def styles_with_room(policy: Policy, task: str | FileTask, styles: list[Style], tokens: int) -> list[Style]:
    """Return those of `styles` in which the longest question leaves the model `tokens` positions for an answer, in their order.

    All of them where nothing can be measured: the model has no limit, or its tokenizer or the questions are not on this machine.
    All of them, too, where none leaves room: `harness plan` then says by how much.
    """
    folder = at_hand(policy)
    if folder is None:
        return styles
    from harness.engines.vocabulary import open_vocabulary

    try:
        vocabulary = open_vocabulary(folder, policy.chat)
        questions = _questions_of(task)
    except (EngineError, DataError):
        return styles
    if vocabulary.positions is None:
        return styles
    room = vocabulary.positions - tokens - SPARE
    known = get_task(task)
    fitting: list[Style] = []
    for style in styles:
        asked = [Prompt(question.id, known.render(question, style), "") for question in questions]
        if count_longest(vocabulary, asked) <= room:
            fitting.append(style)
    return fitting or styles


def _questions_of(task: str | FileTask) -> list[Prompt]:
    """Return questions of training and of evaluation. Raises DataError where they are not here."""
    source = training_source(task)
    pool = [] if source.generated else source.pool(None).prompts
    trained = pool or source.draw(derive_seed(0, "room"), DRAWN)
    return [*trained, *get_task(task).documents(None, fetch=False)]
