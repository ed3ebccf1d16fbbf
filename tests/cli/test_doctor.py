"""What `harness doctor` says of a machine, and that it looks where the rest of the program keeps its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import harness

from harness.cache import cache_folder
from harness.cli import listing
from harness.cli.listing import Check, examine
from harness.engines.embedded import warmup
from harness.tasks.data_files import cached_path
from harness.tasks.sets import SETS


def checks() -> dict[str, Check]:
    return {check.name: check for check in examine(Path("results"))}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("configured", [True, False])
def test_the_cache_it_vouches_for_holds_all_that_is_kept(cache, tmp_path, monkeypatch, configured):
    if not configured:
        monkeypatch.delenv("HARNESS_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    vouched = Path(checks()["cache"].found)
    assert vouched == cache_folder()
    assert vouched in cached_path(SETS["math500"].remote, "test.jsonl").parents
    assert warmup.cache_folder is cache_folder


def test_a_cache_that_cannot_be_written(cache, monkeypatch):
    monkeypatch.setattr(listing.os, "access", lambda *_: False)  # root may write everywhere
    check = checks()["cache"]
    assert (check.ok, check.needed) == (False, True)
    assert "HARNESS_CACHE" in check.advice


def test_a_cache_that_is_a_file(cache):
    cache.touch()
    assert not checks()["cache"].ok


def test_sets_are_counted_where_they_are(cache, tmp_path, monkeypatch):
    check = checks()["benchmark data"]
    assert (check.ok, check.found) == (False, f"0 of {len(SETS)} sets in {cache}")
    (tmp_path / "amc23.jsonl").write_text("{}")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    check = checks()["benchmark data"]
    assert check.found == f"0 of {len(SETS)} sets in {tmp_path}, altered: amc23"
    assert check.advice == "nothing is fetched while HARNESS_DATA is set"


def test_what_is_missing_is_said_and_what_is_needed_decides(monkeypatch, tmp_path):
    by_name = checks()
    assert {name for name, check in by_name.items() if check.needed} == {
        "python",
        "machine",
        "engine embedded",
        "cache",
    }
    assert all(check.advice for check in by_name.values() if not check.ok)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    code, out, _ = harness("doctor", "--json")
    said = {row["name"]: row["ok"] for row in json.loads(out)["checks"]}
    assert said["cache"]
    assert code == int(not all(said[name] for name, check in by_name.items() if check.needed))


def test_the_gpus_are_those_that_cuda_shows(cache, nvidia_smi, monkeypatch):
    nvidia_smi(2)
    assert listing._check_gpu() == Check("gpu", True, "0: H100 of 86 GB; 1: H100 of 86 GB")
    for chosen in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert (listing._check_gpu().ok, listing._check_gpu().found) == (
            False,
            f"none that CUDA_VISIBLE_DEVICES={chosen!r} leaves",
        )
