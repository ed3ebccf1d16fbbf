"""Tokenizers rebuilt from a GGUF header, exactly.

transformers' own converter makes a Unigram model of Gemma's vocabulary (whose segmentation is another one), and leaves SmolLM's
digit splitter, end and padding token out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.gguf.header import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Header

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

SPACE = "▁"


def rebuild(header: Header) -> PreTrainedTokenizerFast:
    """The tokenizer that the header describes, ids unchanged.

    Raises
    ------
    UsageError
        A kind or pre-tokenizer that is not known here, or no end token.
    """
    from transformers import PreTrainedTokenizerFast

    if header.eos is None:
        raise UsageError(f"{header.name}: the header names no end token")
    if header.kind == "gpt2":
        core = _byte_level(header)
    elif header.kind == "llama":
        core = _sentencepiece(header)
    else:
        raise UsageError(f"{header.name}: tokenizers of kind {header.kind!r} are not known here (gpt2, llama)")
    _add_tokens(core, header)
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
    _open_with_bos(core, header)
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
    unknown = header.token(header.unknown)
    core = Tokenizer(
        models.BPE(vocab, _merges(header, vocab), unk_token=unknown, fuse_unk=True, byte_fallback=_has_bytes(vocab))
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if header.adds_space else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if header.adds_space else []
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    _open_with_bos(core, header)
    return core


def _has_bytes(vocab: dict[str, int]) -> bool:
    return all(f"<0x{byte:02X}>" in vocab for byte in range(256))


def _merges(header: Header, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every split of a normal token into two normal ones; best score of the whole first, then of the left part."""
    scores, normal = header.scores, [kind == NORMAL for kind in header.types]
    found = []
    for index, token in enumerate(header.tokens):
        if not normal[index]:
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None and normal[left] and normal[right]:
                found.append((-scores[index], -scores[left], token[:cut], token[cut:]))
    found.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in found]


def _open_with_bos(core: Tokenizer, header: Header) -> None:
    from tokenizers import processors

    bos = header.token(header.bos)
    if header.adds_bos and bos is not None:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, int(header.bos or 0))]
        )


def _add_tokens(core: Tokenizer, header: Header) -> None:
    """Control tokens are special; tokens of the user's own are found in text before anything else, whole."""
    from tokenizers import AddedToken

    special = [t for t, kind in zip(header.tokens, header.types, strict=True) if kind in {UNKNOWN, CONTROL}]
    plain = [t for t, kind in zip(header.tokens, header.types, strict=True) if kind == USER_DEFINED]
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    core.add_tokens([AddedToken(token, normalized=False) for token in plain])
