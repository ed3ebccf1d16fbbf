"""Where a run's Ray cluster is, as far as that is decided without Ray."""

from __future__ import annotations

import pytest

from harness.engines.catalogue import backend_of


def test_an_address_goes_before_the_environment_and_the_environment_before_an_own_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:1")
    with backend_of("openrlhf").cluster(None) as environment:
        assert environment == {"RAY_ADDRESS": "head:1"}
    with backend_of("openrlhf").cluster("other:2") as environment:
        assert environment == {"RAY_ADDRESS": "other:2"}
    with backend_of("embedded").cluster("other:2") as environment:
        assert "RAY_ADDRESS" not in environment
