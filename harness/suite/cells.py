"""Cells: one regime on one group of policies with one seed; the unit of work, of resume and of statistics."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel

from harness.suite.schema import Evaluation, Keep, ModelGroup, Sharing, Suite, Training, Variant


class Identity(msgspec.Struct, frozen=True):
    """What a result depends on besides its configuration; with that the key hashes it.

    models: what each policy starts from, by its name: a micro family, `content DIGEST` of a local folder, or a hub name with its
    commit. pool: digest of the training pool; empty for micro. evaluation: checksums of the evaluation sets by task.
    versions: results versions of the packages that compute.
    """

    models: dict[str, str] = {}
    pool: str = ""
    evaluation: dict[str, str] = {}
    versions: dict[str, str] = {}


NO_IDENTITY = Identity()


@dataclass(frozen=True, slots=True)
class Cell:
    """Everything that decides one cell's result, and the key that is its content hash."""

    suite: str
    engine: str
    engine_options: Mapping[str, Any]
    group: ModelGroup
    variant: Variant
    sharing: Sharing
    training: Training
    evaluation: Evaluation
    seed: int
    key: str
    baseline: str = "independent"
    identity: Identity = NO_IDENTITY
    keep: Keep = "last"

    @property
    def label(self) -> str:
        """`group/variant/seed`, what --only matches and people read."""
        return f"{self.group.name}/{self.variant.name}/{self.seed}"

    @property
    def kind(self) -> str:
        """`group/variant`: cells of one kind take equally long and the same place."""
        return f"{self.group.name}/{self.variant.name}"

    def rollouts(self, policy_index: int) -> int:
        """Answers per prompt of one policy, budget applied."""
        own = self.group.policies[policy_index].rollouts or self.training.rollouts
        return own * self.variant.factor

    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data: what the key hashes, each model's digest in its name's place."""
        return {
            "engine": self.engine,
            "engine_options": dict(self.engine_options),
            "group": self.group.model_dump(mode="json"),
            "variant": self.variant.model_dump(mode="json"),
            "sharing": self.sharing.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
            "seed": self.seed,
        }


def cell_of(fields: Mapping[str, Any]) -> Cell:
    """A cell from its fields as plain data, such as `Cell.config` with the others beside it. Raises ValueError."""
    return msgspec.convert(fields, Cell, dec_hook=read)


def written(model: Any) -> Any:
    """A part of a suite as plain data, for msgspec's `enc_hook`."""
    if isinstance(model, BaseModel):
        return model.model_dump(mode="json")
    raise NotImplementedError(f"{type(model).__name__} is no part of a suite")


def read(kind: type, fields: Any) -> Any:
    """A part of a suite from plain data, for msgspec's `dec_hook`. Raises ValueError."""
    if issubclass(kind, BaseModel):
        return kind.model_validate(fields)
    raise NotImplementedError(f"{kind.__name__} is no part of a suite")


def digest(*parts: Any) -> str:
    """16 hexadecimal digits of a hash over JSON-compatible parts."""
    return hashlib.blake2b(_text(parts).encode(), digest_size=8).hexdigest()


def _text(parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)


def keyed(policy: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's configuration without where its model lies: `Identity.models` says what it is. A style that nobody chose is no
    part of it: cells from before there were styles keep their keys."""
    left = {"model", "revision", *(("style",) if policy.get("style") is None else ())}
    return {name: value for name, value in policy.items() if name not in left}


def cell_keys(config: Mapping[str, Any], identity: Identity, seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Seeds with the keys of the cells that have this configuration and identity, and nothing else, in common."""
    own = {
        **config,
        "group": {**config["group"], "policies": [keyed(policy) for policy in config["group"]["policies"]]},
        "training": {**config["training"], "task": placeless(config["training"]["task"])},
        "evaluation": {**config["evaluation"], "tasks": [placeless(task) for task in config["evaluation"]["tasks"]]},
    }
    # what `digest` hashes of configuration and identity, cut in two where the seed stands
    before = _text({name: value for name, value in own.items() if name < "seed"})[:-1] + ', "seed": '
    after = ", " + _text({name: value for name, value in own.items() if name > "seed"})[1:]
    started = hashlib.blake2b(f"[{before}".encode(), digest_size=8)
    end = f"{after}, {_text(msgspec.to_builtins(identity))}]"
    for seed in seeds:
        found = started.copy()
        found.update(f"{seed}{end}".encode())
        yield seed, found.hexdigest()


def placeless(task: Any) -> Any:
    """A task without where its file lies: its SHA-256 says what it is."""
    return {name: value for name, value in task.items() if name != "file"} if isinstance(task, Mapping) else task


def expand(suite: Suite, identity: Callable[[ModelGroup, Variant], Identity]) -> list[Cell]:
    """All cells in the order group, seed, regime: a cut-off run leaves comparable cells."""
    cells = []
    for group in suite.groups:
        makes = [
            partial(
                Cell, suite.name, suite.engine, suite.engine_options, group,
                variant.model_copy(update={"training": None}),  # the cell's own `training` holds it
                suite.sharing_of(variant), suite.training_of(variant), suite.evaluation,
                baseline=suite.baseline, identity=identity(group, variant), keep=suite.keep,
            )
            for variant in suite.regimes
        ]  # fmt: skip
        firsts = [make(seed=0, key="") for make in makes]
        keys = [cell_keys(first.config(), first.identity, suite.seeds) for first in firsts]
        for each in zip(*keys, strict=True):
            cells += [make(seed=seed, key=key) for make, (seed, key) in zip(makes, each, strict=True)]
    return cells


def select(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    """The cells whose label or regime matches the glob."""
    if only is None:
        return list(cells)
    return [c for c in cells if fnmatch.fnmatchcase(c.label, only) or fnmatch.fnmatchcase(c.variant.name, only)]
