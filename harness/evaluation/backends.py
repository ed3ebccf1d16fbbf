"""Ways to run a checkpoint through lm-eval: the embedded engine, transformers, vLLM. All are scored alike, on their texts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import cast, get_args

from lm_eval.api.model import LM

from harness.engines.folder import has_template
from harness.errors import InfeasibleError, UsageError
from harness.evaluation import Backend
from harness.evaluation.engine_lm import EngineLM


def open_lm(
    backend: str,
    checkpoint: Path,
    *,
    seed: int = 0,
    chat: bool | None = None,
    device: str | None = None,
    batch_size: int = 16,
) -> LM:
    """A checkpoint folder as an lm-eval model.

    chat: whether prompts go through the chat template; None where the tokenizer has one. Samples of `embedded` depend on their
    seed alone; those of `hf` and `vllm` come from one generator seeded once, so they also depend on order and batch size.

    Raises
    ------
    UsageError
        An unknown back end, or no checkpoint in that folder.
    InfeasibleError
        vLLM is not installed.
    EngineError
        The checkpoint does not open.
    """
    if backend not in get_args(Backend):
        raise UsageError(f"unknown back end {backend!r}; there are {', '.join(get_args(Backend))}")
    if not (checkpoint / "config.json").is_file():
        raise UsageError(f"{checkpoint} is no checkpoint: it holds no config.json")
    if backend == "embedded":
        return _embedded(checkpoint, seed, chat, device)
    if backend == "hf":
        return _transformers(checkpoint, seed, device, batch_size)
    return _vllm(checkpoint, seed)


def _embedded(checkpoint: Path, seed: int, chat: bool | None, device: str | None) -> LM:
    from harness.engines.embedded.engine import EmbeddedEngine

    if chat is None:
        chat = has_template(checkpoint)
    return EngineLM(EmbeddedEngine(checkpoint.name, checkpoint, device=device, chat=chat), seed)


def _transformers(checkpoint: Path, seed: int, device: str | None, batch_size: int) -> LM:
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.manual_seed(seed)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = "auto" if device.startswith("cuda") else "float32"
    return cast(LM, HFLM(pretrained=str(checkpoint), device=device, batch_size=batch_size, dtype=dtype))


def _vllm(checkpoint: Path, seed: int) -> LM:
    if find_spec("vllm") is None:
        raise InfeasibleError(
            "the vllm back end needs vLLM, which is not installed: pip install vllm, or use --backend hf"
        )
    from lm_eval.models.vllm_causallms import VLLM

    return cast(LM, VLLM(pretrained=str(checkpoint), seed=seed, dtype="auto", gpu_memory_utilization=0.85))
