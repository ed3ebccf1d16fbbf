"""A GGUF file's header, checked, and the tokenizer that it describes, rebuilt exactly.

transformers' own converter makes a Unigram model of Gemma's vocabulary (whose segmentation is another one), and leaves SmolLM's
digit splitter, end and padding token out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import PluginError, UsageError
from harness.reading import in_words, open_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Token types of the format."""


@dataclass(frozen=True, slots=True)
class Header:
    """The part of a header that a tokenizer is made of. kind: `gpt2` (byte-level BPE) or `llama` (SentencePiece); pre: which
    pre-tokenizer. types, scores: one per token; scores and merges are empty where the kind has none."""

    architecture: str
    name: str
    licence: str
    kind: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    bos: int | None
    eos: int | None
    pad: int | None
    unknown: int | None
    adds_bos: bool
    adds_space: bool
    chat_template: str | None
    context: int | None

    def token(self, index: int | None) -> str | None:
        """A token by its id; None where the header names none."""
        return None if index is None else self.tokens[index]


def read_header(file: Path) -> Header:
    """The header of a GGUF file. Raises UsageError for no such file, another one, or one without a usable tokenizer, PluginError
    without the package `gguf` (extra `gguf`)."""
    try:
        open_regular(file).close()
    except OSError as error:
        raise UsageError(f"{file}: {in_words(error)}") from None
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise PluginError(f"{file}: reading GGUF files needs the package gguf (pip install -e '.[gguf]')") from error
    try:
        fields = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not a readable GGUF file: {error}") from error
    try:
        return _header(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: the header has no usable {error}") from error


def _header(fields: dict[str, Any]) -> Header:
    of = "tokenizer.ggml."
    architecture = str(fields["general.architecture"])
    tokens = tuple(map(str, fields[of + "tokens"]))
    types = tuple(map(int, fields.get(of + "token_type", [NORMAL] * len(tokens))))
    scores = tuple(map(float, fields.get(of + "scores", ())))
    pairs = [merge.partition(" ") for merge in fields.get(of + "merges", ())]
    if len(types) != len(tokens) or (scores and len(scores) != len(tokens)) or len(set(tokens)) != len(tokens):
        raise ValueError("tokenizer: tokens, types and scores do not agree")
    named = {name: fields.get(f"{of}{name}_token_id") for name in ("bos", "eos", "padding", "unknown")}
    for name, index in named.items():
        if index is not None and not 0 <= int(index) < len(tokens):
            raise ValueError(f"tokenizer: {name} is outside the vocabulary")
    return Header(
        architecture=architecture,
        name=str(fields.get("general.name", "")),
        licence=str(fields.get("general.license", "")),
        kind=str(fields[of + "model"]),
        pre=str(fields.get(of + "pre", "default")),
        tokens=tokens,
        types=types,
        scores=scores,
        merges=tuple((left, right) for left, _, right in pairs),
        bos=named["bos"],
        eos=named["eos"],
        pad=named["padding"],
        unknown=named["unknown"],
        adds_bos=bool(fields.get(of + "add_bos_token", False)),
        adds_space=bool(fields.get(of + "add_space_prefix", False)),
        chat_template=fields.get("tokenizer.chat_template"),
        context=fields.get(f"{architecture}.context_length"),
    )


def rebuild(header: Header) -> PreTrainedTokenizerFast:
    """The tokenizer that the header describes, ids unchanged. Raises UsageError for a kind or pre-tokenizer that is not known here,
    or without an end token."""
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    if header.eos is None:
        raise UsageError(f"{header.name}: the header names no end token")
    if header.kind == "gpt2":
        core = _byte_level(header)
    elif header.kind == "llama":
        core = _sentencepiece(header)
    else:
        raise UsageError(f"{header.name}: tokenizers of kind {header.kind!r} are not known here (gpt2, llama)")
    bos = header.token(header.bos)
    if header.adds_bos and bos is not None:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, int(header.bos or 0))]
        )
    kinds = list(zip(header.tokens, header.types, strict=True))
    core.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in kinds if k in {UNKNOWN, CONTROL}]
    )
    core.add_tokens(
        [AddedToken(t, normalized=False) for t, k in kinds if k == USER_DEFINED]
    )  # found in text first, whole
    names = {"bos": header.bos, "eos": header.eos, "pad": header.pad, "unk": header.unknown}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        clean_up_tokenization_spaces=False,
        **{f"{role}_token": header.token(index) for role, index in names.items() if index is not None},
        **({"model_max_length": header.context} if header.context else {}),
    )
    tokenizer.chat_template = header.chat_template
    for index, token in enumerate(header.tokens):
        if core.token_to_id(token) != index:
            raise UsageError(f"{header.name}: token {token!r} does not keep its id {index}")
    return tokenizer


def _byte_level(header: Header) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models

    vocab = {token: index for index, token in enumerate(header.tokens)}
    core = Tokenizer(models.BPE(vocab, list(header.merges), fuse_unk=False))
    core.pre_tokenizer, core.decoder = _pre_tokenizer(header), decoders.ByteLevel()
    return core


def _pre_tokenizer(header: Header) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    by_words = pre_tokenizers.ByteLevel(add_prefix_space=header.adds_space)
    if header.pre == "gpt-2":
        return by_words
    if header.pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_words])
    digits = {"llama-bpe": "{1,3}", "qwen2": ""}
    if header.pre not in digits:
        known = ", ".join(["gpt-2", "smollm", *digits])
        raise UsageError(f"{header.name}: pre-tokenizer {header.pre!r} is not known here ({known})")
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits[header.pre]
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )  # fmt: skip
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(header: Header) -> Tokenizer:
    """SentencePiece joins the pair whose result scores best: so do merges in the order of their results' scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    if not header.scores:
        raise UsageError(f"{header.name}: a SentencePiece tokenizer without scores")
    vocab = {token: index for index, token in enumerate(header.tokens)}
    unknown, has_bytes = header.token(header.unknown), all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    core = Tokenizer(
        models.BPE(vocab, _merges(header, vocab), unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if header.adds_space else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if header.adds_space else []
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return core


def _merges(header: Header, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every split of a normal token into two normal ones; best score of the whole first, then of the left part."""
    scores, normal = header.scores, [kind == NORMAL for kind in header.types]
    merges = []
    for index, token in enumerate(header.tokens):
        if not normal[index]:
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None and normal[left] and normal[right]:
                merges.append((-scores[index], -scores[left], token[:cut], token[cut:]))
    return [(left, right) for _, _, left, right in sorted(merges, key=lambda merge: merge[:2])]
