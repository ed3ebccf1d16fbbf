"""Which files of a Hugging Face folder hold its weights. Imports neither torch nor transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness.errors import EngineError
from harness.reading import read_bytes

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20


def weight_files(folder: Path) -> list[Path]:
    """The files, sorted. Raises EngineError in one line if one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise EngineError(f"{folder}: there are no weights ({WEIGHTS})")
    try:
        files = sorted(
            {folder / name for name in json.loads(read_bytes(folder / INDEX, MAX_INDEX_BYTES))["weight_map"].values()}
        )
        if any(file.parent != folder for file in files):
            raise ValueError("a file of another folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(f"{folder / INDEX}: no index of weights: {error!r}") from error
    absent = [file.name for file in files if not os.path.isfile(file)]
    if absent:
        raise EngineError(f"{folder}: {len(absent)} of {len(files)} files of weights are missing ({absent[0]})")
    return files
