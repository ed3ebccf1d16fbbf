"""A tiny checkpoint with random weights, and one verifier, for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.engines.embedded.families import build_model, build_tokenizer
from harness.verification.verifier import Verifier


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = build_tokenizer("llama")
    build_model("llama", 7, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=2) as shared:
        yield shared
