"""A suite's `engine_options`, checked before anything is opened. Imports no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from harness.allocation.chunks import MICRO_TOKENS
from harness.allocation.shapes import Precision
from harness.errors import SuiteError

Options = TypeVar("Options", bound=msgspec.Struct)


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters beside frozen linear layers. rank: of their product. alpha: it counts alpha / rank times."""

    rank: Annotated[int, Meta(ge=1, le=4096)]
    alpha: Annotated[float, Meta(gt=0, le=1e6)]


class Embedded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the embedded engine. device: as torch names it, without a number: a worker sees only the one that the plan gives it; None
    takes CUDA where there is any. micro_tokens: padded tokens of one forward and backward pass. dtype: None takes bf16 for weights
    that come in half precision, else fp32. threads: of torch on a CPU; None takes what the plan gives the cell.
    lora: `{rank: 16, alpha: 32}` trains adapters of that rank, counted alpha / rank times, and not the model's own weights.
    checkpointing: activations are made again in the backward pass, to save memory."""

    device: Annotated[str, Meta(pattern=r"^(cpu|cuda|mps|xpu)\Z")] | None = None
    micro_tokens: Annotated[int, Meta(ge=1, le=1 << 30)] = MICRO_TOKENS
    dtype: Precision | None = None
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    lora: Lora | None = None
    checkpointing: bool = False


def read(kind: type[Options], options: Mapping[str, Any], source: str) -> Options:
    """`options` as an engine's own struct. Raises SuiteError with the place inside `engine_options`."""
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise SuiteError(source, f"engine_options{path.rstrip('`')}", problem) from None
