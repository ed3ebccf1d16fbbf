"""What commands that only look do not do."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from running import ingested
from synthetic_results import REGIMES, Regime, write_results

from harness.errors import StoreError
from harness.store.diagnosis import diagnose_suite, summarise_training
from harness.store.finished import group_by_line, read_finished
from harness.store.ingest import ingest_journals
from harness.store.journal import Journal
from harness.store.manifest import read_manifest, write_manifest
from harness.store.read import Snapshot
from harness.store.rows import ExchangeRow, StepRow
from harness.store.symptoms import Trouble
from harness.store.table import MEAN

SUITE = "synthetic-small"


def results(folder: Path, seeds: int) -> Path:
    """Finished cells, of which one has failed and one regime's peer answers are never used."""
    regimes = (*REGIMES, Regime("idle", "hacpo", 0.0, used=0.0))
    write_results(folder, seeds=range(seeds), regimes=regimes, steps=6, questions=4, exchanges=5)
    worst = sorted(folder.glob(f"{SUITE}/*/manifest.json"))[0].parent
    write_manifest(worst, msgspec.structs.replace(read_manifest(worst), state="failed", reason="it rained"))
    ingest_journals(folder)
    return folder


@pytest.mark.slow
def test_questions_to_the_store_do_not_grow_with_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    query = Snapshot.query
    monkeypatch.setattr(Snapshot, "query", lambda self, text, *rest: asked.append(text) or query(self, text, *rest))
    counts = []
    for seeds in (1, 2):
        asked.clear()
        with Snapshot(results(tmp_path / str(seeds), seeds)) as snapshot:
            assert summarise_training(snapshot, SUITE)
            read_finished(snapshot, SUITE), read_finished(snapshot, SUITE)
            counts.append(len(asked))
            cells = snapshot.query("SELECT cell FROM current_cells WHERE kind = 'cell'")["cell"].to_pylist()
            whole = diagnose_suite(snapshot, SUITE)
            each = [f for cell in cells for f in diagnose_suite(snapshot, SUITE, cell)]
        assert {f.trouble.value for f in whole} >= {"missing", "peer data never used"}
        assert sorted(map(str, whole)) == sorted(map(str, each))
    assert counts[0] == counts[1] < 12


@pytest.mark.slow
def test_the_mean_over_policies_is_that_of_their_scores(tmp_path: Path) -> None:
    with Snapshot(results(tmp_path, 3)) as snapshot:
        comparisons = read_finished(snapshot, SUITE)
    lines = group_by_line(comparisons.rows)
    means = [key for key in lines if key.policy == MEAN]
    assert means
    for mean in means:
        own = [mean._replace(policy=policy) for policy in comparisons.policies[mean.group]]
        for regime, by_seed in lines[mean].items():
            for seed, row in by_seed.items():
                each = [lines[key][regime][seed] for key in own]
                assert row.accuracy == sum(r.accuracy for r in each) / len(each)
                assert row.noise == sum(r.noise for r in each) / len(each) ** 2
            rollouts = [[seed.rollouts for seed in comparisons.costs[key, regime]] for key in (*own, mean)]
            assert rollouts[-1] == [sum(each) for each in zip(*rollouts[:-1], strict=True)]


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    write_results(tmp_path, seeds=(1,), steps=2, questions=2)
    folder = next(tmp_path.glob("*/*/manifest.json")).parent
    manifest, file = read_manifest(folder), folder / "manifest.json"
    good = file.read_text()
    plain = {k: v for k, v in json.loads(good).items() if k != "checksum"}
    for same in (json.dumps(json.loads(good)), json.dumps(plain)):  # other white space, or as older files are
        file.write_text(same)
        assert read_manifest(folder) == manifest
    for words, other in (("altered", good.replace('"attempts": 1', '"attempts": 2')), ("not a man", '{"seed": "one"}')):
        file.write_text(other)
        with pytest.raises(StoreError, match=words):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("sharing", "told"),
    [
        ({}, {"llama", "qwen"}),
        ({"direction": "edges", "edges": [["llama", "qwen"]]}, {"qwen"}),
        ({"direction": "strong_to_weak", "edges": None}, set()),
        ({"direction": ["odd"], "edges": {"odd": 1}}, set()),
    ],
)
def test_a_policy_to_which_nobody_is_to_send_is_no_finding(tmp_path: Path, sharing: object, told: set[str]) -> None:
    """`doctor` called one-way sharing a fault (16)."""
    third = {"trio": ("llama", "qwen", "gpt2")}
    write_results(
        tmp_path, SUITE, third, [r for r in REGIMES if r.name == "prp"], (1,), steps=2, questions=2, exchanges=3
    )
    (folder,) = (m.parent for m in tmp_path.glob(f"{SUITE}/*/manifest.json") if read_manifest(m.parent).kind == "cell")
    manifest = read_manifest(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, config={**manifest.config, "sharing": sharing}))
    (folder / "journal" / "compact-000001").rename(folder / "kept")
    journal = Journal(folder)
    journal.append(StepRow(policy=name, step=1, right=1, wrong=1, answers=2) for name in third["trio"])
    journal.append(ExchangeRow(step=1, author="llama", receiver="gpt2", kind="rollout", prompt_id="p", used=True))
    journal.commit(1)
    with ingested(tmp_path) as snapshot:
        assert {f.policy for f in diagnose_suite(snapshot, SUITE) if f.trouble is Trouble.UNSENT} == told
