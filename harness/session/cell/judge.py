"""Which answers to a cell's questions are right: by the scorer of the task that asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.experience.answers import Prompt
from harness.suite.schema import AnyTask
from harness.tasks.registry import get_task
from harness.verification.catalogue import same_by, scorer_called, scorer_of
from harness.verification.scorer import Same, Scorer
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

__all__ = ["Judge", "judge_of", "same_of", "scorer_for"]


@dataclass(frozen=True, slots=True)
class Judge:
    """verifier: by the scorer of the one task. by_task: of mixed training, by each task's scorer."""

    verifier: Verifier
    by_task: Mapping[str, Verifier] = field(default_factory=dict)

    def verify(self, asked: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """Verify responses to questions, and return verdicts in order. Raises VerificationError where processes do not start."""
        places: dict[str, list[int]] = {}
        for place, (prompt, _) in enumerate(asked):
            places.setdefault(prompt.task, []).append(place)
        verdicts: dict[int, Verdict] = {}
        for task, its_places in places.items():
            verifier = self.by_task.get(task, self.verifier)
            said = verifier.verify([(asked[place][0].gold, asked[place][1]) for place in its_places])
            verdicts.update(zip(its_places, said, strict=True))
        return [verdicts[place] for place in range(len(asked))]


def judge_of(task: AnyTask, verifier: Verifier) -> Judge:
    """Return what judges the answers to a task's questions, in the verifier's processes. Raises PluginError."""
    if not isinstance(task, list):
        return Judge(verifier.by(scorer_called(get_task(task).scorer)))
    return Judge(verifier, {str(part): verifier.by(scorer_called(get_task(part.task).scorer)) for part in task})


def scorer_for(task: AnyTask, prompt: Prompt) -> Scorer:
    """Return the scorer of the task that asks this question. Raises PluginError."""
    return scorer_of(get_task(_task_that_asks(task, prompt)).scorer)


def same_of(task: AnyTask) -> Mapping[str, Same]:
    """Say which read answers are one vote, by the task that asks; of a task alone under the empty name."""
    if not isinstance(task, list):
        return {"": same_by(get_task(task).scorer)}
    return {str(part): same_by(get_task(part.task).scorer) for part in task}


def _task_that_asks(task: AnyTask, prompt: Prompt) -> AnyTask:
    """Return the task itself, or the part of a mixture that asks the question."""
    if not isinstance(task, list):
        return task
    return next(part.task for part in task if str(part) == prompt.task)
