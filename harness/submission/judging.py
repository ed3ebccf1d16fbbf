"""A bundle's answers, judged again: by this version of the verifier, or with the words that another version read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from harness.evaluation.metrics import EvaluationSample, judge_pairs, votes_of
from harness.session.single.rescoring import stored_sample
from harness.store.manifest import Manifest
from harness.tasks.registry import get_task
from harness.verification.catalogue import scorer_called
from harness.verification.verifier import Verifier
from harness.versions import recorded_versions

# Packages whose code decides how an answer is read
_JUDGES = ("verification", "scoring")
_question_of = itemgetter("task", "metric", "policy", "checkpoint_step", "doc_id")


class JudgedSample(NamedTuple):
    """A stored answer with the verdict and the vote that its text has here."""

    sample: EvaluationSample
    vote: int


def judge_again(rows: Sequence[Mapping[str, Any]], verifier: Verifier) -> list[JudgedSample]:
    """Judge stored rows of `samples` by the scorers that their tasks have here; the result is in the rows' order.

    A vote is for maj@k: the number of the first answer to the same question that says the same. Raises PluginError for a task
    that is not installed.
    """
    samples = [stored_sample(row) for row in rows]
    by_task: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        by_task.setdefault(row["task"], []).append(place)
    for task, places in by_task.items():
        scorer = get_task(task).scorer
        judge = verifier.by(scorer_called(scorer))
        pairs = [(rows[place]["gold"], rows[place]["text"]) for place in places]
        verdicts = judge_pairs(judge, pairs, [rows[place]["finished"] for place in places])
        for place, verdict in zip(places, verdicts, strict=True):
            samples[place] = msgspec.structs.replace(samples[place], verdict=verdict, scorer=scorer)
    votes = _count_votes(rows, samples)
    return [JudgedSample(sample, vote) for sample, vote in zip(samples, votes, strict=True)]


def _count_votes(rows: Sequence[Mapping[str, Any]], samples: Sequence[EvaluationSample]) -> list[int]:
    """Return each answer's vote among those to the same question, in the rows' order."""
    by_question: dict[tuple[object, ...], list[int]] = {}
    for place in sorted(range(len(rows)), key=lambda place: rows[place]["repeat"]):
        by_question.setdefault(_question_of(rows[place]), []).append(place)
    vote_of: dict[int, int] = {}
    for places in by_question.values():
        vote_of |= dict(zip(places, votes_of([samples[place] for place in places]), strict=True))
    return [vote_of[place] for place in range(len(rows))]


def is_of_our_verifier(manifest: Manifest) -> bool:
    """Say whether a cell's answers were judged by code of our results versions."""
    ours = recorded_versions()
    for name, version in manifest.identity.versions.items():
        if name.partition("/")[0] not in _JUDGES:
            continue
        if name not in ours or version != str(ours[name].version):
            return False
    return True


def keep_stated_words(rows: Sequence[Mapping[str, Any]], judged: Sequence[JudgedSample]) -> list[JudgedSample]:
    """Return the judged answers with the words that the rows state as read, where those stand in the answer's text, and with the
    votes that follow. Blanks do not count: versions differ in how they write them."""
    samples = []
    for row, again in zip(rows, judged, strict=True):
        stated = "".join(row["extracted"].split())
        verdict = again.sample.verdict
        if stated in "".join(row["text"].split()):
            verdict = msgspec.structs.replace(verdict, extracted=row["extracted"])
        samples.append(msgspec.structs.replace(again.sample, verdict=verdict))
    votes = _count_votes(rows, samples)
    return [JudgedSample(sample, vote) for sample, vote in zip(samples, votes, strict=True)]
