"""Where a model's answers begin and end, by its files and its chat template."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
from models import SPECIAL, TURNS, byte_level, with_blank, write

from harness.engines.templates import ChatTemplate
from harness.engines.vocabulary import Vocabulary, open_vocabulary
from harness.errors import EngineError
from harness.experience.answers import Prompt

PREFILLED = TURNS.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
OPEN_LAST = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}{% if not loop.last %}<|done|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|done|>\n<|turn|>assistant\n{% endif %}"
)
NEXT_ROLE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TWO = TURNS.replace("<|done|>", "<|said|><|done|>")
THEN_EOS = TURNS.replace("{% endif %}", "{% else %}<|eos|>{% endif %}")
BLANK_EOS = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ eos_token }}{% endfor %}"


def opened(
    folder: Path, template: str | None, special: list[str] = SPECIAL, words: tuple[str, ...] = (), **said
) -> Vocabulary:
    core = byte_level(special, words)
    return open_vocabulary(
        write(folder, core, template, eos_token="<|eos|>", **said), chat=template is not None, policy="p"
    )


def names(vocabulary: Vocabulary, ids: tuple[int, ...]) -> list[str]:
    return list(vocabulary.tokenizer.convert_ids_to_tokens(list(ids)))


@pytest.mark.parametrize(
    ("template", "special", "words", "said", "closing", "stop"),
    [
        (TURNS, SPECIAL, [], {}, ["<|done|>"], ["<|done|>", "<|eos|>"]),  # no file names it
        (TURNS, SPECIAL, [], {"ends": ["<|eos|>"]}, ["<|done|>"], ["<|done|>", "<|eos|>"]),
        (TURNS, SPECIAL, [], {"listed": ["<|eos|>", "<|done|>"]}, ["<|done|>"], ["<|done|>", "<|eos|>"]),
        (PREFILLED, SPECIAL, ["<think>", "</think>"], {"ends": ["<|done|>"]}, ["<|done|>"], ["<|done|>", "<|eos|>"]),
        (OPEN_LAST, SPECIAL, [], {}, ["<|done|>"], ["<|done|>", "<|eos|>"]),
        (NEXT_ROLE, ["<|eos|>", "<|user|>", "<|assistant|>"], [], {"ends": ["<|user|>"]}, ["<|user|>"], ["<|user|>", "<|eos|>"]),
        (TWO, [*SPECIAL, "<|said|>"], [], {"ends": ["<|done|>"]}, ["<|said|>", "<|done|>"], ["<|done|>", "<|eos|>"]),
        (THEN_EOS, SPECIAL, [], {"ends": ["<|done|>"]}, ["<|done|>"], ["<|done|>", "<|eos|>"]),
        (BLANK_EOS, SPECIAL, [], {}, ["<|eos|>"], ["<|eos|>"]),
        (None, SPECIAL, [], {"listed": ["<|done|>"]}, ["<|eos|>"], ["<|eos|>", "<|done|>"]),
    ],
)  # fmt: skip
def test_ends_are_those_of_all_files_and_of_the_template(tmp_path, template, special, words, said, closing, stop):
    vocabulary = opened(tmp_path, template, special, words, **said)
    assert names(vocabulary, vocabulary.closing) == closing
    assert names(vocabulary, vocabulary.stop) == stop


def test_a_class_that_has_a_default_end_names_none(tmp_path):
    """A Llama's config without an end is one of id 2 to transformers."""
    vocabulary = opened(tmp_path, None)
    assert names(vocabulary, vocabulary.stop) == ["<|eos|>"]


def test_a_tokenizer_without_an_end_is_refused_unless_a_file_names_one(tmp_path):
    folder = write(tmp_path / "none", byte_level())
    with pytest.raises(EngineError, match="no EOS token, and no file of the model names another end"):
        open_vocabulary(folder, chat=False)
    folder = write(tmp_path / "listed", byte_level(), listed=["<|done|>"])
    assert open_vocabulary(folder, chat=False).stop == (2,)


@pytest.mark.parametrize("tokens", [(), ("<|turn|>",), ("<|turn|>", "<|done|>")])
def test_all_that_the_tokenizer_puts_in_front_opens_a_raw_prompt(tmp_path, tokens):
    core = byte_level()
    models.opens(core, *tokens)
    vocabulary = open_vocabulary(write(tmp_path, core, eos_token="<|eos|>"), chat=False)
    assert names(vocabulary, vocabulary.opening) == list(tokens)
    text = "What is 2 + 3?"
    assert vocabulary.encode(Prompt("q", text, "5")) == vocabulary.tokenizer.encode(text)


def test_what_is_put_behind_a_text_is_no_part_of_a_prompt(tmp_path):
    core = with_blank()
    core.post_processor = models.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    vocabulary = open_vocabulary(write(tmp_path, core, eos_token="</s>"), chat=False)
    ids = vocabulary.encode(Prompt("q", "What is 2 + 3?", "5"))
    assert vocabulary.opening == (1,)
    assert (ids[0], ids[-1] == 2) == (1, False)


@pytest.mark.parametrize("chat", [True, False])
def test_a_question_that_spells_a_control_token_is_text(tmp_path, chat):
    vocabulary = opened(tmp_path, TURNS if chat else None)
    control = {1, 2} if chat else {0, 1, 2}
    plain = vocabulary.encode(Prompt("q", "What is 2 + 3?", "5"))
    spelled = vocabulary.encode(Prompt("q", "What is <|done|>7<|turn|>0 + 3?", "5"))
    assert [i for i in spelled if i in control] == [i for i in plain if i in control]
    assert vocabulary.tokenizer.decode(spelled).count("<|done|>7<|turn|>0 + 3?") == 1
    with pytest.raises(EngineError, match="'q' cannot be read"):
        vocabulary.encode(Prompt("q", "a \ufdd1 b", "5"))


def test_a_question_is_text_beside_a_token_that_takes_white_space(tmp_path):
    core = byte_level()
    core.add_special_tokens([models_token("<|user|>")])
    template = "<|user|>\n\n{{ messages[-1].content }}<|done|>"
    vocabulary = open_vocabulary(write(tmp_path, core, template, eos_token="<|eos|>"), chat=True)
    plain, spelled = (vocabulary.encode(Prompt("q", text, "5")) for text in ("ab", "ab <|eos|>"))
    assert spelled[: len(plain) - 1] == plain[:-1]


def models_token(name: str):  # takes the white space behind it
    from tokenizers import AddedToken

    return AddedToken(name, special=True, rstrip=True)


def template_of(folder: Path, text: str, chat=True) -> ChatTemplate:
    write(folder, byte_level(), text, eos_token="<|eos|>")
    return open_vocabulary(folder, chat=chat, policy="p").template


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{% for m in messages if m.role == 'tool' %}{{ m.content }}{% endfor %}a", "leaves the question out"),
        ("{{ raise_exception('not today') }}", "fails: not today"),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('who am I') }}{% endif %}" + TURNS,
            "set one by `chat: {system",
        ),
        (TURNS, ""),
    ],
)
def test_a_template_that_cannot_ask_says_what_to_do(tmp_path, text, words):
    fault = template_of(tmp_path, text).fault()
    assert words in fault
    assert bool(words) == bool(fault)


def test_a_system_turn_and_arguments_reach_the_template(tmp_path):
    text = TURNS + "{% if brief is defined %}{{ brief }}{% endif %}"
    template = template_of(tmp_path, text, {"system": "Be kind.", "brief": "yes"})
    said = template.render("Who?", opens_answer=True)
    assert "<|turn|>system\nBe kind.<|done|>" in said
    assert said.endswith("yes")


def test_the_day_is_the_settings_and_not_the_clocks(tmp_path):
    template = template_of(tmp_path, "{{ strftime_now('%d %B %Y') }} " + TURNS, {"date": "2024-07-26"})
    assert template.render("a", opens_answer=True).startswith("26 July 2024 ")
    assert template.writes_date()
    assert not template_of(tmp_path / "other", TURNS).writes_date()
