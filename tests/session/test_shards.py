"""Shards of one suite in one folder: who has which cells, side by side as commands, and over mounts that share no locks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.cli.standing import status
from harness.errors import UsageError
from harness.session.cell.manifests import cell_manifest
from harness.session.suite.prepare import Shard, prepare
from harness.store.database import kind_of_mount, on_network, store_path
from harness.store.manifest import Provenance, write_manifest

from .command import harness, start, wait_until
from .test_matrix import table

FOUR = ["--set", "regimes=[independent, hacpo]", "--set", "seeds=[3, 4]"]
SHORT = [*FOUR, "--set", "training.steps=2", "--set", "training.checkpoint_every=1"]


def test_shards_share_out_every_cell_and_every_start_checkpoint_once(suite_file, tmp_path):
    """Every number true, 2: all regimes of one group and seed are in one part, for they are compared in pairs."""
    for count in (1, 2, 3, 7):
        parts = [
            prepare(str(suite_file), tmp_path, overrides=["seeds=[1,2,3,4,5]"], shard=Shard(i + 1, count))
            for i in range(count)
        ]
        whole = [{(c.group.name, c.seed) for c in part.cells} for part in parts]
        assert sum(map(len, whole)) == len(set().union(*whole)) == 5
        assert sum(not blocks for blocks in whole) == max(0, count - 5)
        assert all(
            len(part.cells) == len(blocks) * len(part.suite.regimes) for part, blocks in zip(parts, whole, strict=True)
        )
        cells = [cell.key for part in parts for cell in part.cells]
        assert sorted(cells) == sorted(c.key for c in parts[0].every)
        written = [part.keys() for part in parts]
        assert sum(map(len, written)) == len(set().union(*written)) == len(cells) + len(parts[0].bases)
        assert max(map(len, whole)) - min(map(len, whole)) <= 1


def test_shards_of_a_part_share_out_that_part(suite_file, tmp_path):
    seeds = ["seeds=[3,4]"]
    parts = [prepare(str(suite_file), tmp_path, only="pair/s*", overrides=seeds, shard=Shard(i, 2)) for i in (1, 2)]
    assert [[(c.variant.name, c.seed) for c in p.cells] for p in parts] == [
        [(r, s) for r in ("sgt", "sapo")] for s in (3, 4)
    ]
    assert not parts[0].keys() & parts[1].keys()
    assert len(parts[0].keys() | parts[1].keys()) == 4 + len(parts[0].bases)


def test_status_says_where_pairs_run_on_unlike_processors_before_all_are_done(suite_file, tmp_path, capsys):
    """Every number true, 2."""
    prepared = prepare(str(suite_file), tmp_path, overrides=["seeds=[3,4]"])
    for cell, processor in zip(prepared.cells[:3], ("Xeon", "Xeon", "EPYC"), strict=True):
        found = replace(cell_manifest(cell), state="done", provenance=Provenance(machine={"processor": processor}))
        write_manifest(prepared.folder / cell.key, found)
    status(str(suite_file), tmp_path, ["seeds=[3,4]"])
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
    assert harness("run", suite_file, "--results", whole, "--jobs", 2, *SHORT)[0] == 0
    assert table("tiny", results) == table("tiny", whole)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_shards_at_once_give_the_table_of_one_run(suite_file, tmp_path):
    results = tmp_path / "results"
    both(suite_file, results, results)
    same_as_one_run(suite_file, results, tmp_path)
    code, _, err = harness("run", suite_file, "--results", results, "--shard", "9/9", *SHORT)
    assert (code, "this part has no cells" in err) == (0, True), err


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
    """Two mounts of one folder: `flock` at one is not seen at the other, DuckDB's file lies elsewhere, and claims hold."""
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    with mounts(tmp_path / "backing", here, there):
        assert (kind_of_mount(here), on_network(there)) == ("fuse", True)
        import fcntl
        import sys

        with (here / "file").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            assert subprocess.run([sys.executable, "-c", LOCK, there / "file"]).returncode == 0, "locks are shared here"
        first = start("run", suite_file, "--results", here, "--jobs", 1, "--shard", "1/2", *SHORT)
        wait_until(lambda: any(here.glob("tiny/.runs/*.json")), first)
        first.send_signal(signal.SIGSTOP)
        code, _, err = harness("run", suite_file, "--results", there, *SHORT)
        first.send_signal(signal.SIGCONT)
        assert (code, "another `harness run` is writing these results" in err) == (2, True), err
        code, _, err = harness("run", suite_file, "--results", there, "--jobs", 1, "--shard", "2/2", *SHORT)
        assert code == 0, err
        _, err = first.communicate(timeout=300)
        assert first.returncode == 0, err
        assert not [*here.rglob("harness.duckdb*")]
        assert store_path(here).is_relative_to(tmp_path / "cache")
        assert store_path(here).exists()
        assert store_path(here) != store_path(there)
        same_as_one_run(suite_file, here, tmp_path)
        assert table("tiny", here) == table("tiny", there)


NO_LOCKS = """
#include <errno.h>
int flock(int fd, int op) { errno = ENOLCK; return -1; }
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_where_flock_fails_a_run_works_and_a_killed_one_goes_on(suite_file, tmp_path):
    """`flock` answers ENOLCK, as on Lustre or NFS without a lock daemon: a library loaded before the C library's."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    library = tmp_path / "no_locks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "no_locks.c"], check=True)
    env = {"LD_PRELOAD": str(library)}
    results = tmp_path / "results"
    first = start("run", suite_file, "--results", results, "--jobs", 1, *SHORT, env=env)
    wait_until(lambda: any(results.glob("tiny/*/resume/step-*")), first)
    first.send_signal(signal.SIGSTOP)  # so that it is not over before the next one asks
    code, _, err = harness("run", suite_file, "--results", results, *SHORT, env=env)
    assert (code, "another `harness run` is writing these results" in err) == (2, True), err
    first.kill()
    first.communicate()
    code, _, err = harness("run", suite_file, "--results", results, "--jobs", 1, *SHORT, env=env)
    assert code == 0, err
    assert (results / "harness.duckdb").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_whose_cells_somebody_took_over_ends_and_writes_nothing_more(suite_file, tmp_path):
    results = tmp_path / "results"
    process = start("run", suite_file, "--results", results, "--jobs", 1, *FOUR, "--set", "training.steps=5000")
    wait_until(lambda: any(results.glob("tiny/*/resume/step-*")), process)
    (claim,) = results.glob("tiny/.runs/*.json")
    claim.unlink()  # as the next run does with that of a dead one
    _, err = process.communicate(timeout=60)
    (line,) = [line for line in err.splitlines() if line.startswith("harness: ")]
    assert (process.returncode, "another has taken its cells over" in line) == (1, True), err
    states = {json.loads(file.read_text())["state"] for file in results.glob("tiny/*/manifest.json")}
    assert "running" in states, "what it left is the next run's to mark"
    assert not [*results.glob("tiny/.runs/*.json")]
