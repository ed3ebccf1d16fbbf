"""Commands that make models: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.arguments import Json, print_json

GgufFile = Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file.")]
NewFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model goes; must not be there yet.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Precision of the weights: bf16 or fp32.")]


def convert(file: GgufFile, folder: NewFolder, dtype: Dtype = "bf16", json: Json = False) -> None:
    """A GGUF file to a folder that suites can name: weights dequantised, tokenizer rebuilt and checked."""
    from harness.errors import UsageError
    from harness.gguf import convert as to_folder

    if dtype not in {"bf16", "fp32"}:
        raise UsageError(f"--dtype {dtype}: bf16 or fp32")
    precision: Literal["bf16", "fp32"] = "fp32" if dtype == "fp32" else "bf16"
    made = to_folder(file, folder, precision)
    if json:
        print_json(made)
        return
    ids = "ids equal the published ones" if made.known_ids else "no published ids to compare with"
    print(f"{made.folder}: {made.architecture}, {made.parameters / 1e6:.1f} M parameters in {made.dtype}")
    print(
        f"  tokenizer: {made.vocabulary} tokens, BOS {made.bos or 'not added'}, EOS {made.eos}, pad {made.pad}; {ids}"
    )
    print(f"  chat template: {'yes' if made.chat else 'none'}; perplexity on plain English: {made.perplexity}")
    print(f"  licence, as the file states it: {made.licence or 'not stated'}")
