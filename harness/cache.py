"""What is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    configured = os.environ.get("HARNESS_CACHE")
    return Path(configured or platformdirs.user_cache_dir("experience-sharing-harness")).expanduser()


PRETRAINED = "pretrained/"
"""Begins the name of a model that `make pretrained` has put into the cache."""


def model_folder(model: str) -> Path:
    if model.startswith(PRETRAINED):
        return cache_folder() / "models" / model.removeprefix(PRETRAINED)
    return Path(model).expanduser()


def hub_cache(model: str) -> Path:
    """The hub library's folder of a model; its client takes long to import."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"
