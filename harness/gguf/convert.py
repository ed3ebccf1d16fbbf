"""`harness convert`: a GGUF file to a folder that `AutoModelForCausalLM` and `AutoTokenizer` open, checked before it is kept."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from harness.errors import UsageError
from harness.files import replace_atomic
from harness.gguf.tokenizer import Header, read_header, rebuild

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PARAGRAPH = (
    "The old lighthouse stood at the end of the harbour, where the river meets the sea. Every evening the keeper climbed the "
    "stairs, lit the lamp, and wrote the names of the passing ships in a book. In winter, when the storms came, he stayed awake "
    "all night, because he knew that the sailors trusted his light more than their maps."
)
"""On which a language model's perplexity is measured: plain English of our own."""
MOST_PERPLEXITY = 60.0
"""Above it the weights were not understood: a model of 0.1 B reads the paragraph at about 20, a garbled one at thousands."""
TEXTS = (
    "Hello world! Café déjà vu — 123 😊",
    "Q: 14 + 6 = ?\nA: 14 + 6 = 20.",
    "  two  spaces\n\n\tand a tab ",
    "\\boxed{-3/4}",
)
"""What every tokenizer must give back as it was."""
KNOWN: Mapping[str, tuple[int, ...]] = {
    "86c322c419747d71": (
        9259,
        1902,
        236888,
        62367,
        29234,
        11042,
        2192,
        236743,
        236770,
        236778,
        236800,
        103453,
    ),  # Gemma 3
}
"""Published ids of the first text, by a digest of the vocabulary."""


class Converted(msgspec.Struct, frozen=True):
    """What was made. perplexity: on `PARAGRAPH`. known_ids: whether a published segmentation was compared."""

    folder: str
    architecture: str
    parameters: int
    vocabulary: int
    dtype: str
    perplexity: float
    known_ids: bool
    licence: str
    bos: str | None
    eos: str | None
    pad: str | None
    chat: bool


def convert(file: Path, folder: Path, dtype: Literal["bf16", "fp32"] = "bf16") -> Converted:
    """Write `folder` from `file`; nothing is left where a check fails.

    Raises UsageError where the file is no GGUF file of a supported kind, `folder` is there already, or a check failed: ids of known
    texts, texts that must come back, end tokens of the header, perplexity.
    """
    if folder.exists():
        raise UsageError(f"{folder}: is there already")
    header = read_header(file)
    tokenizer = rebuild(header)
    known = check_tokenizer(tokenizer, header)
    model = _model(file, dtype, header)
    perplexity = _perplexity(model, tokenizer)
    if not perplexity <= MOST_PERPLEXITY:
        limit = f"at most {MOST_PERPLEXITY:.0f}: not converted"
        raise UsageError(f"{file}: perplexity {perplexity:.0f} on plain English, {limit}")

    def fill(temporary: Path) -> None:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)

    folder.parent.mkdir(parents=True, exist_ok=True)
    replace_atomic(folder, fill)
    return Converted(
        folder=str(folder),
        architecture=header.architecture,
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=len(header.tokens),
        dtype=dtype,
        perplexity=round(perplexity, 2),
        known_ids=known,
        licence=header.licence,
        bos=header.token(header.bos) if header.adds_bos else None,
        eos=header.token(header.eos),
        pad=header.token(header.pad),
        chat=header.chat_template is not None,
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, header: Header) -> bool:
    """Whether published ids were compared. Raises UsageError where anything differs."""
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if tokenizer.decode(ids) != text:
            raise UsageError(f"{header.name}: the tokenizer does not give {text!r} back")
    opened = tokenizer.encode(TEXTS[0])
    if (opened[0] == header.bos) != header.adds_bos:
        raise UsageError(f"{header.name}: BOS is not where the header says")
    for role, wanted in (("bos", header.bos), ("eos", header.eos), ("pad", header.pad)):
        if getattr(tokenizer, f"{role}_token_id") != wanted:
            raise UsageError(f"{header.name}: {role} is not the header's")
    vocabulary = hashlib.blake2b("\0".join(header.tokens).encode(), digest_size=8).hexdigest()
    published = KNOWN.get(vocabulary)
    if published is not None and tuple(tokenizer.encode(TEXTS[0], add_special_tokens=False)) != published:
        raise UsageError(f"{header.name}: {TEXTS[0]!r} does not become the published ids")
    return published is not None


def _model(file: Path, dtype: str, header: Header) -> PreTrainedModel:
    """Whose configuration and generation configuration name the header's own tokens."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32 if dtype == "fp32" else torch.bfloat16,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(f"{file}: the model does not open: {str(error).splitlines()[0]}") from error
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = header.bos, header.eos, header.pad
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=header.bos, eos_token_id=header.eos, pad_token_id=header.pad, do_sample=True
    )
    return model.train(False)  # type: ignore[no-any-return]


def _perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> float:
    """Of `PARAGRAPH`, per token, after BOS where the tokenizer has one."""
    import torch

    ids = torch.tensor([tokenizer.encode(PARAGRAPH)])
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss
    return math.exp(min(float(loss), 50.0))
