"""From a suite's `model` to a Hugging Face folder on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import phases
from harness.cache import PRETRAINED, hub_cache, model_folder
from harness.errors import DataError
from harness.suite.schema import Policy, Stage0

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
"""Of an address that the environment gives, as HF_ENDPOINT may."""
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
Progress = Callable[[float, str], None]
"""(share done, a few words)"""


def base_folder(
    policy: Policy, seed: int, progress: Progress | None = None, options: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    """The policy's start weights: a micro family's cached stage 0, a local folder, a hub snapshot, or what a supervised start has
    made of one of these two.

    options: the embedded engine's, of which a start is made with `device`, `dtype` and `threads`.

    Raises CellError for a base without the competence that RL needs, DataError for a model that cannot be had.
    """
    if policy.model.startswith("micro/"):
        from harness.engines.embedded.warmup import base_checkpoint

        return base_checkpoint(micro_spec(policy, seed), progress)
    folder = raw_folder(policy)
    if policy.stage0 is None:
        return folder
    from harness.engines.embedded.warmup import warmup_checkpoint

    chosen = {name: options[name] for name in ("device", "dtype", "threads") if name in options}
    return warmup_checkpoint(start_of(policy, seed), folder, progress, **chosen)


def start_options(engine: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a suite's engine options a start follows, whichever engine trains after it."""
    return options if engine == "embedded" else {}


def raw_folder(policy: Policy) -> Path:
    """The policy's model as it was published. Raises DataError."""
    return local_folder(policy) or _snapshot(policy)


def has_start(policy: Policy) -> bool:
    """Whether the policy is a pretrained model with a supervised start, so that there is something to measure before it."""
    return policy.stage0 is not None and not policy.model.startswith("micro/")


def local_folder(policy: Policy) -> Path | None:
    """The folder that a policy's model names; None for a name on the hub. Raises DataError if it can be neither."""
    folder = model_folder(policy.model)
    if folder.is_dir():
        return folder
    if policy.model.startswith(PRETRAINED):
        raise DataError(f"{policy.model} is not in the cache ({folder}): `make pretrained` fetches and converts it")
    if not HUB_NAME.fullmatch(policy.model):
        raise DataError(f"no such folder: {policy.model}")
    return None


def hub_folder(policy: Policy, fetch: bool) -> Path:
    """A hub model's folder in this machine's cache, without weights where they are not there yet.

    fetch: whether configuration and tokenizer, a few MB, may be fetched. Raises DataError.
    """
    if fetch:
        return _snapshot(policy, allow_patterns=SMALL_FILES)
    if not hub_cache(policy.model).is_dir():
        raise DataError(f"model {policy.model!r}: not in this machine's cache")
    return _snapshot(policy, local_files_only=True)


def at_hand(policy: Policy) -> Path | None:
    """The folder with a policy's tokenizer, where it is on this machine; a micro model's is made with its base checkpoint."""
    if policy.model.startswith("micro/"):
        return None
    try:
        folder = local_folder(policy) or hub_folder(policy, fetch=False)
    except DataError:
        return None
    return folder if (folder / "tokenizer_config.json").is_file() else None


def _snapshot(policy: Policy, local_files_only: bool = False, **options: Any) -> Path:
    """From the hub, or from the cache alone where the hub cannot be reached: a pinned commit is the same in both."""
    from huggingface_hub import is_offline_mode, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    offline, failures = is_offline_mode(), []
    for cached in [True] if offline or local_files_only else [False, True]:
        try:
            return Path(
                snapshot_download(
                    policy.model, revision=policy.revision, etag_timeout=10, tqdm_class=_told(),
                    local_files_only=cached, **options,
                )
            )  # fmt: skip
        except Exception as error:  # the hub's, its HTTP client's and the disk's have no common base
            failures.append(error)
    cause = "HF_HUB_OFFLINE is set" if offline else "the hub does not answer"
    absent = isinstance(failures[0], LocalEntryNotFoundError)
    said = _CREDENTIALS.sub("//", " ".join(str(failures[0]).split()))[:200]
    reason = f"not in this machine's cache, and {cause}" if absent else said
    raise DataError(f"model {policy.model!r}: neither a local folder nor to be had from the hub ({reason})")


def _told() -> type[Any]:
    """Progress bars of a download whose every move is a sign of life."""
    from huggingface_hub.utils.tqdm import tqdm

    class Told(tqdm):
        def update(self, n: float | None = 1) -> Any:
            phases.beat()
            return super().update(n)

    return Told


def micro_spec(policy: Policy, seed: int) -> Any:
    """Stage 0's own description of a micro policy's base. `per_seed` bases derive from the suite's seed."""
    from harness.engines.embedded.warmup import MicroSpec

    stage0 = policy.stage0 or Stage0()
    family = policy.model.removeprefix("micro/")
    return MicroSpec(family=family, preset=stage0.preset, strong=stage0.strong, seed=_base_seed(stage0, seed))


def start_of(policy: Policy, seed: int) -> Any:
    """What a pretrained policy's start is made by: the same settings, as far as they are said."""
    from harness.engines.embedded.warmup import Warmup
    from harness.session.policy.weights import identity_of

    stage0 = policy.stage0
    assert stage0 is not None
    said: dict[str, Any] = {
        "task": stage0.task,
        "steps": stage0.steps,
        "learning_rate": stage0.learning_rate,
        "gate": stage0.gate,
    }
    return Warmup(
        name=policy.name,
        content=identity_of(policy),
        chat=policy.chat,
        preset=stage0.preset,
        strong=stage0.strong,
        seed=_base_seed(stage0, seed),
        **{name: value for name, value in said.items() if value is not None},
    )


def _base_seed(stage0: Stage0, seed: int) -> int:
    return stage0.seed + 1000 * (seed + 1) if stage0.per_seed else stage0.seed
