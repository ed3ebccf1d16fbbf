"""Tiny model folders as people bring them: tokenizers, templates and ends of unusual make."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as tokenizer_models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SUMS = [(f"What is {a} + {b}?", str(a + b)) for a in range(2, 6) for b in range(2, 6)]
CORPUS = [f"{question} \\boxed{{{answer}}} user assistant system" for question, answer in SUMS] * 3
TURNS = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
SPECIAL = ["<|eos|>", "<|turn|>", "<|done|>"]


def byte_level(special: Sequence[str] = SPECIAL, words: Sequence[str] = ()) -> Tokenizer:
    core = Tokenizer(tokenizer_models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, show_progress=False, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )  # fmt: skip
    core.train_from_iterator(CORPUS, trainer)
    core.add_tokens(list(words))
    return core


def with_blank() -> Tokenizer:
    """SentencePiece's kind: a blank in front of a text, bytes for what it lacks, a BOS."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(tokenizer_models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, show_progress=False, special_tokens=pieces))
    settings = json.loads(core.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] in pieces[:3]]
    core = Tokenizer.from_str(json.dumps(settings))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    opens(core, "<s>")
    return core


def opens(core: Tokenizer, *tokens: str) -> None:
    """Have the tokenizer put these in front of every text."""
    single = " ".join([*tokens, "$A"])
    ids = [(token, core.token_to_id(token)) for token in tokens]
    core.post_processor = processors.TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=ids)


def write(
    folder: Path,
    core: Tokenizer,
    template: str | None = None,
    ends: Sequence[str] | None = None,
    listed: Sequence[str] | None = None,
    generation: dict[str, Any] | None = None,
    positions: int = 256,
    heads: int = 2,
    **named: str,
) -> Path:
    """ends: in generation_config.json; listed: in config.json. None writes none. generation: other settings. heads: of a width of
    32 together; vLLM's CPU kernel needs 32 each."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = template
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(tokenizer.get_vocab().values()) + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=1, max_position_embeddings=positions, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = tokenizer.convert_tokens_to_ids
    if ends is not None or generation is not None:
        said = {**({"eos_token_id": ids(list(ends))} if ends else {}), **(generation or {})}
        (folder / "generation_config.json").write_text(json.dumps(said))
    if listed is not None:
        change(folder / "config.json", eos_token_id=ids(list(listed)))
    return folder


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def teach(folder: Path, head: Callable[[str], list[int]], answer: Callable[[str], list[int]], steps: int = 80) -> None:
    """Until the answers to SUMS are likely. head, answer: ids of a question's prompt, and of its gold's answer with the end."""
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    rows = [(head(question), answer(gold)) for question, gold in SUMS]
    longest = max(len(prompt) + len(said) for prompt, said in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for place, (prompt, said) in enumerate(rows):
        size = len(prompt) + len(said)
        ids[place, :size] = torch.tensor(prompt + said)
        labels[place, len(prompt) : size] = torch.tensor(said)
        mask[place, :size] = 1
    for _ in range(steps):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.2:
            break
    generation = folder / "generation_config.json"
    said = generation.read_bytes() if generation.exists() else None
    model.save_pretrained(folder)
    generation.unlink(missing_ok=True)
    if said is not None:
        generation.write_bytes(said)
