"""Suites: what is refused, with which place and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import SuiteError
from harness.learning import registry
from harness.session.suite.prepare import prepare_named
from harness.suite.cells import policy_as_keyed
from harness.suite.load import load_suite, parse_suite, parse_yaml, shipped_suites
from harness.suite.schema import Evaluation, Policy

GOOD = """
name: x
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, sgt]
seeds: [1, 2]
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.steps=abc", "--set training.steps: Input should be a valid integer"),
        ("training.temperature=0.001", "--set training.temperature: Input should be greater than or equal to 0.01"),
        ("training.kl=.nan", "--set training.kl: line 1, column 1: must be a finite number"),
        ("evaluation={tasks: [micro], k: x}", "--set evaluation.k: Input should be a valid integer"),
        ("foo=1", "--set foo: unknown key"),
        ("training.steps=010", "--set training.steps: line 1, column 1: '010' is 8 in YAML 1.1"),
    ],
)
def test_a_setting_of_the_command_line_is_not_the_files_fault(tmp_path: Path, setting: str, said: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(GOOD)
    with pytest.raises(SuiteError) as caught:
        load_suite(str(file), [setting])
    assert str(caught.value).startswith(said)


def test_settings_reach_into_what_a_stored_suite_leaves_null() -> None:
    written = parse_yaml(GOOD.replace(", stage0: {preset: trap, strong: add}", ""), "x")
    settings = ["groups[0].policies[0].stage0.seed=1", "regimes[1].sharing.record=true"]
    stored = parse_suite(written, (), "x").model_dump(mode="json")
    assert parse_suite(stored, settings, "x") == parse_suite(written, settings, "x")


def test_numbers_that_every_yaml_reads_alike(tmp_path: Path) -> None:
    """Item 27: 010 and 1:30 passed as 8 and 90."""
    plain = {
        "0": 0,
        "-3": -3,
        "+5": 5,
        "0x1F": 31,
        "5.": 5.0,
        ".5": 0.5,
        "1.5e+3": 1500.0,
        "1E5": 1e5,
        "2e-4": 2e-4,
        "'010'": "010",
    }
    assert {text: parse_yaml(text, "x") for text in plain} == plain


@pytest.mark.parametrize(
    ("name", "words"),
    [("bandit", "a file of bandits, not a suite; run it with: harness bandit bandit"),
     ("none.yaml", "no such file"), ("/tmp", "is a directory"),
     ("quickstrat", "did you mean 'quickstart'")],
)  # fmt: skip
def test_names_that_are_no_suites(name: str, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        load_suite(name)


def test_a_folder_of_a_suites_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_suite("quickstart").name == "quickstart"


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_every_shipped_suite_prepares(name: str, tmp_path: Path) -> None:
    cells = prepare_named(name, tmp_path).cells
    assert len({c.key for c in cells}) == len(cells) > 0


def test_single_policy_is_allowed_without_sharing(tmp_path: Path) -> None:
    alone = GOOD.replace("      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}\n", "")
    file = tmp_path / "x.yaml"
    file.write_text(alone + "sharing: {direction: none}\n")
    assert len(prepare_named(str(file), tmp_path).cells) == 4
    file.write_text(alone.replace("[independent, sgt]", "[independent]"))
    assert len(prepare_named(str(file), tmp_path).cells) == 2


def test_equal_numbers_of_rollouts_are_a_variants_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.load("sgt"), "unequal_rollouts", False)
    file = tmp_path / "x.yaml"
    for suites, variants in ((8, 4), (4, 8)):
        text = GOOD.replace("strong: mul}}", "strong: mul}, rollouts: 8}") + f"training: {{rollouts: {suites}}}\n"
        file.write_text(text.replace("sgt", f"{{regime: sgt, training: {{rollouts: {variants}}}}}"))
        if variants == 8:
            assert prepare_named(str(file), tmp_path).cells
        else:
            with pytest.raises(SuiteError, match=r"groups\[0\]\.policies: 'sgt' is defined for equal numbers"):
                prepare_named(str(file), tmp_path)


def test_keys_follow_content_only(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"

    def keys(text: str, *overrides: str) -> dict[str, str]:
        file.write_text(text)
        return {c.label: c.key for c in prepare_named(str(file), tmp_path, overrides=overrides).cells}

    first = keys(GOOD)
    assert keys("# a comment\n" + GOOD + "title: other words\n") == first
    changed = keys(GOOD, "regimes[1].lambda=0.5")
    assert {label for label in first if first[label] != changed[label]} == {"pair/sgt/1", "pair/sgt/2"}
    assert not {*keys(GOOD, "training.steps=3").values()} & {*first.values()}
    assert [c.label for c in prepare_named(str(file), tmp_path, only=["*/sgt/2"]).cells] == ["pair/sgt/2"]


def test_old_logprobs_are_in_the_key_as_the_regime_declares_them(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    keys = {}
    for what in ("", ", old_logprobs: trainer", ", old_logprobs: sampler", ", sampler_correction: 2"):
        file.write_text(GOOD.replace("sgt", f"{{regime: sgt{what}}}"))
        cell = prepare_named(str(file), tmp_path).cells[1]
        keys[what] = cell.key
        assert cell.variant.old_logprobs == ("sampler" if "sampler" in what and "corr" not in what else "trainer")
    assert keys[""] == keys[", old_logprobs: trainer"]
    assert len(set(keys.values())) == 3


def test_a_curve_asks_no_more_than_the_limit() -> None:
    asked = ({}, {"limit": 40}, {"limit": 40, "curve_prompts": 100}, {"limit": 400}, {"limit": 40, "curve_prompts": 7})
    assert [Evaluation(**settings).curve_prompts for settings in asked] == [120, 40, 40, 120, 7]


def test_a_style_that_nobody_chose_is_no_part_of_a_key() -> None:
    """Cells from before there were styles keep their keys; a chosen one is another cell."""
    plain = Policy(name="a", model="micro/llama").model_dump(mode="json")
    assert policy_as_keyed(plain) == policy_as_keyed({name: value for name, value in plain.items() if name != "style"})
    assert policy_as_keyed({**plain, "style": "raw"}) != policy_as_keyed(plain)
