"""Stores to draw, and what all of the leaderboard's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from drawn_stores import write_several, write_stores


@pytest.fixture(scope="module", autouse=True)
def scan_components_once() -> Iterator[None]:
    """Every AppTest looks for components in the metadata of all packages."""
    from streamlit.components.v2 import manifest_scanner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


@pytest.fixture(scope="session")
def stores(shared: Callable[[str, Callable[[Path], object]], Path]) -> dict[str, Path]:
    """The folders of `write_stores` by name."""
    return {path.name: path for path in shared("stores", write_stores).iterdir()}


@pytest.fixture(scope="session")
def several(shared: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The results of `write_several`."""
    return shared("several", write_several)
