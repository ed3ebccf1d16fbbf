"""Shapes are measured here, and not taken from an earlier run's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.allocation import shapes


@pytest.fixture(autouse=True)
def _no_kept_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "cache_folder", lambda: tmp_path / "cache")
