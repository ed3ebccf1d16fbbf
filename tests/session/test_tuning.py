"""`tune:` from a suite to its table."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("optuna", reason="the tune extra is not installed")

from running import here

from harness.cli.tables import show_suite
from harness.errors import Fault
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.cell.questions import training_prompts
from harness.session.driver.jobs import encoder, job_of, run_job, to_worker
from harness.session.suite.prepare import prepare_named, prepare_stored
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest, read_suite
from harness.store.tuning import Tuned, Tuning, read_tuning
from harness.tuning.stages import TuningStages
from harness.verification.verifier import Verifier

pytestmark = pytest.mark.slow

SUITE = """
name: tiny
groups:
  - name: pair
    policies: [{{name: a, model: {llama}}}, {{name: b, model: {qwen}}}]
regimes: [independent, sgt]
seeds: [3, 4]
training: {{steps: 3, prompts: 6, rollouts: 6, max_new_tokens: 12, learning_rate: 0.003, checkpoint_every: 1, measure_every: 0}}
evaluation: {{k: 2, limit: 12, curve_every: 0}}
tune:
  trials: 4
  batch: 2
  rungs: [2]
  seeds: [30]
  check: [31]
  groups:
    - name: tuning
      policies: [{{name: a, model: {other_llama}}}, {{name: b, model: {other_qwen}}}]
  evaluation: {{tasks: [micro_dev], k: 4, limit: 24, greedy: false, curve_every: 0}}
"""
SMALLEST = ("tune.trials=2", "tune.rungs=[]", "tune.check=[]", "seeds=[3]")
"""For runs in processes of their own."""


@pytest.fixture(scope="session")
def folders(trained: Callable[[str, int], Path]) -> dict[str, Path]:
    """Right often enough that every setting learns something."""
    return {family: trained(family, 120) for family in ("llama", "qwen")}


@pytest.fixture(scope="session")
def others(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {}
    for family, folder in folders.items():
        place = tmp_path_factory.mktemp("other") / family
        shutil.copytree(folder, place)
        generator = torch.Generator().manual_seed(1)
        weights = load_file(place / "model.safetensors")
        moved = {k: w + 0.01 * torch.randn(w.shape, generator=generator) for k, w in weights.items()}
        save_file(moved, place / "model.safetensors", {"format": "pt"})
        places[f"other_{family}"] = place
    return places


@pytest.fixture
def tuned_file(tmp_path: Path, folders: dict[str, Path], others: dict[str, Path]) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(SUITE.format(**folders, **others))
    return file


@pytest.fixture(scope="session")
def tuned(folders: dict[str, Path], others: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tuned")
    (place / "tiny.yaml").write_text(SUITE.format(**folders, **others))
    assert _drive(place / "tiny.yaml", place / "results")
    return place / "results"


@pytest.fixture(autouse=True)
def _reachable(monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path], others: dict[str, Path]) -> None:
    for name, value in _models(others, folders).items():
        monkeypatch.setenv(name, value)


def _drive(
    file: Path,
    results: Path,
    overrides: Sequence[str] = (),
    most: int | None = None,
    order: int = 0,
    broken: str = "",
) -> bool:
    """Every stage in this process, cells in random order; False where `most` cells were too few. broken: a variant that fails."""
    rng, left = Random(order), most
    verifier = Verifier(workers=1)
    try:
        stages = TuningStages(prepare_named(str(file), results, overrides=overrides), results)
        for stage in stages:
            stage.prepared.write_suite_file()
            pending = stage.prepared.pending_cells()
            for cell in rng.sample(pending, len(pending)):
                if left == 0:
                    return False
                left = None if left is None else left - 1
                if cell.variant.name == broken:
                    mark_state(
                        stage.prepared.folder / cell.key, manifest_of(cell), "failed", "", fault=Fault.NOT_FINITE
                    )
                    continue
                run_job(job_of(cell, stage.prepared.folder / cell.key), verifier, lambda *a: None, lambda: False)
            assert stages.is_over(stage)
    finally:
        verifier.close()
    return True


def _models(*folders: dict[str, Path]) -> dict[str, str]:
    return {
        "HARNESS_MODELS": ":".join({str(f.parent) for each in folders for f in each.values()}),
        "OMP_NUM_THREADS": "1",
    }


def _cells(results: Path, suite: str):
    return [read_manifest(results / suite / key) for key in read_suite(results / suite).cells]


def _plain(tuning: Tuning) -> Tuning:
    return msgspec.structs.replace(
        tuning, variants=tuple(msgspec.structs.replace(v, cpu_seconds=0, gpu_seconds=0) for v in tuning.variants)
    )


def test_every_regime_has_the_same_trials_steps_rollouts_and_seeds(tuned):
    tuning = read_tuning(tuned, "tiny")
    assert {v.variant: len(v.trials) for v in tuning.variants} == {"independent": 4, "sgt": 4}
    assert len({v.rollouts for v in tuning.variants}) == 1
    budgets: dict[str, list[tuple[int, int]]] = {}
    for cell in _cells(tuned, "tiny-tuning"):
        training = cell.config["training"]
        assert (cell.state, training["part"]) == ("done", "tuning")
        assert training["prompts"] * training["rollouts"] == 36
        budgets.setdefault(cell.regime_type, []).append((training["steps"], cell.seed))
    # Trial 0 runs to the end at once; of two others one goes on, then one of two.
    assert sorted(budgets["sgt"]) == sorted(budgets["independent"]) == [(2, 30)] * 3 + [(3, 30)] * 3


def test_the_best_trial_that_ran_to_the_end_is_chosen_and_stands_in_the_table(tuned):
    independent, sgt = read_tuning(tuned, "tiny").variants
    assert len({t.score for v in (sgt, independent) for t in v.trials}) > 2, "settings make a difference here"
    cells = {c.regime: c for c in _cells(tuned, "tiny")}
    for v in (sgt, independent):
        ended = [t for t in v.trials if t.steps == 3]
        assert v.chosen == max(ended, key=lambda t: (t.score, -t.number)).number
        assert v.final == (f"{v.variant}-tuned" if v.chosen else v.variant)
        chosen, final = next(t.settings for t in v.trials if t.number == v.chosen), cells[v.final].config
        assert final["training"]["prompts"] == 36 // chosen["training.rollouts"]
        assert {
            f"training.{k}": final["training"][k] for k in ("learning_rate", "rollouts", "kl")
        }.items() <= chosen.items()
        assert v.variant == "independent" or final["variant"]["options"]["lambda"] == chosen["lambda"]


STEPS = 60
"""Many more than were trained: two cells that draw from the same questions would meet by then."""


def _prompts(results: Path, suite: str) -> dict[str, set[str]]:
    """Every question that a suite's stored cells asked: in training as the loop draws them, in evaluation as the journals say."""
    texts: dict[str, set[str]] = {"trained": set(), "evaluated": set()}
    for cell in prepare_stored(suite, results).all_cells:
        again = to_worker.decode(encoder.encode(job_of(cell, results))).cell
        for step in range(1, STEPS + 1):
            texts["trained"] |= {p.text for p in training_prompts(again, step)}
        samples = read_journal(results / suite / cell.key).tables["samples"]
        texts["evaluated"] |= set(samples["prompt"].to_pylist())
    return texts


def test_nothing_that_tuning_saw_is_in_the_table(tuned):
    table, table_prompts = _cells(tuned, "tiny"), _prompts(tuned, "tiny")
    assert len(table_prompts["trained"]) > 200
    for suite in ("tiny-tuning", "tiny-check"):
        cells = _cells(tuned, suite)
        ours, theirs = (
            {x for c in each for x in (c.group, c.seed, c.key, *c.identity.models.values())} for each in (table, cells)
        )
        assert not ours & theirs
        prompts = _prompts(tuned, suite)
        assert len(prompts["evaluated"]) == 24
        assert not (prompts["trained"] | prompts["evaluated"]) & (table_prompts["trained"] | table_prompts["evaluated"])
        assert not prompts["trained"] & prompts["evaluated"]
    assert {c.seed for c in _cells(tuned, "tiny-check")} == {31}


def test_broken_off_at_random_and_in_another_order_it_tries_and_chooses_the_same(tuned, tuned_file, tmp_path):
    rng, results, starts = Random(7), tmp_path / "results", 1
    while not _drive(tuned_file, results, most=rng.randrange(1, 7), order=rng.randrange(99)):
        starts += 1
    assert starts > 3
    assert _plain(read_tuning(results, "tiny")) == _plain(read_tuning(tuned, "tiny"))
    for suite in ("tiny", "tiny-tuning", "tiny-check"):
        assert read_suite(results / suite).cells == read_suite(tuned / suite).cells


@pytest.mark.parametrize(("fault", "goes_on"), [(Fault.NOT_FINITE, True), (Fault.KILLED, False)])
def test_a_trial_that_came_to_nothing_has_lost_and_any_other_failure_is_mended_first(
    tuned_file, tmp_path, fault, goes_on
):
    results = tmp_path / "results"
    stages = TuningStages(prepare_named(str(tuned_file), results, overrides=SMALLEST), results)
    stage = next(iter(stages))
    for cell in stage.prepared.cells:
        if cell.variant.name == "sgt.1":
            mark_state(stage.prepared.folder / cell.key, manifest_of(cell), "failed", "it broke", fault=fault)
    fresh = next(iter(TuningStages(prepare_named(str(tuned_file), results, overrides=SMALLEST), results)))
    assert ("sgt.1" in {c.variant.name for c in fresh.prepared.pending_cells()}) is not goes_on
    if goes_on:
        assert _drive(tuned_file, results, SMALLEST)
        (sgt,) = (v for v in read_tuning(results, "tiny").variants if v.variant == "sgt")
        assert [(t.score is None, t.fault) for t in sgt.trials] == [(False, ""), (True, "training failed")]
        assert (sgt.chosen, sgt.final) == (0, "sgt")


def test_a_trial_that_fails_after_its_rung_has_failed(tuned_file, tmp_path):
    overrides = [one for one in SMALLEST if "rungs" not in one]
    assert _drive(tuned_file, tmp_path / "results", overrides, broken="sgt.1")
    (sgt,) = (v for v in read_tuning(tmp_path / "results", "tiny").variants if v.variant == "sgt")
    assert [(t.variant, t.steps, t.score is None) for t in sgt.trials] == [("sgt.0", 3, False), ("sgt.1", 3, True)]


def _score(variant: Tuned, number: int) -> float:
    return next(t.score for t in variant.trials if t.number == number)


def test_show_knows_the_trials_and_json_holds_them(tuned, capsys):
    ingest_journals(tuned)
    show_suite("tiny", tuned, "json")
    tuning = json.loads(capsys.readouterr().out)["tuning"]
    assert {r["variant"] for r in tuning["rows"]} == {"independent", "sgt"}
    show_suite("tiny", tuned, "table", full=True)
    out = capsys.readouterr().out
    assert "Tuned under an equal budget: 4 trials each, avg@4 of micro_dev" in out
    leads = [v for v in read_tuning(tuned, "tiny").variants if v.chosen]
    promised = sum(_score(v, v.chosen) - _score(v, 0) for v in leads) / 2
    kept = sum(v.checked - v.checked_published for v in leads) / 2
    said = re.search(
        r"best of 4 trials, mean of 2 choices: a lead of (\S+)\s+points promised, (\S+)\s+kept, (\S+) of", out
    )
    assert [float(x.replace("−", "-")) for x in said.groups()] == pytest.approx(
        [100 * promised, 100 * kept, 100 * (promised - kept)], abs=0.051
    )
    show_suite("tiny-tuning", tuned, "table")
    assert {"sgt.0", "sgt.1-s2"} <= {*capsys.readouterr().out.split()}


TRANSFER = """
  transfer: true
  groups:
    - name: second
      policies: [{{name: a, model: {other_qwen}}}, {{name: b, model: {other_llama}}}]
"""


@pytest.mark.timeout(400)
def test_each_tuning_group_chooses_for_itself_and_no_cell_is_run_twice(folders, others, tmp_path, capsys):
    file, results = tmp_path / "tiny.yaml", tmp_path / "results"
    written = SUITE.replace("  groups:\n    - name: tuning", TRANSFER.strip("\n") + "\n    - name: tuning", 1)
    written = written.replace("rungs: [2]", "rungs: []").replace("[independent, sgt]", "[sgt]\nbaseline: sgt")
    file.write_text(written.format(**folders, **others))
    assert _drive(file, results)
    tuning = read_tuning(results, "tiny")
    assert [(v.variant, v.on) for v in tuning.variants] == [("sgt", "second"), ("sgt", "tuning")]
    trials = _cells(results, "tiny-tuning")
    assert len(trials) == len({c.key for c in trials}) == 4 * 2
    cells = {(c.regime, c.seed): c for c in _cells(results, "tiny")}
    assert {name for name, _ in cells} == {"sgt", *(v.final for v in tuning.variants)}
    for v in tuning.variants:
        assert v.chosen == max(v.trials, key=lambda t: (t.score, -t.number)).number
        assert v.final == (f"{v.variant}-tuned.{v.chosen}" if v.chosen else v.variant)
        chosen = next(t.settings for t in v.trials if t.number == v.chosen)
        assert cells[v.final, 3].config["training"]["learning_rate"] == chosen["training.learning_rate"]
        assert None not in (v.checked, v.checked_published)
    one, other = tuning.variants
    assert [t.settings for t in one.trials] == [t.settings for t in other.trials]
    assert [t.score for t in one.trials] != [t.score for t in other.trials]
    ingest_journals(results)
    show_suite("tiny", results, "json")
    document = json.loads(capsys.readouterr().out)["tuning"]
    (row,), (first, second) = (
        document["transfer"],
        (r["tuned"] for r in sorted(document["rows"], key=lambda r: r["on"])),
    )
    assert (row["variant"], row["first"], row["second"]) == ("sgt", first, second)
    assert (row["difference"], row["same"]) == (pytest.approx(first - second), one.final == other.final)
    show_suite("tiny", results, "table", full=True)
    assert re.search(r"tuned on second +tuned on tuning +first less second", capsys.readouterr().out)


def test_a_copy_of_the_table_s_model_is_refused_by_its_content(tmp_path, folders, others):
    copy = tmp_path / "copy"
    shutil.copytree(folders["llama"], copy)
    file = tmp_path / "tiny.yaml"
    file.write_text(SUITE.format(**folders, **{**others, "other_llama": copy}))
    code, _, err = here("run", file, "--results", tmp_path / "results")
    assert code == 2
    assert re.search(r"tune.groups: the model with content \w+ is in the table too", err)
    assert not (tmp_path / "results").exists()
    for part in (("--only", "*/sgt/*"), ("--shard", "1/2")):
        code, _, err = here("run", file, *part, "--results", tmp_path / "results")
        assert (code, f"{part[0]}: a suite with `tune` cannot run in parts" in err) == (2, True)


def _minutes(duration: str) -> float:
    """Minutes of a duration as plans print it: `40 s`, `3.5 min`, `1.2 h`; which unit is printed follows the machine's speed."""
    number, unit = duration.split()
    return float(number) * {"s": 1 / 60, "min": 1, "h": 60, "d": 24 * 60}[unit]


def test_a_plan_foresees_the_trials_and_the_tuned_cells(tmp_path):
    code, out, err = here("plan", "tuned_small", "--results", tmp_path, "--inventory", "2cpu-16G")
    assert (code, "cells      12, 12 to do" in out) == (0, True)
    said = re.search(r"come (\d+) runs of trials.* up to (\d+) cells with .* ([\d.]+ \w+) of CPU", err)
    assert (int(said[1]), int(said[2])) == (4 * (8 + 2), 4 * 3)
    table = _minutes(re.search(r"([\d.]+ \w+) of CPU", out)[1])
    assert 2 * table < _minutes(said[3]) < 10 * table
    card = {"kind": "CORE", "name": "", "memory": 1 << 34}
    record = {"format": 1, "made": "", "harness": "", "card": card, "measured": {"train": 1e9}}
    (tmp_path / "core.json").write_text(json.dumps(record))
    _, _, err = here("plan", "tuned_small", "--results", tmp_path, "--calibration", tmp_path / "core.json")
    assert re.search(r"[\d.]+ [hd] of CPU", err)  # by the same record as the plan itself
