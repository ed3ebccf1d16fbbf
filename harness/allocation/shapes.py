"""Models in figures, read off their configs: a folder's, one in the hub's cache, the shipped suites' (``models.yaml``, no
network) or the hub's. Measuring (`meta`) takes torch and seconds: micro families and ``models.yaml`` have tables of
shapes, which tests measure again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from harness.cache import PRETRAINED, hub_cache, model_folder
from harness.errors import UsageError
from harness.limits import UNUSED, without_collection
from harness.reading import in_words, read_text

MICRO = "micro/"
# Names that the hub's own check, slow to import, never refuses.
_PLAIN = re.compile(r"\w+([.-]\w+)*/\w+([.-]\w+)*")


# A config, before any library believes it ---------------------------------------------------------------------------------

MAX_BYTES = 4 << 20
MAX_DEPTH = 16
# Most that figures may be: several times any published model's.
LARGEST = {
    1 << 22: ("vocab_size", "vocabulary_size"),
    1 << 17: ("hidden_size", "d_model", "n_embd", "dim", "head_dim", "word_embed_proj_dim"),
    1 << 20: ("intermediate_size", "moe_intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    1 << 10: ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    1 << 13: ("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_experts", "num_local_experts",
              "n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
    1 << 27: ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
}  # fmt: skip
_LIMITS = {name: limit for limit, names in LARGEST.items() for name in names}


def read_config(path: Path) -> Mapping[str, Any]:
    """Read a model's ``config.json``. Raises UsageError, one line with the place, for what no model could have."""
    try:
        config = json.loads(read_text(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = in_words(error) if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read as a model's config: {reason}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a model's config is a JSON object")
    for place, problem in _find_problems(config, "", MAX_DEPTH):
        raise UsageError(f"{path}: {place}: {problem}")
    return config


def _find_problems(value: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    """List faults of a configuration, with the places where they stand."""
    if not depth:
        yield place, f"nested deeper than {MAX_DEPTH}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key in _LIMITS and inner is not None and not _is_figure(inner, _LIMITS[key]):
                yield where, f"must be a whole number from 0 to {_LIMITS[key]:,} (got {str(inner)[:40]})"
            yield from _find_problems(inner, where, depth - 1)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _find_problems(inner, f"{place}[{i}]", depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, f"must be a finite number (got {value})"


def _is_figure(value: Any, limit: int) -> bool:
    """Whether a value is a whole number from 0 to the limit, or a list of such: some architectures have one for each layer."""
    if isinstance(value, list):
        return all(_is_figure(one, limit) for one in value)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


# Precision: decided by a policy's model and its suite, on every machine alike ---------------------------------------------

Precision = Literal["bf16", "fp32"]
# CPU flags of instructions that multiply bf16, and their names.
FAST = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "Arm BF16"}
# Without them: matrix products of an AMD EPYC, its instructions left out
EMULATED = "bf16 takes 2.5 to 5 times as long as fp32 (engine_options.dtype: fp32 gives cells of their own)"


def precision_of_config(config: Mapping[str, Any]) -> Precision:
    """Read the precision of a model's weights from its ``config.json``."""
    stored = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return "bf16" if stored in ("bfloat16", "float16") else "fp32"


@cache
def cpu_bf16() -> str:
    """Return what multiplies bf16 fast in this machine's CPU; else empty."""
    flags = cpu_flags()
    return next((name for flag, name in FAST.items() if flag in flags), "")


def cpu_flags() -> set[str]:
    """List the flags of this machine's processor, in the kernel's words; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}


# Shapes --------------------------------------------------------------------------------------------------------------


class Attention(NamedTuple):
    """Of layers alike. window: tokens that a query sees at most, None for all."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None


class KeptActivations(NamedTuple):
    """Bytes per token for a backward pass: of all layers, of the fullest one, of embedding, last norm and head."""

    layers: int
    layer: int
    head: int


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """parameters: a tied head once. matmul: multiplied per token, head included. largest: of the largest matrix. experts: in
    mixtures, of which a token takes the share `routed`. half, full: at bf16 and fp32, with attention that stores no scores."""

    name: str
    parameters: int
    matmul: int
    largest: int
    vocab: int
    hidden: int
    attention: tuple[Attention, ...]
    half: KeptActivations
    full: KeptActivations
    experts: int = 0
    routed: float = 1.0

    @property
    def layers(self) -> int:
        return sum(a.layers for a in self.attention)

    def read(self, tokens: float) -> float:
        """Return the parameters that a pass reads; each token chooses its experts by itself."""
        return self.parameters - self.experts * float((1 - self.routed) ** tokens)

    def divides(self, devices: int) -> bool:
        """Whether tensor parallelism can cut every layer's heads so."""
        kv_fit = all(0 in (a.kv_heads % devices, devices % a.kv_heads) for a in self.attention)
        return kv_fit and all(a.heads % devices == 0 for a in self.attention)

    def kv_bytes(self, tokens: int, value_bytes: int = 2, devices: int = 1) -> int:
        """Return the keys and values of one sequence on one of so many devices, which repeat heads where they are more (Kwon et
        al., arXiv 2309.06180, sections 3 and 4); a window keeps its own length."""
        values = 0
        for a in self.attention:
            heads = a.kv_heads // min(devices, a.kv_heads)
            kept = min(tokens, a.window or tokens)
            values += 2 * a.layers * a.head_dim * heads * kept
        return values * value_bytes

    def attention_flops(self, sequence: float) -> float:
        """Count the forward operations per token of scores and their sums, over a causal sequence."""
        seen = ((a, min(sequence / 2, a.window or sequence)) for a in self.attention)
        return sum(4 * a.layers * a.heads * a.head_dim * length for a, length in seen)


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Describe the size of a model by its Hugging Face ``config.json``. Raises UsageError, one line."""
    return _measure_shape(name, json.dumps(config, sort_keys=True))


@cache
def _measure_shape(name: str, config: str) -> ModelShape:
    """Return a model's shape from its configuration, measured once."""
    known = _read_table()[1].get(config)
    if known is not None:
        return msgspec.structs.replace(known, name=name)
    with without_collection(*UNUSED):
        from harness.allocation.meta import measure_shape

    return measure_shape(name, json.loads(config))


@cache
def _read_table() -> tuple[dict[str, dict[str, Any]], dict[str, ModelShape]]:
    """Read ``models.yaml``: configs by short name; shapes by config, the micro families' by name."""
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    rows = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()  # safe_load's, in C where there is one
    configs = dict[str, dict[str, Any]]()
    shapes = dict[str, ModelShape]()
    for row in rows:
        name = row["names"][0]
        config = row.get("config")
        configs |= dict.fromkeys(row["names"], config) if config else {}
        shape = {"name": name.removeprefix(MICRO), **row["shape"]}
        shapes[json.dumps(config, sort_keys=True) if config else name] = msgspec.convert(shape, ModelShape)
    return configs, shapes


def shipped_configs() -> Mapping[str, Mapping[str, Any]]:
    """Read the published configs of the shipped suites' models, by short name."""
    return _read_table()[0]


def load_shape(model: str, revision: str | None = None) -> ModelShape:
    """Describe the size of a micro family, a model folder or a hub model. Raises UsageError where there is no usable config of a
    causal language model."""
    if not model.startswith(MICRO):
        return shape_from_config(model.rstrip("/").rsplit("/", 1)[-1], load_config(model, revision))
    families = {name: shape for name, shape in _read_table()[1].items() if name.startswith(MICRO)}
    if model not in families:
        raise UsageError(f"unknown micro family {model!r}; there are {', '.join(families)}")
    return families[model]


def load_config(model: str, revision: str | None = None) -> Mapping[str, Any]:
    """Return what a model's ``config.json`` states. Raises UsageError where there is none."""
    folder = model_folder(model)
    if folder.is_dir():
        return read_config(folder / "config.json")
    short = model.rsplit("/", 1)[-1]
    if short in shipped_configs() and _PLAIN.fullmatch(model) and not hub_cache(model).is_dir():
        return shipped_configs()[short]
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        raise UsageError(f"model {model!r}: neither a folder on this machine nor a name on the hub") from None
    if isinstance(cached, str):
        return read_config(Path(cached))
    if short in shipped_configs():
        return shipped_configs()[short]
    if model.startswith(PRETRAINED):
        raise UsageError(f"{model} is not in the cache: `make pretrained` fetches and converts it")
    from httpx import HTTPError
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        get_hf_file_metadata(
            hf_hub_url(model, "config.json", revision=revision), timeout=10
        )  # one try; a download makes six
        return read_config(Path(hf_hub_download(model, "config.json", revision=revision, etag_timeout=10)))
    except (OSError, ValueError, HTTPError) as error:  # of which the hub's and the network's own errors are
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"model {model!r}: not a folder, and not available from the hub ({reason})") from None
