"""What is said of a ranking in a sentence, and what would settle it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from harness.statistics.comparison import FLOOR
from harness.store.finished import SeedRow
from harness.store.ranking import rank_regimes
from harness.store.sentences import _write_apart, write_doubt, write_sentence, write_summary


def seeds_of(effects: dict[str, float], seeds: int, noise: float = 0.002, groups: int = 2) -> list[SeedRow]:
    rng = np.random.default_rng(0)
    rows = []
    for group in range(groups):
        base = {seed: 0.5 + rng.normal(0, 0.02) for seed in range(seeds)}
        for regime, effect in effects.items():
            alone = regime == "independent"
            place = {
                "group": f"g{group}",
                "policy": "*",
                "regime": regime,
                "variant": regime,
                "task": "micro",
                "metric": "greedy",
            }
            for seed in range(seeds):
                accuracy = base[seed] + effect + (0 if alone else rng.normal(0, noise))
                compared = {
                    "gain": None if alone else accuracy - base[seed],
                    "baseline": None if alone else "independent",
                }
                rows.append(SeedRow(**place, **compared, seed=seed, accuracy=accuracy, noise=noise**2, base=0.4))
    return rows


EFFECTS = {"independent": 0.0, "sgt": 0.1, "hacpo": 0.1, "xgrpo": 0.0, "naive": -0.1}
WHOLE = (
    "^On 2 groups and 5 seeds, (?!.*could have seen)",  # nothing is left open (11)
    "gain over independent at the same rollout budget and cannot be told apart",
    "naive loses against it",
    "xgrpo shows no effect larger than 2 points",
)
OPEN = ("for xgrpo one cannot tell", r"With 80 % power you could have seen a gain of \d\.\d points \(xgrpo\)\.$")


@pytest.mark.parametrize(
    ("effects", "seeds", "margin", "words"),
    [
        (EFFECTS, 5, 0.02, WHOLE),
        (EFFECTS, 5, 0.0001, OPEN),
        (EFFECTS, 1, 0.02, ["a second seed is needed"]),
        (EFFECTS, 3, 0.02, ["On 2 groups"]),
        ({"independent": 0.0}, 3, 0.02, ["nothing yet to compare"]),
        ({}, 3, 0.02, ["No regime has finished"]),
        (
            {"independent": 0.0, "sgt": 0.2, "hacpo": 0.2, "prp": 0.1},
            8,
            0.02,
            ["(sgt and hacpo|hacpo and sgt) most"],
        ),
    ],
)
def test_the_sentence(effects: dict[str, float], seeds: int, margin: float, words: list[str]) -> None:
    text = write_sentence(rank_regimes(seeds_of(effects, seeds), margin))
    assert not [word for word in words if not re.search(word, text)], text


def changed(row: SeedRow, where: bool = True, **values: object) -> SeedRow:
    return msgspec.structs.replace(row, **values) if where else row


FEW = {"independent": 0.0, "sgt": 0.1, "naive": 0.0}
ALIKE = seeds_of(FEW | {"naive": 0.1}, 5)
ON = ", tuned on Qwen-Llama"
TUNED = [changed(r, regime=r.regime + ON, baseline=r.baseline and r.baseline + ON) for r in seeds_of(FEW, 5)]
SGT, TOLD = "sgt gains over independent at the same rollout budget", "naive \\(no seed in common with independent\\)"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param([r for r in seeds_of(FEW, 5) if r.group == "g0" or r.regime == "independent"],
                     ["On 1 group and 5 seeds", SGT, r"Left out: g1 \(no seed of two regimes\)"], id="only the baseline is there"),
        pytest.param([r for r in seeds_of(FEW, 5) if r.group == "g0" or r.seed == 0],
                     ["On 1 group and 5 seeds", SGT, r"Left out: g1 \(one seed\)"], id="a group has one seed yet"),
        pytest.param([changed(r, r.group == "g1", accuracy=0.0, noise=0.0, withheld=FLOOR) for r in seeds_of(FEW, 5)
                      if (r.group, r.regime) != ("g1", "naive")],
                     ["On 1 group", SGT, r"naive shows no effect", r"Left out: g1 \(no answer was right\)"], id="on the floor"),
        pytest.param([r for r in seeds_of(FEW, 5) if (r.regime == "naive") == (r.seed == 4)], [SGT, TOLD], id="no seed in common"),
        pytest.param([changed(r, r.regime != "independent", unlike=True) for r in ALIKE],
                     ["gain over independent at another number of rollouts and cannot"], id="rollouts differ"),
        pytest.param([changed(r, r.regime == "naive", unlike=True) for r in ALIKE],
                     [r"at the same rollout budget \(naive at another one\) and cannot"], id="rollouts of one differ"),
        pytest.param([*seeds_of(FEW, 5), *TUNED], ["Tuned on Qwen-Llama: sgt"], id="names keep their capitals"),
    ],
)  # fmt: skip
def test_what_is_not_finished_paired_or_alike(rows: list[SeedRow], words: list[str]) -> None:
    text = write_sentence(rank_regimes(rows))
    assert not [word for word in words if not re.search(word, text)], text


def test_none_gains_most_where_all_share_a_letter_with_the_first() -> None:
    assert _write_apart([SimpleNamespace(regime=t, baseline="", tie_group=t) for t in ("ab", "a", "b")]) == ""


def test_a_summary_is_three_short_sentences() -> None:
    """What was found, what was excluded, what could not have been seen; many names are counted."""
    many = {f"r{i}": 0.0 for i in range(9)}
    text = write_summary(rank_regimes(seeds_of(EFFECTS | many, 5, noise=0.03), 0.02), rate=1e-4)
    first, excluded, unseen = re.split(r"(?<=\.) (?=[A-Z])", text)
    assert first.startswith("On 2 groups and 5 seeds at learning rate 1e-4, ")
    assert re.search(r"(sgt and hacpo|hacpo and sgt) gain over independent, naive loses against independent\.$", first)
    assert excluded.startswith("Excluded: ")
    assert re.search(r"^Open: \w+, \w+, \w+ and \d more; with 80 % power a gain of [\d.]+ to [\d.]+ points", unseen)
    assert len(text.split()) < 70


def test_a_summary_excludes_what_is_shown_to_be_small_and_nothing_else() -> None:
    text = write_summary(rank_regimes(seeds_of(EFFECTS, 5)))
    assert text.endswith("Excluded: an effect larger than 2 points of xgrpo.")
    assert "no regime is found to gain" in write_summary(rank_regimes(seeds_of({"independent": 0.0, "xgrpo": 0.0}, 5)))
    assert "Excluded: nothing." in write_summary(rank_regimes(seeds_of({"independent": 0.0, "sgt": 0.1}, 5)))
    one = rank_regimes(seeds_of(EFFECTS, 1))
    assert write_summary(one) == write_sentence(one)


def test_how_many_seeds_would_settle_it() -> None:
    few = rank_regimes(seeds_of({"independent": 0.0, "sgt": 0.1, "prp": 0.01}, 4, noise=0.04))
    needed = {r.regime: r.seeds_needed for r in few.ranks}
    assert write_doubt(few).endswith(f" about {needed['prp']} for prp.")
    assert "as those that are there" in write_doubt(few)
    assert "sgt" not in write_doubt(few), "its gain is shown already"
    assert write_doubt(rank_regimes(seeds_of({"independent": 0.0, "sgt": 0.1}, 5))) == ""
    assert write_doubt(rank_regimes(seeds_of({"independent": 0.0, "sgt": 0.1}, 1))) == ""
    assert "more than 1,000 for prp" in write_doubt(
        rank_regimes(seeds_of({"independent": 0.0, "prp": 0.0}, 3, noise=2.0))
    )


def test_the_noisiest_regime_does_not_rule_the_power() -> None:
    rng = np.random.default_rng(1)
    rows = seeds_of({"independent": 0.0, "a": 0.0, "b": 0.0, "c": 0.0}, 4)
    wild = [msgspec.structs.replace(r, accuracy=0.5 + rng.normal(0, 0.08)) if r.regime == "c" else r for r in rows]
    told = re.findall(r"([0-9.]+) points \(([abc])\)", write_sentence(rank_regimes(wild, margin=0.0001)))
    assert len(told) == 3, "the sharpest, the middle and the most blurred one"
    assert float(told[1][0]) < 5 < 20 < float(told[2][0])
    assert told[2][1] == "c"
