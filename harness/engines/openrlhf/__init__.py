"""Policies on a Ray cluster, trained by OpenRLHF's DeepSpeed actors and sampled by vLLM.

Needs the environment of `make install-openrlhf`. Importing this package imports none of it; the functions below do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import EngineError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from harness.engines.openrlhf.cluster import Reservation
    from harness.engines.openrlhf.engine import OpenRLHFEngine
    from harness.engines.openrlhf.reference import Base, OpenRLHFReference


def check_length(folder: Path, config: PretrainedConfig, options: Mapping[str, Any]) -> None:
    """Raises EngineError where vLLM would refuse `max_length`, stated or measured: it is more than the model has positions."""
    from harness.engines.openrlhf.settings import settings_of

    asked, limit = settings_of(options).max_length, getattr(config, "max_position_embeddings", None)
    if asked and limit and asked > limit:
        raise EngineError(
            f"{folder}: the model has {limit:,} positions, fewer than the {asked:,} tokens of a question and its answer "
            "(engine_options.max_length, or what max_new_tokens ask for)"
        )


def reserve(policies: Mapping[str, Mapping[str, Any]]) -> Reservation:
    """All of a cell's resources at once. `policies` maps each policy's name to its engine options.

    Policies with `share_devices` take turns on the same devices.

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


def open_base(engine: OpenRLHFEngine) -> Base:
    """The frozen weights that an engine was opened with, scored in the engine's own memory."""
    from harness.engines.openrlhf.reference import Base

    return Base(engine)


def open_reference(
    name: str,
    folder: Path,
    *,
    temperature: float = 1.0,
    chat: bool = False,
    reservation: Reservation | None = None,
    **options: Any,
) -> OpenRLHFReference:
    """A folder that is only sampled. The base of an open engine, for KL terms and measurements, is `open_base`."""
    from harness.engines.openrlhf.reference import OpenRLHFReference
    from harness.engines.openrlhf.settings import settings_of

    settings = settings_of(options)
    return OpenRLHFReference(
        name, folder, settings=settings, temperature=temperature, chat=chat, reservation=reservation
    )
