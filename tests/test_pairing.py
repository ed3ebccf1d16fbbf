"""Cells of other starts than their baseline's are in no comparison, and are named: from records made by hand, and from real cells
one of which states another start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from running import harness, ingested, ok
from synthetic_results import write_rows

from harness.session.cell.cell import _as_it_began
from harness.session.cell.manifests import mark_state
from harness.session.cell.resume_point import has_begun
from harness.session.policy import content_digest, weights_digest
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    Provenance,
    read_manifest,
    write_manifest,
)
from harness.store.ranking import make_heading
from harness.store.read import Snapshot
from harness.store.remarks import count_states, describe_gaps, missing_cells
from harness.store.rows import SampleRow, StepRow
from harness.store.standing import make_board
from harness.store.starts import OTHER_FIRST_STEP, OTHER_MACHINE, OTHER_VERSION, OTHER_WEIGHTS
from harness.store.table import seed_rows
from harness.suite.cells import Identity

A, B = "a" * 32, "b" * 32
TRAINED = {"name": "p", "model": "pretrained/p", "stage0": {"preset": "format"}}
PUBLISHED = {"name": "p", "model": "pretrained/p", "stage0": None}


def write(
    results: Path,
    regime: str,
    start: str = "",
    seed: int = 1,
    right: int = 3,
    tokens: float = 9.0,
    stream: int = 0,
    budget: str = "1x",
    rate: float = 1e-4,
    numerics: str = "fast",
    machine: str = "one",
    policy: dict[str, Any] = TRAINED,
    versions: Mapping[str, str] = MappingProxyType({}),
    model: str = "content 1",
    engine: str = "embedded",
    drawn: Mapping[str, Any] = MappingProxyType({}),
    **more: str,
) -> None:
    """A finished cell of one policy and one step."""
    config = {
        "engine_options": {"numerics": numerics},
        "group": {"name": "pair", "policies": [policy]},
        "variant": {"name": regime, "sampling_stream": stream, "budget": budget, **drawn},
        "training": {"task": "t", "rollouts": 4, "learning_rate": rate},
    }
    rows = [
        StepRow(policy="p", step=1, answers=4, right=right, wrong=4 - right, answer_tokens_mean=tokens, rollouts=4),
        SampleRow(policy="p", checkpoint_step=1, task="t", metric="greedy", doc_id="1", verdict="right"),
        SampleRow(policy="p", checkpoint_step=1, task="t", metric="greedy", doc_id="2", verdict="wrong"),
    ]
    write_rows(
        results, rows, f"{regime}-{seed}", regime=regime, regime_type=regime, seed=seed, config=config, engine=engine,
        policies=(PolicyEntry("p", policy["model"], start=start),), identity=Identity(models={"p": model}, versions=dict(versions)),
        provenance=Provenance(machine={"processor": machine, **more}),
    )  # fmt: skip


def judged(results: Path) -> dict[str, str]:
    """By cell, why it is not paired."""
    with ingested(results) as snapshot:
        rows = snapshot.query("SELECT cell, state, reason FROM current_cells ORDER BY cell").to_pylist()
    return {row["cell"]: row["reason"].partition(";")[0] for row in rows if row["state"] == "unpaired"}


def other(words: str, reference: str = "pair/independent") -> str:
    return words.format(reference)


@pytest.mark.parametrize(
    ("baseline", "ours", "why"),
    [
        ({"start": A}, {"start": A}, ""),
        ({"start": A}, {"start": B}, OTHER_WEIGHTS),
        # equal first steps do not make unlike digests alike, nor unlike ones (another library's kernels) equal digests unlike
        ({"start": A}, {"start": A, "right": 2}, ""),
        ({"start": A}, {"start": B, "numerics": "portable"}, OTHER_WEIGHTS),
        ({"start": A, "policy": PUBLISHED}, {"start": B, "policy": PUBLISHED}, OTHER_WEIGHTS),
        # one has no digest, or none has
        ({"start": A}, {}, ""),
        ({"start": A}, {"right": 2}, OTHER_FIRST_STEP),
        ({}, {"right": 2}, OTHER_FIRST_STEP),
        ({}, {"tokens": 9.5}, OTHER_FIRST_STEP),
        ({}, {"tokens": 9.5, "numerics": "portable"}, OTHER_FIRST_STEP),
        ({}, {"rate": 2e-4, "right": 2}, OTHER_FIRST_STEP),
        ({}, {"machine": "two"}, ""),
        # verdicts of another verifier say nothing of the start, its answers do
        ({"versions": {"verification": "1"}}, {"versions": {"verification": "2"}, "right": 2}, ""),
        ({"versions": {"verification": "1"}}, {"versions": {"verification": "2"}, "tokens": 8.0}, OTHER_FIRST_STEP),
        # what does not repeat cannot be told by its first step
        ({"threads": "2"}, {"threads": "2", "right": 2}, ""),
        ({"threads": "2"}, {"threads": "2", "right": 2, "machine": "two"}, OTHER_MACHINE),
        ({"engine": "openrlhf"}, {"engine": "openrlhf", "right": 2}, ""),
        # other draws: A/A, another budget
        ({}, {"stream": 1, "right": 2}, ""),
        ({}, {"budget": "2x", "right": 2}, ""),
        ({}, {"drawn": {"sampling": "split"}, "right": 2}, ""),
        ({}, {"drawn": {"dynamic_sampling": {"rounds": 3, "decided_by": "all"}}, "right": 2}, ""),
        ({}, {"stream": 1, "machine": "two"}, OTHER_MACHINE),
        ({}, {"stream": 1, "gpu": "H100"}, OTHER_MACHINE),
        ({"numerics": "portable"}, {"stream": 1, "machine": "two", "numerics": "portable"}, ""),
        ({"start": A}, {"start": A, "stream": 1, "machine": "two"}, ""),
        ({"versions": {"stage0": "1"}}, {"versions": {"stage0": "2"}, "stream": 1}, OTHER_VERSION),
        # a published model is the same wherever it is read
        ({"policy": PUBLISHED}, {"policy": PUBLISHED, "right": 2, "machine": "two"}, ""),
        ({"policy": PUBLISHED}, {"policy": PUBLISHED, "model": "content 2"}, OTHER_WEIGHTS),
    ],
)  # fmt: skip
def test_what_is_paired(tmp_path: Path, baseline: dict[str, Any], ours: dict[str, Any], why: str) -> None:
    write(tmp_path, "independent", **baseline)
    write(tmp_path, "sgt", **ours)
    assert judged(tmp_path) == ({"sgt-1": other(why)} if why else {})


def test_each_seed_has_its_own_start_and_without_a_baseline_the_first_variant_counts(tmp_path: Path) -> None:
    for seed, start in ((1, A), (2, B)):
        for regime in ("hacpo", "naive"):
            write(tmp_path, regime, start, seed)
    assert judged(tmp_path) == {}
    write(tmp_path, "naive", A, seed=2)
    assert judged(tmp_path) == {"naive-2": other(OTHER_WEIGHTS, "pair/hacpo")}
    write(tmp_path, "independent", A, seed=2)
    assert judged(tmp_path) == {"hacpo-2": other(OTHER_WEIGHTS)}, "the baseline counts as soon as it is there"


def test_a_base_checkpoint_of_another_start_is_not_the_tables(tmp_path: Path) -> None:
    def measured() -> list[float | None]:
        with ingested(tmp_path) as snapshot:
            return [row.base for row in seed_rows(snapshot, "hand")]

    def base(start: str, machine: str = "one") -> None:
        sample = SampleRow(policy="p", checkpoint_step=0, task="t", metric="greedy", doc_id="1", verdict="right")
        entry = (PolicyEntry("p", "pretrained/p", start=start),)
        made = Provenance(machine={"processor": machine})
        write_rows(tmp_path, [sample], "base-p", kind="base", policies=entry, provenance=made)

    write(tmp_path, "independent", A)
    for start, machine, said in ((A, "two", 1.0), (B, "one", None), ("", "one", 1.0), ("", "two", None)):
        base(start, machine)
        assert measured() == [said], (start, machine)
        with ingested(tmp_path) as snapshot:
            assert [m.cell for m in missing_cells(snapshot, "hand")] == ([] if said else ["base pair/p"])


def test_what_is_not_paired_leaves_every_number_and_is_named(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path, "independent", A, seed)
        write(tmp_path, "sgt", A, seed)
        write(tmp_path, "hacpo", A if seed == 1 else B, seed)
    with ingested(tmp_path) as snapshot:
        rows = {(r.regime, r.seed) for r in seed_rows(snapshot, "hand")}
        gaps = missing_cells(snapshot, "hand")
        assert count_states(snapshot, "hand", gaps) == "5 done, 1 unpaired"
        ((head, lines),) = describe_gaps(gaps).items()
        assert "hacpo/2" not in make_heading(snapshot, "hand").sentences[0].sentence
    assert rows == {("independent", 1), ("independent", 2), ("sgt", 1), ("sgt", 2), ("hacpo", 1)}
    assert head == "Missing from these numbers: 1 cell"
    assert lines == [
        "pair/hacpo/2 unpaired (started from other weights than pair/independent; to make it again, remove its folder and run "
        "the suite)"
    ]


def test_a_cell_that_goes_on_started_from_what_it_noted_first(tmp_path: Path) -> None:
    """On another machine, whose own start is another one; one that begins anew starts from that."""

    def started(noted: str, here: str, begun: bool) -> str:
        folder = tmp_path / f"{noted}{here}{begun}"
        entry = PolicyEntry("p", "micro/llama")
        manifest = Manifest(suite="s", key="k", group="g", policies=(entry,))
        mark_state(
            folder,
            msgspec.structs.replace(manifest, policies=(msgspec.structs.replace(entry, start=noted),)),
            "running",
        )
        mark_state(folder, manifest, "failed")
        assert read_manifest(folder).policies[0].start == noted, "a later state keeps it"
        if begun:
            (folder / "resume" / "step-00000002").mkdir(parents=True)
        assert has_begun(folder) == begun
        new = msgspec.structs.replace(manifest, policies=(msgspec.structs.replace(entry, start=here),))
        return (_as_it_began(new, folder) if has_begun(folder) else new).policies[0].start

    assert started(A, B, begun=True) == A
    assert started(A, B, begun=False) == B
    assert started("", B, begun=True) == "", "from before digests were noted"


def test_a_start_is_known_by_its_weights_alone(tmp_path: Path) -> None:
    def folder(name: str, **files: bytes) -> Path:
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file.replace("_", ".")).write_bytes(content)
        return tmp_path / name

    first = folder("first", model_safetensors=b"1", config_json=b"{}")
    assert weights_digest(first) == weights_digest(folder("second", model_safetensors=b"1", config_json=b"{ }"))
    assert weights_digest(first) != weights_digest(folder("third", model_safetensors=b"2", config_json=b"{}"))
    assert len(weights_digest(first)) == 32
    assert content_digest(first) != weights_digest(first)


@pytest.fixture
def mixed(lab: Path, tmp_path: Path) -> tuple[Path, str]:
    """Real results in which one cell states another start than it had, and its label."""
    results = tmp_path / "results"
    shutil.copytree(lab / "results", results)
    folder = next(
        f.parent for f in (results / "labs").glob("*/manifest.json") if _is(read_manifest(f.parent), "sgt", 2)
    )
    manifest = read_manifest(folder)
    first, *rest = manifest.policies
    assert all(len(policy.start) == 32 for policy in manifest.policies), "a real run notes what it started from"
    swapped = (msgspec.structs.replace(first, start=B), *rest)
    write_manifest(folder, msgspec.structs.replace(manifest, policies=swapped))
    return results, f"{manifest.group}/sgt/2"


def _is(manifest: Manifest, regime: str, seed: int) -> bool:
    return (manifest.kind, manifest.regime, manifest.seed) == ("cell", regime, seed)


def _seeds(results: Path, suite: str) -> set[int]:
    with Snapshot(results) as snapshot:
        return {row.seed for row in seed_rows(snapshot, suite) if row.regime == "sgt"}


def test_two_digests_of_one_start_in_show_board_bundle_and_import(mixed: tuple[Path, str], tmp_path: Path) -> None:
    results, label = mixed
    words = f"{label} unpaired (started from other weights than"
    shown = json.loads(ok("show", "labs", "--results", results, "--json"))
    assert [(m["cell"], m["state"]) for m in shown["missing"]] == [(label, "unpaired")]
    assert {row["seeds"] for row in shown["rows"] if row["regime"] == "sgt"} == {2}
    assert words in " ".join(ok("show", "labs", "--results", results).split())
    assert _seeds(results, "labs") == {1, 3}
    with Snapshot(results) as snapshot:
        seeds = [row.seeds for name, _, row in make_board(snapshot, "all").list_gains("built") if name == "sgt"]
    assert seeds == [2]

    code, out, err = harness("bundle", "labs", "--results", results, "-o", tmp_path)
    assert (code, words in err) == (0, True), err
    made = Path(out.strip())
    code, out, err = harness("submit-check", made, "--results", tmp_path / "other")
    assert (code, words in " ".join(out.split())) == (0, True), out + err
    there = tmp_path / "there"
    assert harness("import", made, "--origin", "b", "--results", there)[0] == 0
    assert words in " ".join(ok("show", "labs@b", "--results", there).split())
    assert _seeds(there, "labs@b") == {1, 3}
    folder = tmp_path / "folder"
    assert words in ok("import", results, "--origin", "c", "--results", folder)
    assert _seeds(folder, "labs@c") == {1, 3}


def test_variants_with_draws_of_their_own_pair(lab: Path) -> None:
    with ingested(lab / "results") as snapshot:
        assert missing_cells(snapshot, "labs") == []
        assert {row.regime for row in seed_rows(snapshot, "labs") if row.gain is not None} >= {"independent-aa", "sgt"}
