"""Checkpoints on tasks: every sample stored, one scoring rule."""

from typing import Literal

Backend = Literal["embedded", "hf", "vllm"]
