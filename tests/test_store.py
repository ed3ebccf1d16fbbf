"""The store: built from journals, rebuilt, guarded."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pytest
from running import ingested
from scipy import stats
from synthetic_results import REGIMES, write_base, write_results, write_rows, write_trials

from harness import files
from harness.cli.tables import show_suite
from harness.errors import DiskFullError, StoreError, UsageError
from harness.statistics.comparison import IDLE
from harness.store.database import create_tables
from harness.store.ingest import STORE, ingest_journals
from harness.store.journal import Journal, read_journal
from harness.store.manifest import (
    PolicyEntry,
    Provenance,
    SuiteFile,
    VariantEntry,
    read_manifest,
    read_suite,
    write_manifest,
    write_suite,
)
from harness.store.read import LIMITS, Limits, Snapshot, ask_in_process
from harness.store.remarks import describe_mixed_processors
from harness.store.render import render_rows
from harness.store.rows import SCHEMAS, CostRow, Row, SampleRow, StepRow
from harness.store.table import seed_rows, show_rows
from harness.store.tuning import write_tuning
from harness.store.tuning_table import tuning_rows

FIELDS = [
    "group", "policy", "regime", "task", "metric", "seeds", "base", "accuracy", "interval", "gain", "gain_interval", "baseline",
    "peer_used", "rollouts", "tokens", "cpu_seconds", "gpu_seconds",
]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder, steps=6, questions=20)
    ingest_journals(folder)
    return folder


def cell(
    results: Path,
    regime: str,
    seed: int | None,
    right: dict[str, list[int]],
    budget: str = "1x",
    name: str = "",
    **more: object,
) -> Path:
    """A small cell made by hand, or a base without a regime: `right[policy]` are verdicts on as many questions."""
    rows: list[Row] = [CostRow(attempt=1, policy="", phase="save", cpu_seconds=1.0)]
    for policy, verdicts in right.items():
        at = {"policy": policy, "checkpoint_step": 3, "task": "micro", "metric": "greedy"}
        words = (("wrong", "right", "invalid")[verdict] for verdict in verdicts)
        rows += [SampleRow(doc_id=str(doc), verdict=word, **at) for doc, word in enumerate(words)]
        counts = {"rollouts": 8, "generated_tokens": 80, "peer_received": 10, "peer_used": (seed or 0) % 3}
        rows += [StepRow(policy=policy, step=step, **counts) for step in (1, 2, 3)]
        rows.append(CostRow(attempt=1, policy=policy, phase="train", cpu_seconds=2.0))
    name = name or (regime if budget == "1x" else f"{regime}-{budget}")
    fields = {
        "regime": name, "regime_type": regime, "budget": budget, "seed": seed, "kind": "cell" if regime else "base",
        "policies": tuple(PolicyEntry(policy, f"micro/{policy}") for policy in right),
    }  # fmt: skip
    return write_rows(results, rows, f"{name or 'base'}-{seed}-{''.join(right)}", **(fields | more))


def shown(results: Path, suite: str = "hand") -> dict[tuple[str, str], object]:
    with ingested(results) as snapshot:
        return {(row.regime, row.policy): row for row in show_rows(snapshot, suite)}


@pytest.mark.slow
def test_a_table_says_where_its_pairs_ran_on_unlike_processors(tmp_path: Path, capsys) -> None:
    """The remark stands on every table, and on none whose pairs are of one kind each."""

    def tables(second: str, **more: object) -> str:
        for regime, processor in (("independent", "x86_64, EPYC, 2b"), ("sgt", second)):
            made = Provenance(machine={"processor": processor})
            cell(tmp_path, regime, 1, {"L": [1, 0]}, provenance=made, **more)
        ingest_journals(tmp_path)
        for form in ("table", "json", "markdown", "latex"):
            show_suite("hand", tmp_path, form)
        return str(capsys.readouterr().out)

    assert "mixed processors" not in tables("x86_64, EPYC, 2b")
    said = tables("x86_64, Xeon, 1a")
    assert said.count("mixed processors") == 4, "table, JSON, Markdown and LaTeX"
    assert "the regimes of pair/1 ran on different ones (x86_64, EPYC, 2b; x86_64, Xeon, 1a)" in " ".join(said.split())
    portable = {"engine_options": {"numerics": "portable"}}
    assert "mixed processors" not in tables("x86_64, Xeon, 1a", config=portable)


def test_one_processor_with_unlike_threads_is_said_too() -> None:
    one, two = {"processor": "EPYC"}, {"processor": "EPYC", "threads": "2"}
    assert "the regimes of pair/1 ran on different ones (EPYC; EPYC with 2 threads)" in describe_mixed_processors(
        [("pair", 1, one), ("pair", 1, two), ("pair", 2, two)]
    )
    assert describe_mixed_processors([("pair", 1, two), ("pair", 1, two), ("pair", 2, one)]) == ""


def test_a_gain_per_rollout_is_that_of_one_policy_on_a_mean_line_too(tmp_path: Path) -> None:
    """12: it was divided by the sum over policies: half for a pair, a third for three."""
    for seed in (1, 2):
        for regime, right in (("independent", [1, 0, 0, 0]), ("sgt", [1, 1, 0, 0])):
            folder = cell(tmp_path, regime, seed, dict.fromkeys("LQG", right))
            journal = Journal(folder)
            journal.append(CostRow(attempt=1, policy=p, phase="train", gpu_seconds=2.0) for p in "LQG")
            journal.commit(3)
    rows = shown(tmp_path)
    for policy in "*LQG":
        row = rows["sgt", policy]
        assert row.gain_per_1000_rollouts == pytest.approx(0.25 / 24 * 1000), "three steps of eight"
        assert row.gain_per_gpu_second == pytest.approx(0.25 / 2)


def test_show_by_hand(tmp_path: Path) -> None:
    cell(tmp_path, "", None, {"L": [1, 0, 0, 0]})
    cell(tmp_path, "", None, {"Q": [1, 1, 0, 0]})
    ours = {1: ([1, 1, 1, 0], [1, 1, 1, 1]), 2: ([1, 1, 1, 1], [1, 1, 0, 0]), 3: ([1, 1, 0, 0], [1, -1, 1, 1])}
    theirs = {1: ([1, 0, 0, 0], [1, 0, 0, 0]), 2: ([1, 1, 0, 0], [1, 0, 0, 0])}
    for regime, by_seed in (("sgt", ours), ("independent", theirs)):
        for seed, right in by_seed.items():
            cell(tmp_path, regime, seed, dict(zip("LQ", right, strict=True)))
    cell(tmp_path, "sgt", 4, {"L": [1], "Q": [1]}, state="failed", reason="it does not count")
    rows = shown(tmp_path)
    mean = rows["sgt", "*"]
    accuracies = np.array([7 / 8, 6 / 8, (0.5 + 1.0) / 2])  # the invalid verdict is left out
    assert (mean.seeds, mean.base, mean.baseline) == (3, 0.375, "independent")
    assert mean.accuracy == pytest.approx(accuracies.mean())
    low, high = stats.t.interval(0.95, 2, accuracies.mean(), stats.sem(accuracies))
    assert mean.interval == pytest.approx((low, high))
    gains = accuracies[:2] - np.array([0.25, 0.375])
    assert mean.gain == pytest.approx(gains.mean())
    assert mean.gain_interval == pytest.approx(stats.t.interval(0.95, 1, gains.mean(), stats.sem(gains)))
    assert mean.peer_used == pytest.approx((1 + 2 + 0) / 30)
    assert (mean.rollouts, mean.tokens, mean.cpu_seconds) == (48, 480, 5)
    one = rows["sgt", "L"]
    assert (one.rollouts, one.tokens, one.cpu_seconds, one.base) == (24, 240, 2, 0.25)
    itself = rows["independent", "*"]
    assert (itself.gain, itself.gain_interval, itself.baseline) == (None, None, None)


def test_the_baseline_has_the_same_budget_and_seeds(tmp_path: Path) -> None:
    for seed in (1, 2):
        for budget, right in (("1x", 1), ("2x", 2), ("4x", 3)):
            cell(tmp_path, "sgt", seed, {"L": [1] * (right + 1) + [0] * (3 - right)}, budget)
            if budget != "4x":
                cell(tmp_path, "independent", seed, {"L": [1] * right + [0] * (4 - right)}, budget)
    for seed in (2, 3, 4):
        cell(tmp_path, "independent", seed, {"L": [1, 1, seed > 3, 0]}, name="again", options={"sampling_stream": 1})
    rows = {regime: (row.seeds, row.gain, row.baseline) for (regime, _), row in shown(tmp_path).items()}
    assert rows == {
        "independent": (2, None, None), "independent-2x": (2, None, None), "sgt": (2, 0.25, "independent"),
        "sgt-2x": (2, 0.25, "independent-2x"), "sgt-4x": (2, None, None), "again": (3, 0.25, "independent"),
    }  # fmt: skip


def test_tunings_table_has_the_gains_of_the_suites(tmp_path: Path) -> None:
    """A variant of twice the rollouts was set against the baseline of once."""
    regimes = [*REGIMES[:2], dataclasses.replace(REGIMES[4], budget="2x"), REGIMES[6]]
    write_results(tmp_path, "own", {"pair": ("a", "b")}, regimes, (1, 2), steps=1, questions=8)
    tuning = write_trials(tmp_path, "own")
    finals = {"independent": "independent", "independent-2x": "independent-2x", "sgt": "hacpo-wide"}
    variants = (msgspec.structs.replace(tuning.variants[0], variant=v, final=final) for v, final in finals.items())
    tuning = msgspec.structs.replace(tuning, variants=tuple(variants))
    write_tuning(tmp_path, read_suite(tmp_path / "own"), tuning)
    with ingested(tmp_path) as snapshot:
        rows = [row for row in show_rows(snapshot, "own") if (row.policy, row.metric) == ("*", "avg@2")]
        tuned = {row.variant: (row.published_gain, row.tuned_gain) for row in tuning_rows(snapshot, tuning)}
    gains = {row.regime: row.gain for row in rows}
    assert tuned == {name: (gains[name], gains[f"{name}, tuned"]) for name in finals}


@pytest.mark.parametrize("still", [{3}, {1, 2}, {1, 2, 3}])
def test_a_baseline_learnt_nothing_if_it_did_on_no_seed(tmp_path: Path, still: set[int]) -> None:
    """The last seed alone decided."""
    for seed in (1, 2, 3):
        for regime, right in (("independent", [1, 0, 0, 0]), ("sgt", [1, 1, 0, 0])):
            journal = Journal(cell(tmp_path, regime, seed, {"L": right}))
            journal.append([StepRow(policy="L", step=4, gradient_norm=float(seed not in still))])
            journal.commit(4)
    assert (shown(tmp_path)["sgt", "L"].verdict == IDLE) == (len(still) == 3)


def test_rollouts_unlike_the_baselines_are_seen(tmp_path: Path) -> None:
    more = {"longer": StepRow(policy="L", step=4, rollouts=8), "hinted": StepRow(policy="L", step=4, hinted_answers=8),
            "twice": StepRow(policy="L", step=4, rollouts=8, hinted_answers=8)}  # fmt: skip
    for regime in ("independent", "sgt", *more):
        journal = Journal(cell(tmp_path, regime, 1, {"L": [1, 0]}))
        journal.append([more[regime]] if regime in more else [])
        journal.commit(4)
    with ingested(tmp_path) as snapshot:
        unlike = {row.regime: row.unlike for row in seed_rows(snapshot, "hand")}
    assert unlike == {"independent": False, "sgt": False, "longer": True, "hinted": False, "twice": True}


def test_leftovers_of_older_settings_are_left_out(tmp_path: Path) -> None:
    for seed in (1, 2):
        cell(tmp_path, "independent", seed, {"L": [1, 0, 0, 0]})
    old = cell(tmp_path, "independent", 9, {"L": [1, 1, 1, 1]})
    variants = (VariantEntry(name="independent", regime_type="independent"),)
    suite = SuiteFile(name="hand", variants=variants, groups=("pair",))
    write_suite(tmp_path / "hand", msgspec.structs.replace(suite, cells=("independent-1-L", "independent-2-L")))
    assert shown(tmp_path)["independent", "L"].seeds == 2
    write_manifest(old, msgspec.structs.replace(read_manifest(old), seed=1))
    write_suite(tmp_path / "hand", suite)
    assert shown(tmp_path)["independent", "L"].seeds == 2, "the same place in the matrix counts once"


def test_json_has_the_agreed_fields_and_all_formats_agree(results: Path) -> None:
    with Snapshot(results) as snapshot:
        rows = show_rows(snapshot, "synthetic-small")
    document = json.loads(render_rows("synthetic-small", rows, "json"))
    assert all(list(row)[: len(FIELDS)] == FIELDS for row in document["rows"])
    first = document["rows"][2 * 3]
    table = list(csv.DictReader(io.StringIO(render_rows("synthetic-small", rows, "csv"))))
    assert list(dict.fromkeys(row["metric"] for row in table)) == ["avg@2", "best@2", "maj@2", "greedy"]
    assert len(table) == len(rows) == 2 * 4 * 7 * 3
    assert float(table[6]["gain_interval_low"]) == first["gain_interval"][0]
    for form in ("table", "markdown", "latex"):
        text = render_rows("synthetic-small", rows, form)
        assert f"{100 * first['accuracy']:.1f}" in text
    with pytest.raises(UsageError, match="yaml"):
        render_rows("synthetic-small", rows, "yaml")


def test_ingest_reads_only_what_changed_and_equals_a_rebuild(tmp_path: Path) -> None:
    write_results(tmp_path, steps=4, questions=6, regimes=REGIMES[:2])
    assert ingest_journals(tmp_path) == 2 * 3 * 2 + 4
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        os.utime(path, (1, 1))  # long settled
    ingest_journals(tmp_path)
    assert ingest_journals(tmp_path) == 0
    victim, gone = sorted(p.parent for p in tmp_path.glob("synthetic-small/[!b]*/manifest.json"))[:2]
    journal = Journal(victim)
    journal.append(StepRow(policy="llama", step=99, rollouts=7))
    journal.commit(99)
    files.remove_path(gone)
    assert ingest_journals(tmp_path) == 1
    tables = {"steps": "entropy", "totals": "entropy", "scores": "error", "cells": "fingerprint", "samples": "labels"}
    stores = []
    for rebuild in (False, True):
        ingest_journals(tmp_path, rebuild=rebuild)
        with Snapshot(tmp_path) as snapshot:
            queries = (f"SELECT * EXCLUDE ({column}) FROM {table} ORDER BY ALL" for table, column in tables.items())
            stores.append([snapshot.query(query).to_pydict() for query in queries])
    np.testing.assert_equal(*stores)


def test_a_folder_that_may_not_be_listed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path, steps=2, questions=4, regimes=REGIMES[:1], seeds=(1,))
    (tmp_path / "lost+found").mkdir()
    listed = os.scandir

    def denied(path: str | Path) -> object:
        if Path(path).name in ("lost+found", "secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert ingest_journals(tmp_path) == 2 + 4
    (tmp_path / "secret").mkdir()
    with pytest.raises(PermissionError):
        ingest_journals(tmp_path / "secret")


HOLDER = """
import sys, time
from pathlib import Path
from harness.store.ingest import writer_lock
with writer_lock(Path(sys.argv[1]), 1):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_writer_and_a_dead_one_does_not_block(results: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(results / STORE)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match="another process"):
            ingest_journals(results, deadline=0.1)
        holder.kill()
    ingest_journals(results, deadline=5)


def test_the_documentation_names_every_table_and_column() -> None:
    text = (Path(__file__).parents[1] / "docs" / "store.md").read_text()
    for table, schema in SCHEMAS.items():
        part = text.split(f"**{table}**")[1].split("\n\n**")[0]
        assert [name for name in schema.names if not re.search(rf"\b{name}\b", part)] == []
    with duckdb.connect() as connection:
        create_tables(connection)
        columns = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() "
            "WHERE schema_name = 'main' AND NOT internal AND table_name <> 'about'"
        ).fetchall()
    assert [f"{t}.{c}" for t, c in columns if t not in SCHEMAS and t != "current_cells" and c not in text] == []


@pytest.mark.slow
def test_several_suites_are_told_in_a_sentence_each_and_one_with_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second", "second-tuning"):
        write_results(tmp_path, name, regimes=REGIMES[:2], seeds=(1, 2), steps=2, questions=6)
    write_base(tmp_path, "evaluations", "/a/model", "llama", ("micro",), 4, 1)
    ingest_journals(tmp_path)
    show_suite(None, tmp_path, "table")
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if not line.startswith("  ")] == ["first", "second"]
    assert (out.count("and 2 seeds"), "accuracy in %" in out, "harness show SUITE" in err) == (2, False, True)
    show_suite("first", tmp_path, "table")
    assert "accuracy in %" in capsys.readouterr().out
    show_suite(None, tmp_path, "csv")
    read = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert dict.fromkeys(row["suite"] for row in read) == {"first": None, "second": None}, "one head"
    show_suite(None, tmp_path, "markdown")
    assert re.findall("(?m)^## .*", capsys.readouterr().out) == ["## first", "## second"]


@pytest.mark.slow
def test_groups_of_one_policy_have_lines_with_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12: they have no mean, so a line lacked its regime, and beside a pair they were not in the short table."""
    write_results(tmp_path, "solo", {"solo": ("llama",)}, REGIMES[:3], (1, 2), steps=2, questions=6)
    write_results(tmp_path, "both", {"pair": ("llama", "qwen"), "solo": ("qwen",)}, REGIMES[:3], (1, 2), 2, 6)
    ingest_journals(tmp_path)
    for suite, full in (("solo", False), ("solo", True), ("both", True)):
        show_suite(suite, tmp_path, "table", full=full)
        metrics = 4 if full else 1
        blocks = capsys.readouterr().out.split("\n\n")
        gains = [block for block in blocks if "accuracy in %" in block.partition("\n")[0]]
        assert len(gains) >= metrics * (1 + (suite == "both")), (suite, full)
        for block in gains:
            assert block.count("\n prp ") == 1, block
    show_suite("both", tmp_path, "table")
    assert re.search(r"regime +pair +solo\n", capsys.readouterr().out)


def test_names_are_escaped_in_every_form_and_latex_bolds_the_best(results: Path) -> None:
    with Snapshot(results) as snapshot:
        row = show_rows(snapshot, "synthetic-small")[0]
    evil = msgspec.structs.replace(
        row, regime="\x1b[31m50%_&\x07", group="a\u202eb [bold]x[/bold]", best=True, accuracy=0.615, interval=(-1e-4, 0)
    )
    texts = {form: render_rows("s_1", [evil, row], form) for form in ("table", "markdown", "latex")}
    assert not [form for form, text in texts.items() if {"\x1b", "\x07", "\u202e"} & set(text)]
    assert "[bold]x[/bold]" in texts["table"]
    assert all(part in texts["latex"] for part in ("50\\%\\_\\&", "\\textbf{61.5} $[0.0, 0.0]$", "s\\_1"))


def test_a_damaged_store_is_built_again_from_the_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="harness run"):
        Snapshot(tmp_path)
    write_results(tmp_path, steps=2, questions=4, regimes=REGIMES[:1], seeds=(1,))
    leftovers = [tmp_path / "harness.duckdb.4711.tmp", tmp_path / "harness.duckdb.4711.tmp.wal"]
    for path in (*leftovers, tmp_path / STORE):
        path.write_bytes(b"half a store")
    ingest_journals(tmp_path)
    assert not any(path.exists() for path in leftovers)
    folder = next(p.parent for p in tmp_path.glob("synthetic-small/[!b]*/manifest.json"))
    count = "SELECT count(DISTINCT suite) AS n FROM cells"
    with Snapshot(tmp_path) as old:
        for table, data in read_journal(folder).tables.items():
            stored = old.query(f"SELECT * EXCLUDE (suite, cell) FROM {table} WHERE cell = ?", [folder.name])
            np.testing.assert_equal(
                *({k: v for k, v in t.to_pydict().items() if k != "labels"} for t in (stored, data))
            )
        write_results(tmp_path, "synthetic-more", steps=2, questions=4, regimes=REGIMES[:1], seeds=(1,))
        with ingested(tmp_path) as new:
            assert [s.query(count)["n"].to_pylist() for s in (old, new)] == [[1], [2]]
    before = (tmp_path / STORE).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.store.ingest.flush_to_disk", full)
    with pytest.raises(DiskFullError):
        ingest_journals(tmp_path, rebuild=True)
    assert (tmp_path / STORE).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp*"))


def test_sql_has_a_deadline(results: Path) -> None:
    with Snapshot(results) as snapshot, pytest.raises(UsageError, match="longer than"):
        snapshot.sql("SELECT count(*) FROM range(100000000) a, range(100000000) b", Limits(seconds=0.3))


def test_sums_of_integers_are_integers(results: Path) -> None:
    """In JSON they were text, unlike counts; what JSON's readers round stays text."""
    sums = ask_in_process(results, "SELECT sum(x), count(*), sum(x) << 60, 1.50 FROM range(4) t(x)", LIMITS).rows
    assert sums == [[6, 4, str(6 << 60), "1.50"]]


def test_duckdb_tells_of_no_leak_where_what_it_made_is_frozen():
    read = "import duckdb; duckdb.sql('SELECT 1').fetchall()\n"
    read += "from harness.limits import without_collection\nwith without_collection(): pass"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""


NO_PANDAS = """
import sys
import pyarrow
from harness.limits import keep_arrow_from_pandas
if sys.argv[1] == "kept":
    keep_arrow_from_pandas()
table = pyarrow.table({"a": [1, None]})
print("pandas" in sys.modules)
print(table.to_pandas()["a"].tolist())
"""


@pytest.mark.parametrize(("kept", "taken"), [("kept", False), ("left", True)])
def test_arrow_takes_pandas_along_only_where_it_is_let(kept, taken):
    """A quarter of a second in every command; a data frame that is asked for is made all the same."""
    run = [sys.executable, "-c", NO_PANDAS, kept]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n") == [str(taken), "[1.0, nan]", ""]


def test_a_table_is_shown_without_pandas(results: Path) -> None:
    code = "import atexit, sys; from harness.cli import main\n"
    code += "atexit.register(lambda: print('pandas' in sys.modules, file=sys.stderr)); main()"
    run = [sys.executable, "-c", code, "show", "synthetic-small", "--results", str(results)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "False"), done


def test_used_is_a_share_of_the_other_policies_answers(tmp_path: Path) -> None:
    """Not of those that arrived: a regime that sends right answers alone looked as if it used most of them, and copies of a
    spammer as if hardly any were used."""
    policies = tuple(PolicyEntry(name, f"micro/{name}") for name in "abc")
    counts = {
        "all": {"a": (20, 12), "b": (20, 12), "c": (20, 12)},
        "right alone": {"a": (8, 6), "b": (8, 6), "c": (8, 6)},
        "copies": {"a": (400, 18), "b": (20, 0), "c": (20, 0)},
        "none": {"a": (0, 0), "b": (0, 0), "c": (0, 0)},
    }
    for regime, of in counts.items():
        rows: list[Row] = []
        for name, (received, used) in of.items():
            at = {"policy": name, "checkpoint_step": 1, "task": "t", "metric": "greedy"}
            rows += [SampleRow(doc_id="1", verdict="right", **at), SampleRow(doc_id="2", verdict="wrong", **at)]
            rows.append(StepRow(policy=name, step=1, answers=10, peer_received=received, peer_used=used))
        write_rows(tmp_path, rows, regime, regime=regime, regime_type=regime, seed=1, policies=policies)
    alone = [
        StepRow(policy="a", step=1, answers=10, peer_received=4, peer_used=3),
        SampleRow(policy="a", checkpoint_step=1, task="t", metric="greedy", doc_id="1", verdict="right"),
    ]
    write_rows(tmp_path, alone, "replay", group="one", regime="replay", seed=1, policies=policies[:1])
    with ingested(tmp_path) as snapshot:
        used = {(row.regime, row.policy): row.peer_used for row in show_rows(snapshot, "hand")}
    assert {name: used[name, "*"] for name in counts} == {
        "all": 0.6, "right alone": 0.3, "copies": 0.3, "none": None,
    }  # fmt: skip
    assert used["copies", "a"] == 0.9
    assert used["replay", "a"] == 0.75, "its authors' answers are another run's"
