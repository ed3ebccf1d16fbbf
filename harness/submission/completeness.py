"""What a bundle's rows must add up to: all questions, all steps, verdicts that follow from the texts, each cell's rows its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import Any

import pyarrow as pa

from harness.errors import DataError, PluginError
from harness.evaluation.metrics import votes
from harness.evaluation.samples import EvaluationSample
from harness.experience.answers import Prompt
from harness.learning import registry
from harness.scoring.catalogue import called
from harness.store.manifest import Manifest
from harness.submission.bundle import installed
from harness.submission.container import BundleError
from harness.submission.evidence import Evidence
from harness.suite.cells import Cell
from harness.suite.schema import Suite
from harness.tasks.choice import fair_part
from harness.tasks.registry import get_task
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

_SAMPLED = ("policy", "right", "wrong", "invalid", "truncated", "answers", "generated_tokens")
"""Of a policy's first step: what its own samples were."""


def questions(e: Evidence) -> str:
    """Each evaluation asks each question of the suite, once or k times, with our reference answers where we have the set."""
    asked: dict[str, dict[str, str] | None] = {}
    for task in installed(e.resolved):
        asked[task] = None
        with suppress(DataError, PluginError):
            found: list[Prompt] = fair_part(get_task(task).documents(None, fetch=False), e.resolved.evaluation.limit)
            asked[task] = {p.id: p.gold for p in found}
    seen: dict[str, set[str]] = {}
    for key, manifest in e.manifests.items():
        for policy in (p.name for p in manifest.policies):
            place = e.place(f"{e.suite}/{key}: samples of {policy}")
            own = [r for r in e.tables(key)["samples"].to_pylist() if r["policy"] == policy]
            newest = max((r["checkpoint_step"] for r in own), default=None)
            step = 0 if manifest.kind == "base" else _last_step(e, manifest)
            if newest != step:
                raise BundleError("questions", place, f"of step {newest}; the suite evaluates step {step}")
            _all_asked(e.resolved, [r for r in own if r["checkpoint_step"] == newest], asked, seen, place)
    unknown = [task for task, known in asked.items() if known is None]
    count = sum(e.tables(key)["samples"].num_rows for key in e.manifests)
    return f"{count:,} answers, none left out" + (
        f"; not here to compare with: {', '.join(unknown)}" if unknown else ""
    )


def _last_step(e: Evidence, manifest: Manifest) -> int:
    return next(c.training.steps for c in e.derived if c.key == manifest.key)


def _all_asked(
    suite: Suite,
    rows: list[dict[str, Any]],
    asked: dict[str, dict[str, str] | None],
    seen: dict[str, set[str]],
    place: str,
) -> None:
    """asked: reference answers by task and question. seen: the questions of each task, by our set or by the first evaluation."""
    found: dict[tuple[str, str], dict[str, set[int]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["metric"]), {}).setdefault(row["doc_id"], set()).add(row["repeat"])
        known = asked.get(row["task"])
        if known is not None and row["gold"] != known.get(row["doc_id"]):
            ours = (
                "which the suite does not ask"
                if row["doc_id"] not in known
                else f"whose answer is {known[row['doc_id']][:40]!a}"
            )
            problem = f"the question {row['doc_id'][:80]!a}, {ours}, has {row['gold'][:40]!a}"
            raise BundleError("questions", place, problem)
    evaluation = suite.evaluation
    for task in installed(suite):
        k = get_task(task).k if evaluation.k is None else evaluation.k
        wanted = {"greedy": {0}} if evaluation.greedy or evaluation.k is None else {}
        if k:
            wanted["sampled"] = set(range(k))
        for metric, repeats in wanted.items():
            answers = found.pop((task, metric), {})
            for question in seen.setdefault(task, set(asked[task] or answers)):
                if answers.pop(question, None) != repeats:
                    problem = f"{task}, {metric}: the question {question[:80]!a} does not have {len(repeats)} answers"
                    raise BundleError("questions", place, problem)
            if answers:
                problem = f"{task}, {metric}: the question {next(iter(answers))[:80]!a} is not asked in the others"
                raise BundleError("questions", place, problem)
    if found:
        raise BundleError(
            "questions", place, f"answers that the suite does not ask for: {', '.join(next(iter(found)))[:80]}"
        )


def steps(e: Evidence) -> str:
    """Every step of every policy, each of which adds up."""
    count = 0
    for cell in e.derived:
        table = e.tables(cell.key).get("steps")
        by_policy: dict[str, list[dict[str, Any]]] = {p.name: [] for p in cell.group.policies}
        for row in table.to_pylist() if table is not None else []:
            by_policy[row["policy"]].append(row)
        for policy, own in by_policy.items():
            place = e.place(f"{e.suite}/{cell.key}: steps of {policy}")
            if sorted(r["step"] for r in own) != list(range(1, cell.training.steps + 1)):
                raise BundleError("steps", place, f"not each of the {cell.training.steps} steps once")
            for r in own:
                valid = r["right"] + r["wrong"]
                mean = r["right"] / valid if valid else None
                if valid + r["invalid"] != r["answers"] or (
                    mean is not None and abs(mean - (r["reward_mean"] or 0)) > 1e-6
                ):
                    raise BundleError("steps", place, f"the counts of step {r['step']} do not add up")
            count += len(own)
    return f"{count:,}, each adds up"


def cells(e: Evidence) -> str:
    """No cell's rows are another's: regimes of one seed start from the same samples, those of two seeds from others, and a regime
    that shares nothing receives nothing."""
    first: dict[str, tuple[Cell, Any]] = {}
    whole: dict[str, Cell] = {}
    for cell in e.derived:
        table = e.tables(cell.key).get("steps")
        if table is None:
            continue
        place = e.place(f"{e.suite}/{cell.key}: steps")
        if not _may_receive(cell) and any(table["peer_received"].to_pylist()):
            raise BundleError(
                "cells", place, f"{cell.label} received answers of peers, though nobody shares: another cell's rows?"
            )
        if cell.engine != "embedded":  # other engines' samplers do not repeat to the digit
            continue
        stream = f"{cell.group.name}/{cell.seed}/{cell.variant.sampling_stream}"
        like = f"{stream}/{cell.variant.factor}/{cell.training.model_dump_json()}"
        mine = sorted(tuple(r[name] for name in _SAMPLED) for r in table.to_pylist() if r["step"] == 1)
        other, theirs = first.setdefault(like, (cell, mine))
        if theirs != mine:
            problem = f"{cell.label} did not begin with the samples of {other.label}, as a seed on one kind of CPU does"
            raise BundleError("cells", place, problem)
        twin = whole.setdefault(_content(table), cell)
        if (twin.group.name, twin.seed, twin.variant.sampling_stream) != (
            cell.group.name,
            cell.seed,
            cell.variant.sampling_stream,
        ):
            raise BundleError("cells", place, f"{cell.label} has the rows of {twin.label}")
    return f"{len(e.derived)}, each with rows of its own seed"


def _may_receive(cell: Cell) -> bool:
    if cell.variant.replay is not None:
        return True
    try:
        shares = registry.load(cell.variant.regime).shares
    except PluginError:
        return True
    return bool(shares) and cell.sharing.direction != "none" and len(cell.group.policies) > 1


def _content(table: pa.Table) -> str:
    """What was learnt, without times."""
    return repr(table.drop_columns([n for n in table.schema.names if n.endswith("_seconds")]).to_pylist())


def verdicts(e: Evidence) -> str:
    """Every answer judged again here: verdicts, extracted answers and votes are those that its text gives."""
    count = 0
    with Verifier(workers=1) as verifier:
        for key in e.manifests:
            table = e.tables(key)["samples"]
            judged = _judged(verifier, table)
            for row, again, vote in _again(table.to_pylist(), judged):
                said = row["verdict"], row["extracted"], row["vote"] if row["vote"] is not None else vote
                if said != (again.value, again.extracted, vote):
                    where = f"{row['task']}, {row['metric']}, {row['doc_id'][:80]}#{row['repeat']}"
                    problem = (
                        f"stated {said[0]} ({said[1][:40]!a}), but its text is {again.value} ({again.extracted[:40]!a})"
                    )
                    raise BundleError("verdicts", e.place(f"{e.suite}/{key}: samples: {where}"), problem)
            count += table.num_rows
    return f"{count:,} answers judged again, all as stated"


def _judged(verifier: Verifier, table: pa.Table) -> list[Verdict]:
    """Verdicts of the rows, in order, each by its task's scorer."""
    names, pairs = (
        table["task"].to_pylist(),
        list(zip(table["gold"].to_pylist(), table["text"].to_pylist(), strict=True)),
    )
    found: dict[int, Verdict] = {}
    for task in dict.fromkeys(names):
        at = [i for i, name in enumerate(names) if name == task]
        judge = verifier.by(called(get_task(task).scorer))
        found |= zip(at, judge.verify([pairs[i] for i in at]), strict=True)
    return [found[i] for i in range(len(names))]


def _again(rows: list[dict[str, Any]], judged: list[Verdict]) -> Iterator[tuple[dict[str, Any], Verdict, int]]:
    """Each row with today's verdict and vote."""

    def question(pair: tuple[dict[str, Any], Verdict]) -> tuple[Any, ...]:
        return tuple(pair[0][name] for name in ("policy", "checkpoint_step", "task", "metric", "doc_id"))

    ordered = sorted(zip(rows, judged, strict=True), key=lambda pair: (*question(pair), pair[0]["repeat"]))
    for _, found in groupby(ordered, key=question):
        pairs = list(found)
        for (row, verdict), vote in zip(pairs, votes([_sample(*pair) for pair in pairs]), strict=True):
            yield row, verdict, vote


def _sample(row: dict[str, Any], verdict: Verdict) -> EvaluationSample:
    return EvaluationSample(
        task=row["task"], mode=row["metric"], document=row["doc_id"], repeat=row["repeat"], prompt="", text=row["text"],
        gold=row["gold"], verdict=verdict, tokens=row["tokens"], finished=row["finished"],
    )  # fmt: skip
