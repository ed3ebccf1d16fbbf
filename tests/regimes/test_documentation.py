"""docs/regimes.md: its sample is a regime that keeps the contract, and its table is that of the shipped regimes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from harness.learning.conformance import check_regime
from harness.learning.registry import build, installed

PAGE = (Path(__file__).parents[2] / "docs" / "regimes.md").read_text(encoding="utf-8")
CARRIES = {
    "nothing": set(),
    "text with its reward": {"TextRollout"},
    "rollouts with log-probs": {"Rollout"},
    "counts of valid and right answers": {"GroupValue"},
    "text of verified successes": {"Success"},
    "drafts, and peers' scores of them": {"Draft"},
}


def test_the_sample_keeps_the_contract(tmp_path, monkeypatch):
    (sample,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "borrow.py").write_text(sample)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_regime(importlib.import_module("borrow").Borrow)
    check_regime(importlib.import_module("borrow").Borrow, {"below": 1.0})


def test_the_page_names_the_regimes_whose_defaults_are_published():
    named = re.search(r"formula and all defaults \(([^)]*)\)", PAGE)
    assert named
    shipped = [n for n, e in installed().items() if e.value.startswith("regimes.")]
    assert set(re.findall(r"`([\w-]+)`", named[1])) == {n for n in shipped if build(n, {}).published}


def test_the_table_lists_every_shipped_regime_with_what_it_shares():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+?) \|", PAGE, re.MULTILINE))
    shipped = {n for n, e in installed().items() if e.value.startswith("regimes.")}
    assert set(rows) == shipped
    assert {n: CARRIES[what] for n, what in rows.items()} == {
        n: {r.__name__ for r in build(n, {}).shares} for n in shipped
    }
