from __future__ import annotations

import pytest
import zoo

from harness.tokenization.codec import Encoded, TokenCodec


@pytest.fixture(scope="session")
def tokenizers():
    return {kind: zoo.fast(build()) for kind, build in zoo.KINDS.items()}


@pytest.fixture(scope="session")
def codecs(tokenizers):
    return {kind: TokenCodec(tokenizer) for kind, tokenizer in tokenizers.items()}


@pytest.fixture(scope="session")
def texts():
    """800 texts, 100 of each kind."""
    return zoo.texts(100)


@pytest.fixture(scope="session")
def encoded(codecs, texts):
    """Every text in every tokenizer; None where it was refused."""
    return {
        kind: [e if isinstance(e, Encoded) else None for e in codec.try_encode(texts)] for kind, codec in codecs.items()
    }


@pytest.fixture(params=sorted(zoo.KINDS))
def kind(request):
    return request.param
