"""The one place for what is fetched or made once and kept between runs: benchmark sets, micro base checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """`HARNESS_CACHE`, or the user's cache folder of this program."""
    configured = os.environ.get("HARNESS_CACHE")
    return Path(configured or platformdirs.user_cache_dir("experience-sharing-harness")).expanduser()
