"""Open a Hugging Face folder for the embedded engine and say what its tokens mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from jaxtyping import Bool, Float32, Int32, Int64
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from harness.errors import EngineError

transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

NEVER = -1e9
"""Added to the logits of ids that are never content; finite, so that p log p stays a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A model with its tokenizer. stop: ids that end an answer. forbidden: added to the logits. content: ids
    that are not forbidden. opening: ids before every
    raw prompt (a BOS where the tokenizer sets one itself)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    stop: Int64[Tensor, "E"]
    forbidden: Float32[Tensor, "V"]
    content: Bool[np.ndarray, "V"]
    opening: tuple[int, ...]

    def is_content(self, tokens: Int32[np.ndarray, "T"]) -> bool:
        """Whether every id can be part of an answer."""
        return bool(((tokens >= 0) & (tokens < self.content.size)).all() and self.content[tokens].all())

    def encode(self, text: str, chat: bool) -> list[int]:
        """Ids of a prompt: through the chat template, or raw without special tokens but for the opening."""
        if chat:
            turns = [{"role": "user", "content": text}]
            return list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        return [*self.opening, *self.tokenizer.encode(text, add_special_tokens=False)]

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token, all layers."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize)


def open_policy(folder: Path, device: torch.device, chat: bool) -> Policy:
    """Load model (float32, dropout off) and tokenizer from a folder; nothing is downloaded, no code of it is run.

    Raises
    ------
    EngineError
        One line: the folder does not open, a layer has other than full attention, or the tokenizer lacks what is needed.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise EngineError(f"{folder}: does not open: {str(error).splitlines()[0]}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EngineError(f"{folder}: the tokenizer is not a fast one (no tokenizer.json)")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise EngineError(
            f"{folder}: {', '.join(sorted(kinds))} layers; the engine needs full attention in every layer"
        )
    if tokenizer.eos_token_id is None:
        raise EngineError(f"{folder}: the tokenizer has no EOS token")
    if chat and not tokenizer.chat_template:
        raise EngineError(f"{folder}: the tokenizer has no chat template")
    torch.nn.Module.to(model, device).eval()
    also = model.generation_config.eos_token_id
    stop = {tokenizer.eos_token_id, *(also if isinstance(also, list) else [] if also is None else [also])}
    forbidden = torch.zeros(model.config.get_text_config().vocab_size, device=device)
    forbidden[len(tokenizer) :] = NEVER
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id not in stop:
        forbidden[tokenizer.pad_token_id] = NEVER
    first = tokenizer.encode("a")[:1]
    return Policy(
        model=model,
        tokenizer=tokenizer,
        stop=torch.tensor(sorted(stop), device=device),
        forbidden=forbidden,
        content=(forbidden == 0).cpu().numpy(),
        opening=(first[0],) if first and first[0] == tokenizer.bos_token_id else (),
    )
