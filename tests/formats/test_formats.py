"""Other programs read what `harness export` writes and what the queries of examples/export give."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from lm_eval.utils import make_table
from running import ingested, ok
from synthetic_results import REGIMES, write_results

from harness.errors import StoreError, UsageError
from harness.formats.exports import find_benchmarks, finished_cells, write_cards, write_parquet
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest, read_suite, write_manifest
from harness.store.read import Snapshot
from harness.store.results_folder import write_results_folder
from harness.store.table import show_rows
from harness.submission.bundle import select_tables
from harness.suite.cells import Identity
from harness.tasks.sets import SETS

SUITE = "synthetic-small"
EXAMPLES = Path(__file__).parents[2] / "examples" / "export"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("results"), SUITE)


def write(
    folder: Path,
    suite: str,
    tasks: tuple[str, ...] = ("micro", "gsm8k"),
    limit: int | None = None,
    k: int | None = 2,
    sampling: Mapping[str, float] = {},
    **more: Any,
) -> Path:
    """sampling: what the suite's `evaluation` says of it; cells from before these settings name none."""
    more = {"regimes": REGIMES[:3], **more}
    write_results(folder, suite, seeds=(1, 2), steps=2, questions=10, tasks=tasks, text="<b>", **more)
    evaluation = {"limit": limit, "max_new_tokens": None, "k": k, **sampling}
    for file in (f for f in folder.glob("*/*/manifest.json") if not f.parent.name.startswith("base-")):
        m = read_manifest(file.parent)
        config = {**m.config, "evaluation": evaluation, "training": {**m.config["training"], "task": "micro"}}
        identity = Identity(evaluation={"micro": "", "gsm8k": SETS["gsm8k"].sha256})
        write_manifest(file.parent, msgspec.structs.replace(m, config=config, identity=identity))
    ingest_journals(folder)
    return folder


@pytest.fixture(scope="module")
def snapshot(results: Path):
    with Snapshot(results) as snapshot:
        yield snapshot


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def ask(results: Path, query: str) -> list[list[Any]]:
    """Rows of a query of examples/export/, by the command."""
    text = (EXAMPLES / f"{query}.sql").read_text()
    answer = json.loads(ok("sql", text, "--json", "--results", results))
    assert not answer["cut"]
    return list(answer["rows"])


def test_lm_eval_reads_what_its_queries_give(results: Path, snapshot: Snapshot) -> None:
    documents = {model: json.loads(text) for model, text in ask(results, "lm_eval_results")}
    assert len(documents) == 2 * 2 * 3 * 2
    document = documents[f"{SUITE}__llama-qwen__prp__1__llama"]
    assert "greedy" in make_table(document)
    where = "suite = ? AND cell = ? AND policy = 'llama'"
    stored = snapshot.query(
        f"SELECT task, metric, accuracy, error FROM scores WHERE {where}", [SUITE, document["config"]["cell"]]
    )
    for row in stored.to_pylist():
        result = document["results"][row["task"]]
        assert result[f"{row['metric']},none"] == row["accuracy"]
        assert result[f"{row['metric']}_stderr,none"] == row["error"]
    place = [document["model_name"], "micro"]
    lines = [json.loads(row[-1]) for row in ask(results, "lm_eval_samples") if row[:2] == place]
    assert [line["doc_id"] for line in lines] == list(range(10 * 2))
    for metric in ("greedy", "sampled"):
        own = [line["exact_match"] for line in lines if line["filter"] == metric]
        assert document["results"]["micro"][f"{metric},none"] == pytest.approx(sum(own) / len(own))
    sampled = next(line for line in lines if line["filter"] == "sampled")
    assert len(sampled["resps"][0]) == len(sampled["filtered_resps"]) == 2


def test_records_of_every_eval_ever_hold_the_stores_values(results: Path, snapshot: Snapshot) -> None:
    records = [json.loads(record) for _, record in ask(results, "every_eval_ever")]
    assert len(records) == 2 * 2 * 3 * 2
    for record in records[::5]:
        details = record["model_info"]["additional_details"]
        stored = snapshot.query(
            "SELECT task, metric, accuracy, error, questions, answers FROM scores WHERE suite = ? AND cell = ? AND policy = ?",
            [SUITE, details["cell"], details["policy"]],
        ).to_pylist()
        results_of = {
            result["evaluation_result_id"]: result["score_details"] for result in record["evaluation_results"]
        }
        assert len(results_of) == len(stored) == 2 * 4
        for row in stored:
            score = results_of[f"{row['task']}/{row['metric']}"]
            assert score["score"] == row["accuracy"]
            assert score["uncertainty"] == {
                "num_samples": row["questions"],
                "standard_error": {"value": row["error"], "method": "analytic"},
            }
            assert score["details"]["answers"] == str(row["answers"])


def test_exports_say_how_answers_were_sampled(results: Path, tmp_path: Path) -> None:
    as_papers_do = write(tmp_path, "s", ("gsm8k",), sampling={"temperature": 0.6, "top_p": 0.95})

    def generation_settings(folder: Path) -> dict[str, str]:
        """By metric, of the first record."""
        record = json.loads(ask(folder, "every_eval_ever")[0][1])
        found = {}
        for result in record["evaluation_results"]:
            metric = result["evaluation_result_id"].split("/")[1]
            found[metric] = result["generation_config"]["generation_args"]
        return found

    assert generation_settings(results)["sampled"] == {"temperature": 1.0, "top_p": 1.0}
    assert generation_settings(as_papers_do)["sampled"] == {"temperature": 0.6, "top_p": 0.95}
    assert generation_settings(as_papers_do)["greedy"] == {"temperature": 0.0}
    for folder, said in ((results, "temperature 1;"), (as_papers_do, "temperature 0.6 and top-p 0.95;")):
        assert f"mean of 2 samples at {said}" in note_of_sampled_benchmark(folder)


def note_of_sampled_benchmark(folder: Path) -> str:
    """What the hub is told of a benchmark on which nothing but samples was scored."""
    suite = next(folder.glob("*/suite.json")).parent.name
    with Snapshot(folder) as snapshot:
        cell = next(finished_cells(snapshot, folder, suite))
    sampled = [score for score in cell.scores if score.metric == "sampled"]
    return find_benchmarks(cell._replace(scores=sampled))["gsm8k"].notes or ""


@pytest.mark.skipif(find_spec("every_eval_ever") is None, reason="the format's own validator is not installed here")
def test_the_formats_own_validator_accepts_the_records(results: Path, tmp_path: Path) -> None:
    for number, (_, record) in enumerate(ask(results, "every_eval_ever")):
        (tmp_path / f"{number}.json").write_text(record)
    command = [sys.executable, "-m", "every_eval_ever", "validate", "--format", "json", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


def test_reference_results_have_no_samples_for_lm_eval(results: Path, tmp_path: Path) -> None:
    """Their prompts were not kept."""
    folders = [file.parent for file in (results / SUITE).glob("*/manifest.json")]
    manifests = {folder.name: read_manifest(folder) for folder in folders}
    tables = {folder.name: select_tables(read_journal(folder).tables) for folder in folders}
    target = tmp_path / "reference" / SUITE
    write_results_folder(target, read_suite(results / SUITE), "test", manifests, tables)
    assert len(ask(tmp_path, "lm_eval_results")) == 24
    assert ask(tmp_path, "lm_eval_samples") == []


@pytest.mark.parametrize("count", [2, 0], ids=["some", "none"])
def test_parquet_columns_have_their_type_without_a_value_too(tmp_path: Path, count: int) -> None:
    folder = write(tmp_path / "results", "s", ("micro",), regimes=REGIMES[:count])
    with Snapshot(folder) as snapshot:
        write_parquet(snapshot, folder, "s", tmp_path)
    schemas = {name: pq.read_schema(tmp_path / f"{name}.parquet") for name in ("show", "seeds")}
    assert (schemas["show"].names[0], schemas["seeds"].names[-1]) == ("group", "holds")
    assert pa.null() not in [*schemas["show"].types, *schemas["seeds"].types]
    assert schemas["show"].field("gain_interval").type == pa.list_(pa.float64())


def test_parquet_has_the_rows_of_show(snapshot: Snapshot, tmp_path: Path) -> None:
    assert write_parquet(snapshot, tmp_path, SUITE, tmp_path) == 9
    rows = show_rows(snapshot, SUITE)
    read = duckdb.sql(f"SELECT regime, policy, accuracy, gain FROM '{tmp_path}/show.parquet'").fetchall()
    assert read == [(r.regime, r.policy, r.accuracy, r.gain) for r in rows]
    stored = snapshot.query("SELECT count(*) AS n FROM samples")["n"][0].as_py()
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/samples.parquet'").fetchall() == [(stored,)]
    with pytest.raises(UsageError, match="no results of a suite 'nothing'"):
        write_parquet(snapshot, tmp_path, "nothing", tmp_path)


def test_parquet_of_equal_results_is_equal_whatever_was_read_first(results: Path, snapshot, tmp_path: Path) -> None:
    there, aside = shutil.copytree(results, tmp_path / "there"), tmp_path / "aside"
    (there / SUITE / read_suite(results / SUITE).cells[0]).rename(aside)
    ingest_journals(there, rebuild=True)
    aside.rename(there / SUITE / read_suite(results / SUITE).cells[0])
    ingest_journals(there)
    write_parquet(snapshot, results, SUITE, tmp_path / "one")
    with Snapshot(there) as other:
        write_parquet(other, there, SUITE, tmp_path / "other")
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_the_hub_reads_cards_and_results_on_its_benchmarks(results: Path, snapshot: Snapshot, tmp_path: Path) -> None:
    assert write_cards(snapshot, results, SUITE, tmp_path) == 24
    files = sorted(tmp_path.glob("*/*/.eval_results/*.yaml"))
    assert [f.name for f in files] == ["gsm8k.yaml"] * 24  # micro is generated, and no dataset of the hub's
    for file in files[:4]:
        (entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text()))
        policy, cell = file.parts[-3], file.parts[-4]
        which = "cell = ? AND policy = ? AND metric = 'greedy'"
        rows = snapshot.query(f"SELECT task, accuracy FROM scores WHERE {which}", [cell, policy]).to_pylist()
        stored = {row["task"]: row["accuracy"] for row in rows}
        card = ModelCard.load(file.parents[1] / "README.md")
        assert "| options | `the regime's own` |" in card.text
        scores = {(e.dataset_name, e.metric_name): e.metric_value for e in card.data.eval_results}
        assert scores["micro", "greedy accuracy"] == stored["micro"]
        assert ("micro", "mean accuracy of samples (avg@2)") in scores
        assert entry.value == pytest.approx(100 * stored["gsm8k"])
        assert (entry.dataset_id, entry.dataset_revision) == ("openai/gsm8k", SETS["gsm8k"].remote.revision)
        assert entry.notes.startswith("greedy; 10 of 1319 questions")


@pytest.mark.parametrize(("tasks", "limit"), [(("micro",), None), (("gsm8k",), 10)], ids=["generated", "a part"])
def test_what_is_no_benchmark_or_only_a_part_of_one_is_none(tasks: tuple[str, ...], limit: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "results", "s", tasks, limit)
    with Snapshot(folder) as snapshot:
        assert write_cards(snapshot, folder, "s", tmp_path / "cards") == 24
    assert not list(tmp_path.glob("cards/*/*/.eval_results"))


def test_questions_that_are_not_the_published_ones_are_no_benchmark(tmp_path: Path) -> None:
    """The set has a benchmark's name, and other bytes."""
    folder = write(tmp_path / "results", "s", ("gsm8k",))
    for file in folder.glob("*/[!b]*/manifest.json"):
        other = Identity(evaluation={"gsm8k": "0" * 64})
        write_manifest(file.parent, msgspec.structs.replace(read_manifest(file.parent), identity=other))
    with ingested(folder) as snapshot:
        assert write_cards(snapshot, folder, "s", tmp_path / "cards") == 24
    assert not list(tmp_path.glob("cards/*/*/.eval_results"))


def test_a_cell_that_has_not_finished_has_no_card(tmp_path: Path) -> None:
    folder = write(tmp_path / "results", "s", ("micro",))
    cell = next(file.parent for file in folder.glob("*/[!b]*/manifest.json"))
    write_manifest(cell, msgspec.structs.replace(read_manifest(cell), state="failed", reason="the disk is full"))
    with ingested(folder) as snapshot:
        assert write_cards(snapshot, folder, "s", tmp_path / "cards") == 22
    assert not list(tmp_path.glob(f"cards/{cell.name}*"))


NAMES = {
    "group": "x/../../../../escaped",
    "regime": "..\\escaped",
    "key": "../escaped",
    "suite": "../escaped",
}


@pytest.mark.slow_but("key")
@pytest.mark.parametrize("field", NAMES)
def test_nothing_is_written_outside_whatever_our_own_manifests_are_called(field: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "results", "s")
    for file in folder.glob("*/[!b]*/manifest.json"):
        write_manifest(file.parent, msgspec.structs.replace(read_manifest(file.parent), **{field: NAMES[field]}))
    before = contents(tmp_path)
    with ingested(folder) as snapshot, pytest.raises(StoreError, match="is no name for a file"):
        write_cards(snapshot, folder, "s", tmp_path / "a" / "b" / "out")
    assert contents(tmp_path).keys() - before.keys() <= {"results/.harness.lock"}


def test_a_config_that_no_cell_has_is_refused_in_a_line(tmp_path: Path) -> None:
    """An import takes a manifest's config as it is; a KeyError ended the export."""
    write_results(tmp_path, groups={"solo": ("llama",)}, regimes=REGIMES[:1], seeds=(1,), steps=2, questions=2)
    with ingested(tmp_path) as snapshot, pytest.raises(StoreError, match=r"manifest\.json: config: Object missing"):
        write_cards(snapshot, tmp_path, SUITE, tmp_path / "out")


def test_a_suite_may_take_each_tasks_own_k(tmp_path: Path) -> None:
    folder = write(tmp_path, "s", ("micro",), k=None, groups={"solo": ("llama",)}, regimes=REGIMES[:1])
    with Snapshot(folder) as snapshot:
        assert write_cards(snapshot, folder, "s", tmp_path / "out") == 2


@pytest.mark.slow
def test_the_pages_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "results", "quickstart")
    page = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    commands = [line.strip() for line in page.splitlines() if line.startswith("    harness ")]
    assert len(commands) == 9
    monkeypatch.chdir(tmp_path)
    for command in commands:
        if "track" in command and find_spec(command.split("--to ")[1]) is None:
            continue
        if "cat " in command:
            assert json.loads(ok("sql", (EXAMPLES / Path(command.split()[3].rstrip(')"')).name).read_text(), "--json"))[
                "rows"
            ]
            continue
        ok(*command.split()[1:])
    assert {"report.html", "parquet", "cards"} <= {p.name for p in tmp_path.iterdir()}
