"""Four tiny policies, trained for a second each so that they end their answers, as Hugging Face folders."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from harness.engines.conformance import tiny_policy, tiny_prompts
from harness.engines.embedded.families import FAMILIES

# Several OpenMP threads on a busy machine spin against each other: minutes instead of seconds.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prompts():
    return tiny_prompts(200)


@pytest.fixture(scope="session", params=FAMILIES)
def folder(request, shared):
    return shared(f"engine-policy-{request.param}", partial(tiny_policy, family=request.param))
