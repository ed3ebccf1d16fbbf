"""From a suite's `model` to a Hugging Face folder on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.suite.schema import Policy

Progress = Callable[[float, str], None]
"""(share done, a few words)"""


def base_folder(policy: Policy, seed: int, progress: Progress | None = None) -> Path:
    """The policy's start weights: a micro family's cached stage 0, a local folder, or a hub snapshot.

    Raises CellError for a base without the competence that RL needs, DataError for a model that cannot be had.
    """
    if policy.model.startswith("micro/"):
        from harness.engines.embedded.stage0 import base_checkpoint

        return base_checkpoint(micro_spec(policy, seed), progress)
    local = Path(policy.model).expanduser()
    if local.is_dir():
        return local
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(policy.model, revision=policy.revision, etag_timeout=10))
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise DataError(
            f"model {policy.model!r}: neither a local folder nor to be had from the hub ({reason})"
        ) from None


def micro_spec(policy: Policy, seed: int) -> Any:
    """Stage 0's own description of a micro policy's base. `per_seed` bases derive from the suite's seed."""
    from harness.engines.embedded.stage0 import MicroSpec
    from harness.suite.schema import Stage0

    stage0 = policy.stage0 or Stage0()
    base_seed = stage0.seed + 1000 * (seed + 1) if stage0.per_seed else stage0.seed
    family = policy.model.removeprefix("micro/")
    return MicroSpec(family=family, preset=stage0.preset, strong=stage0.strong, seed=base_seed)
