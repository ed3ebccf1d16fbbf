"""Results of others that mean harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import arrow_bomb, ingested
from synthetic_results import REGIMES, write_results

from harness import limits
from harness.store.imported_results import import_results


def _replace(file: Path, make: Callable[[Path], object]) -> None:
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink()
    make(file)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": lambda f: os.mkfifo(f),
    "endless device": lambda f: f.symlink_to("/dev/zero"),
    "folder": lambda f: f.mkdir(),
    "file": lambda f: f.write_bytes(b"x"),
    "loop": lambda f: f.symlink_to(f.name),
    "dangling link": lambda f: f.symlink_to("nowhere"),
    "sparse terabyte": lambda f: (f.touch(), os.truncate(f, 1 << 40)),
}
PLACES = {
    "manifest": "manifest.json",
    "table": "journal/compact-000001/samples-*.arrow",
    "compact": "journal/compact-000001",
    "journal": "journal",
}


@pytest.mark.slow_but("manifest", "table-sparse")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_one_cell_of_another_kind_and_the_others_are_read(tmp_path: Path, kind: str, place: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_results(theirs, "s", regimes=REGIMES[:1], seeds=[1], steps=1, questions=2, exchanges=0)
    cells = sorted(folder for folder in (theirs / "s").iterdir() if folder.is_dir())
    _replace(next(cells[0].glob(PLACES[place])), KINDS[kind])
    started = time.process_time()
    report = import_results(theirs, ours, "lab")
    assert report.cells == len(cells) - 1
    assert report.refused or (place, kind) in {
        ("manifest", "loop"),
        ("manifest", "dangling link"),
    }  # as if there were none
    with ingested(theirs) as snapshot:
        count = snapshot.sql("SELECT count(DISTINCT cell) FROM samples").rows[0][0]
    assert count == len(cells) - (place != "manifest")
    assert time.process_time() - started < 10


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    write_results(theirs, "s", regimes=REGIMES[:1], seeds=[1], steps=1, questions=2, exchanges=0)
    cells = sorted(folder for folder in (theirs / "s").iterdir() if folder.is_dir())
    arrow_bomb(next(cells[0].glob("journal/compact-000001/samples-*.arrow")))
    command = [sys.executable, "-c", IMPORT, str(theirs), str(tmp_path / "ours")]
    taken, refused, grown = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert grown < 400 << 20
    assert taken == len(cells) - 1
    assert "malloc" in refused[0]


IMPORT = """
import json, re, sys
from pathlib import Path
from harness.store.imported_results import limit_import_memory, import_results
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
with limit_import_memory(256 << 20):
    report = import_results(Path(sys.argv[1]), Path(sys.argv[2]), "lab")
print(json.dumps([report.cells, report.refused, peak() - before]))
"""


def test_the_ceiling_is_one_and_is_lifted_again() -> None:
    with limits.limit_memory(64 << 20), pytest.raises(MemoryError):
        bytearray(256 << 20)
    assert len(bytearray(256 << 20)) == 256 << 20
