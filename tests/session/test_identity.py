"""What a cell's key depends on, and what not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from harness.allocation import inventory, shapes
from harness.cli import running
from harness.errors import UsageError
from harness.learning import registry
from harness.learning.regime import Regime
from harness.session import policy as weights
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.tasks import sets
from harness.versions import recorded_versions

FOLDER_SUITE = """
name: own
groups:
  - name: pair
    policies:
      - {{name: a, model: {folder}}}
      - {{name: b, model: micro/qwen, stage0: {{preset: trap, strong: mul}}}}
regimes: [independent, sgt]
seeds: [1]
"""
HUB_SUITE = """
name: hub
groups:
  - name: one
    policies: [{name: octo, model: maker/octo}]
regimes: [independent]
seeds: [1]
"""


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HARNESS_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(bytes(3 << 20))
    (place / "README.md").write_text("about")
    return place


@pytest.fixture
def suite(tmp_path: Path, folder: Path) -> Path:
    file = tmp_path / "own.yaml"
    file.write_text(FOLDER_SUITE.format(folder=folder))
    return file


def keys(file: Path, tmp_path: Path, *overrides: str) -> list[str]:
    prepared = prepare_named(str(file), tmp_path / "results", overrides=overrides)
    return [c.key for c in prepared.cells] + [b.key for b in prepared.bases]


def test_fast_numerics_leave_no_word_and_portable_ones_another_key(suite: Path, tmp_path: Path) -> None:
    """Cells that ran before there was a choice keep their keys, and stay apart from portable ones."""
    for numerics in ("fast", "portable"):
        (cell, *_) = prepare_named(
            str(suite), tmp_path / "results", overrides=[f"engine_options.numerics={numerics}"]
        ).cells
        assert cell.config()["engine_options"].get("numerics") == (None if numerics == "fast" else numerics)
    fast, portable = (keys(suite, tmp_path, f"engine_options.numerics={one}") for one in ("fast", "portable"))
    assert not set(fast) & set(portable)


def test_one_byte_of_a_model_folder(suite: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_SETTLED_NS", -1_000_000_000)  # what was read is remembered at once
    before = keys(suite, tmp_path)
    assert keys(suite, tmp_path) == before
    (folder / "README.md").write_text("other words")
    assert keys(suite, tmp_path) == before
    file = folder / "model.safetensors"
    old = file.stat()
    with file.open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(b"\x01")
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    after = keys(suite, tmp_path)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, False, True]


def test_a_folder_is_its_content_not_its_path(suite: Path, folder: Path, tmp_path: Path) -> None:
    before = keys(suite, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    blob = tmp_path / "elsewhere" / "blob"
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert keys(suite, tmp_path) == before
    folder.rename(tmp_path / "moved")
    suite.write_text(FOLDER_SUITE.format(folder=tmp_path / "moved"))
    assert keys(suite, tmp_path) == before
    blob.write_bytes(b"other")
    assert keys(suite, tmp_path)[0] != before[0]


def hub_ref(tmp_path: Path, commit: str) -> None:
    ref = tmp_path / "hub" / "models--maker--octo" / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def test_a_hub_commit(tmp_path: Path) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text(HUB_SUITE)
    unknown = prepare_named(str(file), tmp_path / "results")
    assert "its commit is not known here" in unknown.describe_inputs()[0]
    hub_ref(tmp_path, "a" * 40)
    first = prepare_named(str(file), tmp_path / "results")
    assert first.cells[0].group.policies[0].revision == "a" * 40, "what is loaded is what the key names"
    assert first.describe_inputs() == [f"model octo: maker/octo, commit {'a' * 40}"]
    assert manifest_of(first.cells[0]).policies[0].revision == "a" * 40
    hub_ref(tmp_path, "b" * 40)
    second = prepare_named(str(file), tmp_path / "results")
    assert len({p.cells[0].key for p in (unknown, first, second)}) == 3
    file.write_text(HUB_SUITE.replace("maker/octo}", f"maker/octo, revision: {'a' * 40}}}"))
    assert prepare_named(str(file), tmp_path / "results").cells[0].key == first.cells[0].key


def test_the_hub_is_asked_by_run_alone_and_its_word_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Hub:
        def model_info(self, model: str, revision: str, timeout: float) -> SimpleNamespace:
            asked.append(f"{model}@{revision}")
            return SimpleNamespace(sha="c" * 40)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    file = tmp_path / "hub.yaml"
    file.write_text(HUB_SUITE)
    prepare_named(str(file), tmp_path / "results")
    assert asked == []
    online = prepare_named(str(file), tmp_path / "results", online=True)
    later = prepare_named(str(file), tmp_path / "results")
    assert asked == ["maker/octo@main"]
    assert online.cells[0].key == later.cells[0].key
    assert later.cells[0].group.policies[0].revision == "c" * 40
    overrides = ["tune.groups[0].policies=[{name: octo, model: maker/octo}]"]
    (group,) = prepare_named("tuned_small", tmp_path / "results", overrides=overrides, online=True).suite.tune.groups
    assert group.policies[0].revision == "c" * 40, "those of tuning too"


@pytest.mark.parametrize("tuned", [False, True])
def test_the_keys_of_a_run_are_those_after_its_download_where_the_hub_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned: bool
) -> None:
    """The next start knows the commit from the download; it would begin anew."""
    file, ran = tmp_path / "hub.yaml", list[Prepared]()
    file.write_text(HUB_SUITE)
    name, overrides = str(file), list[str]()
    if tuned:
        pytest.importorskip("optuna", reason="the tune extra is not installed")
        name, overrides = "tuned_small", ["tune.groups[0].policies=[{name: octo, model: maker/octo}]"]
        overrides += ["regimes=[independent]", "tune.transfer=false"]

    def downloads(prepared: Prepared, about_to_run: bool) -> list[str]:
        if any(policy.model == "maker/octo" for group in prepared.suite.groups for policy in group.policies):
            hub_ref(tmp_path, "d" * 40)
        return []

    def planned(prepared: Prepared, *_: object) -> None:
        ran.append(prepared)
        raise UsageError("far enough")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(running, "check_before_run", downloads)
    monkeypatch.setattr(running, "check_feasible", planned)
    with pytest.raises(UsageError, match="far enough"):
        running.run(name, results=tmp_path / "results", set_=overrides)
    assert {p.revision for cell in ran[0].cells for p in cell.group.policies} == {"d" * 40}


def test_a_training_set_and_an_option(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(suite, tmp_path, "training.task=gsm8k")
    assert not set(before[:2]) & set(keys(suite, tmp_path, "training.task=gsm8k", "training.steps=3"))
    altered = replace(sets.SETS["gsm8k_train"], sha256="0" * 64)
    monkeypatch.setattr("harness.tasks.shipped.SETS", {**sets.SETS, "gsm8k_train": altered})
    after = keys(suite, tmp_path, "training.task=gsm8k")
    assert not set(before[:2]) & set(after[:2])
    assert before[2:] == after[2:], "a base checkpoint's measurement knows no training pool"


def test_results_versions(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(suite, tmp_path)
    table = recorded_versions()

    def changed(package: str) -> list[bool]:
        """Whether the keys of independent, sgt, and the bases a and b change with this version."""
        raised = {**table, package: table[package]._replace(version=table[package].version + 1)}
        with monkeypatch.context() as patch:
            for user in ("harness.versions", "harness.plugins"):
                patch.setattr(f"{user}.recorded_versions", lambda: raised)
            return [a != b for a, b in zip(before, keys(suite, tmp_path), strict=True)]

    assert changed("learning") == [True, True, False, False]
    assert changed("regimes/sgt") == [False, True, False, False]
    assert changed("evaluation") == [True, True, True, True]
    assert changed("stage0") == [True, True, False, True]
    assert changed("engines/embedded") == [True, True, True, True]
    assert changed("engines/openrlhf") == [False, False, False, False]


def test_a_plugins_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "best_of_peers.py"
    file.write_text('"""Mine."""\nRATE = 1\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = type("Mine", (Regime,), {"__module__": "best_of_peers"})
    monkeypatch.setattr("harness.plugins._load_class", lambda plugins, name: mine)
    name, first = registry.PLUGINS.results_version("mine")
    assert name == "regime mine"
    file.write_text('"""Another word."""\n# and a comment\nRATE = 1\n')
    assert registry.PLUGINS.results_version("mine") == (name, first)
    file.write_text('"""Mine."""\nRATE = 2\n')
    assert registry.PLUGINS.results_version("mine")[1] != first
    mine.results_version = 7
    assert registry.PLUGINS.results_version("mine") == (name, "7")


def test_status_says_why_a_cell_is_to_be_run_anew(suite: Path, folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = prepare_named(str(suite), results)
    for cell in done.cells:
        mark_state(done.folder / cell.key, manifest_of(cell), "done", attempts=1)
    assert {s.state for s in done.statuses()} == {"done"}

    def reason(*overrides: str) -> str:
        status = prepare_named(str(suite), results, overrides=overrides).statuses()[0]
        assert status.state == "pending"
        return status.reason

    was = f" (was {done.cells[0].key})"
    assert reason("training.steps=3") == "to be run anew: option training.steps 45 -> 3" + was
    assert (
        reason("training.task=math")
        == "to be run anew: results version of verification/symbolic none -> 3, the training pool changed, "
        "option training.task micro -> math" + was
    )
    older = done.folder / "an-older-one"
    (done.folder / done.cells[0].key).rename(older)
    about = json.loads((older / "manifest.json").read_text())
    del about["checksum"]  # as older ones are
    versions = dict.fromkeys(about["identity"]["versions"], "0")
    about |= {"key": "an-older-one", "identity": {**about["identity"], "versions": versions}}
    for name, started in (("an-older-one", {}), ("ancient", {"provenance": {"started": "2000-01-01T00:00:00+00:00"}})):
        (done.folder / name).mkdir(exist_ok=True)  # the newest one is compared
        (done.folder / name / "manifest.json").write_text(json.dumps({**about, "key": name, **started}))
    assert reason().endswith(" (was an-older-one)")
    assert f"results version of engines 0 -> {recorded_versions()['engines'].version}" in reason()
    del about["identity"]
    (older / "manifest.json").write_text(json.dumps(about))
    assert "older than results versions" in reason()
    (folder / "config.json").write_text('{"other": 1}')
    assert "model a: its folder changed" in prepare_named(str(suite), results).statuses()[1].reason


def test_a_key_says_the_precision_of_model_and_suite_whatever_machine_prepares_it(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24.6: a machine without fast bf16 wrote fp32 into keys, and another `suite.json` over that of the others."""
    by_machine = []
    monkeypatch.setattr(shapes, "Path", lambda _: tmp_path / "cpuinfo")
    for flags in ("amx_bf16", ""):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags}\n")
        shapes.cpu_bf16.cache_clear()
        for machine in (inventory.parse_inventory("4cpu-32G"), inventory.parse_inventory("1xH100-80G")):
            monkeypatch.setattr(inventory, "inventory_of_machine", lambda machine=machine: machine)
            by_machine.append(prepare_named(str(suite), tmp_path))
    shapes.cpu_bf16.cache_clear()
    assert len({tuple(c.key for c in prepared.cells) for prepared in by_machine}) == 1
    assert by_machine[0].cells[0].identity.versions["dtype of half-precision models"] == "bf16"
    assert by_machine[0].cells[0].identity.versions["rounding to bf16"] == "dithered"
    stated = prepare_named(str(suite), tmp_path, overrides=["engine_options.dtype=fp32"]).cells[0]
    assert not {"dtype of half-precision models", "rounding to bf16"} & stated.identity.versions.keys()
