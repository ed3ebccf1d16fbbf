"""One verifier for the whole folder: its processes take a second to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.verification.verifier import Verifier


@pytest.fixture(scope="session")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=2) as shared:
        yield shared
