"""Checkpoints, whole or absent: a Hugging Face folder, `optimiser.safetensors` (until the cell is done), a seal written last.

What training does not change is kept as the model's folder has it: its generation settings, which transformers may read but
refuses to write, and all of its chat templates, of which some lie in a folder of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import CheckpointError, EngineError
from harness.files import TEMPORARY, flush_to_disk, write_atomic
from harness.reading import open_regular, read_bytes

__all__ = ["OPTIMISER", "Seal", "check", "drop_optimiser", "keep_generation", "make_savable", "weight_files", "write"]

SEAL = "engine.json"
MAX_SEAL_BYTES = 1 << 20
OPTIMISER = "optimiser.safetensors"
"""The file of the optimiser's state."""
GENERATION = "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Of formats that run code when they are read, or that are converted first
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf")
MAX_INDEX_BYTES = 64 << 20


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`engine.json`, of format 1. version: updates made. files: sha256 of every other file, by name."""

    format: int
    policy: str
    version: int
    files: dict[str, str]


def write(folder: Path, policy: str, version: int, fill: Callable[[Path], None]) -> None:
    """Write files into a temporary folder, sealed and put in place of `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        try:
            fill(new)
        except Exception as error:  # safetensors and tokenizers give the system's error in words alone
            if not isinstance(error, OSError) and (code := re.search(r"\(os error (\d+)\)", str(error))):
                raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from error
            raise
        seal = Seal(1, policy, version, {name: _digest_file(path) for name, path in sorted(_list_files(new).items())})
        (new / SEAL).write_bytes(_encode_seal(seal))
        for path in new.rglob("*"):
            flush_to_disk(path)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def drop_optimiser(folder: Path) -> None:
    """Seal the folder anew without the optimiser's state, then remove that. Raises CheckpointError without a seal."""
    for cut_off in folder.glob(f"*{TEMPORARY}"):
        cut_off.unlink()
    seal = _read_seal(folder)
    if OPTIMISER in seal.files:
        files = {name: digest for name, digest in seal.files.items() if name != OPTIMISER}
        write_atomic(folder / SEAL, _encode_seal(msgspec.structs.replace(seal, files=files)))
    (folder / OPTIMISER).unlink(missing_ok=True)


def check(folder: Path, policy: str) -> Seal:
    """Return the seal of the policy's whole, unaltered checkpoint. Raises CheckpointError."""
    seal = _read_seal(folder)
    if seal.format != 1:
        raise CheckpointError(f"{folder / SEAL}: format {seal.format}, this version reads format 1")
    if seal.policy != policy:
        raise CheckpointError(f"{folder}: checkpoint of policy {seal.policy!r}, not of {policy!r}")
    # An unsealed optimiser's state is never read.
    unread = {OPTIMISER} - seal.files.keys()
    present = _list_files(folder).keys() - {SEAL} - unread
    for name in sorted(seal.files.keys() | present):
        if name not in seal.files:
            raise CheckpointError(f"{folder / name}: not part of the checkpoint")
        if name not in present:
            raise CheckpointError(f"{folder / name}: missing")
        try:
            actual = _digest_file(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: {error.strerror}") from error
        if actual != seal.files[name]:
            raise CheckpointError(f"{folder / name}: truncated or altered (its digest is not the sealed one)")
    return seal


def make_savable(model: Any) -> None:
    """Have the model's generation settings hold its tokens alone: the library does not write settings that contradict each other,
    such as a temperature of greedy decoding, though models are published with them. The engine decodes by its own."""
    said = model.generation_config
    tokens = {name: getattr(said, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = type(said)(**tokens)


def keep_generation(source: Path, folder: Path) -> None:
    """Put into a checkpoint the generation settings of the folder that it was trained from, if that has any."""
    own = source / GENERATION
    new = folder / GENERATION
    new.unlink(missing_ok=True)
    if own.is_file():
        shutil.copyfile(own, new)


def _list_files(folder: Path) -> dict[str, Path]:
    """Return all files by their place, of subfolders too."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}


def _read_seal(folder: Path) -> Seal:
    """Return the seal of a checkpoint folder. Raises CheckpointError where it has none that can be read."""
    try:
        return msgspec.json.decode(read_bytes(folder / SEAL, MAX_SEAL_BYTES), type=Seal)
    except OSError as error:
        raise CheckpointError(f"{folder}: not a checkpoint: {SEAL}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{folder / SEAL}: unreadable: {error}") from error


def _encode_seal(seal: Seal) -> bytes:
    """Return a seal as its file holds it."""
    return msgspec.json.format(msgspec.json.encode(seal))


def _digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """List the files with weights, sorted. Raises EngineError if one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        others = sorted(file.name for file in folder.iterdir() if file.name.endswith(OTHER_WEIGHTS))
        if others:
            raise EngineError(
                f"{folder}: there are no weights ({WEIGHTS}), only {others[0]}: save them as safetensors "
                "(save_pretrained; `python tools/convert_gguf.py` for GGUF)"
            )
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
