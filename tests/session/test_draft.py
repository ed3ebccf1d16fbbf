"""`harness new-suite`: settings that fit the models, a file that loads, and hints for who follows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import here
from transformers import LlamaConfig, Qwen2Config

import harness.engines.embedded
from harness.allocation.cost_model import device_of
from harness.allocation.planner import Plan, Predicted, Resources
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_tokenizer
from harness.errors import DataError, PluginError, UsageError
from harness.session.policy import base_folder
from harness.session.single.levels import _of_like_length
from harness.session.suite.draft import USUAL, draft_by_trial
from harness.session.suite.draft_text import SETTINGS_BY_SIZE, Findings, write_draft
from harness.session.suite.draft_time import STEPS, measure_pace
from harness.session.suite.draft_trial import DraftTrial, TriedLevel, choose_settings, try_models
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.suite.load import load_suite
from harness.suite.schema import Suite

SIZED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
SMALL, SMOL, LARGE = (
    dict(zip(SIZED, sizes, strict=True))
    for sizes in ((64, 128, 2, 4, 416), (576, 1536, 30, 9, 49152), (3584, 18944, 28, 28, 152064))
)


def folder(place: Path, config: LlamaConfig, chat: bool = False) -> str:
    """A model's folder without its weights: a draft reads none."""
    place.mkdir()
    tokenizer = build_tokenizer("llama")
    if chat:
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(place)
    (place / "config.json").write_text(json.dumps(config.to_dict() | {"dtype": "bfloat16"}))
    return str(place)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return (
        folder(tmp_path / "Smol-Instruct", LlamaConfig(**SMOL, max_position_embeddings=2048), chat=True),
        folder(tmp_path / "base", Qwen2Config(**SMALL, max_position_embeddings=2048)),
    )


def written(models: tuple[str, ...], task: str) -> Suite:
    return Suite.model_validate(yaml.safe_load(write_draft(models, task, "pair")))


def test_a_chat_model_and_a_base_model_are_asked_each_in_its_way(pair: tuple[str, str]) -> None:
    chat, base = written(pair, "micro").groups[0].policies
    assert (chat.name, chat.chat, chat.style) == ("smol-instruct", True, "zero-shot")
    assert (base.name, base.chat, base.style) == ("base", False, "few-shot")
    assert {p.style for p in written(pair, "gsm8k").groups[0].policies} == {"zero-shot"}


@pytest.mark.parametrize(
    ("config", "engine", "size"), [(SMALL, "embedded", 0), (SMOL, "embedded", 1), (LARGE, "openrlhf", 3)]
)
def test_the_largest_model_decides(tmp_path: Path, config: dict[str, int], engine: str, size: int) -> None:
    small = folder(tmp_path / "small", LlamaConfig(**SMALL))
    suite = written((small, folder(tmp_path / "other", Qwen2Config(**config))), "gsm8k")
    assert suite.engine == engine
    assert suite.training.learning_rate == (
        SETTINGS_BY_SIZE[size].lora_rate if size == 1 else SETTINGS_BY_SIZE[size].full_rate
    )
    assert (suite.training.prompts, suite.training.rollouts) == (
        SETTINGS_BY_SIZE[size].prompts,
        SETTINGS_BY_SIZE[size].rollouts,
    )
    assert suite.evaluation.tasks == ["gsm8k"]
    assert suite.training.max_new_tokens == suite.evaluation.max_new_tokens


def test_a_model_s_path_that_no_suite_takes_is_refused_in_one_line(pair: tuple[str, str], tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 130) / ("y" * 130)
    deep.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"--models: groups\[0\].policies\[1\].model: .* at most 256 characters"):
        draft_by_trial((pair[0], str(Path(pair[1]).rename(deep / "base"))), "micro", "pair", tmp_path / "pair.yaml", 30)


def test_the_file_prepares_and_the_check_before_a_run_has_nothing_to_remark(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    file = tmp_path / "here" / "pair.yaml"
    file.write_text(write_draft(pair, "micro", "pair"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/😀.jsonl").write_text('{"question": "1 + 1", "answer": 2}')
    words = ("--models", *pair, "--task", "../data/😀.jsonl:exact", "--no-trial", "--out", "file.yaml")
    assert "  harness run file.yaml\n" in here("new-suite", *words)[1]
    assert "#   harness plan file.yaml     what" in Path("file.yaml").read_text()
    prepared = prepare_named(str(file), tmp_path / "results", overrides=["regimes=[independent]"])
    assert len(prepared.cells) == 3
    monkeypatch.setattr("harness.engines.vocabulary.check_weights", lambda folder: None)
    assert check_before_run(prepared, about_to_run=False) == []
    raw = prepare_named(
        str(file), tmp_path / "results", overrides=["regimes=[independent]", "groups[0].policies[0].style=raw"]
    )
    (remark,) = check_before_run(raw, about_to_run=False)
    assert remark.startswith(
        "groups[0].policies[0].style: smol-instruct is asked micro questions without a word on the box"
    )


def test_a_model_in_the_working_folder_gives_its_name(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair[0])
    said = here("new-suite", "--models", ".", pair[1], "--task", "micro", "--no-trial")[1]
    assert "  harness plan smol-instruct-base.yaml" in said


def test_a_name_that_yaml_would_read_otherwise_is_in_quotes(tmp_path: Path) -> None:
    (tmp_path / "a #b: c").mkdir()
    models = tuple(folder(tmp_path / "a #b: c" / name, LlamaConfig(**SMALL)) for name in ("1000", "null"))
    file = tmp_path / "7.yaml"
    file.write_text(write_draft(models, "micro", "7", file=file))
    suite = load_suite(str(file))
    assert (suite.name, [(p.name, p.model) for p in suite.groups[0].policies]) == (
        "7",
        [("1000", models[0]), ("null", models[1])],
    )
    assert f"#   harness plan {file}     what" in file.read_text()
    assert '"' not in write_draft(("Qwen/Qwen3-1.7B-Base", "meta-llama/Llama-3.2-3B"), "micro", "a-b_c.2")


def test_bf16_is_for_cards_that_have_it(pair: tuple[str, str], nvidia_smi: Callable[..., Path]) -> None:
    for card, dtype in (("Tesla T4", "fp32"), ("NVIDIA H100 80GB HBM3", "bf16")):
        nvidia_smi(1, card)
        assert written(pair, "micro").engine_options["dtype"] == dtype
        assert written((pair[0], "micro/llama"), "micro").engine_options["dtype"] == dtype
        assert written(("micro/llama", "micro/qwen"), "micro").engine_options["dtype"] == "fp32"


def test_adapters_are_drafted_for_real_models_where_peft_is_installed(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = written(pair, "micro")
    assert suite.engine_options["lora"] == {"rank": 16, "alpha": 32}
    assert suite.training.learning_rate == 5e-5
    assert "lora" not in written(("micro/llama", "micro/qwen"), "micro").engine_options
    monkeypatch.setattr("harness.session.suite.draft_text.find_spec", lambda name: None)
    text = write_draft(pair, "micro", "pair")
    suite = Suite.model_validate(yaml.safe_load(text))
    assert ("lora" in suite.engine_options, suite.training.learning_rate) == (False, 1e-6)
    assert "with adapters (pip install -e '.[lora]' -c constraints.txt) half the time" in text


def test_the_first_step_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It allocates the optimiser's state."""
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    suite, source, clock, slow = written(tuple(map(str, BASES)), "micro"), str(tmp_path / "pair.yaml"), [0.0], [0.0]
    monkeypatch.setattr("harness.session.suite.draft_time.time.process_time", lambda: clock[0])
    update = EmbeddedEngine.update

    def updated(engine: EmbeddedEngine, *args: Any) -> Any:
        clock[0] += 1.0 if engine.version else 1.0 + slow[0]
        return update(engine, *args)

    monkeypatch.setattr(EmbeddedEngine, "update", updated)
    plain = measure_pace(suite, source)
    slow[0] = 100.0
    assert measure_pace(suite, source) == plain


def test_hub_names_by_their_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Qwen/Qwen3-1.7B-Base", "meta-llama/Llama-3.2-3B-Instruct")
    base, chat = written(names, "math").groups[0].policies
    assert (base.model, base.chat) == (names[0], False)
    assert (chat.model, chat.chat) == (names[1], True)
    assert written(names, "math").evaluation.tasks == ["math500"]


def test_refusals(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        write_draft((pair[0], pair[0]), "micro", "x")
    with pytest.raises(PluginError, match="unknown training task 'chess'"):
        write_draft(pair, "chess", "x")
    with pytest.raises(UsageError, match="neither a folder"):
        write_draft((pair[0], "no/such/model"), "micro", "x")


BASES = sorted((Path(harness.engines.embedded.__file__).parent / "bases").iterdir())


def test_a_trial_finds_how_two_checkpoints_are_asked_how_long_they_write_and_how_many_steps_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their 256 positions hold no worked examples beside a question and its answer, so the draft asks without; the trial finds
    the style that they were trained on."""
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    monkeypatch.chdir(tmp_path)
    models = [str(base) for base in BASES]
    drafted = yaml.safe_load(write_draft(models, "micro", "pair"))
    assert [p["style"] for p in drafted["groups"][0]["policies"]] == ["zero-shot"] * 2
    file = tmp_path / "pair.yaml"
    texts = [draft_by_trial(models, "micro", "pair", file, 0.5)]
    monkeypatch.setattr("harness.session.suite.draft.measure_pace", lambda suite, source: 1.0)
    texts += [draft_by_trial(models, "micro", "pair", file, 5)]
    short, long = (Suite.model_validate(yaml.safe_load(text)) for text in texts)
    for policy in short.groups[0].policies:
        assert (policy.style, policy.stage0) == ("raw", None)
        share = re.search(rf"#   micro: .*?{policy.name} (\d+)% right", texts[0])
        assert share
        assert 20 <= int(share[1]) <= 70
    assert short.training.max_new_tokens == short.evaluation.max_new_tokens < drafted["training"]["max_new_tokens"]
    assert STEPS[0] <= short.training.steps < long.training.steps <= STEPS[1]
    assert f"steps {long.training.steps}: the suite takes 5 minutes" in texts[1]
    assert "That is by a step that was measured here" in texts[0]
    assert len(re.findall(r"\d+ minutes", texts[0])) == 1, "one time"
    monkeypatch.setattr("harness.session.suite.draft.measure_pace", lambda suite, source: 1e3)
    assert "Fewer than 16 steps show nothing." in draft_by_trial(models, "micro", "pair", file, 5)


def test_a_plan_that_is_too_hopeful_is_stretched_by_the_time_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    suite, source = written(tuple(map(str, BASES)), "micro"), str(tmp_path / "pair.yaml")
    by_the_prior, slow = measure_pace(suite, source), device_of("CORE")
    for rate in ("train", "score", "read"):
        slow = replace(slow, **{rate: getattr(slow, rate) / 100})
    monkeypatch.setattr(
        "harness.session.suite.draft_time.device_of", lambda kind: replace(slow, layer=100 * slow.layer)
    )
    assert measure_pace(suite, source) < by_the_prior / 10


def test_the_step_is_timed_without_a_supervised_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    starts, raw = list[Any](), yaml.safe_load(write_draft(tuple(map(str, BASES)), "micro", "pair"))
    for policy in raw["groups"][0]["policies"]:
        policy["stage0"] = {"preset": "format"}

    def opened(policy: Any, seed: int) -> Path:
        starts.append(policy.stage0)
        return base_folder(policy, seed)

    monkeypatch.setattr("harness.session.suite.draft_time.base_folder", opened)
    assert measure_pace(Suite.model_validate(raw), str(tmp_path / "pair.yaml")) > 0
    assert starts == [None, None]


def test_what_cannot_be_tried_is_drafted_and_says_why(pair: tuple[str, str], tmp_path: Path) -> None:
    text = draft_by_trial(("micro/llama", "micro/qwen"), "micro", "pair", tmp_path / "pair.yaml", 30)
    assert "#   Not measured on this machine: micro/llama has no weights before its first run." in text
    assert Suite.model_validate(yaml.safe_load(text)).training.steps > SETTINGS_BY_SIZE[0].steps, (
        "the time is known all the same"
    )


def test_what_does_not_fit_this_machine_has_the_steps_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(*_: object) -> Plan:
        return Plan(False, "no node has 1 TB", 12, 12, Resources("8 cores", 8, 10**9, 0), Predicted())

    monkeypatch.setattr("harness.session.suite.draft_time.plan_for", planned)
    text = draft_by_trial(("micro/llama", "micro/qwen"), "micro", "pair", tmp_path / "pair.yaml", 30)
    assert "steps are by the models' size: no node has 1 TB\n" in text
    assert "minutes on this machine" not in text
    assert Suite.model_validate(yaml.safe_load(text)).training.steps == SETTINGS_BY_SIZE[0].steps


def trials(level: str, *right: float, cut: float = 0.0, tokens: int = 20) -> list[TriedLevel]:
    return [TriedLevel(name, level, "few-shot", r, cut, tokens) for name, r in zip("ab", right, strict=True)]


@pytest.mark.parametrize(
    ("tried", "task", "expected"),
    [
        (trials("add1", 0.9, 0.5) + trials("add2", 0.6, 0.2) + trials("sub2", 0.3, 0.7), "ladder", ("ladder.add2+sub2", (), 32)),
        (trials("add1", 0.9, 0.1) + trials("add2", 0.5, 0.1), "ladder", ("ladder.add2", ("b",), 0)),
        (trials("add1", 0.9, 0.8) + trials("add2", 0.8, 0.9), "ladder", ("ladder.add1+add2", (), 32)),
        (trials("gsm8k", 0.0, 0.4) + trials("add2", 0.5, 0.5), "gsm8k", ("ladder.add2", (), 32)),
        (trials("gsm8k", 0.3, 0.4, tokens=0), "gsm8k", (None, (), 0)),
        (trials("my.jsonl", 0.0, 0.4, tokens=40), "my.jsonl", (None, (), 56)),
    ],
)  # fmt: skip
def test_a_level_is_chosen_on_which_both_can_learn(
    tried: list[TriedLevel], task: str, expected: tuple[str | None, tuple[str, ...], int]
) -> None:
    chosen = choose_settings(tried, task, 96)
    assert (chosen.task, chosen.warm, chosen.tokens) == expected
    assert chosen.answer_ends == "eos"
    assert choose_settings(trials("add2", 0.5, 0.5, cut=0.2), "ladder", 96).answer_ends == "example"
    low = [replace(one, worked=19) for one in trials("add2", 0.0, 0.1)]
    assert choose_settings(low, "ladder", 96).tokens == 24, "after a start answers are as long as its examples"


def test_several_puzzles_that_fit_are_mixed(pair: tuple[str, str]) -> None:
    shares = {"gym.gcd": (0.1, 0.9), "gym.maze": (0.3, 0.6), "gym.lcm": (0.45, 0.45), "gym.ab:length=2": (0.4, 0.5)}
    tried = [one for name, right in shares.items() for one in trials(name, *right)]
    found = choose_settings([replace(one, style="zero-shot") for one in tried], "gym.gcd", 96)
    assert found.tasks == ("gym.lcm", "gym.ab:length=2", "gym.maze"), "nearest to the middle first"
    assert "gym.gcd: a 10% right, b 90% right" in found.why
    suite = Suite.model_validate(yaml.safe_load(write_draft(pair, "gym.*", "pair", replace(found, styles={}))))
    assert list(map(str, suite.training.tasks)) == list(found.tasks) == suite.evaluation.tasks
    alone = choose_settings(trials("countdown.3", 0.3, 0.3) + trials("countdown.4", 0.0, 0.1), "countdown", 96)
    assert written_with(pair, "countdown", alone).training.task == "countdown.3"
    none = choose_settings(trials("countdown.3", 0.0, 0.1) + trials("countdown.4", 0.0, 0.0), "countdown", 96)
    assert "too few right answers to learn from" in " ".join(none.why)


def written_with(pair: tuple[str, str], task: str, found: Findings) -> Suite:
    return Suite.model_validate(yaml.safe_load(write_draft(pair, task, "pair", replace(found, styles={}))))


def test_a_pattern_needs_a_trial(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which puzzles fit is found by a trial, but micro/llama has no weights"):
        draft_by_trial(("micro/llama", "micro/qwen"), "gym.*", "pair", tmp_path / "pair.yaml", 30)


def test_a_short_time_takes_fewer_regimes_then_seeds_then_questions(tmp_path: Path) -> None:
    families = ("micro/llama", "micro/qwen")
    text = draft_by_trial(families, "micro", "pair", tmp_path / "pair.yaml", 0.01)
    suite = Suite.model_validate(yaml.safe_load(text))
    assert ([r.name for r in suite.regimes], suite.seeds) == (["independent", "sgt"], [1, 2])
    assert suite.training.steps == STEPS[0]
    assert "Fewer than 16 steps show nothing. Give more time: --minutes " in text
    assert (suite.training.prompts, suite.evaluation.limit) == (SETTINGS_BY_SIZE[0].prompts // 2, 60)
    fewer = "independent and sgt on 2 seeds, half the questions a step"
    assert f"{fewer}: with independent, naive, sgt and hacpo on 3" in text


def test_the_task_is_the_ladder_where_the_usual_one_cannot_be_had(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(suite: Suite, among: Sequence[str] = ()) -> Findings:
        if suite.training.task == USUAL:
            raise DataError("gsm8k_train is not on this machine: name a folder")
        return Findings("ladder.add1")

    monkeypatch.setattr("harness.session.suite.draft.why_untried", lambda suite: "")
    monkeypatch.setattr("harness.session.suite.draft.try_models", lacking)
    monkeypatch.setattr("harness.session.suite.draft.measure_pace", lambda suite, source: 1.0)
    text = draft_by_trial(pair, None, "pair", tmp_path / "pair.yaml", 30)
    assert Suite.model_validate(yaml.safe_load(text)).training.task == "ladder.add1"
    assert "#   On ladder, because the questions of gsm8k are not on this machine and cannot be fetched now. " in text
    with pytest.raises(DataError):
        draft_by_trial(pair, USUAL, "pair", tmp_path / "pair.yaml", 30)


@pytest.mark.slow
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_more_is_asked_only_where_some_answers_are_right_and_some_wrong(
    right: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    answers = dict[str, int]()

    def measure(trial: DraftTrial, asked: Any, told: bool = True) -> TriedLevel:
        answers[asked.level] = sum(map(len, asked.drawn))
        share = right if asked.level in ("ladder", "add1") else float(right > 0)
        return TriedLevel(trial.engine.name, asked.level, asked.style, share, 0.0, 20)

    monkeypatch.setattr(DraftTrial, "measure", measure)
    findings = try_models(written(tuple(map(str, BASES)), "ladder"))
    assert answers.pop("ladder") == 32
    if right:
        assert answers.pop("add1") == (32 if right == 0.5 else 8)
        assert set(answers.values()) == {8}
    else:
        assert not answers, "where all mixed answers are wrong"
        assert len(findings.warm) == 2
    assert findings.tokens


def test_questions_of_like_length_are_asked_together() -> None:
    lengths = [3000, 50, 900, 60, 240, 3100, 1000, 55]
    parts = list(_of_like_length(lengths, 3))
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    assert [[lengths[place] for place in part] for part in parts] == [[50, 55, 60], [240], [900, 1000], [3000, 3100]]


@pytest.mark.parametrize(
    ("first", "second", "asked_of_second", "asked_again"),
    [
        ({"3": 0.5, "4": 0.3, "5": 1.0}, {"3": 0.0, "4": 0.4}, ["3", "4"], ["4"]),
        ({"6": 1.0}, {}, ["6", "2", "3", "4"], ["6", "2", "3", "4"]),
    ],
    ids=["where the first is right in part", "else where it does best"],
)
def test_the_second_model_is_asked_the_puzzles_that_the_first_leaves(
    first: dict[str, float],
    second: dict[str, float],
    asked_of_second: list[str],
    asked_again: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_MODELS", str(BASES[0].parent))
    small, large = sorted(BASES, key=lambda base: sum(file.stat().st_size for file in base.glob("*.safetensors")))
    answers = dict[tuple[str, str], int]()

    def measure(trial: DraftTrial, asked: Any, told: bool = True) -> TriedLevel:
        level = asked.level.removeprefix("countdown.")
        answers[trial.engine.name, level] = sum(map(len, asked.drawn))
        share = (second if trial.engine.name == names[large] else first).get(level, 0.0)
        return TriedLevel(trial.engine.name, asked.level, asked.style, share, 0.0, 20)

    monkeypatch.setattr(DraftTrial, "measure", measure)
    suite = written((str(large), str(small)), "countdown")
    names = dict(zip((large, small), [policy.name for policy in suite.groups[0].policies], strict=True))
    findings = try_models(suite, [f"countdown.{level}" for level in range(2, 7)])
    assert {level for name, level in answers if name == names[small]} == {*"23456"}
    assert [level for name, level in answers if name == names[large]] == asked_of_second
    assert [level for (name, level), count in answers.items() if name == names[large] and count == 32] == asked_again
    assert set(findings.tasks) <= {f"countdown.{level}" for level in asked_of_second}


def test_findings_become_settings(pair: tuple[str, str]) -> None:
    findings = Findings("ladder.add2", {"smol-instruct": "raw"}, ("base",), "example", 40, 12, why=("because of this",))
    suite = Suite.model_validate(yaml.safe_load(text := write_draft(pair, "gsm8k", "pair", findings)))
    chat, base = suite.groups[0].policies
    assert (chat.style, base.stage0.preset if base.stage0 else "") == ("raw", "format")
    training = suite.training
    assert (training.task, training.answer_ends, training.max_new_tokens, training.steps) == (
        "ladder.add2",
        "example",
        40,
        12,
    )
    assert suite.evaluation.tasks == ["ladder.add2"]
    assert (suite.evaluation.curve_every, len(suite.regimes), suite.seeds) == (0, 4, [1, 2, 3])
    assert "#   because of this\n" in text
