"""Claims that a suite states before it runs, variants that run in some groups, and the share of a missing skill as a number."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.engines.embedded.presets import PRESETS
from harness.errors import SuiteError
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.policy import micro_spec
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.store.ingest import ingest_journals
from harness.store.manifest import read_manifest, read_suite, write_suite
from harness.store.read import Snapshot
from harness.store.remarks import missing_cells
from harness.suite.schema import Policy

SUITE = """
name: claimed
groups:
  - name: alike
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
  - name: other
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, weak_cot: 0.003, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, weak_cot: 0.003, strong: mul}}
regimes:
  - independent
  - {regime: sgt, only_in: [alike]}
  - hacpo
seeds: [1, 2]
"""
CLAIM = "{name: faster, group: alike, regime: hacpo, statistic: kappa, relation: above, bound: 1.0}"


def prepare_text(folder: Path, text: str) -> Prepared:
    (folder / "claimed.yaml").write_text(text)
    return prepare_named(str(folder / "claimed.yaml"), folder / "results")


def test_a_limited_variant_has_cells_in_its_groups_alone_and_their_keys_are_as_without_the_limit(
    tmp_path: Path,
) -> None:
    everywhere = {c.label: c.key for c in prepare_text(tmp_path, SUITE.replace(", only_in: [alike]", "")).all_cells}
    limited = {c.label: c.key for c in prepare_text(tmp_path, SUITE).all_cells}
    assert everywhere.keys() - limited.keys() == {"other/sgt/1", "other/sgt/2"}
    assert limited.items() <= everywhere.items()


def test_a_cell_that_no_suite_asks_for_is_not_missing(tmp_path: Path) -> None:
    prepared = prepare_text(tmp_path, SUITE)
    prepared.write_suite_file()
    ingest_journals(tmp_path / "results")
    with Snapshot(tmp_path / "results") as snapshot:
        missing = {gap.cell: gap.key for gap in missing_cells(snapshot, "claimed")}
    assert missing == {cell.label: cell.key for cell in prepared.all_cells}


def test_claims_change_no_key_and_stand_in_the_manifests_with_the_time_when_they_were_first_stated(
    tmp_path: Path,
) -> None:
    before = prepare_text(tmp_path, SUITE)
    claimed = f"{SUITE}claims: [{CLAIM}]\n"
    prepared = prepare_text(tmp_path, claimed)
    assert [cell.key for cell in prepared.all_cells] == [cell.key for cell in before.all_cells]

    before.write_suite_file()
    first, second, third = prepared.all_cells[:3]
    mark_state(before.folder / first.key, manifest_of(first), "running")
    prepared.write_suite_file()
    stated = read_suite(prepared.folder).claims
    assert stated.digest
    assert stated.since

    earlier = msgspec.structs.replace(stated, since="2020-01-01T00:00:00+00:00")
    file = msgspec.structs.replace(read_suite(prepared.folder), claims=earlier)
    (prepared.folder / "suite.json").unlink()
    write_suite(prepared.folder, file)
    assert not prepared.write_suite_file(), "the same claims are not stated again"
    mark_state(prepared.folder / second.key, manifest_of(second), "running")
    assert read_manifest(prepared.folder / second.key).claims == earlier

    other = prepare_text(tmp_path, claimed.replace("bound: 1.0", "bound: 1.1"))
    other.write_suite_file()
    changed = read_suite(other.folder).claims
    assert changed.digest != earlier.digest
    assert changed.since > earlier.since
    mark_state(other.folder / second.key, manifest_of(second), "done")
    mark_state(other.folder / first.key, manifest_of(first), "done")
    mark_state(other.folder / third.key, manifest_of(third), "done")
    claims = [read_manifest(other.folder / cell.key).claims for cell in (first, second, third)]
    assert [claim.digest for claim in claims] == ["", earlier.digest, changed.digest], "of a cell's first start"


def test_the_share_of_a_missing_skill_as_a_number() -> None:
    stated = {"preset": "trap", "weak_cot": 0.003, "strong": "mul"}
    policy = Policy.model_validate({"name": "a", "model": "micro/qwen", "stage0": stated})
    plain = Policy.model_validate({"name": "a", "model": "micro/qwen", "stage0": {"preset": "trap", "strong": "mul"}})
    spec = micro_spec(policy, 1, "portable")
    assert spec.mixture.weak_cot == 0.003
    assert spec.mixture.strong_cot == PRESETS["trap"].strong_cot
    assert spec.key != micro_spec(plain, 1, "portable").key
    assert "weak_cot 0.003" in spec.title


ALONE = """
groups:
  - name: pair
    policies: [{name: a, model: micro/llama}, {name: b, model: micro/qwen}]
  - name: solo
    policies: [{name: a, model: micro/llama}]
regimes: [independent, REGIME]
seeds: [1]
"""


def test_a_regime_need_fit_only_the_groups_it_runs_in(tmp_path: Path) -> None:
    prepared = prepare_text(tmp_path, ALONE.replace("REGIME", "{regime: naive, only_in: [pair]}"))
    labels = {cell.label for cell in prepared.all_cells}
    assert labels == {"pair/independent/1", "pair/naive/1", "solo/independent/1"}
    with pytest.raises(SuiteError, match=r"groups\[1\]\.policies: 'naive' shares experience"):
        prepare_text(tmp_path, ALONE.replace("REGIME", "naive"))
