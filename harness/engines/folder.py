"""A Hugging Face folder before it is opened: what it lacks is said in seconds, its weights unread."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from harness.allocation.shapes import read_config
from harness.engines.checkpoint import weight_files
from harness.engines.vocabulary import in_one_line, open_vocabulary
from harness.errors import EngineError, UsageError
from harness.reading import read_bytes

__all__ = ["check_small_files", "has_template", "read_folder"]

SMALL = {".json", ".jinja", ".txt", ".model"}
MAX_SMALL_BYTES = 256 << 20


def read_folder(folder: Path) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
    """The language model's configuration and its tokenizer; the weights may be absent. Raises EngineError."""
    check_small_files(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what transformers makes of damaged files has no common base
        raise EngineError(f"{folder}: config.json: {in_one_line(error)}") from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise EngineError(f"{folder}: config.json: {config.model_type!r} is no causal language model of transformers")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise EngineError(f"{folder}: there is no tokenizer (tokenizer.json)")
    return config.get_text_config(), open_vocabulary(folder, chat=False).tokenizer


def check_small_files(folder: Path) -> None:
    """Raises EngineError where config.json is no model's, or a file that libraries read whole is too large."""
    if not (folder / "config.json").exists():
        raise EngineError(f"{folder}: there is no config.json")
    try:
        read_config(folder / "config.json")
    except UsageError as error:
        raise EngineError(str(error).replace(f"{folder}/", f"{folder}: ", 1)) from None
    for file in folder.iterdir():
        if file.suffix in SMALL and not file.is_dir():
            if not file.is_file():
                raise EngineError(f"{file}: not a regular file")
            if file.stat().st_size > MAX_SMALL_BYTES:
                raise EngineError(f"{file}: larger than {MAX_SMALL_BYTES:,} bytes")


def has_template(checkpoint: Path) -> bool:
    """Whether the folder's tokenizer has a chat template; read without opening it."""
    if (checkpoint / "chat_template.jinja").is_file():
        return True
    with suppress(OSError, ValueError):
        return '"chat_template"' in read_bytes(checkpoint / "tokenizer_config.json", MAX_SMALL_BYTES).decode()
    return False


def check_weights(folder: Path) -> None:
    """All files of weights are there and of their stated length. Raises EngineError in one line."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{file}: {in_one_line(error)}") from error
