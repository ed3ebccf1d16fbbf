"""Whole cells: every regime runs, repeats itself exactly, resumes exactly, and equals its baseline without peers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.session.cell.manifests import state_of
from harness.session.single.rescoring import rescore_results
from harness.session.single.standalone import evaluate_checkpoint
from harness.store.ingest import ingest
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest
from harness.store.read import Snapshot
from harness.tasks.micro import SKILLS

from .running import cell, rows, run

TABLES = ("steps", "terms", "exchanges", "curves", "samples")
ONLY = {"independent", "sgt", "hacpo"}


def weights(prepared, regime, policy="a"):
    return load_file(prepared.folder / cell(prepared, regime).key / "checkpoint" / policy / "model.safetensors")


def same_weights(left, right):
    return left.keys() == right.keys() and all((left[k] == right[k]).all() for k in left)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, suite_text):
    root = tmp_path_factory.mktemp("finished")
    (root / "tiny.yaml").write_text(suite_text)
    return run(root / "tiny.yaml", root / "results")


def test_every_regime_trains_and_is_evaluated(finished):
    for c in finished.cells:
        assert state_of(finished.folder / c.key) == ("done", "", 1)
        steps = rows(finished, c, "steps")
        assert [(r["step"], r["policy"]) for r in steps] == [(s, p) for s in (1, 2, 3, 4) for p in "ab"]
        assert all(r["rollouts"] == 36 and r["right"] + r["wrong"] + r["invalid"] == 36 for r in steps)
        assert sum(r["right"] for r in steps) > 0
        assert len(rows(finished, c, "samples")) == 2 * 6 * 3
        assert {r["step"] for r in rows(finished, c, "curves")} == {0, 2, 4}
        asked = {r["doc_id"] for r in rows(finished, c, "samples")}
        assert {name.partition(":")[0] for name in asked} == set(SKILLS), "a limit of six asks of every skill"


def test_drift_of_the_sampler_is_kept_per_step_and_added_up(finished):
    """On one engine only rounding; steps in which nothing of one's own was learnt have none."""
    found = {c.key: rows(finished, c, "steps") for c in finished.cells}
    names = ("sampler_drift", "sampler_drift_p99", "sampler_drift_outside")
    drifts = [[row[name] for name in names] for steps in found.values() for row in steps]
    for mean, high, outside in drifts:
        assert (mean is None) == (high is None) == (outside is None)
        assert mean is None or (0 <= mean <= high < 1e-4 and outside == 0)
    assert any(mean and mean < high for mean, high, _ in drifts), "rounding is seen"
    results = finished.folder.parent
    ingest(results)
    with Snapshot(results) as store:
        totals = store.query("SELECT * FROM totals JOIN cells USING (suite, cell) WHERE kind = 'cell'").to_pylist()
    assert len(totals) == 2 * len(found)
    for row in totals:
        for name in names:
            known = [r[name] for r in found[row["cell"]] if r["policy"] == row["policy"] and r[name] is not None]
            assert row[name] == pytest.approx(sum(known) / len(known))


def test_a_variant_chooses_its_old_log_probabilities_and_their_correction(suite_file, tmp_path):
    """By rounding alone: the trainer's ratios are exactly 1, the sampler's are not, and a correction moves the loss."""
    suite_file.write_text(
        suite_file.read_text()
        .replace("[independent, prp, xgrpo, sgt, hacpo, naive, graft, sapo, ftis]", "\n".join(
            ["", "  - independent", "  - {regime: independent, name: theirs, old_logprobs: sampler}",
             "  - {regime: independent, name: corrected, sampler_correction: 2}"]))
        .replace("steps: 4", "steps: 1").replace("curve_every: 2", "curve_every: 0")
    )  # fmt: skip
    prepared = run(suite_file, tmp_path / "results")
    plain, theirs, corrected = ([r for r in rows(prepared, c, "terms") if r["active"]] for c in prepared.cells)
    assert plain
    assert {(r["ratio_mean"], r["ratio_second"]) for r in plain + corrected} == {(1.0, 1.0)}
    assert all(r["ratio_second"] != 1.0 for r in theirs)
    assert all(0 < abs(a["loss"] - b["loss"]) < 1e-3 for a, b in zip(plain, corrected, strict=True))


def test_regimes_of_a_seed_share_their_first_samples(finished):
    first = [
        [(r["policy"], r["right"], r["generated_tokens"]) for r in rows(finished, c, "steps")[:2]]
        for c in finished.cells
    ]
    assert all(f == first[0] for f in first)


def test_regimes_differ_where_they_learn(finished):
    reference = weights(finished, "independent")
    for name in ("prp", "xgrpo", "hacpo", "naive", "sapo", "ftis"):
        assert not same_weights(reference, weights(finished, name)), name


def test_what_travels_is_what_the_regime_shares(finished):
    kinds = {c.variant.name: {r["kind"] for r in rows(finished, c, "exchanges")} for c in finished.cells}
    assert kinds["independent"] == set()
    assert kinds["prp"] == kinds["hacpo"] == kinds["graft"] == kinds["ftis"] == {"rollout"}
    assert kinds["naive"] == kinds["sapo"] == {"text"}
    assert kinds["xgrpo"] == {"value"}
    assert kinds["sgt"] <= {"success"}


def test_ledger_steps_and_terms_agree_on_what_was_used(finished):
    for c in finished.cells:
        exchanged, terms = rows(finished, c, "exchanges"), rows(finished, c, "terms")
        for step in rows(finished, c, "steps"):
            at = step["step"], step["policy"]
            used = sum(r["used"] for r in exchanged if (r["step"], r["receiver"]) == at)
            active = sum(r["active"] for r in terms if (r["step"], r["policy"], r["source"]) == (*at, "peer"))
            assert step["peer_used"] == used == active <= step["peer_received"], c.variant.name
    used = {r["used"] for r in rows(finished, cell(finished, "hacpo"), "exchanges")}
    assert used == {True, False}, "HACPO's window lets some in and some not"
    imitating = [s for s in rows(finished, cell(finished, "sgt"), "steps") if s["peer_used"]]
    assert imitating
    assert all(
        (s["weight_second_moment"], s["effective_sample_size"], s["clipped_share"]) == (1, 1, 0) for s in imitating
    )


def test_a_run_repeats_itself(finished, suite_file, tmp_path):
    again = run(suite_file, tmp_path / "results", only="*/hacpo/*")
    for table in TABLES:
        assert rows(again, again.cells[0], table) == rows(finished, cell(finished, "hacpo"), table), table
    assert same_weights(weights(again, "hacpo"), weights(finished, "hacpo"))


@pytest.mark.slow
def test_without_peers_every_regime_is_its_baseline(finished, suite_file, tmp_path):
    alone = run(suite_file, tmp_path / "results", overrides=["sharing.direction=none", "regimes[0].objective=gspo"],
                only="*/independent/*")  # fmt: skip
    silent = run(suite_file, tmp_path / "none", overrides=["sharing.direction=none"])
    for c in silent.cells:
        reference = (alone, "independent") if c.variant.name == "hacpo" else (finished, "independent")
        for policy in "ab":
            assert same_weights(weights(silent, c.variant.name, policy), weights(*reference, policy)), c.label


def test_a_lone_policy_equals_one_outside_the_sharing_path(finished, suite_file, tmp_path):
    text = suite_file.read_text()
    b = next(line for line in text.splitlines() if "name: b" in line)
    suite_file.write_text(text.replace(b + "\n", "") + "sharing: {direction: none}\n")
    lone = run(suite_file, tmp_path / "results", only="*/prp/*")
    assert same_weights(weights(lone, "prp"), weights(finished, "independent"))


def test_checkpoint_opens_with_transformers(finished):
    folder: Path = finished.folder / cell(finished, "sgt").key / "checkpoint" / "a"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size >= len(tokenizer)


def test_eval_of_a_checkpoint_reproduces_the_stored_greedy_answers_and_stores_the_back_end(finished, tmp_path):
    c = cell(finished, "sgt")
    checkpoint = finished.folder / c.key / "checkpoint" / "a"
    found, other = (
        Path(evaluate_checkpoint(checkpoint, ["micro"], limit=limit, k=0, backend=name, results=tmp_path).folder)
        for name, limit in (("embedded", 6), ("hf", 2))
    )
    again = read_journal(found).tables["samples"].to_pylist()
    stored = [r for r in rows(finished, c, "samples") if r["policy"] == "a" and r["metric"] == "greedy"]
    assert [(r["doc_id"], r["text"], r["verdict"]) for r in again] == [
        (r["doc_id"], r["text"], r["verdict"]) for r in stored
    ]
    own, theirs = read_manifest(found), read_manifest(other)
    assert (own.engine, theirs.engine, own.key == theirs.key) == ("embedded", "hf", False)
    assert theirs.identity.models["a"].startswith("content ")
    assert "engines/embedded" not in theirs.identity.versions


def test_a_stored_cell_runs_again_to_its_rows(finished, tmp_path):
    spec = importlib.util.spec_from_file_location("rerun", Path(__file__).parents[2] / "tools/rerun.py")
    rerun = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rerun)
    stored, other = (finished.folder / cell(finished, name).key for name in ("prp", "xgrpo"))
    rerun.run_again(stored, tmp_path / stored.name)
    assert list(rerun.differences(stored, tmp_path / stored.name)) == []
    assert {line.partition(":")[0] for line in rerun.differences(other, tmp_path / stored.name)} >= {
        "steps",
        "exchanges",
    }


def test_rescoring_changes_nothing_while_the_verifier_is_the_same(finished):
    report = rescore_results(finished.folder.parent, "tiny")
    assert report.samples == 9 * 2 * 6 * 3
    assert report.changes == ()
