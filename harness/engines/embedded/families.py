"""Four small language models of really different make: architecture, tokenizer algorithm and vocabulary all differ.

    llama   Llama                      byte-level BPE           164 -> 16 4
    qwen    Qwen3 (GQA, qk-norm)       BPE, Metaspace           164 -> 1 6 4
    neox    GPT-NeoX (parallel blocks) Unigram, Metaspace       164 -> 1 64
    gpt2    GPT-2 (learned positions)  WordPiece, Metaspace     164 -> 16 ##4

All are 96 wide and 3 layers deep (0.3-0.4 M parameters). Tokenizers are trained here, from generated problems, in well
under a second and always to the same result; nothing is downloaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from harness.errors import EngineError, UsageError
from harness.tasks.micro import LEVELS, SKILLS, draw_fact

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FamilyName = Literal["llama", "qwen", "neox", "gpt2"]
WIDTH, LAYERS, HEADS, POSITIONS = 96, 3, 3, 256
_SPECIAL = _PAD, _EOS, _UNK = "<pad>", "<eos>", "<unk>"
_SPECIAL_IDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
_CORPUS_TEXTS = 6_000


@dataclass(frozen=True, slots=True)
class Family:
    """What makes a family: a tokenizer recipe and a configuration for a vocabulary size."""

    name: FamilyName
    train_tokenizer: Callable[[list[str]], Tokenizer]
    configure: Callable[[int], PretrainedConfig]


def build_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """The family's tokenizer with EOS, pad and unknown tokens. Raises EngineError if it does not round-trip."""
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(_trained(family)),
        eos_token=_EOS,
        pad_token=_PAD,
        unk_token=_UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )
    assert_round_trip(tokenizer, corpus(seed=1, texts=200))
    return tokenizer


def build_model(family: str, seed: int, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised model (fp32, std 0.05) for `tokenizer`. Leaves torch's global generator untouched."""
    config = FAMILIES[_known(family)].configure(len(tokenizer))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation="sdpa", dtype=torch.float32
        )
    model.generation_config.max_length = POSITIONS
    return model


def assert_round_trip(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> None:
    """Every text must decode to itself. Raises EngineError with the first that does not."""
    for text in texts:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if back != text:
            raise EngineError(f"tokenizer does not round-trip: {text!r} became {back!r}")


def corpus(seed: int, texts: int) -> list[str]:
    """Generated training texts: prompts plain and hinted, answers direct and by chain of thought."""
    rng, skills = Random(seed), list(SKILLS.values())
    lines = []
    for _ in range(texts):
        fact = rng.random() < 0.2
        skill = rng.choice(skills)
        problem = draw_fact(rng, skill) if fact else skill.draw(rng, rng.choice(LEVELS), held_out=False)
        prompt = rng.choice((problem.prompt, problem.hinted_prompt))
        lines.append(prompt + rng.choice((problem.direct, problem.chain_of_thought)))
    return lines


@cache
def _trained(family: str) -> str:
    serialised: str = FAMILIES[_known(family)].train_tokenizer(corpus(seed=0, texts=_CORPUS_TEXTS)).to_str()
    return serialised


def _known(family: str) -> FamilyName:
    for name in FAMILIES:
        if name == family:
            return name
    raise UsageError(f"unknown micro family {family!r}; there are {', '.join(FAMILIES)}")


def _byte_level_bpe(texts: list[str]) -> Tokenizer:
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
    tokenizer = Tokenizer(models.BPE(unk_token=_UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _metaspace()])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=list(_SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(texts: list[str]) -> Tokenizer:
    """Explicit log-frequency scores: UnigramTrainer prunes a corpus of so few distinct words to almost nothing.

    Single characters score far below, so that Viterbi takes them only where no longer piece fits.
    """
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            _metaspace(),
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


def _wordpiece(texts: list[str]) -> Tokenizer:
    """Stems and two-digit numbers whole, everything else by characters.

    WordPieceTrainer's result varies between processes, hence the explicit vocabulary.
    Metaspace keeps the spaces that WordPiece's usual decoder guesses; without it nothing round-trips.
    """
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d+"), "isolated"), _metaspace()])
    words = Counter(piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text))
    stems: Counter[str] = Counter()
    for word, count in words.items():
        if match := re.match(r"▁?\\?[A-Za-z]{2,}|\d\d", word):
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


def _metaspace() -> pre_tokenizers.Metaspace:
    return pre_tokenizers.Metaspace(prepend_scheme="never")


def _llama(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=240,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=POSITIONS,
        initializer_range=0.05,
        **_SPECIAL_IDS,
        tie_word_embeddings=True,
    )


def _qwen(vocabulary: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=240,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=POSITIONS,
        initializer_range=0.05,
        **_SPECIAL_IDS,
        tie_word_embeddings=True,
    )


def _neox(vocabulary: int) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        initializer_range=0.05,
        **_SPECIAL_IDS,
    )


def _gpt2(vocabulary: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocabulary,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=POSITIONS,
        initializer_range=0.05,
        **_SPECIAL_IDS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


FAMILIES: Mapping[FamilyName, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("llama", _byte_level_bpe, _llama),
            Family("qwen", _single_digit_bpe, _qwen),
            Family("neox", _unigram, _neox),
            Family("gpt2", _wordpiece, _gpt2),
        )
    }
)
