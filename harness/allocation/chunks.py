"""In what sizes the engines work at a time. They and the plan's account of it read them here, without torch."""

from __future__ import annotations

MICRO_TOKENS = (
    8192  # padded, of one forward and backward pass, where a suite does not say (`engine_options.micro_tokens`)
)
CACHE_BYTES = 2 << 30  # keys and values that one sampling batch may hold
# Logits that exist at once, on a CPU and on a GPU, where each part of the vocabulary costs the start of its kernels.
LOGITS, GPU_LOGITS = 1 << 23, 1 << 26
BLOCK = 2048  # ids whose probabilities are summed before one among them is sought
LONGEST = 512  # keys up to which the engine's own attention in bf16, which keeps their scores, is taken
