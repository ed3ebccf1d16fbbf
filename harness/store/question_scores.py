"""Accuracies question by question, for intervals that hold for other questions too; read when they are first asked for."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from harness.statistics.crossed import CrossedEstimate, estimate_crossed
from harness.store.read import Snapshot

# Of the sampled answers at the newest checkpoint, the mean over a group's policies where all of them answered
_QUESTIONS = """
WITH answered AS (
    SELECT suite, cell, policy, task, doc_id, checkpoint_step,
        count(*) FILTER (verdict = 'right') / nullif(count(*) FILTER (verdict <> 'invalid'), 0) AS value
    FROM samples WHERE suite = ? AND metric = 'sampled' GROUP BY ALL
), newest AS (
    SELECT * FROM answered QUALIFY checkpoint_step = max(checkpoint_step) OVER (PARTITION BY cell, policy, task)
)
SELECT c.group_name || chr(31) || n.task || chr(31) || c.regime AS line, c.seed, n.doc_id, avg(n.value) AS value
FROM newest n JOIN current_cells c USING (suite, cell)
WHERE c.kind = 'cell' AND c.state = 'done'
GROUP BY c.group_name, n.task, c.regime, c.seed, n.doc_id
HAVING count(n.value) = any_value(len(c.policies))
ORDER BY ALL
"""
_SEPARATOR = chr(31)


class QuestionBook:
    """A suite's accuracies by question, of the mean over each group's policies."""

    def __init__(self, snapshot: Snapshot, suite: str) -> None:
        """Remember where scores are read from. The snapshot must be open when a gain is first asked for."""
        self._snapshot = snapshot
        self._suite = suite
        self._by_line: dict[str, dict[int, dict[str, float]]] | None = None

    def estimate_gain(self, group: str, task: str, ours: str, theirs: str) -> CrossedEstimate | None:
        """Estimate the gain of one variant's cells over another's for other seeds and questions; None where nothing is common."""
        by_line = self._read_scores()
        mine = by_line.get(_SEPARATOR.join((group, task, ours)), {})
        other = by_line.get(_SEPARATOR.join((group, task, theirs)), {})
        seeds = sorted(mine.keys() & other.keys())
        if not seeds:
            return None
        asked = [mine[seed].keys() & other[seed].keys() for seed in seeds]
        questions = sorted(set.intersection(*asked))
        return estimate_crossed(_stack_differences(mine, other, seeds, questions))

    def _read_scores(self) -> dict[str, dict[int, dict[str, float]]]:
        """Return each question's mean score by line and seed, read when it is first needed."""
        if self._by_line is None:
            columns = self._snapshot.query(_QUESTIONS, [self._suite]).to_pydict()
            self._by_line = {}
            for line, seed, question, value in zip(
                columns["line"], columns["seed"], columns["doc_id"], columns["value"], strict=True
            ):
                self._by_line.setdefault(line, {}).setdefault(seed, {})[question] = value
        return self._by_line


def _stack_differences(
    ours: dict[int, dict[str, float]], theirs: dict[int, dict[str, float]], seeds: list[int], questions: list[str]
) -> Float[np.ndarray, "seeds questions"]:
    """Return our scores minus theirs: a row for each seed, a column for each question."""
    rows = []
    for seed in seeds:
        mine = ours[seed]
        other = theirs[seed]
        rows.append([mine[question] - other[question] for question in questions])
    return np.array(rows)
