"""Tiny models of the same architectures as a suite's, with their own tokenizers and chat templates where they are here, else
ones of the same kind. They are taught some questions, so that answers are now right, now wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import write_corpus
from harness.engines.protocol import Optimisation
from harness.engines.vocabulary import in_one_line, open_vocabulary
from harness.errors import EngineError, UsageError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer
from harness.suite.schema import Policy

logging.disable_progress_bar()  # type: ignore[no-untyped-call]
TOKENIZER_FILES = (
    "tokenizer",
    "special_tokens",
    "added_tokens",
    "vocab",
    "merges",
    "chat_template",
    "generation_config",
)
# Where the architecture has the setting
WIDTH = {
    "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "intermediate_size": 128, "moe_intermediate_size": 64,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "qk_rope_head_dim": 32, "num_kv_heads": 2,
}  # fmt: skip
LAYERS, MOST_LAYERS = 2, 4
# Rows of Llama 3's vocabulary, whose tokenizer joins up to three digits
LLAMA3 = 128_256
SPECIAL = {
    False: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    True: ["<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}
# ChatML, or Llama 3's header tokens
TEMPLATE = {
    False: "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    True: "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
}
# Passes at most, and the surprise (nats) of an answer at which they end
ROUNDS, LEARNING_RATE, SURPRISE = 80, 3e-3, 0.7
# Of first weights: smaller ones learn slowly at this width
DEVIATION = 0.1


def fault_of(policy: Policy, folder: Path) -> tuple[str, str] | None:
    """Return what a run would fail with in tokenizer or chat template: name and sentence."""
    name = "tokenizer"
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if tokenizer.eos_token_id is None and not policy.chat:
            name = "EOS"
        elif policy.chat:
            name = "chat template"
        vocabulary = open_vocabulary(folder, policy.chat, policy.name)
        if policy.chat and (fault := vocabulary.template.fault()):
            return name, f"{policy.name}: {fault}"
    except EngineError as error:
        return name, str(error)
    except Exception as error:  # what the library makes of damaged files has no common base
        return name, f"{policy.name}: {folder}: does not open: {in_one_line(error)}"
    return None


def takes_system(folder: Path) -> bool:
    """Whether the chat template renders a system turn."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    try:
        tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template is a foreign program, and fails with errors of its own
        return False
    return True


def write_tokenizer(folder: Path, config: Mapping[str, Any], own: Path | None) -> None:
    """Write a stand-in's tokenizer, with the model's full config, for the plan. own: a folder with the model's tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    if own is not None:
        for file in own.iterdir():
            if file.name.startswith(TOKENIZER_FILES) or file.suffix in {".model", ".jinja"}:
                shutil.copyfile(file, folder / file.name)
        return
    llama3 = config.get("vocab_size") == LLAMA3
    headed = llama3 and config.get("model_type") == "llama"
    digits = Regex(r"\d{1,3}" if llama3 else r"\d")
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(digits, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL[headed], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    bpe.train_from_iterator(write_corpus(seed=int(llama3), texts=2000), trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, eos_token=SPECIAL[headed][-1], pad_token=SPECIAL[headed][0], clean_up_tokenization_spaces=False
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE[headed]
    tokenizer.save_pretrained(folder)
    rows = config.get("vocab_size")
    if rows and rows < len(tokenizer):  # a tiny model's, with a tokenizer as tiny
        (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))


def write_model(folder: Path, source: Path) -> None:
    """Write random weights, beside what `write_tokenizer` wrote in `source`. Raises UsageError."""
    raw = json.loads((source / "config.json").read_text())
    tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    try:
        config = _shrink_config(raw, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=DEVIATION)
    except Exception as error:  # a config.json is anyone's data, and others' modelling code does what it likes
        raise UsageError(f"{source.name}: no tiny model can be built from its config: {in_one_line(error)}") from error
    model.save_pretrained(folder)
    for file in source.iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, folder / file.name)


def _shrink_config(raw: Mapping[str, Any], tokenizer: Any) -> PretrainedConfig:
    """Return the config of a tiny model of the same architecture: narrow, with one layer of every kind. Lists with a figure for
    each layer keep those of the layers that stay."""
    left_out = {"model_type", "quantization_config", "auto_map"}
    fields = {name: value for name, value in raw.items() if name not in left_out}
    whole = AutoConfig.for_model(raw["model_type"], **fields).get_text_config()
    own = whole.to_dict()
    names = whole.attribute_map
    layers = whole.num_hidden_layers
    by_layer = {name: value for name, value in own.items() if isinstance(value, list) and len(value) == layers}
    kept = _layers_to_keep(by_layer, layers)
    for name, figures in by_layer.items():
        own[name] = [figures[layer] for layer in kept]
    shared = getattr(whole, "num_key_value_heads", None)
    grouped = bool(shared) and shared < whole.num_attention_heads
    small = {**WIDTH, "num_hidden_layers": len(kept), "num_key_value_heads": 1 if grouped else 2}
    largest_id = max(tokenizer.get_vocab().values())
    small["vocab_size"] = max(len(tokenizer), 1 + largest_id)
    for name, value in small.items():
        its_name = names.get(name, name)  # as this architecture calls it
        if own.get(its_name) is not None:
            own[its_name] = value
    rope = own.get("rope_parameters") or {}
    if "long_factor" in rope:  # one for each frequency of the full width
        plain = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        own["rope_parameters"] = {**plain, "rope_type": "default"}
    own |= {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("eos", "pad", "bos")}
    return type(whole).from_dict(own)


def _layers_to_keep(by_layer: Mapping[str, Sequence[Any]], layers: int) -> list[int]:
    """Return the first layer of every kind, up to `MOST_LAYERS`, and further ones until there are `LAYERS`; in order. by_layer:
    figures by which layers differ."""
    kinds = [tuple(map(str, figures)) for figures in zip(*by_layer.values(), strict=True)] or [()] * layers
    first_of_kinds = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:MOST_LAYERS]
    others = [layer for layer in range(layers) if layer not in first_of_kinds]
    most = max(LAYERS, len(first_of_kinds))
    return sorted([*first_of_kinds, *others][:most])


def teach_answers(folder: Path, policy: Policy, prompts: Sequence[Prompt]) -> None:
    """Teach a stand-in each gold in a box, until about one answer in two is right."""
    engine = EmbeddedEngine(policy.name, folder, chat=policy.chat, device="cpu", dtype="fp32")
    answers = []
    for prompt in prompts:
        answer = engine.tokenizer.encode(f"\\boxed{{{prompt.gold}}}", add_special_tokens=False)
        answers.append(TermAnswer(prompt.id, np.array([*answer, *engine.closing], dtype=np.int32), advantage=1.0))
    term = Term("taught", "own", Objective(form="nll", aggregation="constant"), tuple(answers))
    rule = Optimisation(LEARNING_RATE, betas=(0.9, 0.999), max_tokens=1)  # the loss is the surprise of a whole answer
    for _ in range(ROUNDS):
        if engine.update(prompts, [term], rule).loss < SURPRISE:
            break
    engine.model.save_pretrained(folder)
    engine.close()
