"""Policies on a Ray cluster, trained by OpenRLHF's DeepSpeed actors and sampled by vLLM.

Needs the environment of `make install-openrlhf`. Importing this package imports none of it; the functions below do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.engines.openrlhf.cluster import Reservation
    from harness.engines.openrlhf.engine import OpenRLHFEngine
    from harness.engines.openrlhf.reference import OpenRLHFReference


def reserve(policies: Mapping[str, Mapping[str, Any]]) -> Reservation:
    """All of a cell's resources at once. `policies` maps each policy's name to its engine options.

    A policy's frozen base (`open_reference`) takes a share of the policy's own devices and needs no more.

    Raises
    ------
    InfeasibleError
        The cluster is too small; says what is short.
    EngineError
        Nothing became free within the policies' `start_seconds`.
    """
    from harness.engines.openrlhf.cluster import Reservation
    from harness.engines.openrlhf.settings import settings_of

    settings = {name: settings_of(options) for name, options in policies.items()}
    return Reservation(settings, max(s.start_seconds for s in settings.values()))


def open_engine(
    name: str,
    folder: Path,
    *,
    temperature: float = 1.0,
    chat: bool = False,
    reservation: Reservation | None = None,
    **options: Any,
) -> OpenRLHFEngine:
    """A policy's engine; `options` as in `settings.Settings`. Raises SuiteError for a bad option, else as the engine."""
    from harness.engines.openrlhf.engine import OpenRLHFEngine
    from harness.engines.openrlhf.settings import settings_of

    settings = settings_of(options)
    return OpenRLHFEngine(name, folder, settings=settings, temperature=temperature, chat=chat, reservation=reservation)


def open_reference(
    name: str,
    folder: Path,
    *,
    temperature: float = 1.0,
    chat: bool = False,
    reservation: Reservation | None = None,
    **options: Any,
) -> OpenRLHFReference:
    """A policy's frozen base, for KL terms and measurements."""
    from harness.engines.openrlhf.reference import OpenRLHFReference
    from harness.engines.openrlhf.settings import settings_of

    settings = settings_of(options)
    return OpenRLHFReference(
        name, folder, settings=settings, temperature=temperature, chat=chat, reservation=reservation
    )
