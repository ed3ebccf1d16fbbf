"""Bad peers: a receiver never stops or crashes, and its defences refuse what they should."""

from __future__ import annotations

from collections import Counter

import pytest

from .running import rows, run


def refusals(prepared):
    found: Counter[str] = Counter()
    for row in rows(prepared, prepared.cells[0], "exchanges"):
        if not row["accepted"]:
            found[row["reason"]] += max(1, row["messages"])
    return found


def with_condition(suite_file, condition):
    text = suite_file.read_text()
    line = next(one for one in text.splitlines() if "name: b" in one)
    suite_file.write_text(text.replace(line, line.replace("name: b,", f"name: b, condition: {condition},")))
    return suite_file


@pytest.mark.parametrize(
    ("condition", "regime", "reason"),
    [
        ("{kind: lying}", "sgt", "unverified"),
        ("{kind: stale, steps: 1}", "prp", "stale"),
        ("{kind: silent, start: 2}", "prp", "late"),
        ("{kind: spamming}", "prp", "quota"),
    ],
)
def test_a_bad_peer_is_refused_and_the_cell_finishes(suite_file, tmp_path, condition, regime, reason):
    prepared = run(with_condition(suite_file, condition), tmp_path / "results", only=f"*/{regime}/*")
    assert refusals(prepared)[reason] > 0
    assert len(rows(prepared, prepared.cells[0], "steps")) == 8


def test_without_the_defence_a_liar_is_believed(suite_file, tmp_path):
    file = with_condition(suite_file, "{kind: lying}")
    prepared = run(file, tmp_path / "r", overrides=["sharing.defences.reverify=false"], only="*/sgt/*")
    assert refusals(prepared)["unverified"] == 0
    assert any(row["used"] and row["author"] == "b" for row in rows(prepared, prepared.cells[0], "exchanges"))


def test_stale_answers_are_learnt_where_the_suite_permits_them(suite_file, tmp_path):
    file = with_condition(suite_file, "{kind: stale, steps: 1}")
    prepared = run(file, tmp_path / "r", overrides=["sharing.max_staleness=2"], only="*/naive/*")
    taken = [r for r in rows(prepared, prepared.cells[0], "exchanges") if r["author"] == "b" and r["accepted"]]
    assert taken
    assert all(row["step"] - row["made"] == 1 for row in taken)
    assert any(row["used"] for row in taken)


def test_a_recording_replaces_the_peer(suite_file, tmp_path):
    run(suite_file, tmp_path / "r", overrides=["sharing.record=true"], only="*/naive/*")
    text = suite_file.read_text()
    line = next(one for one in text.splitlines() if "name: b" in one)
    suite_file.write_text(
        text.replace(line + "\n", "").replace("name: tiny", "name: again")
        .replace("[independent, prp", "[independent, {regime: naive, name: replayed, replay: {suite: tiny, regime: naive}}, prp")
    )  # fmt: skip
    replayed = run(suite_file, tmp_path / "r", overrides=["regimes=[independent, {regime: naive, name: replayed, "
                   "replay: {suite: tiny, regime: naive}}]"], only="*/replayed/*")  # fmt: skip
    found = rows(replayed, replayed.cells[0], "exchanges")
    assert {row["author"] for row in found} == {"b"}
    assert all(row["accepted"] for row in found)


def test_spreading_by_the_receivers_own_logprobs_and_the_canonical_share(suite_file, tmp_path):
    prepared = run(suite_file, tmp_path / "r", overrides=["sharing.spread=receiver"], only="*/prp/*")
    found = rows(prepared, prepared.cells[0], "exchanges")
    assert any(row["used"] for row in found)
    assert all((row["residual_canonical"] is not None) == (row["step"] % 2 == 0) for row in found if row["accepted"])
