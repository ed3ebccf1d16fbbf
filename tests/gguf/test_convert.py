"""GGUF files written by the format's own library, converted back."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from convert_gguf import PARAGRAPH, TEXTS, convert, read_header, rebuild
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from harness.errors import UsageError

gguf = pytest.importorskip("gguf")
TOOL = Path(__file__).parents[2] / "tools" / "convert_gguf.py"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
CORPUS = [PARAGRAPH, *TEXTS, *(f"Q: {a} + {b} = ?\nA: {a + b}" for a in range(30) for b in range(30))]
UNSEEN = [
    "a wholly new line, 1999!",
    "tabs\t\tand\n\n\nlines",
    "naïve 北京 🙂",
    "x=-12/7",
    "   ",
    "<bos> is a mark",
    "<table>5</table>",
]


def smollm() -> Tokenizer:
    core = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return core


def gemma() -> Tokenizer:
    """A SentencePiece-type BPE whose merges stand in the order of their results' scores, as SentencePiece has them."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=260))
    learnt = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    user = [t for t in ("\n\n", "<table>") if t not in learnt]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *user, *byte_tokens, *learnt])}
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer, core.pre_tokenizer = (
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
    )
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    core.add_tokens([AddedToken(token, normalized=False) for token in user])
    return core


def taught(model, core):
    """A model that has read the paragraph, so that its perplexity is a language model's."""
    ids = torch.tensor([core.encode(PARAGRAPH, add_special_tokens=False).ids])
    opened = torch.cat([torch.tensor([[2]]), ids], dim=1)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-2)
    for _ in range(40):
        for batch in (ids, opened):
            optimiser.zero_grad()
            model(batch, labels=batch).loss.backward()
            optimiser.step()
    return model.train(False)


def llama(core):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512}
    config = LlamaConfig(
        vocab_size=core.get_vocab_size(), num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **size
    )
    return taught(LlamaForCausalLM(config), core)


def gemma_model(core):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "max_position_embeddings": 512}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 256,
    }  # not in the file: 256 in all of the family
    config = Gemma3TextConfig(vocab_size=core.get_vocab_size(), sliding_window=16, **size, **heads)
    return taught(Gemma3ForCausalLM(config), core)


NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
LLAMA_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def written(file, kind, core, model, **changes):
    """A GGUF file as llama.cpp's converter lays it out: interleaved rotary pairs for llama, norms plus one for gemma."""
    architecture = "llama" if kind == "smollm" else "gemma3"
    writer, config = gguf.GGUFWriter(file, architecture), model.config
    tokens = [core.id_to_token(i) for i in range(core.get_vocab_size())]
    added = core.get_added_tokens_decoder()
    types = [
        3 if i in added and added[i].special else 4 if i in added else 6 if t.startswith("<0x") else 1
        for i, t in enumerate(tokens)
    ]
    fields = {
        "name": "tiny", "license": "cc0-1.0", "block_count": config.num_hidden_layers, "context_length": 512,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps, "vocab_size": config.vocab_size, "token_list": tokens, "token_types": types,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "unk_token_id": 3, "add_bos_token": kind == "gemma",
        "add_space_prefix": False,
    }  # fmt: skip
    if kind == "gemma":
        fields |= {
            "key_length": 16, "value_length": 16, "sliding_window": 16, "rope_freq_base": 1e6, "tokenizer_model": "llama",
            "token_scores": [-1000.0 if i < 262 else -float(i) for i in range(len(core.get_vocab()))],
        }  # fmt: skip
    else:
        merges = [" ".join(merge) for merge in json.loads(core.to_str())["model"]["merges"]]
        fields |= {
            "rope_dimension_count": 8, "rope_freq_base": 1e4, "tokenizer_model": "gpt2",
            "tokenizer_pre": changes.get("pre", "smollm"), "token_merges": merges,
        }  # fmt: skip
    for name in changes.get("without", ()):
        del fields[name]
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    norms = GEMMA_NORMS if kind == "gemma" else LLAMA_NORMS
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = tensor.float() * changes.get("garble", 1.0)
        if kind == "gemma" and name.endswith("norm.weight"):
            value = value + 1
        parts = name.split(".")
        if parts[1] == "layers":
            inner = ".".join(parts[3:-1])
            target = f"blk.{parts[2]}.{(NAMES | norms)[inner]}.weight"
            if kind == "smollm" and inner.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if inner.endswith("q_proj") else config.num_key_value_heads
                value = value.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(value.shape)
        else:
            target = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight"
        writer.add_tensor(target, value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    cores = {"smollm": smollm(), "gemma": gemma()}
    trained = {"smollm": llama(cores["smollm"]), "gemma": gemma_model(cores["gemma"])}
    return {k: (cores[k], trained[k], written(folder / f"{k}.gguf", k, cores[k], trained[k])) for k in cores}


@pytest.mark.parametrize("kind", ["smollm", "gemma"])
def test_ids_weights_and_ends_survive(made, kind, tmp_path):
    core, model, file = made[kind]
    report = convert(file, tmp_path / "folder", "fp32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    for text in [*CORPUS, *UNSEEN]:
        assert tokenizer.encode(text, add_special_tokens=False) == core.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode("hi")[0] == (2 if kind == "gemma" else core.encode("hi").ids[0])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 1, 0)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    ids = torch.tensor([tokenizer.encode(PARAGRAPH)])
    with torch.no_grad():
        assert (opened(ids).logits - model(ids).logits).abs().max() < 1e-4
    assert (opened.generation_config.eos_token_id, opened.config.pad_token_id) == (1, 0)
    assert (report.licence, report.eos, report.chat) == ("cc0-1.0", "<eos>", False)
    assert report.perplexity < 60


def test_garbled_weights_are_refused_and_nothing_is_left(made, tmp_path):
    core, model, _ = made["smollm"]
    file = written(tmp_path / "bad.gguf", "smollm", core, model, garble=-3.0)
    with pytest.raises(UsageError, match="perplexity"):
        convert(file, tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_unknown_pre_tokenizer_is_refused_by_name(made, tmp_path):
    core, model, _ = made["smollm"]
    file = written(tmp_path / "odd.gguf", "smollm", core, model, pre="tekken")
    with pytest.raises(UsageError, match="'tekken' is not known here"):
        rebuild(read_header(file))


@pytest.mark.parametrize(
    ("kind", "pre", "begun", "prefix", "whole"),
    [
        ("gemma", "", True, True, False),
        ("smollm", "llama-bpe", True, False, True),
        ("smollm", "smollm", False, False, False),
    ],
)
def test_what_a_file_does_not_say_is_as_in_llama_cpp(made, tmp_path, kind, pre, begun, prefix, whole):
    core, model, _ = made[kind]
    unsaid = ("add_bos_token", "add_space_prefix")
    tokenizer = rebuild(read_header(written(tmp_path / "f.gguf", kind, core, model, pre=pre, without=unsaid)))
    ids = tokenizer.encode("hi")
    assert ((ids[0] == 2), tokenizer.convert_ids_to_tokens(ids)[begun].startswith("▁")) == (begun, prefix)
    assert tokenizer.backend_tokenizer.model.ignore_merges is whole


@pytest.mark.parametrize("cut", [0, 3, 40, 2000])
def test_broken_files_are_one_line(made, tmp_path, cut):
    _, _, file = made["gemma"]
    broken = tmp_path / "cut.gguf"
    broken.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"cut\.gguf") as caught:
        convert(broken, tmp_path / "folder")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "array", [struct.pack("<IQ", 9, 1) * 1500, struct.pack("<IQ", 0, 1 << 60)], ids=["nested", "long"]
)
def test_arrays_within_arrays_and_longer_than_the_file_are_one_line(tmp_path, array):
    (tmp_path / "f.gguf").write_bytes(struct.pack("<4sIQQQcI", b"GGUF", 3, 0, 1, 1, b"a", 9) + array + bytes(64))
    with pytest.raises(UsageError, match=r"f\.gguf: not a readable GGUF file"):
        read_header(tmp_path / "f.gguf")


@pytest.mark.parametrize(
    ("field", "changed"),
    [("head_count", lambda n: 0), ("feed_forward_length", lambda n: 65), ("token_merges", lambda m: [*m, "zzz yyy"])],
)
def test_files_that_contradict_themselves_are_one_line(made, tmp_path, monkeypatch, field, changed):
    core, model, _ = made["smollm"]
    add = getattr(gguf.GGUFWriter, f"add_{field}")
    monkeypatch.setattr(gguf.GGUFWriter, f"add_{field}", lambda writer, value: add(writer, changed(value)))
    with pytest.raises(UsageError, match=r"f\.gguf: the model does not open: ") as caught:
        convert(written(tmp_path / "f.gguf", "smollm", core, model), tmp_path / "folder")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_command(made, tmp_path):
    command = [sys.executable, TOOL, made["gemma"][2], tmp_path / "out"]
    first = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(first.stdout)["vocabulary"] == made["gemma"][0].get_vocab_size()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout, again.stderr.strip().endswith("exists already")) == (2, "", True)


@pytest.mark.parametrize(
    ("file", "words"),
    [("folder", "folder: is a directory"), ("/dev/zero", "/dev/zero: not a regular file"), ("no", "no: no such file"),
     ("suite.yaml", "suite.yaml: not a readable GGUF file"), ("cut.gguf", "cut.gguf: ")],
)  # fmt: skip
def test_what_is_no_gguf_file_is_refused_in_one_line(tmp_path, monkeypatch, file, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "suite.yaml").write_text("name: x")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(UsageError) as caught:
        convert(Path(file), Path("out"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()
