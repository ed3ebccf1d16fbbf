"""The state of a suite's cells is read once for all that one run asks of it, and again under its lock."""

from __future__ import annotations

from pathlib import Path

from harness.session.cell.manifests import base_manifest, cell_manifest, mark
from harness.session.suite.prepare import prepare


def test_what_was_looked_at_stays_until_one_looks_again(tmp_path: Path) -> None:
    prepared = prepare("quickstart", tmp_path)
    before = prepared.looked()
    first, base = prepared.cells[0], prepared.bases[0]
    mark(prepared.folder / first.key, cell_manifest(first), "done", attempts=1)
    mark(prepared.folder / base.key, base_manifest(base), "done", attempts=1)
    assert first in before.pending()
    assert base in before.missing()
    assert before.done() == []
    for now in (prepared, before.looked()):  # without a look each question is asked of the disk
        assert first not in now.pending()
        assert base not in now.missing()
        assert now.done() == [first]
        assert now.state(first.key) == ("done", "", 1)
