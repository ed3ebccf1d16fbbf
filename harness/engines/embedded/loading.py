"""Open a Hugging Face folder for the embedded engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float32, Int64
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from harness.engines.folder import check_small_files, check_weights
from harness.engines.vocabulary import Vocabulary, in_one_line, open_vocabulary
from harness.errors import EngineError

transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

NEVER = -1e9
"""Added to the logits of ids that are never content; finite, so that p log p stays a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A model and what its tokens mean. stop: ids that end an answer. forbidden: added to the logits."""

    model: PreTrainedModel
    vocabulary: Vocabulary
    stop: Int64[Tensor, "E"]
    forbidden: Float32[Tensor, "V"]

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token, all layers."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize)


def open_policy(folder: Path, device: torch.device, chat: bool, name: str) -> Policy:
    """Load model (float32, dropout off) and tokenizer from a folder; nothing is downloaded, no code of it is run.

    Raises
    ------
    EngineError
        One line: the folder does not open, a layer has other than full attention, or the tokenizer lacks what is needed.
    """
    try:
        check_small_files(folder)
        check_weights(folder)
    except EngineError as error:
        raise EngineError(f"{name}: does not open: {error}") from error
    vocabulary = open_vocabulary(folder, chat, name)
    where = f"{name}: {folder}"
    try:
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # what transformers makes of damaged files has no common base
        raise EngineError(f"{where}: does not open: {in_one_line(error)}") from error
    model, loaded = opened
    if loaded["missing_keys"]:
        raise EngineError(f"{where}: does not open: the weights lack {min(loaded['missing_keys'])}")
    check_layers(folder, model.config)
    torch.nn.Module.to(model, device).train(False)
    forbidden = torch.zeros(vocabulary.size, device=device)
    forbidden[list(vocabulary.forbidden)] = NEVER
    return Policy(model, vocabulary, torch.tensor(vocabulary.stop, device=device), forbidden)


def check_layers(folder: Path, config: PretrainedConfig) -> None:
    """Raises EngineError for a model with layers that this engine cannot run."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise EngineError(
            f"{folder}: {', '.join(sorted(kinds))} layers; the engine needs full attention in every layer"
        )
