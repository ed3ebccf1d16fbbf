"""The checks of a bundle's rows: all questions, all steps, each cell's rows its own, verdicts that follow from the texts, tables
that follow from the verdicts.

A check returns one line on what it read, and raises UsageError with the place of the fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations, groupby
from typing import Any

import msgspec

from harness.errors import DataError, PluginError
from harness.evaluation.metrics import EvaluationSample, votes
from harness.learning import registry
from harness.scoring.catalogue import called
from harness.statistics import paired
from harness.store.comparisons import MEAN, finished
from harness.store.ingest import ingest
from harness.store.read import Snapshot
from harness.submission.bundle import SCORES, installed, stated
from harness.submission.evidence import Evidence, first_difference, plain
from harness.suite.cells import Cell
from harness.suite.schema import Variant
from harness.tasks.registry import get_task
from harness.tasks.source import fair_part
from harness.verification.verifier import Verifier

ROUNDING = 1e-9
ERROR = 0.01
"""How often an honest A/A control may be refused, over all of a suite's comparisons (Bonferroni)."""
_SAMPLED = ("policy", "right", "wrong", "invalid", "truncated", "answers", "generated_tokens")
"""Of a policy's first step: what its own samples were."""


def questions(e: Evidence) -> str:
    """Each evaluation asks each question of the suite, once or k times, with our reference answers where we have the set."""
    evaluation = e.resolved.evaluation
    golds: dict[str, dict[str, str]] = {}
    wanted: dict[tuple[str, str], set[int]] = {}
    for task in installed(e.resolved):
        with suppress(DataError, PluginError):
            prompts = fair_part(get_task(task).documents(None, fetch=False), evaluation.limit)
            golds[task] = {prompt.id: prompt.gold for prompt in prompts}
        if evaluation.greedy or evaluation.k is None:
            wanted[task, "greedy"] = {0}
        if k := get_task(task).k if evaluation.k is None else evaluation.k:
            wanted[task, "sampled"] = set(range(k))
    last = {cell.key: cell.training.steps for cell in e.derived}
    known, count = {task: set(own) for task, own in golds.items()}, 0
    for key, manifest in e.manifests.items():
        rows = e.tables(key)["samples"].to_pylist()
        count += len(rows)
        for policy in manifest.policies:
            place = f"{e.suite}/{key}: samples of {policy.name}"
            own = [row for row in rows if row["policy"] == policy.name]
            newest, step = max((row["checkpoint_step"] for row in own), default=None), last.get(key, 0)
            if newest != step:
                raise e.fault(f"of step {newest}; the suite evaluates step {step}", place)
            own = [row for row in own if row["checkpoint_step"] == newest]
            if problem := _not_as_asked(own, wanted, golds, known):
                raise e.fault(problem, place)
    unknown = [task for task in installed(e.resolved) if task not in golds]
    return f"{count:,} answers, none left out" + (
        f"; not here to compare with: {', '.join(unknown)}" if unknown else ""
    )


def _not_as_asked(
    rows: list[dict[str, Any]],
    wanted: Mapping[tuple[str, str], set[int]],
    golds: Mapping[str, dict[str, str]],
    known: dict[str, set[str]],
) -> str:
    """What is wrong with the answers of one evaluation; empty where nothing is.

    wanted: repeats of each question by task and metric. golds: our reference answers by task. known: the questions of each task, by
    our set or by the first evaluation, which this adds.
    """
    asked: dict[tuple[str, str], dict[str, set[int]]] = {}
    for row in rows:
        task, question = row["task"], row["doc_id"]
        asked.setdefault((task, row["metric"]), {}).setdefault(question, set()).add(row["repeat"])
        if task in golds and row["gold"] != (gold := golds[task].get(question)):
            ours = "which the suite does not ask" if gold is None else f"whose answer is {gold[:40]!a}"
            return f"the question {question[:80]!a}, {ours}, has {row['gold'][:40]!a}"
    for (task, metric), repeats in wanted.items():
        answers = asked.pop((task, metric), {})
        own = known.setdefault(task, set(answers))
        if wrong := [question for question in own if answers.get(question) != repeats]:
            return f"{task}, {metric}: the question {wrong[0][:80]!a} does not have {len(repeats)} answers"
        if more := answers.keys() - own:
            return f"{task}, {metric}: the question {min(more)[:80]!a} is not asked in the others"
    return f"answers that the suite does not ask for: {', '.join(next(iter(asked)))[:80]}" if asked else ""


def steps(e: Evidence) -> str:
    """Every step of every policy, each of which adds up."""
    count = 0
    for cell in e.derived:
        table = e.tables(cell.key).get("steps")
        rows = table.to_pylist() if table is not None else []
        for policy in cell.group.policies:
            place = f"{e.suite}/{cell.key}: steps of {policy.name}"
            own = [row for row in rows if row["policy"] == policy.name]
            if sorted(row["step"] for row in own) != list(range(1, cell.training.steps + 1)):
                raise e.fault(f"not each of the {cell.training.steps} steps once", place)
            for row in own:
                valid = row["right"] + row["wrong"]
                apart = abs(row["right"] / valid - (row["reward_mean"] or 0)) if valid else 0.0
                if valid + row["invalid"] != row["answers"] or apart > 1e-6:
                    raise e.fault(f"the counts of step {row['step']} do not add up", place)
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
        place = f"{e.suite}/{cell.key}: steps"
        if not _may_receive(cell) and any(table["peer_received"].to_pylist()):
            problem = f"{cell.label} received answers of peers, though nobody shares: another cell's rows?"
            raise e.fault(problem, place)
        if cell.engine != "embedded":  # other engines' samplers do not repeat to the digit
            continue
        like = f"{_stream(cell)}/{cell.variant.factor}/{cell.training.model_dump_json()}"
        mine = sorted(tuple(r[name] for name in _SAMPLED) for r in table.to_pylist() if r["step"] == 1)
        other, theirs = first.setdefault(like, (cell, mine))
        if theirs != mine:
            problem = f"{cell.label} did not begin with the samples of {other.label}, as a seed on one kind of CPU does"
            raise e.fault(problem, place)
        untimed = table.drop_columns([name for name in table.schema.names if name.endswith("_seconds")])
        twin = whole.setdefault(repr(untimed.to_pylist()), cell)
        if _stream(twin) != _stream(cell):
            raise e.fault(f"{cell.label} has the rows of {twin.label}", place)
    return f"{len(e.derived)}, each with rows of its own seed"


def _stream(cell: Cell) -> str:
    """What a cell's samples are drawn by."""
    return f"{cell.group.name}/{cell.seed}/{cell.variant.sampling_stream}"


def _may_receive(cell: Cell) -> bool:
    try:
        shares = bool(registry.load(cell.variant.regime).shares)
    except PluginError:
        return True
    together = cell.sharing.direction != "none" and len(cell.group.policies) > 1
    return cell.variant.replay is not None or (shares and together)


def verdicts(e: Evidence) -> str:
    """Every answer judged again here: verdicts, extracted answers and votes are those that its text gives."""
    count = 0
    with Verifier(workers=1) as verifier:
        for key in e.manifests:
            rows = sorted(e.tables(key)["samples"].to_pylist(), key=lambda row: (*_question(row), row["repeat"]))
            count += len(rows)
            for task, of_task in groupby(rows, key=lambda row: str(row["task"])):
                own = list(of_task)
                judge = verifier.by(called(get_task(task).scorer))
                judged = judge.verify([(row["gold"], row["text"]) for row in own])
                samples = [
                    EvaluationSample(
                        task=task, mode=row["metric"], document=row["doc_id"], repeat=row["repeat"], prompt="", text=row["text"],
                        gold=row["gold"], verdict=verdict, tokens=row["tokens"], finished=row["finished"],
                    )
                    for row, verdict in zip(own, judged, strict=True)
                ]  # fmt: skip
                for _, answers in groupby(zip(own, samples, strict=True), key=lambda pair: _question(pair[0])):
                    pairs = list(answers)
                    for (row, sample), vote in zip(pairs, votes([sample for _, sample in pairs]), strict=True):
                        _compare(e, key, row, sample, vote)
    return f"{count:,} answers judged again, all as stated"


def _question(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("task", "metric", "policy", "checkpoint_step", "doc_id"))


def _compare(e: Evidence, key: str, row: Mapping[str, Any], sample: EvaluationSample, vote: int) -> None:
    again = sample.verdict
    said = row["verdict"], row["extracted"], row["vote"] if row["vote"] is not None else vote
    if said != (again.value, again.extracted, vote):
        where = f"{row['task']}, {row['metric']}, {row['doc_id'][:80]}#{row['repeat']}"
        problem = f"stated {said[0]} ({said[1][:40]!a}), but its text is {again.value} ({again.extracted[:40]!a})"
        raise e.fault(problem, f"{e.suite}/{key}: samples: {where}")


def table(e: Evidence) -> str:
    """scores.json against what the samples give here: every accuracy of every cell, every row of the table."""
    try:
        said = msgspec.json.decode((e.root / SCORES).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise e.fault(f"not a bundle's scores: {error}", SCORES) from None
    given = plain(stated(e.root, e.suite))
    if difference := first_difference(said, given, ROUNDING):
        path, theirs, ours = difference
        at = re.match(r"(scores|rows)\[(\d+)\]", path)
        row: Mapping[str, Any] = next(iter(given[at[1]][int(at[2]) :]), {}) if at else {}
        who = ", ".join(str(row[name]) for name in ("cell", "regime", "policy", "task", "metric") if name in row)
        raise e.fault(f"{theirs} for {who}; the samples give {ours}", f"{SCORES}: {path}")
    return f"{len(given['scores'])} accuracies and {len(given['rows'])} lines, as the samples give them"


def noise_floor(e: Evidence) -> str:
    """Variants that differ in nothing but the stream of their samples differ by no more than chance."""
    pairs = [(a.name, b.name) for a, b in combinations(e.resolved.regimes, 2) if _alike(a, b)]
    if not pairs:
        return "the suite has no A/A control"
    ingest(e.root)
    with Snapshot(e.root) as snapshot:
        families = {k: f for k, f in finished(snapshot, e.suite).families.items() if k[1] == MEAN}
    differences = []
    for (group, _, task, metric), family in families.items():
        for first, second in pairs:
            ours, theirs = family.scores.get(first, {}), family.scores.get(second, {})
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) < 2:
                continue
            test = paired(
                [ours[s].accuracy for s in seeds],
                [theirs[s].accuracy for s in seeds],
                noise=[ours[s].noise + theirs[s].noise for s in seeds],
            )
            p, mean = float(test.p), float(test.mean)
            if p * len(pairs) * len(families) < ERROR:
                problem = f"{second} differs from {first} by {-100 * mean:+.1f} points (p = {p:.2g})"
                raise e.fault(f"{problem}, though nothing but chance tells them apart", f"{group}, {task}, {metric}")
            differences.append(abs(mean))
    if not differences:
        return "one seed alone has no noise floor"
    largest = 100 * max(differences)
    return f"{len(differences)} A/A comparisons inside the noise floor, the largest {largest:.1f} points"


def _alike(a: Variant, b: Variant) -> bool:
    apart = {"name", "sampling_stream"}
    return a.sampling_stream != b.sampling_stream and a.model_dump(exclude=apart) == b.model_dump(exclude=apart)
