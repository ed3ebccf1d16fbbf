"""OpenRLHF without flash-attn, which takes hours to build and which this project never asks for.

`openrlhf.models.ring_attn_utils` imports five flash-attn names at its top; they serve packed samples and ring attention
only, which the engine does not use. Where flash-attn is absent, that one module is imported with names that raise when
they are called; everything else sees flash-attn as absent.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_MODULE = "openrlhf.models.ring_attn_utils"
_NAMES = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}


def stand_in() -> None:
    """Import `ring_attn_utils`. Idempotent; nothing happens where flash-attn is installed."""
    if _MODULE in sys.modules or importlib.util.find_spec("flash_attn") is not None:
        return
    # The file alone, not its package: transformers asks, once and for all, whether flash-attn exists.
    source = Path(importlib.import_module("openrlhf").__path__[0], "models", "ring_attn_utils.py")
    spec = importlib.util.spec_from_file_location(_MODULE, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source}: not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules.update({name: _module(name, names) for name, names in _NAMES.items()})
    try:
        spec.loader.exec_module(module)
    finally:
        for name in _NAMES:
            del sys.modules[name]
    sys.modules[_MODULE] = module


def _module(name: str, names: tuple[str, ...]) -> ModuleType:
    module = ModuleType(name)
    for function in names:
        setattr(module, function, _absent(f"{name}.{function}"))
    return module


def _absent(name: str) -> Any:
    def raises(*_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"{name} was called, but flash-attn is not installed")

    return raises
