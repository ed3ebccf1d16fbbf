"""What the embedded engine declares, without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from harness.allocation import inventory
from harness.allocation.shapes import Precision, precision_of_config
from harness.engines.backend import Backend, Lora
from harness.engines.embedded.numerics import Numerics, choose_numerics, explain_conflict, explain_unable
from harness.engines.embedded.sizes import MICRO_TOKENS
from harness.engines.protocol import PolicyEngine
from harness.errors import EngineError
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast


class EmbeddedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the embedded engine. device: torch's name without a number; None takes CUDA where there is one. micro_tokens: unpadded
    tokens of one pass. dtype: None takes bf16 for weights in half precision, else fp32. threads: of torch on a CPU; None takes
    the plan's. lora: `{rank: 16, alpha: 32}` trains adapters instead of the weights. checkpointing: compute activations again in
    the backward pass. numerics: `portable` gives the same rows on every x86-64 CPU with AVX2 (fp32), `fast` on one kind, both
    with one thread; None takes `portable` where all models are micro families and the CPU can."""

    device: Annotated[str, Meta(pattern=r"^(cpu|cuda|xpu)\Z")] | None = None
    micro_tokens: Annotated[int, Meta(ge=1, le=1 << 30)] = MICRO_TOKENS
    dtype: Precision | None = None
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    lora: Lora | None = None
    checkpointing: bool = False
    numerics: Numerics | None = None


class Embedded(Backend):
    """torch and transformers in this process; CPU, or one CUDA device"""

    Options = EmbeddedOptions
    half_precision = "bf16"

    @classmethod
    def lacking(cls, options: Mapping[str, Any]) -> str:
        """Say which device, or what of portable numerics, the options ask for and this machine lacks; empty where it lacks
        nothing."""
        device = options.get("device")
        if device == "xpu":
            import torch
        if (device == "cuda" and not inventory.inventory_of_machine().gpus) or (
            device == "xpu" and not torch.xpu.is_available()
        ):
            return f"device: {device}: there is no {device.upper()} device here"
        apart = options.get("numerics") == "portable" and (explain_conflict(options) or explain_unable())
        if apart:
            return f"numerics: portable is computed in fp32 by one thread of an x86-64 CPU with AVX2: {apart}"
        return ""

    @classmethod
    def with_defaults_filled(cls, options: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
        return {**options, "numerics": choose_numerics(options, models)}

    @classmethod
    def remark(cls, options: Mapping[str, Any], models: Iterable[str]) -> str:
        portable = choose_numerics({**options, "numerics": None}, models, able=True) == "portable"
        why = explain_unable() if portable and options.get("numerics") == "fast" else ""
        return f"numerics: fast, for {why}: rows repeat on this kind of CPU only" if why else ""

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Check a model's folder for this engine, and open its config and tokenizer. Raises EngineError."""
        from harness.engines.embedded.loading import check_layers
        from harness.engines.vocabulary import read_folder

        if options.get("lora") and find_spec("peft") is None:
            raise EngineError("engine_options.lora needs peft: pip install -e '.[lora]' -c constraints.txt")
        config, tokenizer = read_folder(folder)
        check_layers(folder, config)
        unstated = options.get("numerics") == "portable" and options.get("dtype") is None
        if unstated and precision_of_config(config.to_dict()) == "bf16":
            raise EngineError(
                f"{folder}: the weights are in half precision and would be computed in bf16, whose digits depend on the machine; "
                "numerics: portable needs engine_options.dtype: fp32"
            )
        return config, tokenizer

    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.embedded.engine import EmbeddedEngine

        own = self._options[policy.name]
        engine = EmbeddedEngine(
            policy.name,
            folder,
            temperature=self._temperature,
            chat=policy.chat,
            ends_are_one=self.ends_are_one,
            **own,
        )
        self._opened.callback(engine.close)
        return engine

    reference = open
