"""Stage 0 with a few steps: cache, gate, determinism."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness import phases, versions
from harness.cache import cache_folder
from harness.engines.embedded.families import FAMILIES, build_model, build_tokenizer
from harness.engines.embedded.presets import PRESETS, Mixture, draw_examples
from harness.engines.embedded.warmup import (
    REPORT,
    SHIPPED,
    MicroSpec,
    Pretrainer,
    RateSchedule,
    base_checkpoint,
)
from harness.errors import CellError
from harness.files import lock_file
from harness.session.policy import base_folder, micro_spec
from harness.suite.schema import Policy, Stage0

TINY = MicroSpec("qwen", "mul", steps=3, rounds=0, gate=0.0, probes=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    return tmp_path


def test_second_call_trains_nothing(cache: Path) -> None:
    seen: list[tuple[float, str]] = []
    folder = base_checkpoint(TINY, lambda share, words: seen.append((share, words)))
    assert [share for share, _ in seen] == [1 / 3, 2 / 3, 1.0]
    assert cache in folder.parents
    assert cache_folder() == cache
    assert base_checkpoint(TINY, lambda share, words: seen.append((share, words))) == folder
    assert len(seen) == 3
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "qwen3"
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<eos>"
    report = json.loads((folder / REPORT).read_bytes())
    assert report["steps"] == 3
    assert set(report["given_cot"]["groups"]) == {"add", "mul"}
    assert report["cpu_seconds"] > 0
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_damaged_entry_is_trained_anew_to_the_same_weights(cache: Path) -> None:
    folder = base_checkpoint(TINY)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    for damage in (good[:-100], good[:-4] + b"\x00\x01\x02\x03"):
        weights.write_bytes(damage)
        assert base_checkpoint(TINY) == folder
        assert weights.read_bytes() == good


def test_key_covers_what_determines_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [
        replace(TINY, family="llama"),
        replace(TINY, strong="add"),
        replace(TINY, preset="elicit"),
        replace(TINY, weak_cot=0.003),
        replace(TINY, seed=1),
        replace(TINY, steps=4),
        replace(TINY, gate=0.1),
        replace(TINY, schedule=RateSchedule(learning_rate=1e-3)),
    ]
    assert len({spec.key for spec in [TINY, *changed]}) == len(changed) + 1
    before = TINY.key
    monkeypatch.setattr("harness.engines.embedded.presets.PRESETS", {"trap": Mixture(weak_cot=0.5), "elicit": None})
    assert TINY.key != before


@pytest.mark.parametrize("package", ["stage0", "tasks"])
def test_key_covers_results_versions(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before, table = TINY.key, versions.recorded_versions()
    raised = {**table, package: table[package]._replace(version=table[package].version + 1)}
    monkeypatch.setattr(versions, "recorded_versions", lambda: raised)
    assert TINY.key != before


def test_every_build_of_torch_takes_the_bases_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portable numerics are the same in all of them; with fast ones each has its own."""
    if torch.__version__.partition("+")[0] != "2.13.0":
        pytest.skip("the bases are torch 2.13.0's")
    fast = set()
    for build in ("2.13.0", "2.13.0+cpu", "2.13.0+cu130"):
        monkeypatch.setattr(torch, "__version__", build)
        specs = (MicroSpec("llama", "add", numerics="portable"), MicroSpec("qwen", "mul", numerics="portable"))
        assert [base_checkpoint(spec).parent for spec in specs] == [SHIPPED, SHIPPED], build
        fast.add(TINY.key)
    assert len(fast) == 3


def test_where_no_numerics_are_asked_for_the_bases_of_the_package_serve() -> None:
    """Engines other than the embedded one; what the package lacks is trained in fast numerics."""
    llama = Policy(name="a", model="micro/llama", stage0=Stage0(preset="trap", strong="add"))
    assert base_folder(llama, 1).parent == SHIPPED
    own = llama.model_copy(update={"stage0": Stage0(preset="trap", strong="add", per_seed=True)})
    said = [micro_spec(policy, 1, asked).numerics for policy in (llama, own) for asked in (None, "fast")]
    assert said == ["portable", "fast", "fast", "fast"]


def test_a_killed_training_is_done_again_to_the_same_weights(cache: Path) -> None:
    def killed(share: float, words: str) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base_checkpoint(TINY, killed)
    assert not [path for path in (cache / "stage0").iterdir() if path.is_dir() and not path.name.startswith(".")]
    weights = base_checkpoint(TINY) / "model.safetensors"
    after = weights.read_bytes()
    shutil.rmtree(weights.parent)
    assert (base_checkpoint(TINY) / "model.safetensors").read_bytes() == after


@pytest.mark.slow
def test_a_second_request_waits_and_trains_nothing(cache: Path) -> None:
    others: list[threading.Thread] = []
    told: list[str] = []

    def ask(share: float, words: str) -> None:
        if not others:
            others.append(
                threading.Thread(target=base_checkpoint, args=(TINY, lambda share, words: told.append(words)))
            )
            others[0].start()

    base_checkpoint(TINY, ask)
    others[0].join(60)
    assert told == []


def test_whoever_waits_gives_signs_of_life_and_has_a_deadline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a cell, which asks without telling anybody of its progress, and which can be broken off."""
    (cache / "stage0").mkdir()
    with (cache / "stage0" / f"{TINY.key}.lock").open("wb") as file:
        assert lock_file(file.fileno(), 0.0)
        with phases.announce_phase("opening a"):
            before = phases.progress_count()
            with pytest.raises(CellError, match="another process"):
                base_checkpoint(TINY, deadline=0.2)
            assert phases.progress_count() > before
            assert phases.describe_phases() == "opening a (another process is training it)"
            monkeypatch.setattr(phases._board, "stopped", lambda: True)
            with pytest.raises(phases.Interrupted):
                base_checkpoint(TINY, deadline=10.0)


def test_gate_adds_rounds_and_then_gives_up(cache: Path) -> None:
    words: list[str] = []
    with pytest.raises(CellError, match=r"after 6 steps too few answers by steps are right .* RL needs 100% in each"):
        base_checkpoint(replace(TINY, steps=4, rounds=2, gate=1.0), lambda share, text: words.append(text))
    assert sum("extra round 2 of 2" in text for text in words) == 1
    assert not any(path.is_dir() for path in (cache / "stage0").iterdir())


@pytest.mark.slow_but("llama")
@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss(family: str) -> None:
    tokenizer = build_tokenizer(family)
    model = build_model(family, 0, tokenizer)
    trainer = Pretrainer(
        model, tokenizer, draw_examples(PRESETS["trap"], "add", Random(0)), RateSchedule(warmup=5, batch=8)
    )
    held = trainer._encode_examples(list(islice(draw_examples(PRESETS["trap"], "add", Random(9)), 16)))
    targets = sum(ids.size - start for ids, start in held)
    with torch.no_grad():
        before = trainer._sum_loss(held) / targets
        parts = sum(trainer._sum_loss([row]) for row in held) / targets
    torch.testing.assert_close(before, parts, rtol=1e-5, atol=1e-5)
    labels = torch.from_numpy(held[0][0])[None]
    logits = model(labels).logits.log_softmax(-1)[0]
    start = held[0][1]
    by_hand = -sum(logits[t - 1, labels[0, t]] for t in range(start, labels.shape[1]))
    torch.testing.assert_close(trainer._sum_loss(held[:1]), by_hand, rtol=1e-4, atol=1e-4)
    trainer.run(40, lambda done: None)
    with torch.no_grad():
        assert trainer._sum_loss(held) / targets < 0.7 * before
