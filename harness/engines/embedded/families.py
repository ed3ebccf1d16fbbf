"""Four small language models, 96 wide and 3 layers deep (0.3-0.4 M parameters).

    llama   Llama                      byte-level BPE           164 -> 16 4
    qwen    Qwen3 (GQA, qk-norm)       BPE, Metaspace           164 -> 1 6 4
    neox    GPT-NeoX (parallel blocks) Unigram, Metaspace       164 -> 1 64
    gpt2    GPT-2 (learned positions)  WordPiece, Metaspace     164 -> 16 ##4

Tokenizers are trained from generated problems, always to the same result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from math import log
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from harness.tasks.micro import LEVELS, SKILLS, draw_fact

WIDTH, LAYERS, HEADS, POSITIONS = 96, 3, 3, 256
_SPECIAL = _PAD, _EOS, _UNK = "<pad>", "<eos>", "<unk>"
_CORPUS_TEXTS = 6_000


class Family(NamedTuple):
    train_tokenizer: Callable[[list[str]], Tokenizer]
    config: Callable[..., PretrainedConfig]
    settings: dict[str, Any]

    def configure(self, vocabulary: int) -> PretrainedConfig:
        return self.config(vocab_size=vocabulary, **self.settings)


def build_tokenizer(family: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(_train_tokenizer(family)),
        eos_token=_EOS,
        pad_token=_PAD,
        unk_token=_UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )


def build_model(family: str, seed: int, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Build a model, freshly initialised (fp32, std 0.05). Leaves torch's global generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            FAMILIES[family].configure(len(tokenizer)), attn_implementation="sdpa", dtype=torch.float32
        )
    model.generation_config.max_length = POSITIONS
    return model


def write_corpus(seed: int, texts: int) -> list[str]:
    """Write a corpus of prompts plain and hinted, answers direct and by chain of thought."""
    rng = Random(seed)
    skills = list(SKILLS.values())
    lines = []
    for _ in range(texts):
        fact = rng.random() < 0.2
        skill = rng.choice(skills)
        problem = draw_fact(rng, skill) if fact else skill.draw(rng, rng.choice(LEVELS), held_out=False)
        prompt = rng.choice((problem.prompt, problem.hinted_prompt))
        lines.append(prompt + rng.choice((problem.direct, problem.chain_of_thought)))
    return lines


@cache
def _train_tokenizer(family: str) -> str:
    """Return a family's tokenizer as JSON, trained on texts of the micro task."""
    return str(FAMILIES[family].train_tokenizer(write_corpus(seed=0, texts=_CORPUS_TEXTS)).to_str())


def _byte_level_bpe(texts: list[str]) -> Tokenizer:
    """Train byte-level BPE that splits numbers into pairs of digits."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _single_digit_bpe(texts: list[str]) -> Tokenizer:
    """Train BPE that splits numbers into single digits, with an unknown token in place of bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token=_UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), _make_metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=list(_SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_unigram(texts: list[str]) -> Tokenizer:
    """Log-frequencies as scores, as UnigramTrainer prunes so few words to almost nothing."""
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            _make_metaspace(),
            pre_tokenizers.Split(Regex(r"\d{1,2}(?=(?:\d\d)*(?!\d))"), "isolated"),
            pre_tokenizers.Split(Regex(r"▁?[A-Za-z]+"), "isolated"),
        ]
    )
    words = Counter(piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text))
    pieces = words + Counter(character for text in texts for character in text.replace(" ", "▁"))
    total = pieces.total()
    scores = [(piece, log(count / total) - 20 * (len(piece) == 1)) for piece, count in _by_frequency(pieces)]
    tokenizer = Tokenizer(models.Unigram([*((special, 0.0) for special in _SPECIAL), *scores], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _train_wordpiece(texts: list[str]) -> Tokenizer:
    """Train WordPiece by our own means, since WordPieceTrainer's result varies between processes. Metaspace keeps spaces, which
    WordPiece's decoder guesses."""
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d+"), "isolated"), _make_metaspace()])
    words = Counter(piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text))
    stems: Counter[str] = Counter()
    for word, count in words.items():
        match = re.match(r"▁?\\?[A-Za-z]{2,}|\d\d", word)
        if match:
            stems[match.group()] += count
    first = sorted({character for word in words for character in word})
    inner = sorted({f"##{character}" for word in words for character in word[1:]})
    pieces = [*_SPECIAL, *first, *inner, *(stem for stem, _ in _by_frequency(stems))]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token=_UNK))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("##", ""), decoders.Fuse(), decoders.Metaspace(prepend_scheme="never")]
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _by_frequency(pieces: Counter[str]) -> list[tuple[str, int]]:
    return sorted(pieces.items(), key=lambda item: (-item[1], item[0]))


def _make_metaspace() -> pre_tokenizers.Metaspace:
    """Return the pre-tokenizer that writes blanks as a mark, never before the first word."""
    return pre_tokenizers.Metaspace(prepend_scheme="never")


_SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.05,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
_GATED = {"intermediate_size": 240, "tie_word_embeddings": True}
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(_byte_level_bpe, LlamaConfig, _SMALL | _GATED | {"num_key_value_heads": HEADS}),
        "qwen": Family(
            _single_digit_bpe,
            Qwen3Config,
            _SMALL | _GATED | {"num_key_value_heads": 1, "head_dim": WIDTH // HEADS},
        ),
        "neox": Family(_train_unigram, GPTNeoXConfig, _SMALL | {"intermediate_size": 4 * WIDTH}),
        "gpt2": Family(
            _train_wordpiece, GPT2Config, _SMALL | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        ),
    }
)
