"""Shards of one suite in one folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from running import harness, here, ok, start, wait_until

from harness.cli.results import status
from harness.errors import UsageError
from harness.session.cell.manifests import manifest_of
from harness.session.suite.prepare import prepare_named
from harness.session.suite.shards import Shard
from harness.store.database import kind_of_mount, on_network, store_path
from harness.store.manifest import Provenance, read_suite, write_manifest

TIMES = ("cpu_seconds", "gpu_seconds", "gain_per_gpu_second", "cost")
FOUR = ["--set", "regimes=[independent, hacpo]", "--set", "seeds=[3, 4]"]
SHORT = [*FOUR, "--set", "training.steps=1", "--set", "evaluation.curve_every=0"]


def table(suite: str, results: Path) -> list[dict[str, object]]:
    out = ok("show", suite, "--format", "json", "--results", results)
    return [{k: v for k, v in row.items() if k not in TIMES} for row in json.loads(out)["rows"]]


def test_shards_share_out_every_cell_and_every_start_checkpoint_once(suite_file, tmp_path):
    """All regimes of one group and seed are in one part, for they are compared in pairs."""
    for count in (1, 2, 3, 7):
        parts = [
            prepare_named(str(suite_file), tmp_path, overrides=["seeds=[1,2,3,4,5]"], shard=Shard(i + 1, count))
            for i in range(count)
        ]
        whole = [{(c.group.name, c.seed) for c in part.cells} for part in parts]
        assert sum(map(len, whole)) == len(set().union(*whole)) == 5
        assert sum(not blocks for blocks in whole) == max(0, count - 5)
        assert all(
            len(part.cells) == len(blocks) * len(part.suite.regimes) for part, blocks in zip(parts, whole, strict=True)
        )
        cells = [cell.key for part in parts for cell in part.cells]
        assert sorted(cells) == sorted(c.key for c in parts[0].all_cells)
        written = [part.keys() for part in parts]
        assert sum(map(len, written)) == len(set().union(*written)) == len(cells) + len(parts[0].bases)
        assert max(map(len, whole)) - min(map(len, whole)) <= 1


def test_status_says_where_pairs_run_on_unlike_processors_before_all_are_done(suite_file, tmp_path, capsys):
    """With portable numerics the processor is of no account."""
    fast = ["seeds=[3,4]", "engine_options.numerics=fast"]
    prepared = prepare_named(str(suite_file), tmp_path, overrides=fast)
    for cell, processor in zip(prepared.cells[:3], ("Xeon", "Xeon", "EPYC"), strict=True):
        manifest = replace(manifest_of(cell), state="done", provenance=Provenance(machine={"processor": processor}))
        write_manifest(prepared.folder / cell.key, manifest)
    status(str(suite_file), tmp_path, fast)
    said = capsys.readouterr().out
    assert "15 pending" in said
    assert "tiny: mixed processors: the regimes of pair/3 ran on different ones (EPYC; Xeon)" in said


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1/99999999999", "٣/٤", "1/2; rm"])
def test_what_is_no_shard(text):
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text)


def both(suite_file, *places: Path):
    """Two shards at the same moment; each ends with code 0."""
    shards = [
        start("run", suite_file, "--results", place, "--jobs", 1, "--shard", f"{i}/2", *SHORT)
        for i, place in enumerate(places, start=1)
    ]
    for shard in shards:
        _, err = shard.communicate(timeout=300)
        assert shard.returncode == 0, err


def same_as_one_run(suite_file, results: Path, tmp_path: Path):
    cells = json.loads(harness("status", suite_file, "--results", results, "--json", *SHORT)[1])["cells"]
    assert [(c["state"], c["attempts"]) for c in cells] == [("done", 1)] * 4
    whole = tmp_path / "whole"
    assert here("run", suite_file, "--results", whole, "--jobs", 2, *SHORT)[0] == 0
    assert table("tiny", results) == table("tiny", whole)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_shards_at_once_give_the_table_of_one_run(suite_file, tmp_path):
    results = tmp_path / "results"
    both(suite_file, results, results)
    same_as_one_run(suite_file, results, tmp_path)
    code, _, err = here("run", suite_file, "--results", results, "--shard", "9/9", *SHORT)
    assert (code, "this part has no cells" in err) == (0, True), err


def test_a_part_without_cells_has_a_document_too(tmp_path):
    code, out, err = here("run", "quickstart", "--results", tmp_path / "results", "--shard", "9/9", "--json")
    assert (code, json.loads(out)) == (0, {"suite": "quickstart", "rows": []}), err


@contextmanager
def mounts(source: Path, *places: Path):
    """The same folder at several places, as on several machines: a FUSE file system each, none of which sees the others' locks."""
    if os.geteuid() or not shutil.which("bindfs") or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root, bindfs and /dev/fuse")
    source.mkdir()
    made = []
    try:
        for place in places:
            place.mkdir()
            options = "attr_timeout=0,entry_timeout=0,negative_timeout=0"
            if subprocess.run(["bindfs", "-o", options, source, place], capture_output=True).returncode:
                pytest.skip("FUSE is not to be had here")
            made.append(place)
        yield
    finally:
        for place in made:
            subprocess.run(["umount", "-l", place], check=False)


LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_machines_that_share_no_locks_share_out_a_suite(suite_file, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    with mounts(tmp_path / "backing", here, there):
        assert (kind_of_mount(here), on_network(there)) == ("fuse", True)
        with (here / "file").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            assert subprocess.run([sys.executable, "-c", LOCK, there / "file"]).returncode == 0, "locks are shared here"
        first = start("run", suite_file, "--results", here, "--jobs", 1, "--shard", "1/2", *SHORT)
        wait_until(lambda: any(here.glob("tiny/.runs/*.json")), first)
        first.send_signal(signal.SIGSTOP)
        code, _, err = harness("run", suite_file, "--results", there, *SHORT)
        first.send_signal(signal.SIGCONT)
        assert (code, "another `harness run` is writing these results" in err) == (2, True), err
        ok("run", suite_file, "--results", there, "--jobs", 1, "--shard", "2/2", *SHORT)
        _, err = first.communicate(timeout=300)
        assert first.returncode == 0, err
        assert not [*here.rglob("harness.duckdb*")]
        assert store_path(here).is_relative_to(tmp_path / "cache")
        assert store_path(here).exists()
        assert store_path(here) != store_path(there)
        same_as_one_run(suite_file, here, tmp_path)
        assert table("tiny", here) == table("tiny", there)


SEEDS = """
name: bop3
groups:
  - name: pair
    policies:
      - {{name: a, model: {llama}}}
      - {{name: b, model: {qwen}}}
regimes: [independent, sgt]
seeds: [1, 2]
training: {{steps: 1, prompts: 4, rollouts: 4, max_new_tokens: 8, measure_every: 0}}
evaluation: {{k: 0, limit: 4, curve_every: 0}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_parts_and_alterations_lose_nothing(tmp_path, folders):
    file, results = tmp_path / "bop3.yaml", tmp_path / "results"
    file.write_text(SEEDS.format(**folders))

    def run(*options):
        code, _, err = here("run", file, "--results", results, "--json", "--jobs", 2, *options)
        assert code == 0, err
        return err

    def shown(*options):
        out, err = here("show", "bop3", "--results", results, "--format", "json", *options)[1:]
        means = [row for row in json.loads(out)["rows"] if row["policy"] == "*"]
        return {row["regime"]: (row["seeds"], row["baseline"]) for row in means}, err

    run("--set", "evaluation.limit=2", "--only", "*/2")
    seen, err = shown()
    assert (seen, "not run as written yet" in err) == ({"independent": (1, None), "sgt": (1, "independent")}, True)
    assert "bop3: a part of the suite: 2 of 4 cells (--only */1)" in run("--only", "*/1")
    assert shown()[0] == {"independent": (1, None), "sgt": (1, "independent")}
    run("--only", "*/2")
    whole = {"independent": (2, None), "sgt": (2, "independent")}
    assert shown()[0] == whole
    assert "3 of 4 cells (--only sgt --only */2)" in run("--only", "sgt", "--only", "*/2")
    assert "nothing left to do" in run()
    stored = read_suite(results / "bop3")
    assert (len(stored.cells), len(stored.bases)) == (4, 2)

    assert "bop3: altered by --set baseline=sgt: its cells are stored under their own keys" in run(
        "--set", "baseline=sgt"
    )
    assert read_suite(results / "bop3") == stored
    seen, err = shown()
    assert seen == whole
    assert f"not in this table: harness show bop3 --set 'baseline=sgt' --results {results}\n" in err
    one = f"--set baseline=sgt --results {results}"
    err = here("run", file, "--results", results, "--set", "baseline=sgt")[2]
    assert f"`harness show bop3 {one} --format markdown`, `harness status bop3 {one}`" in err
    assert f"harness show 'bop3' {one.replace(' --results', ' --full --results')}: " in err
    assert shown("--set", "baseline=sgt")[0] == {"independent": (2, "sgt"), "sgt": (2, None)}
    assert shown("--set", "evaluation.limit=2")[0] == {"independent": (1, None), "sgt": (1, "independent")}
