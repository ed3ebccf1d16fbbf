"""A tiny checkpoint with random weights for the whole folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkpoint(untrained: Callable[[str], Path]) -> Path:
    return untrained("llama")
