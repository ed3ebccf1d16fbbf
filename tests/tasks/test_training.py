"""Training prompts: overlaps with evaluation sets are found and dropped; draws depend on the step's seed alone."""

from __future__ import annotations

import pytest
from benchmark_data import data_folder

from harness.errors import DataError, PluginError
from harness.tasks.overlap import find_overlaps
from harness.tasks.training import draw, training_pool

FOLDER = data_folder()
needs_data = pytest.mark.skipif(FOLDER is None, reason="no benchmark folder (HARNESS_DATA)")


def test_overlaps_exact_near_and_none() -> None:
    start = "A farmer has $12$ sheep and buys $\\frac{3}{4}$ as many again."
    rest = "How many sheep does the farmer have in the end, once all of them have been counted twice?"
    base = f"{start} {rest}"
    evaluation = [("set", "e1", base), ("set", "e2", "Compute $1+1$.")]
    training = [
        ("same", "a farmer has 12 sheep and buys \\dfrac{3}{4}  as many again. " + rest.rstrip("?")),
        ("near", base.replace("12", "16")),
        ("other", "A train leaves at noon and travels 80 miles an hour for three hours. How far does it get?"),
        ("short", "Compute $2^{10}$."),
    ]
    found = {o.training: o for o in find_overlaps(training, evaluation)}
    assert set(found) == {"same", "near"}
    assert (found["same"].kind, found["same"].evaluation, found["same"].similarity) == ("exact", "e1", 1.0)
    assert found["near"].kind == "near"
    assert 0.7 <= found["near"].similarity < 1


@needs_data
def test_math_drops_what_the_evaluation_sets_repeat() -> None:
    pool = training_pool("math", data_dir=FOLDER)
    dropped = {overlap.training for overlap in pool.overlaps}
    known = {
        "train/algebra/517.json", "train/geometry/6032.json", "train/algebra/777.json", "train/algebra/2733.json",
        "train/geometry/25086.json", "train/algebra/2197.json", "train/intermediate_algebra/1087.json",
        "train/intermediate_algebra/753.json",
    }  # fmt: skip
    assert known <= dropped
    assert "train/intermediate_algebra/1486.json" in pool.ambiguous
    assert not dropped & {prompt.id for prompt in pool.prompts}
    assert len(pool.prompts) + len(dropped) + len(pool.ambiguous) == 7_498
    assert not pool.unchecked
    assert all("\\boxed{}" in prompt.text for prompt in pool.prompts)


@needs_data
def test_level_filter_and_draws() -> None:
    pool = training_pool("math", min_level=3, data_dir=FOLDER)
    assert {prompt.labels["level"] for prompt in pool.prompts} == {"3", "4", "5"}
    first = draw("math", 17, 32, min_level=3, data_dir=FOLDER)
    assert first == draw("math", 17, 32, min_level=3, data_dir=FOLDER)
    assert len({prompt.id for prompt in first}) == 32
    assert first != draw("math", 18, 32, min_level=3, data_dir=FOLDER)
    with pytest.raises(DataError, match="99999 prompts a step"):
        pool.draw(1, 99_999)
    with pytest.raises(DataError, match="no levels"):
        training_pool("gsm8k", min_level=3, data_dir=FOLDER)


def test_unknown_training_task() -> None:
    with pytest.raises(PluginError, match="micro, math, gsm8k"):
        draw("humaneval", 1, 2)
