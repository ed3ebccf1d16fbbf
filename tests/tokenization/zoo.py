"""Tokenizers of every kind that the harness meets, trained on the spot, and texts of every kind that breaks them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n\n<|turn_end|>{% endfor %}"


def corpus() -> list[str]:
    """Training texts: all kinds, so that merges inside multi-byte characters appear."""
    return [*texts(40, seed=1), *(f"Q: {a}+{b}*2\nA: so {a + 2 * b}." for a in range(40) for b in range(20))]


def _bpe(**options: object) -> Tokenizer:
    return Tokenizer(models.BPE(**options))


def byte_level() -> Tokenizer:
    t = _bpe()
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(corpus(), _bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def byte_level_digits() -> Tokenizer:
    """Llama 3, Qwen: normaliser NFC, digits cut, whole words looked up before merging."""
    t = _bpe(ignore_merges=True)
    t.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s?\p{L}+|\s+"), "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), _bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    return t


def byte_level_prefix() -> Tokenizer:
    """RoBERTa: a space in front, offsets trimmed; runs of spaces as added tokens like GPT-NeoX."""
    t = _bpe()
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    t.train_from_iterator(corpus(), _bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 4)])
    return t


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2: byte fallback, a space in front that decoding strips."""
    t = _bpe(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _trained_with_bytes(t)


def gemma() -> Tokenizer:
    """Gemma: byte fallback, no space in front, added tokens that are text."""
    t = _bpe(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t = _trained_with_bytes(t)
    t.add_tokens([AddedToken("\n\n"), AddedToken("\\frac"), AddedToken("<table>")])
    return t


def unigram_nfkc() -> Tokenizer:
    """T5: Unigram behind NFKC that also joins spaces; unknown characters are lost."""
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    normalizer, cut = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces]), pre_tokenizers.Metaspace()
    vocab = [(p, 0.0) for p in SPECIAL] + _scored(_pieces(corpus(), cut, normalizer)[0])
    t = Tokenizer(models.Unigram(vocab, unk_id=0))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, cut, decoders.Metaspace()
    t.add_special_tokens(SPECIAL)
    return t


def unigram_fallback() -> Tokenizer:
    cut = pre_tokenizers.Metaspace(prepend_scheme="never")
    vocab = [(p, 0.0) for p in [*SPECIAL, *BYTES]] + _scored(_pieces(corpus()[320:], cut)[0])
    t = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    t.pre_tokenizer = cut
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return t


def wordpiece() -> Tokenizer:
    """BERT, uncased: lower case, accents and control characters dropped, spaces not kept."""
    t = _wordpiece(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    t.decoder = decoders.WordPiece(cleanup=True)
    return t


def wordpiece_exact() -> Tokenizer:
    """WordPiece over a marked space, with a decoder that inverts it."""
    t = _wordpiece(pre_tokenizers.Metaspace(prepend_scheme="never"))
    t.decoder = decoders.Sequence(
        [decoders.Replace("##", ""), decoders.Fuse(), decoders.Metaspace(prepend_scheme="never")]
    )
    return t


def word_suffix() -> Tokenizer:
    """CLIP: lower case, and a mark at the end of each word that decoding turns into a space."""
    normalizer, cut = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), pre_tokenizers.Whitespace()
    pieces, merges = _pieces(corpus(), cut, normalizer)
    vocab = {piece: i for i, piece in enumerate([*SPECIAL, *pieces, *(f"{p}</w>" for p in pieces)])}
    both = [pair for a, b in merges for pair in ((a, b), (a, f"{b}</w>"))]
    t = _bpe(vocab=vocab, merges=both, unk_token="<unk>", end_of_word_suffix="</w>")
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, cut, decoders.BPEDecoder(suffix="</w>")
    t.add_special_tokens(SPECIAL)
    return t


def _wordpiece(cut: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    pieces = _pieces(corpus(), cut, normalizer)[0]
    vocab = {piece: i for i, piece in enumerate([*SPECIAL, *pieces, *(f"##{p}" for p in pieces)])}
    t = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    t.pre_tokenizer = cut
    if normalizer is not None:
        t.normalizer = normalizer
    t.add_special_tokens(SPECIAL)
    return t


def _pieces(
    texts: list[str], cut: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None
) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces and merges of plain BPE, the one trainer that makes the same of the same texts: the others, and BPE with a
    prefix or suffix, go by the order of a hash table."""
    t = _bpe()
    t.pre_tokenizer = cut
    if normalizer is not None:
        t.normalizer = normalizer
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, show_progress=False))
    model = json.loads(t.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(a, b) for a, b in model["merges"]]


def _scored(pieces: list[str]) -> list[tuple[str, float]]:
    return [(piece, -3.0 - i / 100) for i, piece in enumerate(pieces)]


def _trained_with_bytes(t: Tokenizer) -> Tokenizer:
    """Few characters of their own, and a piece for each byte; no trainer makes byte pieces that are not special tokens."""
    t.train_from_iterator(corpus(), _bpe_trainer(limit_alphabet=90))
    state = json.loads(t.to_str())
    vocab = state["model"]["vocab"]
    vocab |= {piece: len(vocab) + byte for byte, piece in enumerate(BYTES)}
    return Tokenizer.from_str(json.dumps(state))


def _bpe_trainer(**options: object) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(**{"vocab_size": 900, "special_tokens": SPECIAL, "show_progress": False} | options)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    f.__name__: f
    for f in (
        byte_level, byte_level_digits, byte_level_prefix, sentencepiece_bpe, gemma, unigram_nfkc, unigram_fallback,
        wordpiece, wordpiece_exact, word_suffix,
    )
}  # fmt: skip
INVERTING = {"byte_level", "sentencepiece_bpe", "gemma", "unigram_fallback"}
"""Kinds that give every text back exactly."""


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """As a policy has it: named special tokens, a chat template, and markup that is added but not flagged as special."""
    tokenizer.add_tokens([AddedToken("<|turn_end|>", special=False), AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHAT
    )


def texts(per_kind: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(word(rng) for _ in range(rng.randint(1, 12))) for word in WORDS for _ in range(per_kind)]


def _maths(rng: random.Random) -> str:
    a, b = rng.randint(0, 999), rng.randint(0, 99)
    return rng.choice(
        [f"{a}+{b}={a + b}.", f"so {a}*{b} = {a * b},", f"(x-{b})**2", "Hence, the answer is", f"  {a}\n"]
    )


def _latex(rng: random.Random) -> str:
    n = rng.randint(0, 99)
    return rng.choice(
        [f"\\frac{{{n}}}{{x}}", f"\\boxed{{{n}}}", "\\sqrt[3]{x^2_1}", "$$\\int_0^\\infty$$", "\\left(", "&="]
    )


def _characters(alphabet: str) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8)))


def _emoji(rng: random.Random) -> str:
    return rng.choice(["👩‍👩‍👧‍👦", "🧑🏽‍🚀", "🏳️‍🌈", "👍🏿", "🇫🇷", "❤️", "a🙂b", "✅", "🫠", "1️⃣"])


def _combining(rng: random.Random) -> str:
    base = rng.choice("aeiounAZq1ﬁ한ㅎ")
    return base + "".join(rng.choice("\u0301\u0308\u0327\u0323\u20d7\u0345\u3099") for _ in range(rng.randint(0, 4)))


def _broken(rng: random.Random) -> str:
    sound = rng.choice(["né 漢字 🙂", "x=1", "\\pi ≈ 3"]).encode()
    cut = rng.randint(0, len(sound))
    noise = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
    return (sound[:cut] + noise + sound[cut + 1 :]).decode(errors="replace")


WORDS: list[Callable[[random.Random], str]] = [
    _maths,
    _latex,
    _characters("漢字仮名交じり文の答えは三十二。ＡＢ①㍿ｶﾞ數學題목정답"),
    _emoji,
    _combining,
    _characters("שלום הַתְּשׁוּבָה مرحبا الجواب ١٢٣ \u202b\u202c\u200f"),
    _characters("\x00\x01\x07\x08\t\r\n\x1b\x7f\x85\xa0\xad\u200b\u2028\ufeff\ufffeab"),
    _broken,
]
