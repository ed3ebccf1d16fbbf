"""Training prompts: overlaps with evaluation sets are found and dropped."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import overlap_index
import pytest
from benchmark_data import data_folder

from harness.errors import DataError
from harness.tasks import micro
from harness.tasks.data import load_set, parse_rows
from harness.tasks.overlap import INDEX, find_overlaps, pinned_index
from harness.tasks.registry import EVALUATION_SETS, training_source
from harness.tasks.sets import SETS, SOURCES

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
    overlaps = {o.training: o for o in find_overlaps(training, evaluation)}
    assert set(overlaps) == {"same", "near"}
    assert (overlaps["same"].kind, overlaps["same"].evaluation, overlaps["same"].similarity) == ("exact", "e1", 1.0)
    assert overlaps["near"].kind == "near"
    assert 0.7 <= overlaps["near"].similarity < 1


@needs_data
def test_math_drops_what_the_evaluation_sets_repeat() -> None:
    pool = training_source("math").pool(data_dir=FOLDER)
    dropped = {overlap.training for overlap in pool.overlaps}
    known = {
        "train/algebra/517.json", "train/geometry/6032.json", "train/algebra/777.json", "train/algebra/2733.json",
        "train/geometry/25086.json", "train/algebra/2197.json", "train/intermediate_algebra/1087.json",
        "train/intermediate_algebra/753.json",
    }  # fmt: skip
    assert FOLDER is not None
    content = (FOLDER / "math_train.jsonl").read_bytes()
    texts = {row.problem: row.id for row in load_set("math_train", FOLDER)}
    ids = {row.id: texts[row.problem] for row in parse_rows(content, "")}
    assert {ids[name] for name in known} <= dropped
    assert ids["train/intermediate_algebra/1486.json"] in pool.ambiguous
    assert not dropped & {prompt.id for prompt in pool.prompts}
    assert len(pool.prompts) + len(dropped) + len(pool.ambiguous) == 7_498
    assert all("\\boxed{}" in prompt.text for prompt in pool.prompts)


@pytest.mark.slow
@needs_data
def test_the_pinned_overlaps_are_those_of_all_sets() -> None:
    index = overlap_index.index(FOLDER)
    assert index == pinned_index()
    assert overlap_index.text(index) == INDEX.read_text("utf-8")


@needs_data
@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_no_prompt_depends_on_which_evaluation_sets_are_at_hand(name: str, tmp_path: Path) -> None:
    assert FOLDER is not None
    (tmp_path / f"{name}_train.jsonl").symlink_to(FOLDER / f"{name}_train.jsonl")
    alone, beside = (training_source(name).pool(data_dir=folder) for folder in (tmp_path, FOLDER))
    assert alone == beside
    assert alone.digest() == beside.digest()


def test_a_pools_digest_needs_no_data_and_knows_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {name: SETS[name].sha256 for name in (*EVALUATION_SETS, *SOURCES.values())}
    assert pinned_index().sets == sets, "run tools/overlap_index.py"
    monkeypatch.setenv("HARNESS_DATA", "/nowhere")
    assert training_source("micro").pool_digest() == ""
    assert training_source("math").pool_digest() != training_source("gsm8k").pool_digest()
    fewer = msgspec.structs.replace(
        pinned_index(), overlaps={**pinned_index().overlaps, "math_train": pinned_index().overlaps["math_train"][1:]}
    )
    before = training_source("math").pool_digest()
    monkeypatch.setattr("harness.tasks.shipped.pinned_index", lambda: fewer)
    assert training_source("math").pool_digest() != before


@needs_data
def test_level_filter_and_draws() -> None:
    pool = training_source("math").pool(min_level=3, data_dir=FOLDER)
    assert {prompt.labels["level"] for prompt in pool.prompts} == {"3", "4", "5"}
    first = training_source("math").draw(17, 32, min_level=3, data_dir=FOLDER)
    assert first == training_source("math").draw(17, 32, min_level=3, data_dir=FOLDER)
    assert len({prompt.id for prompt in first}) == 32
    assert first != training_source("math").draw(18, 32, min_level=3, data_dir=FOLDER)
    with pytest.raises(DataError, match="99999 prompts a step"):
        pool.draw(1, 99_999)
    with pytest.raises(DataError, match="no levels"):
        training_source("gsm8k").pool(min_level=3, data_dir=FOLDER)


def test_micro_prompts_of_one_part_are_never_of_another():
    drawn = {
        part: {p.text for seed in range(60) for p in micro.training_prompts(seed, 12, part=part)}
        for part in ("tuning", "final")
    }
    drawn["dev"] = {p.text for p in micro.evaluation_prompts(20, part="dev")}
    drawn["held out"] = {p.text for p in micro.evaluation_prompts()}
    assert min(map(len, drawn.values())) >= 120
    for one, other in itertools.combinations(drawn.values(), 2):
        assert not one & other
