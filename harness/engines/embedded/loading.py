"""Open a Hugging Face folder for the embedded engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float32, Int64
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from harness.allocation.shapes import Precision, precision_of_config
from harness.engines import checkpoint
from harness.engines import lora as adapters
from harness.engines.backend import Lora
from harness.engines.embedded.decoding import agrees_with_model
from harness.engines.embedded.kernels import GROUPED, install_recomputation, kinds_of_layers
from harness.engines.faults import check_unexpected, quiet_loading
from harness.engines.head import NEVER, Head
from harness.engines.templates import Chat
from harness.engines.vocabulary import Vocabulary, check_small_files, check_weight_files, in_one_line, open_vocabulary
from harness.errors import EngineError

transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """An opened model. stop: ids that end an answer. ends: those that are one action, as `head.merge_ends`. forbidden: added to
    the logits. own_layers: whether `decoding` decodes for it."""

    model: PreTrainedModel
    head: Head
    vocabulary: Vocabulary
    stop: Int64[Tensor, "E"]
    forbidden: Float32[Tensor, "V"]
    ends: Int64[Tensor, "E"] | None
    own_layers: bool

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token, all layers."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize)


def open_policy(
    folder: Path,
    device: torch.device,
    chat: Chat,
    name: str,
    precision: Precision | None = None,
    lora: Lora | None = None,
    checkpointing: bool = False,
    ends_are_one: bool = True,
) -> LoadedPolicy:
    """Open a Hugging Face folder for training or sampling; no code of it runs. precision: None takes that of the weights; merged
    adapters take fp32. ends_are_one: as `Backend.ends_are_one`. Raises EngineError."""
    try:
        check_small_files(folder)
        check_weight_files(folder)
    except EngineError as error:
        raise EngineError(f"{name}: does not open: {str(error).removeprefix(f'{name}: ')}") from error
    vocabulary = open_vocabulary(folder, chat, name)
    where = f"{name}: {folder}"
    config = vocabulary.config.get_text_config()
    check_layers(folder, config)
    if (folder / adapters.ADAPTERS).exists():
        precision = "fp32"  # bf16 would round away what they added
    precision = precision or precision_of_config(config.to_dict())
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EngineError(f"{where}: this GPU has no bf16; `--set engine_options.dtype=fp32` computes in fp32")
    model = _load_model(folder, vocabulary.config, precision, device, where)
    checkpoint.make_savable(model)
    torch.nn.Module.to(model, device).train(False)
    _guard_positions(model, config, name)
    forbidden = torch.zeros(vocabulary.size, device=device)  # (V,)
    forbidden[list(vocabulary.forbidden)] = NEVER
    try:
        if lora:
            adapters.add_adapters(model, lora)
        if checkpointing:
            install_recomputation(model)
        head = Head.of(model)
    except (EngineError, TypeError) as error:
        raise EngineError(f"{where}: {error}") from None
    ends = vocabulary.ends(ends_are_one)
    stop_ids = torch.tensor(vocabulary.stop, device=device)  # (E,)
    end_ids = torch.tensor(ends, device=device) if ends else None  # (E,)
    return LoadedPolicy(
        model=model,
        head=head,
        vocabulary=vocabulary,
        stop=stop_ids,
        forbidden=forbidden,
        ends=end_ids,
        own_layers=agrees_with_model(model),
    )


def _load_model(
    folder: Path, config: PretrainedConfig, precision: Precision, device: torch.device, where: str
) -> PreTrainedModel:
    """Read a folder's weights into a model, on the CPU. where: names policy and folder in errors. Raises EngineError."""
    own = config.get_text_config()
    capped = getattr(own, "attn_logit_softcapping", None)  # which torch's kernels leave out
    slow_here = precision == "bf16" and device.type == "cpu"
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(own), None)
    takes_ours = getattr(kind, "_supports_attention_backend", False)
    attention = GROUPED if (capped or slow_here) and takes_ours else "sdpa"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    try:
        with quiet_loading():
            opened: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                dtype=dtype,
                attn_implementation=attention,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # what transformers makes of damaged files has no common base
        raise EngineError(f"{where}: does not open: {in_one_line(error)}") from error
    model: PreTrainedModel
    model, loaded = opened
    if loaded["missing_keys"]:
        raise EngineError(f"{where}: does not open: the weights lack {min(loaded['missing_keys'])}")
    check_unexpected(where, loaded)
    return model


def _guard_positions(model: PreTrainedModel, config: PretrainedConfig, policy: str) -> None:
    """Make a model with a table of learnt positions say so where a sequence is longer than the table."""
    most = getattr(config, "max_position_embeddings", None) or 0
    for table in model.modules():
        if not isinstance(table, torch.nn.Embedding) or table is model.get_input_embeddings():
            continue
        if 0 <= table.num_embeddings - most <= 2:  # OPT's has two more rows
            table.register_forward_pre_hook(partial(_check_positions, policy, most), with_kwargs=True)


def _check_positions(policy: str, most: int, _: Any, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
    """Check that a model has positions for these ids, where torch itself would end in an IndexError, CUDA altogether."""
    if int(named.get("position_ids", given[0]).max()) >= most:
        raise EngineError(
            f"{policy}: a question and its answer take more than the {most:,} positions that the model has"
        )


def check_layers(folder: Path, config: PretrainedConfig) -> None:
    """Refuse layers that this engine cannot run. Raises EngineError, with their names."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    try:
        kinds_of_layers(config)
        if getattr(kind, "_is_stateful", False):
            raise EngineError(f"recurrent layers ({config.model_type}); the engine runs full and sliding attention")
        if not getattr(kind, "_supports_sdpa", True):
            raise EngineError(f"attention of its own ({config.model_type}); the engine brings its kernels and masks")
        if getattr(config, "use_bidirectional_attention", False):
            raise EngineError("layers that look ahead; the engine runs causal attention")
    except EngineError as error:
        raise EngineError(f"{folder}: {error}") from None
