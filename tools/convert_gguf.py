"""Convert a GGUF file to a checked folder that `AutoModelForCausalLM` and `AutoTokenizer` open:

    python tools/convert_gguf.py FILE.gguf FOLDER [--dtype bf16|fp32] [--json]

Tokenizers are rebuilt from the header: transformers makes a Unigram model of Gemma's vocabulary and leaves out SmolLM's digit
splitter, end and padding token.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
import typer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from harness.cli.arguments import Json, print_report
from harness.errors import HarnessError, PluginError, UsageError
from harness.files import replace_atomic
from harness.reading import in_words, open_regular

# Its perplexity is about 20 to a model of 0.1 B, thousands to a garbled one.
PARAGRAPH = (
    "The old lighthouse stood at the end of the harbour, where the river meets the sea. Every evening the keeper climbed the "
    "stairs, lit the lamp, and wrote the names of the passing ships in a book. In winter, when the storms came, he stayed awake "
    "all night, because he knew that the sailors trusted his light more than their maps."
)
MOST_PERPLEXITY = 60.0
# What every tokenizer must give back as it was.
TEXTS = (
    "Hello world! Café déjà vu — 123 😊",
    "Q: 14 + 6 = ?\nA: 14 + 6 = 20.",
    "  two  spaces\n\n\tand a tab ",
    "\\boxed{-3/4}",
)
# Published ids of the first text, by the vocabulary's digest: Gemma 3.
KNOWN: Mapping[str, list[int]] = {
    "86c322c419747d71": [
        9259, 1902, 236888, 62367, 29234, 11042, 2192, 236743, 236770, 236778, 236800, 103453,
    ],
}  # fmt: skip
SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # token types of the format
_OF = "tokenizer.ggml."
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding"}


class Converted(msgspec.Struct, frozen=True):
    """perplexity: on `PARAGRAPH`. known_ids: a published segmentation was compared."""

    folder: str
    architecture: str
    parameters: int
    vocabulary: int
    dtype: str
    perplexity: float
    known_ids: bool
    licence: str
    bos: str | None
    eos: str | None
    pad: str | None
    chat: bool


def convert(file: Path, folder: Path, dtype: Literal["bf16", "fp32"] = "bf16") -> Converted:
    """Nothing is left where a check fails.

    Raises UsageError for an unsupported file, an existing folder, or a failed check. PluginError without the package `gguf`.
    """
    if folder.exists():
        raise UsageError(f"{folder}: exists already")
    header = read_header(file)
    try:
        tokenizer = rebuild(header)
        known = check_tokenizer(tokenizer, header)
        model = _model(file, dtype, header)
        ids = torch.tensor([tokenizer.encode(PARAGRAPH)])  # after any BOS
        with torch.inference_mode():
            perplexity = math.exp(min(float(model(ids, labels=ids).loss), 50.0))
    except UsageError:
        raise
    except Exception as error:  # the libraries raise anything where tensors, tokens and header do not agree
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"{file}: the model does not open: {said}") from error
    if not perplexity <= MOST_PERPLEXITY:
        raise UsageError(
            f"{file}: perplexity {perplexity:.0f} on plain English, at most {MOST_PERPLEXITY:.0f}: not converted"
        )

    def fill(temporary: Path) -> None:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)

    replace_atomic(folder, fill)
    return Converted(
        folder=str(folder),
        architecture=header["general.architecture"],
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=len(header[_OF + "tokens"]),
        dtype=dtype,
        perplexity=round(perplexity, 2),
        known_ids=known,
        licence=str(header.get("general.license", "")),
        bos=_token(header, "bos") if header.get(_OF + "add_bos_token") else None,
        eos=_token(header, "eos"),
        pad=_token(header, "padding"),
        chat="tokenizer.chat_template" in header,
    )


def read_header(file: Path) -> dict[str, Any]:
    """By the format's names, the tokenizer's checked. Raises UsageError, PluginError."""
    try:
        open_regular(file).close()
    except OSError as error:
        raise UsageError(f"{file}: {in_words(error)}") from None
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise PluginError(f"{file}: reading GGUF files needs the package gguf (pip install -e '.[gguf]')") from error

    class Reader(GGUFReader):
        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if count and offset >= len(self.data):
                raise ValueError("cut off")
            return super()._get(offset, dtype, count, override_order)

    try:
        header = {name: field.contents() for name, field in Reader(file).fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: not a readable GGUF file: {error}") from error
    try:
        header |= {name: str(header[name]) for name in ("general.architecture", _OF + "model")}
        tokens = header[_OF + "tokens"] = list(map(str, header[_OF + "tokens"]))
        types = header[_OF + "token_type"] = list(map(int, header.get(_OF + "token_type", [NORMAL] * len(tokens))))
        scores = header[_OF + "scores"] = list(map(float, header.get(_OF + "scores", ())))
        header[_OF + "merges"] = [str(merge).partition(" ")[::2] for merge in header.get(_OF + "merges", ())]
        if len(types) != len(tokens) or (scores and len(scores) != len(tokens)) or len(set(tokens)) != len(tokens):
            raise ValueError("tokenizer: tokens, types and scores do not agree")
        for name in ("bos", "eos", "padding", "unknown"):
            if not 0 <= int(header.get(f"{_OF}{name}_token_id", 0)) < len(tokens):
                raise ValueError(f"tokenizer: {name} is outside the vocabulary")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: the header has no usable {error}") from error
    spm, llama3 = header[_OF + "model"] == "llama", header.get(_OF + "pre") == "llama-bpe"
    # What llama.cpp takes where a file does not say
    bos = (spm or llama3) and f"{_OF}bos_token_id" in header
    defaults = {_OF + "add_bos_token": bos, _OF + "add_space_prefix": spm}
    return {**defaults, **header, "name": str(header.get("general.name", ""))}


def _token(header: dict[str, Any], role: str) -> str | None:
    index = header.get(f"{_OF}{role}_token_id")
    return None if index is None else header[_OF + "tokens"][index]


def rebuild(header: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The header's tokenizer, ids unchanged. Raises UsageError for an unknown kind or pre-tokenizer, or without an end
    token."""
    kind, tokens, bos = header[_OF + "model"], header[_OF + "tokens"], _token(header, "bos")
    if _token(header, "eos") is None:
        raise UsageError(f"{header['name']}: the header names no end token")
    if kind not in ("gpt2", "llama"):
        raise UsageError(f"{header['name']}: tokenizers of kind {kind!r} are not known here (gpt2, llama)")
    vocab = {token: index for index, token in enumerate(tokens)}
    if kind == "gpt2":
        whole = header.get(_OF + "pre") == "llama-bpe"
        core = Tokenizer(models.BPE(vocab, header[_OF + "merges"], fuse_unk=False, ignore_merges=whole))
        core.pre_tokenizer, core.decoder = _pre_tokenizer(header), decoders.ByteLevel()
    else:
        core = _sentencepiece(header, vocab)
    if header.get(_OF + "add_bos_token") and bos is not None:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocab[bos])]
        )
    kinds = list(zip(tokens, header[_OF + "token_type"], strict=True))
    core.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in kinds if k in {UNKNOWN, CONTROL}]
    )
    # Found in text first, whole.
    core.add_tokens([AddedToken(t, normalized=False) for t, k in kinds if k == USER_DEFINED])
    context = header.get(f"{header['general.architecture']}.context_length")
    roles = (*_ROLES.items(), ("unk", "unknown"))
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        clean_up_tokenization_spaces=False,
        **{f"{short}_token": token for short, role in roles if (token := _token(header, role)) is not None},
        **({"model_max_length": context} if context else {}),
    )
    tokenizer.chat_template = header.get("tokenizer.chat_template")
    for token, index in vocab.items():
        if core.token_to_id(token) != index:
            raise UsageError(f"{header['name']}: token {token!r} does not keep its id {index}")
    return tokenizer


def _pre_tokenizer(header: dict[str, Any]) -> PreTokenizer:
    pre = str(header.get(_OF + "pre", "default"))
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=bool(header.get(_OF + "add_space_prefix", False)))
    if pre == "gpt-2":
        return by_words
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_words])
    digits = {"llama-bpe": "{1,3}", "qwen2": ""}
    if pre not in digits:
        known = ", ".join(["gpt-2", "smollm", *digits])
        raise UsageError(f"{header['name']}: pre-tokenizer {pre!r} is not known here ({known})")
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits[pre]
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )  # fmt: skip
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(header: dict[str, Any], vocab: dict[str, int]) -> Tokenizer:
    """SentencePiece joins the pair whose result scores best."""
    scores, prefix = header[_OF + "scores"], bool(header.get(_OF + "add_space_prefix", False))
    if not scores:
        raise UsageError(f"{header['name']}: a SentencePiece tokenizer without scores")
    normal = {token for token, kind in zip(vocab, header[_OF + "token_type"], strict=True) if kind == NORMAL}
    # Splits of normal tokens into two, best score first
    merges = sorted(
        (
            (-scores[vocab[token]], -scores[vocab[token[:cut]]], token[:cut], token[cut:])
            for token in vocab
            if token in normal
            for cut in range(1, len(token))
            if token[:cut] in normal and token[cut:] in normal
        ),
        key=lambda merge: merge[:2],
    )
    core = Tokenizer(
        models.BPE(
            vocab,
            [(left, right) for _, _, left, right in merges],
            unk_token=_token(header, "unknown"),
            fuse_unk=True,
            byte_fallback=all(f"<0x{byte:02X}>" in vocab for byte in range(256)),
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return core


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, header: dict[str, Any]) -> bool:
    """Whether published ids were compared. Raises UsageError."""
    name = header["name"]
    for text in TEXTS:
        if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) != text:
            raise UsageError(f"{name}: the tokenizer does not give {text!r} back")
    if (tokenizer.encode(TEXTS[0])[0] == header.get(_OF + "bos_token_id")) != bool(header.get(_OF + "add_bos_token")):
        raise UsageError(f"{name}: BOS is not where the header says")
    for role, full in _ROLES.items():
        if getattr(tokenizer, f"{role}_token_id") != header.get(f"{_OF}{full}_token_id"):
            raise UsageError(f"{name}: {role} is not the header's")
    vocabulary = hashlib.blake2b("\0".join(header[_OF + "tokens"]).encode(), digest_size=8).hexdigest()
    published = KNOWN.get(vocabulary)
    if published is not None and tokenizer.encode(TEXTS[0], add_special_tokens=False) != published:
        raise UsageError(f"{name}: {TEXTS[0]!r} does not become the published ids")
    return published is not None


def _model(file: Path, dtype: str, header: dict[str, Any]) -> PreTrainedModel:
    model: Any = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32 if dtype == "fp32" else torch.bfloat16,
        local_files_only=True,
    )
    ids = {f"{role}_token_id": header.get(f"{_OF}{full}_token_id") for role, full in _ROLES.items()}
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids, do_sample=True)  # type: ignore[no-untyped-call]
    return model.train(False)  # type: ignore[no-any-return]


def main(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; must not exist yet.")],
    dtype: Annotated[str, typer.Option("--dtype", help="Precision of the weights: bf16 or fp32.")] = "bf16",
    json: Json = False,
) -> None:
    """Convert a GGUF file to a folder that suites can name: weights dequantised, tokenizer rebuilt and checked."""
    if dtype not in ("bf16", "fp32"):
        raise UsageError(f"--dtype {dtype}: bf16 or fp32")
    made = convert(file, folder, "fp32" if dtype == "fp32" else "bf16")
    ids = "ids equal the published ones" if made.known_ids else "no published ids to compare with"
    words = (
        f"{made.folder}: {made.architecture}, {made.parameters / 1e6:.1f} M parameters in {made.dtype}\n"
        f"  tokenizer: {made.vocabulary} tokens, BOS {made.bos or 'not added'}, EOS {made.eos}, pad {made.pad}; {ids}\n"
        f"  chat template: {'yes' if made.chat else 'none'}; perplexity on plain English: {made.perplexity}\n"
        f"  licence, as the file states it: {made.licence or 'not stated'}"
    )
    print_report(words, made, json)


if __name__ == "__main__":
    try:
        typer.run(main)
    except HarnessError as error:
        print(f"convert_gguf: {error}", file=sys.stderr)
        sys.exit(2)
