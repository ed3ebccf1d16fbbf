"""Stores that the leaderboard's tests draw."""

from __future__ import annotations

from pathlib import Path

import msgspec
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest_journals
from harness.store.manifest import read_manifest, write_manifest

EVIL = "<script>alert(1)</script><b>bold</b> **md** [link](http://x) $x^2$ :red[r] \x1b[31m\x07 \u202e"
DUO = {"duo": ("llama", "qwen")}


def write_stores(root: Path) -> None:
    """Results of no suite, of one cell, of many cells, and of policies that write hostile text."""
    (root / "empty").mkdir()
    write_results(root / "one", groups=DUO, regimes=REGIMES[:1], seeds=(1,), steps=3, questions=5)
    groups = {f"pair-{i}": ("llama", "qwen") for i in range(4)}
    write_results(root / "large", groups=groups, seeds=range(3), steps=8, questions=10, tasks=("micro", "other"))
    write_results(root / "evil", groups=DUO, regimes=REGIMES[2:5], seeds=(1, 2), steps=3, questions=4, text=EVIL)
    for name in ("one", "large", "evil"):
        ingest_journals(root / name)


def write_several(folder: Path) -> None:
    """Three suites; all cells of one have failed, pairs of another ran on unlike processors."""
    for name in ("first", "second", "third"):
        write_results(folder, name, groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=2, questions=4)
    for place in sorted(folder.glob("*/*/manifest.json")):
        manifest = read_manifest(place.parent)
        if manifest.kind == "cell" and manifest.suite == "third":
            changed = msgspec.structs.replace(manifest, state="failed", reason="the disk is full <b>")
            write_manifest(place.parent, changed)
        elif manifest.kind == "cell" and manifest.suite == "second":
            machine = {"processor": f"made for {manifest.regime}"}
            provenance = msgspec.structs.replace(manifest.provenance, machine=machine)
            write_manifest(place.parent, msgspec.structs.replace(manifest, provenance=provenance))
    ingest_journals(folder)
