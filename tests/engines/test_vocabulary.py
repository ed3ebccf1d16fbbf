"""What a folder says of its tokens."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from harness.engines.vocabulary import has_template, open_vocabulary
from harness.errors import EngineError
from harness.experience.answers import Prompt

CHAT = (
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def folder(path, *, stops=(1, 5), template=CHAT, vocab_size=80, holes=()):
    """A tokenizer with `<eos>` 1 and `<end_of_turn>` 5, ids in `holes` without a token."""
    names = {"<pad>": 0, "<eos>": 1, "<turn>": 4, "<end_of_turn>": 5}
    free = (i for i in range(6, vocab_size) if i not in holes)
    letters = {c: next(free) for c in "abcdefghijklmnopqrstuvwxyzĠĊ"}
    core = Tokenizer(models.BPE({**names, **letters}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(list(names))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", chat_template=template
    )
    tokenizer.save_pretrained(path)
    LlamaConfig(vocab_size=vocab_size, hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(stops)}))
    return path


def test_the_end_that_is_taught_is_the_templates_own(tmp_path):
    path = folder(tmp_path)
    chat = open_vocabulary(path, chat=True, policy="p")
    assert chat.stop == (5, 1)
    assert chat.encode(Prompt("q", "ab", "1")) == chat.tokenizer.encode(
        "<turn>user\nab<end_of_turn>\n<turn>assistant\n"
    )
    assert open_vocabulary(path, chat=False, policy="p").stop == (1, 5)


def test_ends_without_a_row_are_left_out_and_words_refused(tmp_path):
    assert open_vocabulary(folder(tmp_path, stops=(5, 80, 10**30)), chat=False).stop == (1, 5)
    with pytest.raises(EngineError, match="does not open: 'str' object"):
        open_vocabulary(folder(tmp_path, stops=("x",)), chat=False)


def test_a_template_without_a_stop_teaches_eos(tmp_path):
    path = folder(tmp_path, template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert open_vocabulary(path, chat=True, policy="p").stop == (1, 5)


def test_rows_without_a_token_are_forbidden_and_none_else(tmp_path):
    vocabulary = open_vocabulary(folder(tmp_path, holes=(7, 8, 20)), chat=False, policy="p")
    used = set(vocabulary.tokenizer.get_vocab().values())
    assert max(used) >= len(vocabulary.tokenizer)
    assert set(vocabulary.forbidden) == (set(range(80)) - used) | {0}


def test_a_pad_token_that_was_added_beyond_the_models_rows_is_nothing_to_forbid(tmp_path):
    path = folder(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(path)
    rows = tokenizer.pad_token_id
    LlamaConfig(vocab_size=rows, hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(path)
    vocabulary = open_vocabulary(path, chat=False, policy="p")
    assert vocabulary.tokenizer.pad_token_id == rows
    assert max(vocabulary.forbidden, default=0) < rows


def test_tokens_that_were_added_without_rows_are_one_line(tmp_path):
    """They were an IndexError, on CUDA the end of the process, or answers without an end."""
    path = folder(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["zz"])
    tokenizer.save_pretrained(path)
    rows = tokenizer.convert_tokens_to_ids("zz")
    LlamaConfig(vocab_size=rows, hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(path)
    vocabulary = open_vocabulary(path, chat=False, policy="anna")
    assert vocabulary.model_ids(Prompt("q", "ab", "1")) == vocabulary.encode(Prompt("q", "ab", "1"))
    with pytest.raises(EngineError, match=r"^anna: prompt 'q' holds the token 'zz', for which the model has no row"):
        vocabulary.model_ids(Prompt("q", "azz", "1"))
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.save_pretrained(path)
    with pytest.raises(EngineError, match=rf"^anna: .* {rows} rows, none for the EOS token {rows + 1}"):
        open_vocabulary(path, chat=False, policy="anna")


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        "{",
        '{"model_type": "nothing-of-the-kind"}',
        '{"model_type": 5}',
        '{"model_type": "llama", "vocab_size": "x"}',
    ],
)
def test_a_folder_that_does_not_open_is_one_line(tmp_path, broken):
    path = folder(tmp_path)
    (path / "config.json").write_text(broken)
    with pytest.raises(EngineError, match=r"^anna: .*does not open") as caught:
        open_vocabulary(path, chat=False, policy="anna")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for m in %}", "{{ messages[9].content.x }}"])
def test_a_template_that_fails_names_the_policy(tmp_path, template):
    path = folder(tmp_path, template=template)
    with pytest.raises(EngineError, match=r"^anna: the chat template fails"):
        open_vocabulary(path, chat=True, policy="anna").encode(Prompt("q", "x", "1"))


@pytest.mark.parametrize(("template", "there"), [(None, False), (CHAT, True)])
def test_a_template_of_null_is_none(tmp_path, template, there):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert has_template(tmp_path) is there
