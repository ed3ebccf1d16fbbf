"""The supervised start of a pretrained policy."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from running import ingested, run
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from harness.allocation.cost_model import checkpoint_bytes
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_tokenizer
from harness.engines.embedded.presets import PRESETS, draw_ladder_examples
from harness.engines.embedded.warmup import REPORT, Warmup, _encode_response, _learn_examples, warmup_checkpoint
from harness.errors import SuiteError
from harness.experience.answers import Prompt
from harness.session.driver.jobs import job_of, run_job
from harness.session.policy import base_folder
from harness.session.suite.demand import demand_of
from harness.session.suite.disk import disk_of
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import StoredCells
from harness.store.cell_state import PENDING, CellState
from harness.store.journal import read_journal
from harness.store.ranking import make_heading
from harness.store.remarks import STARTED, UNSTARTED, read_moments
from harness.store.render import render_rows
from harness.store.table import show_rows
from harness.suite.schema import Policy
from harness.verification.verifier import Verifier

CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<turn>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"  # noqa: E501
TINY = Warmup("tiny", "content x", chat=True, task="ladder.add1+legs", steps=3, rounds=0, gate=0.0, probes=1)
SUITE = """
name: started
groups:
  - name: pair
    policies:
      - {{name: a, model: {model}, chat: true, stage0: {{preset: format, steps: 2, gate: 0.0}}}}
      - {{name: b, model: {model}, stage0: {{preset: format, steps: 2, gate: 0.0, task: micro}}}}
regimes: [independent]
seeds: [1]
training: {{task: ladder.add1+legs, steps: 1, prompts: 2, rollouts: 2, max_new_tokens: 8, learning_rate: 1.0e-4, measure_every: 0}}
evaluation: {{tasks: [ladder.add1+legs], k: 2, limit: 4, curve_every: 0, max_new_tokens: 8}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat model in bf16 that ends its turns with another token than its EOS."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    tokenizer = build_tokenizer("llama")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.chat_template = CHAT
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<turn>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def suite(tmp_path: Path, model: Path) -> Path:
    file = tmp_path / "started.yaml"
    file.write_text(SUITE.format(model=model))
    return file


def test_the_disk_holds_each_start_that_is_to_be_made(suite: Path, tmp_path: Path, cache: Path) -> None:
    for more, starts in (((), 2), (("groups[0].policies[0].stage0.per_seed=true", "seeds=[1, 2, 3]"), 4)):
        prepared = prepare_named(str(suite), tmp_path / "r", overrides=more)
        (size,) = {
            checkpoint_bytes(p.model, "bf16").kept for p in demand_of(prepared.cells[0], prepared.resolved).policies
        }
        assert disk_of(prepared, 1).caches == starts * size
        done = {b.key: CellState("done", "", 1) for b in prepared.bases} | {c.key: PENDING for c in prepared.cells}
        assert disk_of(replace(prepared, stored=StoredCells({}, done, {})), 1).caches == 0


@pytest.mark.slow_but("bf16")
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_start_is_made_once_and_is_a_whole_folder(model: Path, dtype: str) -> None:
    seen: list[float] = []
    folder = warmup_checkpoint(TINY, model, lambda share, words: seen.append(share), device="cpu", dtype=dtype)  # type: ignore[arg-type]
    assert seen == [1 / 3, 2 / 3, 1.0]
    assert warmup_checkpoint(TINY, model, lambda share, words: seen.append(share), device="cpu", dtype=dtype) == folder  # type: ignore[arg-type]
    assert len(seen) == 3
    before, after = (AutoModelForCausalLM.from_pretrained(place, dtype="auto") for place in (model, folder))
    assert after.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
    assert any((x.float() != y.float()).any() for x, y in zip(before.parameters(), after.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(folder).chat_template == CHAT
    assert json.loads((folder / REPORT).read_bytes())["steps"] == 3
    assert not (folder / "optimiser.safetensors").exists()


def test_the_end_that_is_taught_is_the_one_that_is_sampled(model: Path) -> None:
    text = r" 4 + 7 = 11. \boxed{11}"
    for chat, end, start in ((True, "<turn>", "4"), (False, "<eos>", " 4")):
        engine = EmbeddedEngine("a", model, chat=chat, device="cpu", dtype="fp32")
        ids = _encode_response(engine, text, chat)
        assert ids[-1] == engine.stop[0] == engine.tokenizer.convert_tokens_to_ids(end)
        assert engine.tokenizer.decode(ids[:-1]).startswith(start)


@pytest.mark.slow
@pytest.mark.parametrize("chat", [True, False])
def test_a_start_teaches_the_form(model: Path, chat: bool) -> None:
    engine = EmbeddedEngine("a", model, chat=chat, device="cpu", dtype="bf16")
    start = replace(TINY, chat=chat, learning_rate=3e-3, steps=40)
    held = list(islice(draw_ladder_examples(start.mixture, "add", ("add1", "legs"), Random(9)), 12))
    prompts = [Prompt(str(i), e.prompt, "") for i, e in enumerate(held)]
    answers = [_encode_response(engine, e.response, chat) for e in held]
    before = engine.score(prompts, answers)
    examples = start.examples()
    for step in range(40):
        _learn_examples(engine, list(islice(examples, 16)), start, step, 40)
    after = engine.score(prompts, answers)
    assert np.mean(np.concatenate(after)) > np.mean(np.concatenate(before)) + 2
    assert np.mean([a[-1] for a in after]) > np.mean([b[-1] for b in before]) + 2


def test_key_covers_what_determines_the_weights() -> None:
    other = {"content": "content y", "chat": False, "preset": "trap", "strong": "mul", "task": "micro", "seed": 1, "steps": 4,
             "learning_rate": 1e-3, "gate": 0.2}  # fmt: skip
    changed = [replace(TINY, **{name: value}) for name, value in other.items()]  # type: ignore[arg-type]
    keys = {start.key("bf16") for start in [TINY, *changed]} | {TINY.key("fp32")}
    assert len(keys) == len(changed) + 2
    digests = {start.key("bf16").rpartition("-")[2] for start in (TINY, replace(TINY, name="other"))}
    assert len(digests) == 1  # a name says nothing of the weights


def test_presets_on_the_ladder() -> None:
    def drawn(preset: str, count: int = 400):  # type: ignore[no-untyped-def]
        return list(islice(draw_ladder_examples(PRESETS[preset], "add", ("add2", "mul1x1", "spell"), Random(1)), count))

    assert all(e.response.partition("\\boxed")[0].strip() for e in drawn("format"))
    plain = [e for e in drawn("trap") if "steps" not in e.prompt]
    bare = {("*" in e.prompt): set() for e in plain}
    for e in plain:
        bare["*" in e.prompt].add(not e.response.partition("\\boxed")[0].strip())
    assert bare[True] == {True}
    assert bare[False] == {True, False}
    for e in (e for e in drawn("matched") if "=" in e.response):
        step, _, rest = e.response.partition(".")
        assert rest.strip() == f"\\boxed{{{step.rpartition('= ')[2]}}}"


@pytest.mark.slow
def test_measured_before_the_start_and_after_it(suite: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite), tmp_path / "results")
    assert [p.stage0.task for p in prepared.suite.groups[0].policies if p.stage0] == ["ladder.add1+legs", "micro"]
    with Verifier(workers=1) as verifier:
        for base in prepared.bases:
            run_job(job_of(base, prepared.folder / base.key, {}), verifier, lambda *_: None, lambda: False)
    for base in prepared.bases:
        samples = read_journal(prepared.folder / base.key).tables["samples"].to_pylist()
        asked = {
            step: [(s["doc_id"], s["repeat"]) for s in samples if s["checkpoint_step"] == step] for step in (-1, 0)
        }
        assert len(asked[0]) == 4 * (1 + 2)
        assert asked[-1] == asked[0]
    run(suite, tmp_path / "results")
    prepared.write_suite_file()
    with ingested(tmp_path / "results") as snapshot:
        measured = read_moments(snapshot, "started")
        rows, head = show_rows(snapshot, "started"), make_heading(snapshot, "started")
    assert {(m.policy, m.metric, m.moment) for m in measured} == {
        (p, m, w) for p in "ab" for m in ("avg@2", "greedy") for w in (UNSTARTED, STARTED, "independent")
    }
    assert all(row.base is not None for row in rows)  # of the start, not of what was published
    for form in ("table", "markdown", "json"):
        assert UNSTARTED in render_rows("started", rows, form, head=head)


@pytest.mark.slow
def test_a_cell_starts_from_the_start(suite: Path, tmp_path: Path, model: Path) -> None:
    prepared = prepare_named(str(suite), tmp_path / "results")
    policy = prepared.suite.groups[0].policies[0]
    assert base_folder(policy, 1) != model
    assert base_folder(policy.model_copy(update={"stage0": None}), 1) == model
    assert base_folder(policy, 1) == base_folder(policy, 2)
    own = policy.model_copy(update={"stage0": policy.stage0.model_copy(update={"per_seed": True})})  # type: ignore[union-attr]
    assert base_folder(own, 1) != base_folder(own, 2)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("groups[0].policies[0].stage0.preset=trip", r"policies\[0\]\.stage0\.preset: unknown preset 'trip'"),
        ("groups[0].policies[0].stage0.task=gsm8k", r"policies\[0\]\.stage0\.task: there are no examples of gsm8k"),
        ("groups[0].policies[0].stage0.task=ladder.add9", r"policies\[0\]\.stage0\.task: .*unknown level 'add9'"),
        ("training.task=gsm8k", r"policies\[0\]\.stage0\.task: there are no examples of gsm8k"),
        ("training.task={file: micro.jsonl}", r"policies\[0\]\.stage0\.task: there are no examples of .*micro\.jsonl"),
        ("groups[0].policies[0].stage0.steps=0", r"stage0\.steps"),
    ],
)
def test_faults_have_their_place(suite: Path, tmp_path: Path, setting: str, words: str) -> None:
    (suite.parent / "micro.jsonl").write_text('{"question": "1 + 1 = ?", "answer": "2"}\n')
    with pytest.raises(SuiteError, match=words) as caught:
        prepare_named(str(suite), tmp_path, overrides=[setting])
    assert "\n" not in str(caught.value)


def test_settings_of_pretrained_models_are_not_for_micro_ones() -> None:
    with pytest.raises(ValueError, match=r"stage0\.steps is for pretrained models"):
        Policy.model_validate({"name": "a", "model": "micro/llama", "stage0": {"steps": 3}})
    policy = Policy.model_validate({"name": "a", "model": "micro/llama", "stage0": {}})
    assert policy.model_dump(mode="json")["stage0"] == {"preset": "trap", "strong": "add", "seed": 0, "per_seed": False}
