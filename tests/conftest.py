"""Set before torch is imported anywhere: threads that spin against each other make tests up to fifty times slower."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

for name, value in (
    ("OMP_NUM_THREADS", "1"),
    ("OMP_WAIT_POLICY", "passive"),
    ("GOMP_SPINCOUNT", "0"),
    ("HF_HUB_OFFLINE", "1"),
    ("HARNESS_MODELS", tempfile.gettempdir()),
):
    os.environ[name] = value


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """A page that is drawn in a test leaves itself as the main module, which a process spawned later would run."""
    own = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = own
