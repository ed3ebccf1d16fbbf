"""Checkpoints through lm-eval: every sample kept, seeds that depend on nothing else, the same score on every back end."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sampling
from harness.errors import DataError, EngineError, InfeasibleError, RoomError, UsageError
from harness.evaluation.backends import EngineBackend, LmEvalBackend, open_backend
from harness.evaluation.metrics import EvaluationResult, EvaluationSample, Metric
from harness.evaluation.run import evaluate_tasks
from harness.experience.answers import Prompt
from harness.session.cell.evaluate import journal_rows
from harness.session.single.standalone import evaluate_checkpoint
from harness.store.manifest import read_manifest
from harness.store.read import Snapshot
from harness.tasks.registry import get_task
from harness.tasks.task import Style
from harness.verification.verdict import of_unfinished
from harness.verification.verifier import Verifier


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> EmbeddedEngine:
    return EmbeddedEngine("tiny", checkpoint)


def metric(evaluation: EvaluationResult, task: str, name: str) -> Metric:
    return next(m for m in evaluation.metrics if (m.task, m.name) == (task, name))


def keyed(samples: tuple[EvaluationSample, ...]) -> dict[tuple[str, str, str, int], EvaluationSample]:
    return {(s.task, s.mode, s.document, s.repeat): s for s in samples}


def test_every_sample_is_kept_and_the_metrics_are_made_of_them(engine: EmbeddedEngine, verifier: Verifier) -> None:
    task = get_task("micro", per_skill=4)
    evaluation = evaluate_tasks(
        EngineBackend(engine), [task], verifier=verifier, metrics=["greedy", "avg@3", "best@3", "maj@3"]
    )
    prompts = task.documents(None)
    assert set(keyed(evaluation.samples)) == {
        ("micro", mode, prompt.id, repeat)
        for prompt in prompts
        for mode, repeats in (("greedy", 1), ("sampled", 3))
        for repeat in range(repeats)
    }
    sampled = [s for s in evaluation.samples if s.mode == "sampled"]
    assert metric(evaluation, "micro", "avg@3").value == pytest.approx(np.mean([s.verdict.reward for s in sampled]))
    assert len({s.text for s in sampled}) > len(prompts)
    verdicts = verifier.verify([(s.gold, s.text) for s in evaluation.samples])
    assert {s.finished for s in evaluation.samples} == {True, False}
    for s, verdict in zip(evaluation.samples, verdicts, strict=True):
        assert s.verdict == (verdict if s.finished else of_unfinished(verdict))
        assert s.labels["skill"]
        assert 1 <= s.tokens <= 44


def test_a_sample_depends_on_its_seed_task_document_and_repeat_only(engine: EmbeddedEngine, verifier: Verifier) -> None:
    full = keyed(
        evaluate_tasks(
            EngineBackend(engine, 3), [get_task("micro", per_skill=4)], verifier=verifier, metrics=["avg@4"]
        ).samples
    )
    part = evaluate_tasks(
        EngineBackend(engine, 3, rows=5),
        [get_task("micro", per_skill=4)],
        verifier=verifier,
        metrics=["avg@2"],
        limit=7,
    )
    assert len(part.samples) == 14
    assert all(full[key].text == s.text for key, s in keyed(part.samples).items())
    other = evaluate_tasks(
        EngineBackend(engine, 4), [get_task("micro", per_skill=4)], verifier=verifier, metrics=["avg@4"]
    )
    assert sum(full[key].text == s.text for key, s in keyed(other.samples).items()) < len(full) / 10


def test_no_questions_and_doubled_ones_are_refused(verifier: Verifier) -> None:
    task = get_task("micro", per_skill=1)
    one = task.documents(None)[0]
    for documents in ([], [one, one]):
        with pytest.raises(DataError, match="no questions, or two with one id"):
            evaluate_tasks(None, [replace(task, documents=lambda *_, d=documents: d)], verifier=verifier)  # type: ignore[arg-type]  # is not asked


def test_nothing_global_is_touched_and_nobody_is_called(
    engine: EmbeddedEngine, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # type: ignore[union-attr]
    evaluate_tasks(EngineBackend(engine), [get_task("micro", per_skill=1)], verifier=verifier, metrics=["avg@2"])
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # type: ignore[union-attr]
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
@pytest.mark.parametrize("name", ["gsm8k", "olympiad"])
def test_a_benchmark_runs_end_to_end(name: str, checkpoint: Path, tmp_path: Path, verifier: Verifier) -> None:
    """With positions for its questions, which are long."""
    shutil.copytree(checkpoint, tmp_path / "long")
    config = json.loads((tmp_path / "long/config.json").read_text())
    (tmp_path / "long/config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    evaluation = evaluate_tasks(
        EngineBackend(EmbeddedEngine("tiny", tmp_path / "long")),
        [get_task(name)],
        verifier=verifier,
        metrics=["avg@4"],
        limit=20,
        max_new_tokens=12,
        data_dir=FOLDER,
    )
    assert len(evaluation.samples) == 80
    assert {s.repeat for s in evaluation.samples} == set(range(4))
    assert metric(evaluation, name, "avg@4").documents == 20
    assert all("\\boxed" in s.prompt for s in evaluation.samples)


TEMPLATE = (
    "{% for m in messages %}User: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


@pytest.fixture(scope="module")
def talking(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talking") / "talking"
    shutil.copytree(checkpoint, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    published = {"do_sample": True, "top_k": 1, "repetition_penalty": 3.0, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(published))
    return folder


@pytest.mark.parametrize("style", ["raw", "zero-shot", "few-shot"])
def test_every_back_end_goes_through_the_chat_template_in_every_style(
    style: Style, talking: Path, verifier: Verifier
) -> None:
    task = get_task("micro", per_skill=1)
    for chat in (True, False):
        by_backend = {
            backend: evaluate_tasks(
                open_backend(backend, talking, chat=chat), [task], verifier=verifier, metrics=["greedy"], style=style,
                max_new_tokens=4,
            ).samples
            for backend in ("embedded", "hf")
        }  # fmt: skip
        bare = [task.render(p, style) for p in task.documents(None)]
        read = [f"User: {text}\nAnswer:" if chat else text for text in bare]
        assert [s.prompt for s in by_backend["embedded"]] == [s.prompt for s in by_backend["hf"]] == read
        said = [[s.text for s in by_backend[backend]] for backend in ("embedded", "hf")]
        assert said[0] == said[1]
        for ours, theirs in zip(by_backend["embedded"], by_backend["hf"], strict=True):  # which knows of no cut
            assert ours.verdict == (theirs.verdict if ours.finished else of_unfinished(theirs.verdict))


def test_what_lm_eval_does_not_tell_is_not_said(talking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which answers were cut off. The policy is named by its folder, given as `.` too."""
    monkeypatch.chdir(talking)
    done = evaluate_checkpoint(Path("."), ["micro"], limit=1, k=0, backend="hf", max_new_tokens=2, results=tmp_path)
    assert "right" in done.answers
    assert "cut off" not in done.answers
    assert read_manifest(Path(done.folder)).policies[0].name == talking.name


def test_transformers_samples_from_the_model_alone_and_an_answer_has_room(talking: Path, verifier: Verifier) -> None:
    lm, task = open_backend("hf", talking), get_task("micro", per_skill=1)
    settings = lm.lm.model.generation_config  # type: ignore[attr-defined]  # of this back end alone
    assert (settings.top_k, settings.eos_token_id) == (0, 1)
    samples = evaluate_tasks(lm, [task], verifier=verifier, metrics=["avg@2"], max_new_tokens=8).samples
    assert len({s.text for s in samples}) > len(samples) / 2
    assert all(row.finished for row in journal_rows(samples, "a", 0)), "unknown is not cut off"
    with pytest.raises(RoomError, match=r"micro:greedy: .* an answer up to 250, but the model has 256 positions"):
        evaluate_tasks(lm, [task], verifier=verifier, metrics=["greedy"], max_new_tokens=250)


def test_a_question_is_never_cut_and_one_without_room_is_refused(engine: EmbeddedEngine, verifier: Verifier) -> None:
    """Whatever the tokenizer says of its longest text: the model's positions count."""
    task = get_task("micro", per_skill=1)
    short = Prompt("short", "Q: 2+3\nA:", "5")
    asked: list[str] = []

    def sample(prompts: Any, *rest: Any) -> Any:
        asked.extend(prompt.text for prompt in prompts)
        return engine.sample(prompts, *rest)

    watched = EngineBackend(engine)
    watched.engine = SimpleNamespace(sample=sample, reads=engine.reads, tokenizer=engine.tokenizer)  # type: ignore[assignment]
    whole = "Tom has 3 pens. " * 10 + "Q: 2+3\nA:"
    tokens = len(engine.tokenizer.encode(whole))
    assert engine.positions == 256
    fits = replace(task, documents=lambda data_dir, fetch=True: [Prompt("long", whole, "5"), short])
    before, engine.tokenizer.model_max_length = engine.tokenizer.model_max_length, 32
    try:
        samples = keyed(evaluate_tasks(watched, [fits], verifier=verifier, metrics=["greedy"]).samples)
    finally:
        engine.tokenizer.model_max_length = before
    assert whole in asked
    assert tokens > 32
    assert samples["micro", "greedy", "long", 0].tokens <= 44
    over = replace(task, documents=lambda data_dir, fetch=True: [Prompt("long", "Tom has 3 pens. " * 200, "5"), short])
    with pytest.raises(
        RoomError, match=r"micro:greedy: a question takes [\d,]+ tokens, and the model has 256 positions"
    ):
        evaluate_tasks(EngineBackend(engine), [over], verifier=verifier, metrics=["greedy"])


def file_tasks(folder: Path, *questions: str) -> list[str]:
    """A file of one question for each, asked with the scorer `exact`."""
    names = []
    for i, question in enumerate(questions):
        file = folder / f"own{i}.jsonl"
        file.write_text(json.dumps({"question": question, "answer": "3"}) + "\n")
        names.append(f"{file}:exact")
    return names


LONG = "Tom has 3 pens. " * 10 + "Q: 2+3\nA:"


@pytest.mark.parametrize("backend", ["embedded", "hf"])
def test_a_length_that_was_asked_for_and_has_no_room_is_refused_before_anything_is_sampled(
    backend: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another task, whose questions leave more room, comes first. What is said to fit does."""
    tasks = file_tasks(tmp_path, "Q: 1+2\nA:", LONG)
    called: list[str] = []
    real = {kind: kind.answer for kind in (EngineBackend, LmEvalBackend)}
    for kind, answer in real.items():

        def noted(self: Any, name: str, *rest: Any, answer: Any = answer) -> Any:
            called.append(name)
            return answer(self, name, *rest)

        monkeypatch.setattr(kind, "answer", noted)
    asked: dict[str, Any] = {"k": 0, "backend": backend, "results": tmp_path / "results"}
    with pytest.raises(
        RoomError, match=r"own1: the longest question takes .* but the model has 256 positions"
    ) as raised:
        evaluate_checkpoint(checkpoint, tasks, max_new_tokens=200, **asked)
    assert raised.value.exit_code == 2
    assert called == []
    fits = int(str(raised.value).split("at most ")[1].split(" ")[0])
    remarks: list[str] = []
    evaluate_checkpoint(checkpoint, tasks, max_new_tokens=fits, remark=remarks.append, **asked)
    assert called == ["own0:greedy", "own1:greedy"]
    assert remarks == []
    with pytest.raises(RoomError):
        evaluate_checkpoint(checkpoint, tasks, max_new_tokens=fits + 1, **asked)


@pytest.mark.parametrize("backend", ["embedded", "hf"])
def test_a_tasks_own_length_is_clipped_to_the_models_positions_with_a_remark_before_sampling(
    backend: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = file_tasks(tmp_path, LONG)
    remarks: list[str] = []
    lengths: list[int] = []
    for kind in (EngineBackend, LmEvalBackend):

        def noted(
            self: Any, name: str, prompts: Any, repeats: int, sampling: Sampling, stops: Any, answer: Any = kind.answer
        ) -> Any:
            assert len(remarks) == 1, "said before sampling"
            lengths.append(sampling.max_new_tokens)
            return answer(self, name, prompts, repeats, sampling, stops)

        monkeypatch.setattr(kind, "answer", noted)
    done = evaluate_checkpoint(
        checkpoint, tasks, k=2, backend=backend, results=tmp_path / "results", remark=remarks.append
    )
    with Snapshot(tmp_path / "results") as snapshot:
        rows = snapshot.query("SELECT prompt FROM samples").to_pylist()
    longest = len(EmbeddedEngine("tiny", checkpoint).tokenizer.encode(rows[0]["prompt"]))
    assert LONG in rows[0]["prompt"]
    words = f"own0: answers get at most {256 - longest} new tokens, not 2,048: the longest question takes {longest} of"
    assert remarks[0].startswith(words)
    manifest = read_manifest(Path(done.folder))
    assert manifest.config["remarks"] == list(done.remarks) == remarks
    assert lengths == [256 - longest] * 2, "greedy and sampled"


def test_answers_that_the_models_positions_end_fail_the_evaluation(engine: EmbeddedEngine, verifier: Verifier) -> None:
    """They would count as wrong."""
    task = get_task("micro", per_skill=1)
    longest = max(len(engine.tokenizer.encode(p.text)) for p in task.documents(None))
    room = 256 - longest
    whole = evaluate_tasks(
        EngineBackend(engine), [task], verifier=verifier, metrics=["greedy"], max_new_tokens=room
    ).samples
    cut = sum(s.tokens == room and not s.finished for s in whole)
    assert cut
    words = (
        rf"micro:greedy: {cut} of {len(whole)} answers were ended by the model's 256 positions, before their 300 new"
    )
    with pytest.raises(EngineError, match=words):
        evaluate_tasks(EngineBackend(engine), [task], verifier=verifier, metrics=["greedy"], max_new_tokens=300)
    stopped = replace(task, until=tuple({s.text[0] for s in whole if s.tokens == room}))
    evaluate_tasks(EngineBackend(engine), [stopped], verifier=verifier, metrics=["greedy"], max_new_tokens=300)


def test_refusals(checkpoint: Path, engine: EmbeddedEngine, verifier: Verifier, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no prompt style 'raw'"):
        evaluate_tasks(EngineBackend(engine), [get_task("gsm8k")], verifier=verifier, style="raw")
    with pytest.raises(UsageError, match="no checkpoint"):
        open_backend("hf", tmp_path)
    with pytest.raises(UsageError, match="embedded, hf, vllm"):
        open_backend("tgi", checkpoint)
    if find_spec("vllm") is None:
        with pytest.raises(InfeasibleError, match="pip install vllm"):
            open_backend("vllm", checkpoint)
