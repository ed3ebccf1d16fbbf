"""In what sizes the embedded engine works at a time. The engine and the plan's account of it read them here, without torch."""

from __future__ import annotations

MICRO_TOKENS = 8192
"""Padded tokens of one forward and backward pass, where a suite does not say (`engine_options.micro_tokens`)."""
CACHE_BYTES = 2 << 30
"""Keys and values that one sampling batch may hold."""
LOGITS, GPU_LOGITS = 1 << 23, 1 << 26
"""Logits that exist at once, on a CPU and on a GPU. There each part of the vocabulary costs the start of its kernels; 0.8 GB
(`embedded.LOGITS_BYTES` each) keep parts few, and fit beside the models of a small card."""
BLOCK = 2048
"""Ids whose probabilities are summed before one among them is sought; a smaller vocabulary is one block."""
LONGEST = 512
"""Keys up to which the engine's own attention in bf16 is taken; it keeps their scores."""
