"""The command itself, as people run it: killed, started again, with other numbers of workers; failures stay where they are."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from harness.engines.openrlhf.plugin import settings_of
from harness.session.driver.matrix import _Driver
from harness.session.driver.progress import Reporter
from harness.session.suite.planning import place_of_base, place_of_cell, plan_for
from harness.session.suite.prepare import prepare

from .command import harness

SHORT = ["--set", "regimes=[independent, hacpo]", "--set", "seeds=[3, 4]"]
TIMES = ("cpu_seconds", "gpu_seconds", "gain_per_gpu_second", "cost")


def table(suite: str, results: Path) -> list[dict[str, object]]:
    code, out, err = harness("show", suite, "--format", "json", "--results", results)
    assert code == 0, err
    return [{k: v for k, v in row.items() if k not in TIMES} for row in json.loads(out)["rows"]]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_cell_that_fails_leaves_the_others_alone(suite_file, tmp_path, folders):
    text = suite_file.read_text()
    broken = Path(shutil.copytree(folders["llama"], tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    weights.pop(min(weights))  # only opening it finds that
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    broken_one = f"      - {{name: c, model: {broken}}}\n"
    whole_one = f"      - {{name: d, model: {folders['qwen']}}}\n"
    group = "  - name: broken\n    policies:\n" + broken_one + whole_one
    suite_file.write_text(text.replace("regimes:", group + "regimes:"))
    results = tmp_path / "results"
    one = ["--set", "regimes=[independent]", "--set", "training.steps=1"]
    code, _, err = harness("run", suite_file, "--results", results, *one)
    assert code == 1
    assert "broken/independent/3 failed: " in err
    assert "Traceback" not in err
    states = {p.parent.name: json.loads(p.read_text()) for p in results.glob("tiny/*/manifest.json")}
    by_group = {(m["kind"], m["group"]): m["state"] for m in states.values() if m["kind"] == "cell"}
    assert by_group == {("cell", "pair"): "done", ("cell", "broken"): "failed"}


@pytest.mark.slow
def test_two_runs_on_one_folder_are_refused(suite_file, tmp_path):
    from harness.session.suite.lock import locked

    prepared = prepare(str(suite_file), tmp_path / "results", overrides=["regimes=[independent, hacpo]"])
    with locked(prepared.folder, {prepared.cells[0].key}):
        code, _, err = harness("run", suite_file, "--results", tmp_path / "results", *SHORT)
    assert code == 2
    assert "another `harness run`" in err


@pytest.mark.parametrize("place", ["a_file", "a_file/below"])
def test_results_that_cannot_be_written(suite_file, tmp_path, place):
    (tmp_path / "a_file").write_text("x")
    code, out, err = harness("run", suite_file, "--results", tmp_path / place, *SHORT)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "is a file" in err


def test_no_room_for_the_predicted_results(suite_file, tmp_path, monkeypatch):
    from harness.errors import UsageError
    from harness.session.suite.room import check_room, disk_of

    prepared = prepare(str(suite_file), tmp_path / "results")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UsageError, match="GiB are free"):
        check_room(prepared, disk_of(prepared, 1))
    assert not (tmp_path / "results").exists()


def driver_of(suite_file, results, jobs, *overrides):
    prepared = prepare(str(suite_file), results, overrides=overrides)
    return _Driver(prepared, plan_for(prepared, "8cpu-24G", jobs), Reporter(), lambda: None, {})


def test_cells_wait_for_their_bases_only(suite_file, tmp_path):
    driver = driver_of(suite_file, tmp_path, 2)
    assert set(driver.waits[driver.prepared.cells[0].key]) == set(driver.bases)


def test_no_more_is_granted_than_the_plan_holds(suite_file, tmp_path):
    driver = driver_of(suite_file, tmp_path, 2, "seeds=[1,2,3]")
    driver._submit()
    assert set(driver.granted) == set(driver.bases)  # two bases, two places
    for base in driver.bases:
        for waiting in driver.waits.values():
            waiting.discard(base)
        driver._act(driver.scheduler.finished(base, time.monotonic()))
    driver.granted.clear()
    driver._submit()
    assert len(driver.granted) == 2
    first = driver.granted.popleft()
    driver._act(driver.scheduler.finished(first, time.monotonic()))
    assert len(driver.granted) == 2
    assert first not in driver.granted


def test_what_a_stated_cluster_cannot_hold_is_refused_with_what_is_short(suite_file, tmp_path):
    apart = prepare(str(suite_file), tmp_path, engine="openrlhf", overrides=["engine_options.share_devices=false"])
    plan = plan_for(apart, "1cpu-24G")
    assert not plan.feasible
    assert "1 short" in plan.shortfall
    assert plan_for(prepare(str(suite_file), tmp_path, engine="openrlhf"), "1cpu-24G").feasible, "in turns"


def test_a_planned_layout_reaches_the_policies_unless_the_suite_has_its_own(suite_file, tmp_path):
    prepared = prepare(str(suite_file), tmp_path, engine="openrlhf")
    place = place_of_cell(plan_for(prepared, "8xH100-80G"), prepared.cells[0])
    own = {p.name for p in prepared.cells[0].group.policies}
    assert place.layout.keys() == own
    assert sum(b.gpus for b in place.bundles) == sum(options["trainers"] for options in place.layout.values())
    for options in place.layout.values():
        settings_of(options)
    prepared = prepare(str(suite_file), tmp_path, engine="openrlhf", overrides=["engine_options.trainers=2"])
    plan = plan_for(prepared, "8xH100-80G")
    assert all(p.gpus == 2 for kind in plan.kinds for p in kind.layout.policies)
    assert place_of_cell(plan, prepared.cells[0]).layout == {name: {"share_devices": False} for name in own}
    base = place_of_base(plan, prepared.bases[0])
    assert sum(b.gpus for b in base.bundles) == 2


HUB = """
name: hub
groups:
  - name: pair
    policies: [{name: a, model: Qwen/Qwen3-0.6B}, {name: b, model: meta-llama/Llama-3.2-1B}]
regimes: [independent, hacpo]
seeds: [1]
training: {task: math, steps: 50, max_new_tokens: 1024, learning_rate: 1.0e-6}
evaluation: {tasks: [math500], curve_every: 0}
"""


def test_the_embedded_engine_is_planned_on_the_gpus_there_are(tmp_path):
    file = tmp_path / "hub.yaml"
    file.write_text(HUB)
    prepared = prepare(str(file), tmp_path / "results")
    gpu, cores = (plan_for(prepared, inventory) for inventory in ("1xH100-80G", "16cpu-512G"))
    assert gpu.feasible, gpu.shortfall
    assert gpu.resources.gpus_used == 1
    one_core = prepare(str(file), tmp_path / "results", overrides=["engine_options.threads=1"])
    assert gpu.predicted.wall_seconds < plan_for(one_core, "16cpu-512G").predicted.wall_seconds / 5
    assert gpu.predicted.wall_seconds < cores.predicted.wall_seconds / 4  # where a cell has its four cores
    (tokens,) = {place_of_cell(gpu, c).layout["a"].get("micro_tokens") for c in prepared.cells}
    assert tokens == 4096  # 8192 tokens of the larger vocabulary do not fit
    assert place_of_cell(cores, prepared.cells[0]).layout["a"] == {"threads": 4}
    on_cpu = plan_for(
        prepare(str(file), tmp_path / "results", overrides=["engine_options.device=cpu"]), "1xH100-80G+16cpu-512G"
    )
    assert on_cpu.resources.gpus_used == 0
    own = prepare(str(file), tmp_path / "results", overrides=["engine_options.micro_tokens=1024"])
    assert "micro_tokens" not in place_of_cell(plan_for(own, "1xH100-80G"), own.cells[0]).layout["a"]


def test_workers_go_to_the_gpu_with_the_fewest_of_them(suite_file, tmp_path, nvidia_smi, monkeypatch):
    """Every number true, 3: what is forbidden is not given, and as many are planned with as are visible."""
    from types import SimpleNamespace

    nvidia_smi(8)
    prepared = prepare(str(suite_file), tmp_path)

    def given():
        plan = plan_for(prepared, None)
        driver = _Driver(prepared, plan, Reporter(), lambda: None, {})
        names = []
        for _ in range(3):
            names.append(driver._gpu())
            driver.workers.append(SimpleNamespace(gpu=names[-1].get("CUDA_VISIBLE_DEVICES", "")))
        return plan.resources.gpus, [name.get("CUDA_VISIBLE_DEVICES") for name in names]

    for chosen, found in {
        "6,1": (2, ["6", "1", "6"]), "3": (1, ["3"] * 3), "GPU-7a": (1, ["GPU-7a"] * 3), "": (0, [None] * 3), "-1": (0, [None] * 3),
    }.items():  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert given() == found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert given() == (8, ["0", "1", "2"])
    assert driver_of(suite_file, tmp_path, 2)._gpu() == {}


def test_a_long_evaluation_has_a_deadline_that_knows_it(tmp_path):
    prepared = prepare("mutual_rl", tmp_path)
    plan = plan_for(prepared, "8xH100-80G")
    kind = plan.kinds[0]
    place = place_of_cell(plan, next(c for c in prepared.cells if f"{c.group.name}/{c.variant.name}" == kind.kind))
    assert kind.layout.phases.evaluate > 450
    for options in place.layout.values():
        assert settings_of(options).call_seconds >= 4 * kind.layout.phases.evaluate
    assert kind.seconds == pytest.approx(kind.layout.phases.total)
    assert min(kind.layout.phases.measure, kind.layout.phases.curve, kind.layout.phases.save) > 0
