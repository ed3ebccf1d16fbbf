"""A bundle of the lab's results."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import ok


@pytest.fixture(scope="session")
def results(lab: Path) -> Path:
    return lab / "results"


@pytest.fixture(scope="session")
def bundle(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = ok("bundle", "labs", "--results", results, "-o", tmp_path_factory.mktemp("bundle"))
    return Path(out.strip())
