"""`harness export --format eee`: the store's own numbers, the same bytes each time, no false verdict."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from running import ingested
from synthetic_results import REGIMES, write_results

from harness.formats.exports import finished_cells, write_every_eval_ever
from harness.store.ingest import ingest
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import PolicyEntry, read_manifest, read_suite, write_manifest
from harness.store.read import Snapshot
from harness.store.results_folder import write_results_folder
from harness.store.rows import SCHEMAS
from harness.submission.bundle import compact
from harness.suite.cells import Identity
from harness.tasks.data import SETS

TASKS = ("micro", "gsm8k", "olympiad")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of llama, the greedy answer to micro-0 has no verdict, nor have both samples of micro-1, nor one of micro-2's."""
    folder = tmp_path_factory.mktemp("results")
    write_results(
        folder, "s", regimes=REGIMES[:2], seeds=(1,), steps=2, questions=6, tasks=TASKS, groups={"g": ("llama", "qwen")}
    )
    checksums = {"micro": "", "gsm8k": SETS["gsm8k"].sha256, "olympiad": SETS["olympiad"].sha256}
    for cell in (f.parent for f in folder.glob("s/*/manifest.json") if not f.parent.name.startswith("base-")):
        m = read_manifest(cell)
        config = {**m.config, "evaluation": {"limit": None, "max_new_tokens": 64, "k": 2}}
        config["training"] = {**m.config["training"], "task": {"file": "/home/someone/q.jsonl", "sha256": "ab"}}
        policies = (PolicyEntry("llama", "org/base-1B", "c" * 40), PolicyEntry("qwen", "/home/someone/models/q"))
        identity = Identity(evaluation=checksums)
        write_manifest(cell, msgspec.structs.replace(m, config=config, policies=policies, identity=identity))
        rows = read_journal(cell).tables["samples"].to_pylist()
        for row in rows:
            lost = {"micro-0": "greedy", "micro-1": "sampled", "micro-2": "sampled"}.get(row["doc_id"])
            if row["policy"] == "llama" and row["metric"] == lost and (row["doc_id"], row["repeat"]) != ("micro-2", 0):
                row |= {"verdict": "invalid", "reason": "timeout", "vote": -1}
            row["text"] += "\u2028\x85"  # line ends to some readers
        samples = pa.Table.from_pylist(rows, schema=SCHEMAS["samples"])
        journal = cell / "journal" / "compact-000001"
        next(journal.glob("samples-*")).unlink()
        write_columns(journal, "samples", samples)
    ingest(folder)
    return folder


@pytest.fixture(scope="module")
def written(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eee")
    with Snapshot(results) as snapshot:
        assert write_every_eval_ever(snapshot, results, "s", out) == 4
    return out


def records(written: Path) -> dict[tuple[str, str], tuple[dict, list[dict]]]:
    by_policy = {}
    for file in written.glob("data/*/*/*/*.json"):
        record = json.loads(file.read_text())
        lines = (written / record["detailed_evaluation_results"]["file_path"]).read_text().splitlines()
        details = record["model_info"]["additional_details"]
        by_policy[details["cell"], details["policy"]] = record, [json.loads(line) for line in lines]
    return by_policy


def test_records_hold_the_stores_values(results: Path, written: Path) -> None:
    read = records(written)
    with Snapshot(results) as snapshot:
        rows = snapshot.query(
            "SELECT * FROM scores SEMI JOIN current_cells USING (suite, cell) WHERE checkpoint_step > 0"
        ).to_pylist()
    assert len(rows) == 4 * 3 * 4  # policies of cells, tasks, metrics
    said = {
        (cell, policy, *r["evaluation_result_id"].split("/")): r
        for (cell, policy), (record, _) in read.items()
        for r in record["evaluation_results"]
    }
    assert len(said) == len(rows)
    for row in rows:
        key = row["cell"], row["policy"], row["task"], row["metric"]
        details = said[key]["score_details"]
        error = {"standard_error": {"value": row["error"], "method": "analytic"}, "num_samples": row["questions"]}
        assert (details["score"], details["uncertainty"]) == (row["accuracy"], error)
        lines = [
            e["evaluation"]["score"] for e in read[key[:2]][1] if e["evaluation_result_id"] == f"{key[2]}/{key[3]}"
        ]
        assert sum(lines) / len(lines) == pytest.approx(row["accuracy"])
        assert len(lines) == row["questions"]


def test_an_answer_without_a_verdict_is_never_wrong(written: Path) -> None:
    record, lines = next(pair for (_, policy), pair in records(written).items() if policy == "llama")
    of = {(e["evaluation_result_id"], e["sample_id"]): e for e in lines}
    assert len(of) == len(lines)
    assert ("micro/greedy", "micro-0") not in of
    for metric in ("sampled", "best@2", "maj@2"):
        assert (f"micro/{metric}", "micro-1") not in of
        partly = of[f"micro/{metric}", "micro-2"]
        assert partly["error"] == "1 of 2 answers without a verdict: timeout"
        assert partly["metadata"]["verdicts"].split(", ")[1] == "invalid"
        assert partly["evaluation"]["score"] == float(partly["metadata"]["verdicts"].startswith("right"))
    counts = {r["evaluation_result_id"]: r["score_details"]["details"] for r in record["evaluation_results"]}
    lost = {"answers": "9", "answers_without_verdict": "3", "questions_without_verdict": "1"}
    assert (counts["micro/sampled"], counts["gsm8k/greedy"]["questions_without_verdict"]) == (lost, "0")


def test_where_a_record_lies_and_what_it_says_of_its_source(written: Path) -> None:
    for file in (f for f in written.rglob("*") if f.is_file()):
        place = str(file.relative_to(written))
        model = r"s__g__\w[\w-]*__1__(llama|qwen)"
        assert re.fullmatch(rf"data/experience-sharing-harness/local/{model}/{UUID}(\.json|_samples\.jsonl)", place)
        assert "/home/someone" not in file.read_text()
    for (cell, policy), (record, lines) in records(written).items():
        detail = record["detailed_evaluation_results"]
        samples = (written / detail["file_path"]).read_bytes()
        assert (detail["checksum"], detail["total_rows"]) == (hashlib.sha256(samples).hexdigest(), len(lines))
        assert {(e["evaluation_id"], e["model_id"]) for e in lines} == {
            (record["evaluation_id"], record["model_info"]["id"])
        }
        assert record["retrieved_timestamp"] == "1767225660.0"  # the cell's end, 2026-01-01T00:01:00Z
        details = record["model_info"]["additional_details"]
        base = {"llama": "org/base-1B", "qwen": "q"}[policy]
        assert (details["seed"], details["cell"], details["base_model"]) == ("1", cell, base)
        of = {r["evaluation_result_id"]: r for r in record["evaluation_results"]}
        assert of["micro/greedy"]["source_data"] == {"dataset_name": "micro", "source_type": "other"}
        assert of["gsm8k/greedy"]["source_data"]["hf_repo"] == "openai/gsm8k"
        assert of["gsm8k/greedy"]["source_data"]["additional_details"]["revision"] == SETS["gsm8k"].remote.revision
        assert SETS["olympiad"].remote.revision in of["olympiad/greedy"]["source_data"]["url"][0]
        assert of["micro/greedy"]["generation_config"]["generation_args"] == {"temperature": 0.0, "max_tokens": 64}
        assert of["micro/sampled"]["metric_config"]["metric_name"] == "avg@2"


def test_another_version_of_a_set_is_not_called_that_set(results: Path) -> None:
    cell = next(f.parent for f in results.glob("s/*/manifest.json") if not f.parent.name.startswith("base-"))
    before = read_manifest(cell)
    with Snapshot(results) as snapshot:
        policies = list(finished_cells(snapshot, results, "s"))
    one = next(policy for policy in policies if policy.folder == cell)
    assert one.published("gsm8k") is SETS["gsm8k"]
    other = msgspec.structs.replace(before, identity=Identity(evaluation={"gsm8k": "0" * 64}))
    assert one._replace(manifest=other).published("gsm8k") is None


@pytest.fixture(scope="module")
def cut(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is written of the same cells as reference results."""
    place = tmp_path_factory.mktemp("cut")
    folders = [f.parent for f in (results / "s").glob("*/manifest.json")]
    manifests = {folder.name: read_manifest(folder) for folder in folders}
    tables = {folder.name: compact(read_journal(folder).tables) for folder in folders}
    write_results_folder(place / "results/reference/s", read_suite(results / "s"), "test", manifests, tables)
    with ingested(place / "results") as snapshot:
        assert write_every_eval_ever(snapshot, place / "results", "s@reference", place / "eee") == 4
    return place / "eee"


def test_reference_results_have_scores_without_samples(written: Path, cut: Path) -> None:
    files = sorted(f for f in cut.rglob("*") if f.is_file())
    assert [f.suffix for f in files] == [".json"] * 4
    whole = {f.name: json.loads(f.read_text()) for f in written.rglob("*.json")}
    for file in files:
        record = json.loads(file.read_text())
        assert record["evaluation_results"] == whole[file.name]["evaluation_results"]
        assert "detailed_evaluation_results" not in record


@pytest.mark.skipif(find_spec("every_eval_ever") is None, reason="the format's own validator is not installed here")
@pytest.mark.parametrize(("which", "count"), [("written", 8), ("cut", 4)])
def test_the_formats_own_validator_accepts_them(which: str, count: int, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(which)
    files = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    done = subprocess.run(
        [sys.executable, "-m", "every_eval_ever", "validate", "--format", "json", *files],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    reports = json.loads(done.stdout)
    assert len(reports) == count
    assert all(r["valid"] and not r["warnings"] for r in reports)
