"""What makes a model's folder another model than it seems, said before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import EngineError
from harness.tokenization.codec import control_tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

__all__ = [
    "check_adapter",
    "check_own_code",
    "check_quantised",
    "check_tokens",
    "check_unexpected",
    "check_unused_weights",
    "quiet_loading",
]

ADAPTER = "adapter_config.json"
_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)


def check_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter in it (EngineError). transformers would apply one to merged weights a second time where
    peft is installed, and leave it out where it is not: one folder, two models."""
    if not (folder / ADAPTER).exists():
        return
    if not (folder / "config.json").exists():
        raise EngineError(
            f"{folder}: holds an adapter alone ({ADAPTER}): merge it into its base (peft: merge_and_unload, "
            "save_pretrained) and name the merged folder"
        )
    raise EngineError(
        f"{folder}: an adapter lies beside the weights ({ADAPTER}), and would count twice or not at all. Where the weights "
        f"are merged, remove {ADAPTER} and adapter_model.*; else merge it first"
    )


def check_own_code(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse an architecture that only the folder's own code has (EngineError). config: of config.json."""
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if config.get("auto_map") and kind not in CONFIG_MAPPING:
        raise EngineError(
            f"{folder}: config.json: the architecture {str(kind)[:60]!r} is code of the folder's own (auto_map), and a folder's "
            "code is never run; name a model whose architecture transformers has"
        )


def check_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse quantised weights, which cannot be trained (EngineError). config: of config.json."""
    for part in (config, config.get("text_config")):
        said = part.get("quantization_config") if isinstance(part, Mapping) else None
        if said:
            method = said.get("quant_method", "unnamed") if isinstance(said, Mapping) else "unnamed"
            raise EngineError(
                f"{folder}: config.json: quantised weights ({method}) cannot be trained; name the model's plain weights (without "
                "quantization_config)"
            )


def check_tokens(folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    """Check a tokenizer against its model. Raises EngineError where a text may become tokens that the model has no row for, or
    where the pad token is a word."""
    rows = config.get_text_config().vocab_size
    control = control_tokens(tokenizer)
    vocab = tokenizer.get_vocab()
    lacking = sorted((i, name) for name, i in vocab.items() if i >= rows and name not in control)
    lacking = [(i, name) for i, name in lacking if i != tokenizer.pad_token_id]
    if lacking:
        raise EngineError(
            f"{folder}: the tokenizer has {len(lacking):,} tokens without a row in the model, {lacking[0][1]!r} the first: it has "
            f"{rows:,} rows. Take the model's own tokenizer, or resize its embeddings (resize_token_embeddings) and train them"
        )
    pad = tokenizer.pad_token
    used = {tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token}
    if pad is None or pad in used or _MARKUP.fullmatch(pad.strip()) or tokenizer.pad_token_id >= rows:
        return
    model = getattr(tokenizer.backend_tokenizer, "model", None)
    if model is not None and model.token_to_id(pad) is not None:
        raise EngineError(
            f"{folder}: the pad token {pad!r} is an ordinary token, which the model could then never write; set another "
            "pad_token in tokenizer_config.json, or none"
        )


def check_unexpected(where: str, loaded: Mapping[str, Any]) -> None:
    """Refuse weights that the model has no place for (EngineError). loaded: transformers' `loading_info`."""
    keys = sorted(loaded["unexpected_keys"])
    if keys:
        raise EngineError(
            f"{where}: the model has no place for {len(keys):,} of the weights, {keys[0]} the first: config.json describes another "
            "model than these are of (num_hidden_layers, tie_word_embeddings)"
        )


def check_unused_weights(folder: Path) -> None:
    """Refuse what `check_unexpected` refuses, in seconds: names and shapes are compared, no weight is read."""
    from transformers import AutoModelForCausalLM

    from harness.engines.templates import in_one_line

    try:
        with quiet_loading():
            opened: Any = AutoModelForCausalLM.from_pretrained(
                folder, device_map="meta", local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # what transformers makes of damaged files has no common base
        raise EngineError(f"{folder}: does not open: {in_one_line(error)}") from error
    loaded = opened[1]
    check_unexpected(str(folder), loaded)
    if loaded["missing_keys"]:
        raise EngineError(f"{folder}: does not open: the weights lack {min(loaded['missing_keys'])}")


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load without transformers' own report and bars, of which the harness says what counts: a refused folder takes one line."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers has no types of it
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types of it
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types of it
