"""`make gpu-check` on a machine without a GPU: the parts that the CPU can, with the same code and small models."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpu_check
import msgspec
import pytest
import torch
from gpu_check import Wanted, Workspace
from running import harness

from harness.allocation.calibration import MeasuredPart, MeasuredSpeed, read_record
from harness.allocation.cost_model import device_of
from harness.engines.embedded import account
from harness.engines.embedded.engine import EmbeddedEngine
from harness.errors import UsageError

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[1]
WITH_OPENRLHF = importlib.util.find_spec("openrlhf") is not None


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace("cpu", tmp_path)


def run(to: Path, *options: object, **environment: str) -> tuple[int, str, str]:
    command = [
        sys.executable,
        gpu_check.__file__,
        "--to",
        str(to),
        "--patience",
        "10",
        "--minutes",
        "200",
        *map(str, options),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, env={**os.environ, **environment}, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(WITH_OPENRLHF, reason="without the OpenRLHF engine")
@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_its_record_calibrates_plans_for_cores(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--device", "cpu", "--only", "environment", "speed", "turns")
    assert code in {1, 3}, err  # 1 where other versions are installed than pinned
    assert "no GPU is checked" in out
    record = read_record(tmp_path / "record.json")
    states = {part.name: part.state for part in record.parts}
    assert states["turns"] == "skipped"
    assert states["speed"] == "passed", record.parts[1].words
    assert (code == 1) == (states["environment"] == "failed")
    assert (record.card.kind, record.peak_memory) == ("CORE", None)
    page = (tmp_path / "page.md").read_text()
    assert "**No GPU was checked**" in page
    assert "| turns | skipped |" in page
    assert None not in (record.measured.train, record.measured.score, record.measured.read, record.measured.layer)
    assert (record.measured.context, record.measured.link) == (None, None), "those are a GPU's"
    plan = ("plan", "smoke", "--inventory", "4cpu-24G", "--calibration", tmp_path / "record.json")
    code, out, err = harness(*plan, "--json")
    assert (code, json.loads(out)["feasible"]) == (0, True), err
    code, _, err = harness("plan", "smoke", "--inventory", "1xH100-80G", "--calibration", tmp_path / "record.json")
    assert code == 2
    assert "the record is of CORE with" in err


@pytest.mark.slow
def test_a_part_that_crashes_or_is_late_fails_and_the_next_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "peft" / "__init__.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise OSError('half of a library')")
    path = os.pathsep.join([str(broken.parents[1]), os.environ.get("PYTHONPATH", "")])
    code, out, _ = run(tmp_path, "--device", "cpu", "--only", "lora", "environment", PYTHONPATH=path)
    assert code == 1
    assert "failed   lora" in out
    assert "half of a library" in out
    assert "environment" in out.splitlines()[2]
    assert "half of a library" in (tmp_path / "lora.log").read_text()
    part, measured, _ = gpu_check.run_part("speed", Workspace("cpu", tmp_path / "late"), patience=0.001)
    assert (part.state, part.words, measured) == ("failed", "not done within 0.24 s", MeasuredSpeed())


@pytest.mark.slow
def test_usage() -> None:
    assert run(Path(), "--only", "frobnicate")[0] == 2
    code, _, err = run(Path(__file__), "--device", "cpu", "--only", "bases")  # it was a traceback, after all parts
    assert (code, err.splitlines()[-1][-12:]) == (2, " File exists")
    assert sum(deadline for _, deadline in gpu_check.PARTS.values()) <= 25 * 60
    assert max(deadline for _, deadline in gpu_check.PARTS.values()) < 10 * 60


def test_calls_of_ten_minutes_go_on_where_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a clock that every part moves by its whole deadline; what was found in earlier calls stays in the record."""
    now = [0.0]
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: now[0])

    def take_all_time(name: str, workspace: Workspace, patience: float) -> tuple[MeasuredPart, MeasuredSpeed, int]:
        now[0] += gpu_check.PARTS[name][1]
        workspace.folder.mkdir(parents=True)
        (workspace.folder / "log").write_text(f"what {name} said")
        state = "skipped" if name == "turns" else "failed" if name == "resumed" else "passed"
        return MeasuredPart(name=name, state=state, seconds=1.0, words=f"of {name}"), MeasuredSpeed(train=1e12), 0

    monkeypatch.setattr(gpu_check, "run_part", take_all_time)
    workspace = Workspace("cpu", tmp_path / "scratch")

    def call(**wanted: object) -> tuple[int, list[str], str]:
        begin = now[0]
        code = gpu_check.check(workspace, tmp_path, Wanted(**wanted))  # type: ignore[arg-type]
        assert now[0] - begin <= 600
        said = capsys.readouterr().out
        return code, re.findall(r"(?m)^(?:passed|failed|skipped) +(\w+)  ", said), said

    code, ran, said = call()
    assert (code, ran) == (4, ["environment", "engine", "speed", "lora"])
    assert "left: bases, resumed, turns; the same command goes on" in said
    code, ran, said = call()
    assert (code, ran) == (1, ["bases", "resumed"])
    assert 'failed: resumed; GPU_CHECK="--only resumed" runs them again' in said
    code, ran, said = call()
    assert (code, ran) == (1, ["turns"])
    assert "not run  turns: of turns" in said
    assert "what resumed said" in (tmp_path / "resumed.log").read_text()
    record = read_record(tmp_path / "record.json")
    assert [part.name for part in record.parts] == [*gpu_check.PARTS]
    assert record.measured.train == 1e12
    assert call()[:2] == (1, []), "nothing is left"
    assert call(only=("resumed",))[:2] == (1, ["resumed"])
    assert call(again=True)[:2] == (4, ["environment", "engine", "speed", "lora"])
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(UsageError, match="no hardware record"):
        call()


@pytest.mark.parametrize(("gpus", "torch_works", "where"), [(0, True, "core"), (1, True, "image"), (1, False, "clean")])
def test_torch_is_the_images_where_that_uses_the_gpu(
    tmp_path: Path, nvidia_smi, gpus: int, torch_works: bool, where: str
) -> None:  # type: ignore[no-untyped-def]
    if gpus:
        nvidia_smi(1, "NVIDIA H100 80GB HBM3", 81559)
    elif shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {int(not torch_works)}\n")
    python.chmod(0o755)
    done = subprocess.run([ROOT / "tools" / "which_torch.sh", python], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, where)
    assert f"gpu-check-{where}:" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_beside_an_image_its_torch_stays_and_the_rest_is_pinned(tmp_path: Path) -> None:
    """The environment of these tests is the image; nothing is fetched, for it has all that is needed."""
    copy, folder = tmp_path / "copy", tmp_path / "beside"
    ignored = shutil.ignore_patterns(".git", ".venv*", "results", "*.egg-info", "build", "site", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    command = [copy / "tools" / "beside_image.sh", sys.executable, folder]
    subprocess.run(command, check=True, timeout=600, env=os.environ | offline)
    asked = "import json, harness, torch; print(json.dumps([harness.__file__, torch.__file__, torch.__version__]))"
    done = subprocess.run([folder / "bin" / "python", "-c", asked], capture_output=True, text=True, cwd=tmp_path)
    ours, theirs, number = json.loads(done.stdout)
    assert Path(ours).is_relative_to(copy)
    assert (Path(theirs), number) == (Path(torch.__file__), torch.__version__)
    owned = "from tools.gpu_check import is_own; print(is_own('experience-sharing-harness'), is_own('torch'))"
    done = subprocess.run([folder / "bin" / "python", "-c", owned], capture_output=True, text=True, cwd=copy)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.slow
def test_parity_is_checked(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "CHECKS", ())
    report = gpu_check.engine(replace(workspace, folder=workspace.folder / "right"))
    assert not report.faults
    assert report.figures["fp32 from the CPU, worst nats per token"] == 0.0
    assert 0 < report.figures["bf16 from fp32, mean nats per token"] < 0.05

    class Off(EmbeddedEngine):
        def score(self, *arguments):  # type: ignore[no-untyped-def]
            return [scores - 2e-4 * (self.name == "fp32") for scores in super().score(*arguments)]

    monkeypatch.setattr(gpu_check, "EmbeddedEngine", Off)
    report = gpu_check.engine(replace(workspace, folder=workspace.folder / "wrong"))
    assert [fault.partition(":")[0] for fault in report.faults] == ["fp32 from the CPU, worst nats per token"]


@pytest.mark.slow
def test_a_failed_check_of_the_protocol_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def it_is_never_so(case):  # type: ignore[no-untyped-def]
        raise AssertionError("no")

    monkeypatch.setattr(gpu_check, "CHECKS", (it_is_never_so,))
    assert gpu_check.engine(workspace).faults == ["it_is_never_so: no"]


@pytest.mark.slow
def test_lora(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="extra `lora`")
    monkeypatch.setattr(gpu_check, "CHECKS", ())
    lora = gpu_check.PARTS["lora"][0]
    report = lora(workspace)
    assert not report.faults
    assert report.figures["the same after an update"] == 0.0
    monkeypatch.setattr(gpu_check, "version", lambda *names: "")
    assert lora(workspace).lacks.startswith("needs peft")


@pytest.mark.parametrize("kind", ["H100", "CORE"])
def test_rates_are_those_that_would_give_the_measured_seconds(kind: str) -> None:
    on = replace(device_of(kind), train=2e14, score=3e14, read=4e11, layer=3e-5)
    cell = gpu_check.largest(on.gpu, on, 64, gpu_check.MEMORY)[2]
    seconds = msgspec.structs.asdict(account.phases(cell, on))
    rates = gpu_check.rates(cell, on.gpu, seconds, on.layer)
    assert rates == {name: pytest.approx(getattr(on, name), rel=1e-6) for name in ("layer", "train", "score", "read")}


def test_rates_are_of_the_tokens_that_there_were(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts as long as the plan's, and answers that end early."""
    prompts, means, rates = set[int](), [], gpu_check.rates

    class Counted(EmbeddedEngine):
        def sample(self, asked, *rest):
            prompts.update(len(self._vocabulary.encode(prompt)) for prompt in asked)
            return super().sample(asked, *rest)

    monkeypatch.setattr(gpu_check, "EmbeddedEngine", Counted)
    monkeypatch.setattr(gpu_check, "timed", lambda *_: 1.0)
    monkeypatch.setattr(gpu_check, "states", lambda *_: {})
    monkeypatch.setattr(gpu_check, "peak", lambda *_: 0)
    monkeypatch.setattr(gpu_check, "rates", lambda cell, *rest: means.append(cell.workload.mean) or rates(cell, *rest))
    sampled = gpu_check.speed(workspace).figures["generate, tokens/s"]
    answers = gpu_check.PROMPTS * gpu_check.ROLLOUTS
    assert prompts == {gpu_check.PROMPT}
    assert means == [pytest.approx(sampled / answers / 64)]
    assert sampled < answers * 64, "no answer ended early: nothing was tested"


def test_the_model_fits_the_memory_that_is_there() -> None:
    on = device_of("RTX4090")
    names = {size: gpu_check.largest(True, on, 192, size * 10**9)[0] for size in (20, 12)}
    assert names == {20: "Qwen3-0.6B", 12: "SmolLM2-360M-Instruct"}
    with pytest.raises(gpu_check.HarnessError, match="no model's step fits"):
        gpu_check.largest(True, on, 192, 10**9)


def test_an_old_driver_and_a_card_without_bf16_are_said(
    workspace: Workspace, nvidia_smi, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """Of the branch for a GPU: what nvidia-smi is asked. torch's own questions need one."""
    nvidia_smi(1, "Tesla V100-SXM2-32GB", 32768)
    report = gpu_check.environment(replace(workspace, device="cuda"))
    assert "compute capability Tesla V100-SXM2-32GB, 32768, Disabled: no bf16" in report.faults
    assert "driver Tesla V100-SXM2-32GB, 32768, Disabled: 580 or newer is needed" in report.faults


@pytest.mark.slow
def test_a_killed_cell_and_the_phases_of_a_cell(workspace: Workspace) -> None:
    report = gpu_check.resumed(replace(workspace, folder=workspace.folder))
    assert not report.faults
    assert report.figures["table samples"].endswith("the same")  # type: ignore[union-attr]  # figures are numbers or words
    sets = ["engine_options.device=cpu", "training.steps=2", "evaluation.limit=8", "evaluation.k=1"]
    report = gpu_check.one_cell("smoke", "llama-qwen/independent/1", sets, workspace)
    assert report.words == "llama-qwen/independent/1: 4 updates"
    assert report.figures["whole cell, s, measured"] > 0 < report.figures["whole cell, s, planned"]  # type: ignore[operator]  # numbers


@pytest.mark.slow
@pytest.mark.skipif(not WITH_OPENRLHF, reason="needs the OpenRLHF engine")
@pytest.mark.parametrize("overrides", [("dtype=fp32", "sleep=false"), ()], ids=["turns", "sleep"])
def test_two_policies_of_the_openrlhf_engine(workspace: Workspace, overrides: tuple[str, ...]) -> None:
    report = gpu_check.turns(workspace, *(f"engine_options.{one}" for one in overrides))
    assert not report.faults
    assert not report.lacks
    assert report.words.endswith("each followed by a weight sync whose tensors arrived as sent")
