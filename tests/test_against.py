"""`harness show --against`: published numbers beside ours, never two different quantities without a mark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from running import harness, ok
from synthetic_results import write_rows

from harness.cli.tables import table_against_paper
from harness.errors import UsageError
from harness.published import load_publication, publication_names
from harness.store.ingest import ingest_journals
from harness.store.manifest import PolicyEntry, SuiteFile, write_suite
from harness.store.read import Snapshot
from harness.store.rows import SampleRow
from harness.store.tuning import Tuned, Tuning, write_tuning
from leaderboard.views.published import list_published

MODELS = {"small": "Qwen/Qwen3-1.7B-Base", "large": "Qwen/Qwen3-4B-Base"}


def cell(results: Path, regime: str, seed: int, tasks: dict[str, tuple[int, int]], **more: object) -> None:
    """Each task's sampled answers to ten questions: how many repeats, and how many of all answers are right."""
    rows = [
        SampleRow(
            policy=policy, checkpoint_step=1, task=task, metric="sampled", doc_id=str(i % 10), repeat=i // 10,
            verdict="right" if i < right else "wrong",
        )
        for policy in MODELS for task, (repeats, right) in tasks.items() for i in range(10 * repeats)
    ]  # fmt: skip
    policies = tuple(PolicyEntry(name, model) for name, model in MODELS.items())
    fields = {"regime": regime, "regime_type": regime, "seed": seed, "policies": policies, **more}
    write_rows(results, rows, f"{regime}-{seed}", **fields)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for seed in (1, 2):
        cell(tmp_path, "hacpo", seed, {"gsm8k": (1, 8), "aime25": (8, 12), "amc23": (4, 30)})
        cell(tmp_path, "gspo", seed, {"gsm8k": (1, 7)}, regime_type="independent", options={"objective": "gspo"})
    ingest_journals(tmp_path)
    return tmp_path


def lines(results: Path, paper: str = "hacpo2026") -> list[str]:
    with Snapshot(results) as snapshot:
        return table_against_paper(paper, snapshot, ["hand"]).splitlines()


def line(table: list[str], policy: str, method: str) -> str:
    block = table[
        next(i for i, text in enumerate(table) if text.startswith("Qwen3-1.7B-Base + Qwen3-4B-Base (table 1)")) :
    ]
    return next(text for text in block if text.split()[:2] == [policy, method])


def test_shares_and_percents_of_papers_are_percent_on_the_page() -> None:
    rows = list_published()
    assert rows["paper"].nunique() > 1
    assert rows[["accuracy", "baseline"]].stack().between(1, 100).all()


@pytest.mark.parametrize("paper", publication_names())
def test_a_row_of_a_pair_stands_beside_that_pair_alone(paper: str) -> None:
    publication = load_publication(paper)
    for row in publication.rows:
        if not row.peer or row.method in ("grpo", "gspo"):
            continue
        kept = publication.beside(row.policy, [row.peer], row.method, row.method)
        assert kept is not None
        assert kept.peer in ("", row.peer)
        with_another = publication.beside(row.policy, ["nobody/another-model"], row.method, row.method)
        assert with_another is None or not with_another.peer


def test_other_metrics_are_marked_and_only_what_was_trained_alike_stands_beside_a_paper(results: Path) -> None:
    table = lines(results)
    ours = line(table, "Qwen3-1.7B-Base", "hacpo")
    assert re.search(r"82.2 \[80.0\](?![~!])", ours), "one sample each there and here"
    assert "45.0 [75.0]~" in ours, "another number of samples of the same expectation"
    assert "22.5 [15.0]!" in ours, "best@30 there"
    assert "! aime25: best@30 there, avg@8 here: two different quantities, not to be compared" in table
    assert any(text.startswith("~ amc23: avg@1 there, avg@4 here") for text in table)
    assert "82.6 [70.0]" in line(table, "Qwen3-1.7B-Base", "gspo"), "independent with GSPO is the paper's gspo"
    assert "[" not in line(table, "Qwen3-1.7B-Base", "grpo")
    assert "[" not in line(table, "Qwen3-1.7B-Base", "naive")
    assert not any("[80.0]" in text or text.startswith(" (") for text in lines(results, "graft2026"))
    assert any("None of these models has been trained here yet" in text for text in lines(results, "mutual_rl2026"))
    with pytest.raises(UsageError, match="hacpo2026"):
        lines(results, "hacpo")


def test_neither_tuned_settings_nor_a_second_baseline_stand_beside_a_paper(results: Path) -> None:
    for regime in ("gspo-aa", "gspo-tuned"):
        cell(results, regime, 1, {"gsm8k": (1, 2)}, regime_type="independent", options={"objective": "gspo"})
    file = SuiteFile(name="hand", title="", engine="", baseline="gspo", variants=(), groups=(), seeds=(), cells=())
    write_suite(results / "hand", file)
    tuned = Tuned(variant="gspo", final="gspo-tuned", chosen=1, trials=())
    write_tuning(
        results,
        file,
        Tuning(suite="hand", trials_in="", task="gsm8k", metric="avg@1", steps=1, baseline="gspo", variants=(tuned,)),
    )
    ingest_journals(results)
    assert "82.6 [70.0]" in line(lines(results), "Qwen3-1.7B-Base", "gspo")


def test_the_command(results: Path) -> None:
    code, out, err = harness("show", "--results", results, "--against", "hacpo2026")
    assert (code, "22.5 [15.0]!" in out, "What does not fit together:" in out) == (0, True, True), err
    assert harness("show", "--results", results, "--against", "nobody2020")[0] == 2
    assert json.loads(ok("show", "--results", results, "hand", "--format", "json", "--margin", "3"))["margin"] == 0.03
