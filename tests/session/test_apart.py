"""Policies at their own pace: the loop's other way, with real policies in threads instead of on a cluster."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.engines.embedded.plugin import Embedded
from harness.session.cell import cell as cells
from session.running import cell, rows, run


class InThreads(Embedded):
    """The embedded engine, its policies side by side."""

    side_by_side = True
    _loading = threading.Lock()  # transformers does not load models in several threads

    def open(self, policy, folder):
        with self._loading:
            return super().open(policy, folder)

    reference = open

    def each(self, work, items):
        listed = list(items)
        with ThreadPoolExecutor(max(1, len(listed))) as pool:
            running = [pool.submit(work, item) for item in listed]
        return [one.result() for one in running]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(cells, "open_engines", lambda _, options, temperature: InThreads(options, temperature))


@pytest.mark.slow
def test_side_by_side_in_lockstep_changes_nothing(suite_file, tmp_path, threads, monkeypatch):
    apart = run(suite_file, tmp_path / "apart", only="*/hacpo/*")
    monkeypatch.undo()
    together = run(suite_file, tmp_path / "together", only="*/hacpo/*")
    for table in ("steps", "exchanges", "samples", "terms", "curves"):
        one, other = rows(apart, cell(apart, "hacpo"), table), rows(together, cell(together, "hacpo"), table)
        assert one
        assert one == other


def test_within_the_staleness_nobody_waits_and_nothing_is_lost(suite_file, tmp_path, threads):
    overrides = ["sharing.max_staleness=2", "training.steps=6", "training.checkpoint_every=6"]
    prepared = run(suite_file, tmp_path / "r", overrides=overrides, only="*/naive/*")
    found = cell(prepared, "naive")
    steps = rows(prepared, found, "steps")
    assert sorted((r["policy"], r["step"]) for r in steps) == [(p, s) for p in "ab" for s in range(1, 7)]
    assert all(r["prompts_rescued"] is not None for r in steps)
    sent = rows(prepared, found, "exchanges")
    assert {r["reason"] for r in sent} <= {"", "residual"}  # none late, stale or ahead
    assert all(0 <= r["step"] - r["made"] <= 2 for r in sent)
    heard = {(r["author"], r["receiver"], r["made"]) for r in sent}
    assert heard >= {(a, b, s) for a, b in ("ab", "ba") for s in range(1, 5)}
    keys = [(r["author"], r["receiver"], r["made"], r["prompt_id"], r["index"]) for r in sent]
    assert len(keys) == len(set(keys))


def test_a_silent_peer_is_waited_for_once_and_no_longer_than_the_deadline(suite_file, tmp_path, threads):
    suite_file.write_text(suite_file.read_text().replace("{name: b,", "{name: b, condition: {kind: silent, start: 2},"))
    overrides = ["sharing.max_staleness=1", "sharing.deadline_seconds=0.5"]
    prepared = run(suite_file, tmp_path / "r", overrides=overrides, only="*/naive/*")
    sent = rows(prepared, cell(prepared, "naive"), "exchanges")
    late = [(r["receiver"], r["step"]) for r in sent if r["reason"] == "late"]
    assert late
    assert {receiver for receiver, _ in late} == {"a"}
    assert len(rows(prepared, cell(prepared, "naive"), "steps")) == 8
