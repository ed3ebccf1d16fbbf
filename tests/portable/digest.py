"""Digests of what decides rows, as this process computes it with portable numerics.

    python -m tests.portable.digest            each by its name, one JSON object a line
    python -m tests.portable.digest begin P    only the cells' first steps, with what they need in folder P
    python -m tests.portable.digest end P      the digests of these cells, gone on with and finished
    python -m tests.portable.digest changed    of the first regime, with one bit of a base's weights changed

`products`: of matrices of a micro model's and of real models' shapes, forward and backward. `real KIND`: what a model with the
layers of a real one samples, and its weights after an update on that. `stage0 FAMILY`: a base checkpoint's weights after its first
steps; `update FAMILY`: its answers, and an update on them. By regime: every row but times and costs of a cell of two steps on the
quickstart's bases, and its final weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from harness.engines.embedded.numerics import ENVIRONMENT, require_portable
from harness.limits import UNUSED, without_collection

FAMILIES = ("llama", "qwen", "neox", "gpt2")
REGIMES = (
    *("independent", "prp", "xgrpo", "sgt", "hacpo", "naive", "graft", "sapo", "ftis"),
    *("luffy", "chord", "grafted", "rlccf", "copd", "core"),
)
STEPS = 3
"""Of a base checkpoint's training."""
SUITE = """
groups:
  - name: pair
    policies:
      - {{name: llama, model: {llama}}}
      - {{name: qwen, model: {qwen}}}
regimes: [{regimes}]
seeds: [3]
training: {{steps: 2, prompts: 2, rollouts: 4, max_new_tokens: 24, learning_rate: 0.001, measure_every: 1, kl: 0.01}}
evaluation: {{k: 1, limit: 2, curve_every: 0, max_new_tokens: 16}}
engine_options: {{numerics: portable, device: cpu}}
"""


def stage0(family: str, folder: Path) -> tuple[str, str]:
    """Of a micro family's weights after `STEPS` steps; and of what it then samples, with its weights after an update on that."""
    from harness.engines.conformance import Case, tiny_prompts
    from harness.engines.embedded.engine import EmbeddedEngine
    from harness.engines.embedded.families import build_model, build_tokenizer
    from harness.engines.embedded.presets import PRESETS, draw_examples
    from harness.engines.embedded.warmup import Pretrainer, RateSchedule

    tokenizer = build_tokenizer(family)
    model = build_model(family, 0, tokenizer)
    examples = draw_examples(PRESETS["trap"], "add", Random(0))
    Pretrainer(model, tokenizer, examples, RateSchedule()).run(STEPS, lambda done: None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    case = Case(
        lambda name: EmbeddedEngine(name, folder, device="cpu", numerics="portable"), tiny_prompts(2), folder, 8
    )
    begun = digest(*(_bytes(weights) for weights in model.state_dict().values()))
    return begun, _sampled_and_updated(case, case.make(family))


SHAPES = (
    *((1, 96, 96), (2, 96, 384), (7, 96, 96), (33, 384, 96), (128, 96, 96), (5, 64, 97), (61, 96, 353)),
    *((130, 128, 352), (300, 576, 1536), (64, 576, 4096), (37, 640, 2048)),
)
"""Rows, inputs, outputs."""


def products() -> str:
    """Of linear layers of `SHAPES`: outputs with and without a bias, and three gradients."""
    import torch
    from torch.nn.functional import linear

    generator = torch.Generator().manual_seed(3)
    made: list[bytes] = []
    for rows, inputs, outputs in SHAPES:
        sizes = ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
        given, weight, bias, slope = (torch.randn(size, generator=generator) for size in sizes)
        leaves = [tensor.requires_grad_() for tensor in (given, weight, bias)]
        biased = linear(given, weight, bias)
        biased.backward(slope)
        made += map(_bytes, (biased, linear(given, weight), *(leaf.grad for leaf in leaves)))
    return digest(*made)


def real(kind: str, folder: Path) -> str:
    """Of a model with the widths of SmolLM2 135M or Gemma 3 270M, two layers and random weights: answers, and an update."""
    import torch
    from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

    from harness.engines.conformance import Case, tiny_prompts
    from harness.engines.embedded.engine import EmbeddedEngine
    from harness.engines.embedded.families import build_tokenizer

    tokenizer = build_tokenizer("llama")
    shared = {"vocab_size": 4096, "num_hidden_layers": 2, "max_position_embeddings": 256, "tie_word_embeddings": True}
    if kind == "smollm2":
        config = LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, **shared
        )
    else:
        config = Gemma3TextConfig(
            hidden_size=640, intermediate_size=2048, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
            sliding_window=16, layer_types=["sliding_attention", "full_attention"], **shared,
        )  # fmt: skip
    config.eos_token_id, config.bos_token_id, config.pad_token_id = tokenizer.eos_token_id, None, None
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    case = Case(
        lambda name: EmbeddedEngine(name, folder, device="cpu", numerics="portable"), tiny_prompts(2), folder, 8
    )
    engine = case.make(kind)
    return _sampled_and_updated(case, engine)


def _sampled_and_updated(case: Any, engine: Any) -> str:
    samples = case.sample(engine)
    engine.update(case.prompts, [case.term(samples, [1.0, -0.5])], case.optimisation())
    drawn = [(s.text, s.logprobs.tobytes()) for row in samples for s in row]
    return digest(drawn, *(_bytes(weights) for weights in engine.model.state_dict().values()))


def bases(place: Path) -> dict[str, Path]:
    """The quickstart's bases by family, in folders of `place`."""
    from harness.engines.embedded.presets import SHIPPED

    for folder in filter(Path.is_dir, SHIPPED.iterdir()):
        shutil.copytree(folder, place / folder.name.partition("-")[0], dirs_exist_ok=True)
    return {family: place / family for family in ("llama", "qwen")}


def cells(
    folders: dict[str, Path], place: Path, regimes: Sequence[str] = REGIMES, steps: int = 2
) -> Iterator[tuple[str, str]]:
    """Of each regime its cell's digest, once it is done. steps: made now at most."""
    from safetensors.torch import load_file

    from harness.phases import Interrupted
    from harness.session.driver.jobs import job_of, run_job
    from harness.session.suite.prepare import prepare_named
    from harness.store.journal import read_journal
    from harness.verification.verifier import Verifier

    file = place / "portable.yaml"
    file.write_text(SUITE.format(regimes=", ".join(regimes), **folders))
    with Verifier(workers=1) as verifier:
        for made in prepare_named(str(file), place / "results").cells:
            folder = place / "results" / made.key
            try:
                run_job(job_of(made, folder), verifier, lambda done, total, words: None, lambda: steps < 2)
            except Interrupted:
                continue
            tables = read_journal(folder).tables
            rows = [
                [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in tables[name].to_pylist()]
                for name in sorted(tables.keys() - {"costs"})
            ]
            final = [load_file(folder / "checkpoint" / name / "model.safetensors") for name in folders]
            yield made.variant.name, digest(rows, *(_bytes(own[name]) for own in final for name in sorted(own)))


def change(file: Path) -> None:
    """The lowest bit of one weight."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    weights["model.norm.weight"].view(torch.int32)[0] ^= 1
    save_file(weights, file, {"format": "pt"})


def digest(*parts: Any) -> str:
    """16 hexadecimal digits."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part if isinstance(part, bytes) else repr(part).encode())
    return whole.hexdigest()[:16]


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().numpy().tobytes())


def main() -> None:
    os.environ.update(ENVIRONMENT | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    with without_collection(*UNUSED):
        import harness.session.cell.cell  # noqa: F401  what the cells need
    require_portable()
    verb, *folder = sys.argv[1:] or ["all"]
    with tempfile.TemporaryDirectory() as root:
        place = Path(*folder or [root])
        os.environ["HARNESS_MODELS"] = str(place)
        if verb == "all":
            print(json.dumps({"products": products()}), flush=True)
            for kind in ("smollm2", "gemma3"):
                print(json.dumps({f"real {kind}": real(kind, place / f"real-{kind}")}), flush=True)
        for family in FAMILIES if verb == "all" else ():
            begun, updated = stage0(family, place / f"begun-{family}")
            print(json.dumps({f"stage0 {family}": begun, f"update {family}": updated}), flush=True)
        folders, regimes = bases(place), REGIMES
        if verb == "changed":
            change(folders["qwen"] / "model.safetensors")
            regimes = REGIMES[:1]
        for name, digests in cells(folders, place, regimes, steps=1 if verb == "begin" else 2):
            print(json.dumps({name: digests}), flush=True)


if __name__ == "__main__":
    main()
