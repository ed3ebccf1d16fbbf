"""The models of a drafted suite, as their configs and tokenizers describe them; no weights are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.allocation.shapes import MICRO, load_config, load_shape, precision_of_config
from harness.cache import expand_user
from harness.engines.catalogue import backend_of
from harness.errors import EngineError, UsageError
from harness.session.policy import at_hand
from harness.suite.schema import Suite

# In a hub model's name, where its tokenizer is not here
CHATTY = re.compile(r"(?i)(instruct|chat|(^|[-_])it($|[-_]))")


@dataclass(frozen=True, slots=True)
class DraftedModel:
    """name: of its policy. half: whether its weights are stored in half precision. positions: 0 where its config does not say."""

    name: str
    model: str
    parameters: int
    chat: bool
    half: bool
    positions: int

    @property
    def micro(self) -> bool:
        """Whether it is a micro family, which has no weights before its first run."""
        return self.model.startswith(MICRO)

    def renamed(self, name: str) -> DraftedModel:
        """Return the same under another name."""
        return replace(self, name=name)


def read_model(given: str) -> DraftedModel:
    """Describe a model by its folder, its hub name or its micro family. Raises UsageError."""
    shape = load_shape(given)
    if given.startswith(MICRO):
        return DraftedModel(given.removeprefix(MICRO), given, shape.parameters, chat=False, half=False, positions=0)
    config: Mapping[str, Any] = load_config(given)
    folder = expand_user(given)
    model = str(folder.resolve()) if folder.is_dir() else given
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    name = re.sub(r"[^a-z0-9.+-]+", "-", Path(model).name.lower()).strip("-.+")[:48] or "model"
    return DraftedModel(
        name,
        model,
        shape.parameters,
        chat=_has_chat_template(model),
        half=precision_of_config(config) == "bf16",
        positions=positions if isinstance(positions, int) else 0,
    )


def check_models(suite: Suite) -> None:
    """Refuse what `harness plan` would refuse of the models that are here. Raises UsageError."""
    from harness.engines.vocabulary import open_vocabulary

    for policy in suite.groups[0].policies:
        folder = at_hand(policy)
        if folder is None:
            continue
        try:
            backend_of(suite.engine).check(folder, {})
            vocabulary = open_vocabulary(folder, policy.chat)
        except EngineError as error:
            raise UsageError(f"--models: {error}") from None
        if policy.chat and (fault := vocabulary.template.fault()):
            raise UsageError(f"--models: {policy.model}: {fault}")


def _has_chat_template(model: str) -> bool:
    """Whether a model has a chat template, by its tokenizer where that is here, else by its name."""
    from huggingface_hub import try_to_load_from_cache

    from harness.engines.vocabulary import has_template

    folder = Path(model)
    if not folder.is_dir():
        cached = try_to_load_from_cache(model, "tokenizer_config.json")
        if not isinstance(cached, str):
            return bool(CHATTY.search(model.rsplit("/", 1)[-1]))
        folder = Path(cached).parent
    return has_template(folder)
