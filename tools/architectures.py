"""Write the table of architectures in docs/pretrained.md, by the embedded engine's own checks on transformers' default
configurations: `python tools/architectures.py`. A test says when it is not current."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import CONFIG_MAPPING
from transformers.utils import logging

from harness.engines.embedded.loading import check_layers
from harness.errors import EngineError

PAGE = Path(__file__).parents[1] / "docs" / "pretrained.md"
FENCE = re.compile(r"(<!-- architectures -->\n).*?(<!-- /architectures -->)", re.DOTALL)
# `model_type` of what tests/engines/test_architectures.py compares with transformers itself, and models that have it
VERIFIED = {
    "llama": "Llama 1 to 3, SmolLM2, TinyLlama, Yi, DeepSeek distillations on Llama",
    "qwen2": "Qwen 2 and 2.5, with and without windows",
    "qwen3": "Qwen 3, dense",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3, 270M and 1B",
    "mistral": "Mistral 7B",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gpt2": "GPT-2",
    "gemma": "Gemma 1",
    "smollm3": "SmolLM3",
    "phi": "Phi 1 and 2",
    "phi3": "Phi 3, Phi 4 mini",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "granite": "Granite 3",
    "exaone4": "EXAONE 4",
    "cohere2": "Command R7B",
    "starcoder2": "StarCoder 2",
    "falcon": "Falcon, without ALiBi",
    "opt": "OPT",
    "nemotron": "Nemotron, Minitron",
    "qwen3_moe": "Qwen 3, mixtures of experts",
    "mixtral": "Mixtral",
    "deepseek_v3": "DeepSeek V3 and R1, latent attention",
}
# Others that people ask for, and that are refused
NAMED = {
    "bloom": "BLOOM", "gptj": "GPT-J", "gpt_oss": "gpt-oss", "llama4_text": "Llama 4", "qwen3_next": "Qwen 3 Next",
    "falcon_h1": "Falcon H1", "granitemoehybrid": "Granite 4", "mamba": "Mamba", "mamba2": "Mamba 2", "rwkv": "RWKV",
    "recurrent_gemma": "RecurrentGemma", "jamba": "Jamba", "bamba": "Bamba", "zamba2": "Zamba 2",
}  # fmt: skip


def verdict(kind: str) -> str:
    config = CONFIG_MAPPING[kind]().get_text_config()
    try:
        check_layers(Path(kind), config)
    except EngineError as error:
        return str(error).removeprefix(f"{kind}: ")
    return "opens"


def table() -> str:
    refused: dict[str, list[str]] = {}
    for kind, models in NAMED.items():
        refused.setdefault(verdict(kind).partition(";")[0].replace(f" ({kind})", ""), []).append(_named(kind, models))
    rows = [("verified", ", ".join(_named(kind, models) for kind, models in VERIFIED.items()))]
    rows += [(f"refused: {why}", ", ".join(kinds)) for why, kinds in refused.items()]
    return "| | `model_type` |\n|---|---|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _named(kind: str, models: str) -> str:
    same = re.sub(r"\W|_", "", models).lower() == kind.replace("_", "")
    return f"`{kind}`" if same else f"`{kind}` ({models})"


def page(text: str) -> str:
    """The page with today's table."""
    return FENCE.sub(lambda match: match[1] + table() + match[2], text)


def main() -> None:
    logging.set_verbosity_error()
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    print(f"{PAGE.name}: written")


if __name__ == "__main__":
    main()
