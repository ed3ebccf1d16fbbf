"""What is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def expand_user(path: str | Path) -> Path:
    """`~` stays where no such user is known here."""
    return Path(os.path.expanduser(path))  # `Path.expanduser` raises RuntimeError


def cache_folder() -> Path:
    configured = os.environ.get("HARNESS_CACHE")
    return expand_user(configured or platformdirs.user_cache_dir("experience-sharing-harness"))


PRETRAINED = "pretrained/"
"""Begins the name of a model that `make pretrained` has put into the cache."""


def model_folder(model: str) -> Path:
    if model.startswith(PRETRAINED):
        return cache_folder() / "models" / model.removeprefix(PRETRAINED)
    return expand_user(model)


def hub_cache(model: str) -> Path:
    """The hub library's folder of a model; its client takes long to import."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"
