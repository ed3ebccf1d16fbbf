"""docs/experience.md lists every field and value that a regime meets, and no other; its defaults and formulas are the code's."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.learning.minibatches import minibatches, pack
from harness.learning.regime import Context, Measured
from harness.learning.surrogate import surrogate
from harness.learning.terms import (
    Aggregation,
    Form,
    Objective,
    Ratio,
    Schedule,
    Term,
    TermAnswer,
    TokenWeight,
    scheduled,
)

PAGE = (Path(__file__).parents[1] / "docs" / "experience.md").read_text()
TABLES = {
    name: [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"(?m)^\| `.*$", text)]
    for name, text in re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE)
}
CLASSES = (
    Group,
    Prompt,
    Answer,
    Inbox,
    PeerAnswer,
    PeerScores,
    Context,
    Measured,
    Term,
    TermAnswer,
    Objective,
    Schedule,
)
VALUES = {"ratio": Ratio, "form": Form, "aggregation": Aggregation, "token_weight": TokenWeight}


def listed(table: str) -> list[str]:
    return [row[0].strip("`") for row in TABLES[table]]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_listed(kind: type) -> None:
    fields = {f.name for f in dataclasses.fields(kind)}
    members = {
        n for n, m in inspect.getmembers(kind) if n[0] != "_" and (isinstance(m, property) or inspect.isfunction(m))
    }
    assert sorted(listed(kind.__name__)) == sorted(fields | members)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_listed(name: str) -> None:
    assert sorted(listed(name)) == sorted(get_args(VALUES[name]))


def test_nothing_else_is_listed() -> None:
    assert set(TABLES) == {kind.__name__ for kind in CLASSES} | set(VALUES)


def test_defaults_are_the_codes() -> None:
    said = {row[0].strip("`"): row[1].strip("`") for row in TABLES["Objective"] if row[1]}
    assert said == {f.name: str(f.default) for f in dataclasses.fields(Objective)}


LP = [np.array([-0.5, -1.0, -0.2], np.float32), np.array([-0.7, -0.9], np.float32)]
OLD = [np.array([-0.9, -0.8, -0.4], np.float32), np.array([-0.3, -1.4], np.float32)]
A, LOW, HIGH, S = (1.5, -0.5), 0.8, 1.2, 0.9


def expected(ratio: str, form: str, aggregation: str, token_weight: str = "one") -> float:
    """The loss of two answers to one prompt, as the page's formulas say."""
    per_answer = []
    for lp, old, advantage in zip(LP, OLD, A, strict=True):
        d = old.mean() if ratio == "cross" else old
        log_r = {"token": lp - old, "sequence": (lp - old).mean() + 0 * lp, "cross": lp.mean() - d + 0 * lp}[ratio]
        r = np.exp(S * (lp - d if form == "kl" else log_r))
        c = np.clip(r, LOW, HIGH)
        p = np.exp(lp.astype(np.float64))
        weight = {"one": 1, "shaped": p / (p + 0.3), "slope": 0.3 * p / (p + 0.3) ** 2, "unsure": p * (1 - p)}
        per_answer.append(
            weight[token_weight]
            * {
                "ppo": np.minimum(r * advantage, c * advantage),
                "hard": c * c**0.5 * advantage,
                "truncated": np.minimum(r, HIGH) * advantage,
                "nll": lp,
                "kl": 1 - 1 / r - np.log(r),
            }[form]
        )
    sums = sum(v.sum() for v in per_answer)
    means = sum(v.mean() for v in per_answer)
    return -float(
        {"token": sums / 5, "answer": means / 2, "prompt": means / 1, "constant": sums / (2 * 7)}[aggregation]
    )


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("ratio", get_args(Ratio))
def test_the_formulas_are_the_losss(ratio: Ratio, form: Form, aggregation: Aggregation) -> None:
    for token_weight in get_args(TokenWeight):
        objective = Objective(
            ratio, form, LOW, HIGH, exponent=0.5, aggregation=aggregation, token_weight=token_weight, gamma=0.3
        )
        answers = tuple(
            TermAnswer("x", np.arange(len(lp), dtype=np.int32), a, float(o.mean()) if ratio == "cross" else o, scale=S)
            for lp, o, a in zip(LP, OLD, A, strict=True)
        )
        (term,) = scheduled([Term("own", "own", objective, answers, 2.0, schedule=Schedule(1.0, 0.5))], 2, 3)
        (batch,) = minibatches([term], 1, max_tokens=7)
        loss, _ = surrogate(torch.tensor(np.concatenate(LP), dtype=torch.float64), pack(batch, list(batch.live())))
        assert math.isclose(float(loss), 1.5 * expected(ratio, form, aggregation, token_weight), rel_tol=1e-6)
