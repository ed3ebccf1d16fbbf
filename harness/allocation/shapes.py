"""Sizes of models: what memory, work and disk are counted from, read off a model's own config.

A config comes from a folder's ``config.json``, from the hub's cache on this machine, from the table ``models.yaml`` (published
configs of the shipped suites' models, so that these plan without a network) or from the hub. The model is built from it on
torch's meta device (`meta`), which takes seconds; so micro families and ``models.yaml`` have their shapes in tables, which tests
measure again, and others' are kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from harness.allocation.config import read_config
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import DiskFullError, StoreError, UsageError
from harness.files import write_atomic

MICRO = "micro/"
_PLAIN = re.compile(r"\w+([.-]\w+)*/\w+([.-]\w+)*")
"""Names that the hub's own check, which takes long to import, refuses for nothing."""


class Attention(NamedTuple):
    """So many layers whose attention is alike. window: tokens that a query sees at most, None for all."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None


class Kept(NamedTuple):
    """Bytes per token that a backward pass needs kept: by all layers, by the fullest one, by embedding, last norm and head."""

    layers: int
    layer: int
    head: int


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A causal language model in figures.

    parameters: all, a tied head once. experts: of them in mixtures of experts, of which a token takes the share `routed`.
    matmul: parameters multiplied per token, the head included, look-ups not. largest: parameters of the largest matrix.
    half, full: what is kept for the backward pass, at bf16 and fp32, with attention that stores no scores.
    """

    name: str
    family: str
    parameters: int
    matmul: int
    largest: int
    vocab: int
    hidden: int
    attention: tuple[Attention, ...]
    half: Kept
    full: Kept
    experts: int = 0
    routed: float = 1.0

    @property
    def layers(self) -> int:
        return sum(a.layers for a in self.attention)

    @property
    def active(self) -> int:
        """Parameters that one token passes."""
        return self.parameters - round(self.experts * (1 - self.routed))

    def read(self, tokens: float) -> float:
        """Parameters that a pass of so many tokens reads, each of which chooses its experts by itself."""
        return self.parameters - self.experts * float((1 - self.routed) ** tokens)

    def divides(self, devices: int) -> bool:
        """Whether tensor parallelism can cut every layer's heads so."""
        return all(a.heads % devices == 0 for a in self.attention)

    def kv_bytes(self, tokens: int, value_bytes: int = 2, devices: int = 1) -> int:
        """Keys and values of one sequence on one of so many devices; heads are repeated where there are more devices.

        Source: Kwon et al., PagedAttention (arXiv 2309.06180), sections 3 and 4; a window keeps its own length only.
        """
        return (
            sum(
                2 * a.layers * a.head_dim * (a.kv_heads // min(devices, a.kv_heads)) * min(tokens, a.window or tokens)
                for a in self.attention
            )
            * value_bytes
        )

    def attention_flops(self, sequence: float) -> float:
        """Forward operations per token of scores and their sums, over a causal sequence of so many tokens."""
        seen = ((a, min(sequence / 2, a.window or sequence)) for a in self.attention)
        return sum(4 * a.layers * a.heads * a.head_dim * length for a, length in seen)


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face ``config.json`` states. Raises UsageError, one line."""
    return _measured(name, json.dumps(config, sort_keys=True))


@cache
def _measured(name: str, config: str) -> ModelShape:
    if (known := _tabled().get(config)) is not None:
        return msgspec.structs.replace(known, name=name)
    kept = cache_folder() / "shapes" / f"{_digest(config)}.json"
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.structs.replace(msgspec.json.decode(kept.read_bytes(), type=ModelShape), name=name)
    from harness.allocation.meta import measure  # torch

    shape = measure(name, json.loads(config))
    with suppress(DiskFullError, StoreError):  # measured again next time
        write_atomic(kept, msgspec.json.encode(shape))
    return shape


def _digest(config: str) -> str:
    """Of all that a measurement depends on."""
    code = resources.files(__package__).joinpath("meta.py").read_text(encoding="utf-8")
    made_by = [f"{name} {metadata.version(name)}" for name in ("torch", "transformers")]
    return hashlib.sha256("\0".join([config, code, *made_by]).encode()).hexdigest()[:32]


@cache
def _models() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _table("models.yaml")
    return rows


def _table(file: str) -> Any:
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()  # safe_load's, in C where there is one


def shipped() -> Mapping[str, Mapping[str, Any]]:
    """The table ``models.yaml``: configs by short name."""
    return {name: row["config"] for row in _models() for name in row["names"]}


@cache
def _tabled() -> Mapping[str, ModelShape]:
    """Its shapes, by config."""
    return {
        json.dumps(row["config"], sort_keys=True): msgspec.convert({"name": "", **row["shape"]}, ModelShape)
        for row in _models()
    }


@cache
def micro_shapes() -> Mapping[str, ModelShape]:
    """The micro families' shapes by `micro/<family>`, from the table ``micro.yaml``."""
    return {
        MICRO + name: msgspec.convert({"name": name, **row}, ModelShape) for name, row in _table("micro.yaml").items()
    }


def load_shape(model: str, revision: str | None = None) -> ModelShape:
    """The shape of a micro family, a model folder or a hub model.

    Raises
    ------
    UsageError
        In one line: there is no config to be had, it is unusable, or no causal language model.
    """
    if model.startswith(MICRO):
        if model not in micro_shapes():
            raise UsageError(f"unknown micro family {model!r}; there are {', '.join(micro_shapes())}")
        return micro_shapes()[model]
    short = model.rstrip("/").rsplit("/", 1)[-1]
    return shape_from_config(short, load_config(model, revision))


def load_config(model: str, revision: str | None = None) -> Mapping[str, Any]:
    """What a model's ``config.json`` states. Raises UsageError where there is none."""
    folder = model_folder(model)
    if folder.is_dir():
        return read_config(folder / "config.json")
    short = model.rsplit("/", 1)[-1]
    if short in shipped() and _PLAIN.fullmatch(model) and not hub_cache(model).is_dir():
        return shipped()[short]
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        raise UsageError(f"model {model!r}: neither a folder on this machine nor a name on the hub") from None
    if isinstance(found, str):
        return read_config(Path(found))
    if short in shipped():
        return shipped()[short]
    if model.startswith(PRETRAINED):
        raise UsageError(f"{model} is not in the cache: `make pretrained` fetches and converts it")
    from huggingface_hub import hf_hub_download

    try:
        return read_config(Path(hf_hub_download(model, "config.json", revision=revision, etag_timeout=10)))
    except (OSError, ValueError) as error:  # of which the hub's and the network's own errors are
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"model {model!r}: neither a folder nor to be had from the hub ({reason})") from None
