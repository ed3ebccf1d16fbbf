"""Sizes in which the embedded engine works. `harness.engines.embedded.memory` counts with the same ones. No torch."""

from __future__ import annotations

MICRO_TOKENS = 8192
"""Padded tokens of one forward and backward pass, unless a suite says (`engine_options.micro_tokens`)."""
CACHE_BYTES = 2 << 30
"""Keys and values of one sampling batch."""
BLOCK = 2048
"""Ids whose probabilities are summed before one among them is sought."""
LONGEST = 512
"""Most keys for the engine's own attention in bf16, which keeps scores."""
