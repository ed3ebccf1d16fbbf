"""Settings of a suite that change what a cell does: who is strong, the pull to the base, a base for each seed."""

from __future__ import annotations

import math

import pytest

from harness.engines.embedded.families import build_model, build_tokenizer
from harness.errors import SuiteError
from harness.experience.answers import Prompt
from harness.session.cell.manifests import base_manifest
from harness.session.policy.models import micro_spec
from harness.session.suite.prepare import prepare
from harness.suite.schema import Sharing
from harness.tasks.registry import get_task

from .running import rows, run

STRENGTH = {"weak": 0.1, "middle": 0.4, "also-middle": 0.4, "strong": 0.9}
DOWN = {
    ("strong", "middle"),
    ("strong", "also-middle"),
    ("strong", "weak"),
    ("middle", "weak"),
    ("also-middle", "weak"),
}


@pytest.mark.parametrize(
    ("direction", "expected"),
    [("strong_to_weak", DOWN), ("weak_to_strong", {(receiver, author) for author, receiver in DOWN})],
)
def test_direction_by_strength(direction, expected):
    found = Sharing(direction=direction).among(list(STRENGTH), lambda: STRENGTH)
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.fixture(scope="module")
def novice(tmp_path_factory):
    """A policy that was never trained: it answers nothing right."""
    folder = tmp_path_factory.mktemp("novice") / "qwen"
    tokenizer = build_tokenizer("qwen")
    build_model("qwen", 0, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow_but("strong_to_weak")
@pytest.mark.parametrize(
    ("direction", "author", "receiver"), [("strong_to_weak", "a", "b"), ("weak_to_strong", "b", "a")]
)
def test_only_the_one_side_speaks(suite_file, folders, novice, tmp_path, direction, author, receiver):
    """Strength is measured on the base policies: a was trained, b never was, and the suite says nothing of it."""
    suite_file.write_text(suite_file.read_text().replace(str(folders["qwen"]), str(novice)))
    settings = [f"sharing.direction={direction}", "training.measure_every=0"]
    settings += ["evaluation.limit=120", "evaluation.curve_prompts=120"]
    done = run(suite_file, tmp_path / "results", settings, only="*/naive/*")
    found = rows(done, done.cells[0], "exchanges")
    assert {(r["author"], r["receiver"]) for r in found} == {(author, receiver)}
    assert any(r["accepted"] for r in found)


def test_the_kl_term_pulls_towards_the_base(suite_file, tmp_path):
    """The same cell with and without it; the distance to the base is measured, 6.7 and 0.13 nats when this was written."""

    def distance(weight: float) -> float:
        settings = [f"training.kl={weight}", "training.steps=6", "training.measure_every=6", "training.updates=2"]
        done = run(suite_file, tmp_path / f"kl-{weight}", settings, only="*/independent/*")
        last = [r["kl_base"] for r in rows(done, done.cells[0], "steps") if r["step"] == 6]
        assert len(last) == 2
        assert all(math.isfinite(value) for value in last)
        return sum(last)

    assert distance(1.0) < distance(0.0) / 5


PER_SEED = """
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {seed: 5, per_seed: true}}
      - {name: b, model: micro/qwen, stage0: {seed: 5}}
regimes: [independent]
seeds: [1, 2]
"""


def test_a_base_for_each_seed(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(PER_SEED)
    prepared = prepare(str(file), tmp_path / "results")
    assert [(b.policy.name, b.seed) for b in prepared.bases] == [("a", 1), ("a", 2), ("b", None)]
    assert len({b.key for b in prepared.bases}) == 3
    for cell in prepared.cells:
        assert [(b.policy.name, b.seed) for b in prepared.bases_of(cell)] == [("a", cell.seed), ("b", None)]
    own, shared = prepared.cells[0].group.policies
    assert len({micro_spec(own, seed).key for seed in (1, 2)} | {micro_spec(shared, 1).key}) == 3
    assert micro_spec(shared, 1) == micro_spec(shared, 2)
    assert [base_manifest(b).seed for b in prepared.bases[:2]] == [1, 2]


def test_each_policy_is_asked_in_its_own_style(suite_file, tmp_path):
    """The questions are the same; what each policy reads of them, in training and in evaluation, is its own."""
    settings = [
        "groups[0].policies[0].style=few-shot",
        "training.measure_every=0",
        "training.kl=0.1",
        "training.steps=2",
    ]
    done = run(suite_file, tmp_path / "results", settings, only="*/naive/*")
    task = get_task("micro")
    shots = task.render(Prompt("", "Q: \nA:", ""), "few-shot").removesuffix("Q: \nA:")
    assert "\\boxed" in shots
    samples, traces = rows(done, done.cells[0], "samples"), rows(done, done.cells[0], "traces")
    for found, who in ((samples, "policy"), (traces, "receiver")):
        asked = {name: {r["prompt"] for r in found if r[who] == name} for name in ("a", "b")}
        assert asked["a"], who
        assert all(shots[-60:] in text for text in asked["a"]), "a long one loses its beginning in evaluation"
        assert all(text.startswith("Q: ") and "boxed" not in text for text in asked["b"])
    assert {r["prompt"].rpartition("\n\n")[2] for r in samples if r["policy"] == "a"} == {
        r["prompt"] for r in samples if r["policy"] == "b"
    }


def test_a_style_that_a_task_does_not_offer(suite_file, tmp_path):
    settings = ["groups[0].policies[1].style=raw", "evaluation.tasks=[micro, gsm8k]"]
    with pytest.raises(SuiteError, match=r"policies\[1\]\.style: gsm8k \(evaluation\.tasks\[1\]\) cannot be asked raw"):
        prepare(str(suite_file), tmp_path, overrides=settings)
