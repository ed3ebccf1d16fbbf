"""Evaluation as papers sample: temperature, the likeliest tokens alone, and as many samples as a set needs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engines.embedded import sampling
from harness.engines.embedded.engine import EmbeddedEngine
from harness.evaluation.backends import EngineBackend, open_backend
from harness.evaluation.run import evaluate_tasks
from harness.session.cell.evaluate import _metrics_by_task
from harness.session.single.standalone import evaluate_checkpoint
from harness.suite.schema import Evaluation
from harness.tasks.registry import EVALUATION_SETS, get_task
from harness.verification.verifier import Verifier

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def test_tokens_come_from_the_likeliest_alone_and_by_their_share_of_them() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])
    kept = sampling._keep_likeliest(probabilities, 0.75)
    # 0.4 and 0.3 do not reach 0.75; the third token does
    assert torch.equal(kept, torch.tensor([[0.0, 0.4, 0.0, 0.3, 0.15]]))
    chance = torch.from_numpy((np.arange(1700) + 0.5) / 1700)
    drawn = sampling._invert_cdf(kept.expand(1700, -1), chance)
    counts = torch.bincount(drawn, minlength=5)
    assert counts.tolist() == [0, 800, 0, 600, 300]


def test_the_likeliest_tokens_are_the_fewest_and_one_at_least() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.5, 0.3]])
    assert sampling._keep_likeliest(probabilities, 0.5).count_nonzero(1).tolist() == [1, 1]
    assert sampling._keep_likeliest(probabilities, 1e-9).count_nonzero(1).tolist() == [1, 1]
    assert torch.equal(sampling._keep_likeliest(probabilities, 1.0), probabilities)


@pytest.mark.parametrize("backend", ["embedded", "hf"])
def test_the_likeliest_token_alone_is_the_greedy_answer(backend: str, checkpoint: Path, verifier: Verifier) -> None:
    samples = evaluate_tasks(
        open_backend(backend, checkpoint), [get_task("micro", per_skill=1)], verifier=verifier,
        metrics=["greedy", "avg@2"], top_p=1e-6, max_new_tokens=8,
    ).samples  # fmt: skip
    greedy = {sample.document: sample.text for sample in samples if sample.mode == "greedy"}
    sampled = [sample for sample in samples if sample.mode == "sampled"]
    assert [sample.text for sample in sampled] == [greedy[sample.document] for sample in sampled]


def test_a_lower_temperature_gives_likelier_answers(checkpoint: Path, verifier: Verifier) -> None:
    engine, task = EmbeddedEngine("tiny", checkpoint), get_task("micro", per_skill=2)
    kinds = {
        temperature: len({
            sample.text
            for sample in evaluate_tasks(
                EngineBackend(engine), [task], verifier=verifier, metrics=["avg@4"], temperature=temperature,
                max_new_tokens=6,
            ).samples
        })
        for temperature in (0.05, 1.0)
    }  # fmt: skip
    assert kinds[0.05] < kinds[1.0]


def test_a_task_has_the_samples_that_the_suite_states_for_it_others_their_own() -> None:
    evaluation = Evaluation.model_validate({"tasks": ["aime24", "math500", "amc23"], "k": {"aime24": 30, "amc23": 0}})
    assert _metrics_by_task(evaluation, ["aime24", "math500", "amc23"]) == {
        "aime24": ["greedy", "avg@30", "best@30", "maj@30"],
        "amc23": ["greedy"],
    }
    with pytest.raises(ValueError, match="k: 'aime25' is not among the suite's evaluation tasks"):
        Evaluation.model_validate({"tasks": ["aime24"], "k": {"aime25": 30}})


def test_what_is_as_before_is_not_in_the_key() -> None:
    written = Evaluation().model_dump()
    assert not {"temperature", "top_p"} & written.keys()
    assert Evaluation.model_validate({"temperature": 0.6, "top_p": 0.95}).model_dump().items() >= {
        ("temperature", 0.6),
        ("top_p", 0.95),
    }
    for wrong in ({"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Evaluation.model_validate(wrong)


def test_a_checkpoint_is_stored_by_how_it_was_sampled(checkpoint: Path, tmp_path: Path) -> None:
    def folder(**settings: float) -> str:
        done = evaluate_checkpoint(checkpoint, ["micro"], limit=1, k=1, max_new_tokens=2, results=tmp_path, **settings)  # type: ignore[arg-type]
        return done.folder

    assert folder() == folder(temperature=1.0)
    assert len({folder(), folder(temperature=0.6), folder(top_p=0.95)}) == 3


@pytest.mark.slow
@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
@pytest.mark.parametrize("backend", ["embedded", "hf"])
def test_all_eight_sets_are_asked_as_papers_ask_them(
    backend: str, checkpoint: Path, tmp_path: Path, verifier: Verifier
) -> None:
    """With positions for their questions, which are long."""
    shutil.copytree(checkpoint, tmp_path / "long")
    config = json.loads((tmp_path / "long/config.json").read_text())
    (tmp_path / "long/config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    assert len(EVALUATION_SETS) == 8
    evaluated = evaluate_tasks(
        open_backend(backend, tmp_path / "long"), [get_task(name) for name in EVALUATION_SETS], verifier=verifier,
        metrics={name: ["avg@30", "best@30"] if name.startswith("aime") else ["avg@4"] for name in EVALUATION_SETS},
        temperature=0.6, top_p=0.95, limit=4, max_new_tokens=8, data_dir=FOLDER,
    )  # fmt: skip
    assert {metric.task for metric in evaluated.metrics} == set(EVALUATION_SETS)
    assert {(m.task, m.name) for m in evaluated.metrics if m.task == "aime24"} == {
        ("aime24", "avg@30"),
        ("aime24", "best@30"),
    }
    assert all(metric.documents == 4 for metric in evaluated.metrics)
