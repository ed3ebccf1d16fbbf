"""The embedded engine's door: what it offers, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.allocation import inventory
from harness.engines import options
from harness.engines.kind import Engines
from harness.engines.protocol import PolicyEngine
from harness.errors import EngineError
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast


class Embedded(Engines):
    """torch and transformers in this process; CPU, or one CUDA device"""

    Options = options.Embedded
    half_precision = "bf16"

    @classmethod
    def lacking(cls, options: Mapping[str, Any]) -> str:
        absent = options.get("device") == "cuda" and not inventory.local().gpus
        return "device: cuda: there is no CUDA device here" if absent else ""

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        from harness.engines.embedded.loading import check_layers
        from harness.engines.folder import read_folder

        if options.get("lora") and find_spec("peft") is None:
            raise EngineError("engine_options.lora needs peft: pip install -e '.[lora]' -c constraints.txt")
        config, tokenizer = read_folder(folder)
        check_layers(folder, config)
        return config, tokenizer

    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.embedded.engine import EmbeddedEngine

        own = self._options[policy.name]
        engine = EmbeddedEngine(policy.name, folder, temperature=self._temperature, chat=policy.chat, **own)
        self._opened.callback(engine.close)
        return engine

    reference = open
