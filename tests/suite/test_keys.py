"""docs/keys.md: every key of the schema, as it is today."""

from __future__ import annotations

import pydantic
import suite_keys

from harness.suite import schema


def test_the_page_is_current_and_says_something_of_every_key() -> None:
    assert list(suite_keys.missing()) == []
    assert suite_keys.PAGE.read_text("utf-8") == suite_keys.page(), "run: python tools/suite_keys.py"


def test_no_part_of_the_schema_is_left_out() -> None:
    models = {m for m in vars(schema).values() if isinstance(m, type) and issubclass(m, pydantic.BaseModel)}
    assert set(suite_keys.sections()) == {model.__name__ for model in models if model.model_fields}


def test_types_and_defaults_in_words() -> None:
    lines = suite_keys.page().splitlines()
    assert (
        "- **`training.learning_rate`** (`0.0001`; number above 0 to 1): AdamW's learning rate, constant."
        in " ".join(lines)
    )
    for start in (
        "- **`evaluation.k`** (`4`; integer 0–1,024 or mapping or null): ",
        "- **`evaluation.limit`** (`null`; integer from 1): ",
        "- **`regimes[].budget`** (`1x`; `0.5x`, `1x`, `2x`, `4x`): ",
        "- **`regimes[].regime`** (text): ",
        "- **`engine_options.micro_tokens`** (`8192`; integer from 1): ",
    ):
        assert any(line.startswith(start) for line in lines), start
