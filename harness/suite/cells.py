"""Cells: the unit of work, of resume and of statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from pydantic import BaseModel

from harness.errors import UsageError
from harness.suite.schema import Evaluation, Keep, ModelGroup, Policy, Sharing, Suite, Training, Variant


class Identity(msgspec.Struct, frozen=True):
    """What keys hash besides the configuration. models: by policy, a micro family, `content DIGEST` of a folder, or a hub name
    with its commit. pool: digest; empty for micro. evaluation: checksums by task. versions: of the packages that compute."""

    models: dict[str, str] = {}
    pool: str = ""
    evaluation: dict[str, str] = {}
    versions: dict[str, str] = {}


NO_IDENTITY = Identity()


@dataclass(frozen=True, slots=True)
class Cell:
    """What decides a cell's result. key: content hash."""

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
        """`group/variant/seed`, as --only matches it."""
        return f"{self.group.name}/{self.variant.name}/{self.seed}"

    @property
    def kind(self) -> str:
        """`group/variant`: cells of one kind take equally long and the same place."""
        return f"{self.group.name}/{self.variant.name}"

    def rollouts(self, policy: Policy) -> int:
        return int((policy.rollouts or self.training.rollouts) * self.variant.factor)

    def config(self) -> dict[str, Any]:
        """Write the configuration as the key hashes it, with models' digests for names. Fast numerics leave no word, so that
        older cells keep their keys."""
        engine_options = dict(self.engine_options)
        if engine_options.get("numerics") == "fast":
            del engine_options["numerics"]
        return {
            "engine": self.engine,
            "engine_options": engine_options,
            "group": self.group.model_dump(mode="json"),
            "variant": self.variant.model_dump(mode="json"),
            "sharing": self.sharing.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
            "seed": self.seed,
        }


def cell_of(fields: Mapping[str, Any]) -> Cell:
    """Make a cell of plain data, such as `Cell.config` with the others. Raises ValueError."""
    return msgspec.convert(fields, Cell, dec_hook=model_of_fields)


def fields_of_model(model: BaseModel) -> Any:
    return model.model_dump(mode="json")


def model_of_fields(kind: type[BaseModel], fields: Any) -> Any:
    """Make a part of a suite of plain data, for msgspec's `dec_hook`. Raises ValueError."""
    return kind.model_validate(fields)


def digest_of(*parts: Any) -> str:
    """Hash JSON-compatible parts; 16 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def policy_as_keyed(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a policy its model's place, for which `Identity.models` stands, and a style that the suite does not set, so
    that older cells keep their keys."""
    left_out = {"model", "revision"}
    if policy.get("style") is None:
        left_out.add("style")
    return {name: value for name, value in policy.items() if name not in left_out}


def cell_key(config: Mapping[str, Any], identity: Identity) -> str:
    """Make the key of a cell with this configuration (`Cell.config`): models and files count by their content, not their
    place."""
    group = dict(config["group"])
    group["policies"] = [policy_as_keyed(policy) for policy in group["policies"]]
    training = dict(config["training"])
    training["task"] = without_place(training["task"])
    evaluation = dict(config["evaluation"])
    evaluation["tasks"] = [without_place(task) for task in evaluation["tasks"]]
    own = {**config, "group": group, "training": training, "evaluation": evaluation}
    return digest_of(own, msgspec.to_builtins(identity))


def without_place(task: Any) -> Any:
    """Leave the place of its file out of a task's configuration; of a mixture's part by part."""
    if isinstance(task, list):
        return [without_place(part) for part in task]
    if isinstance(task, Mapping):
        return {name: value for name, value in task.items() if name != "file"}
    return task


def expand_cells(suite: Suite, identity: Callable[[ModelGroup, Variant], Identity]) -> list[Cell]:
    """Make all cells of a suite, in the order group, seed, regime, so that an interrupted run leaves comparable cells. identity:
    of a variant's cells on a group."""
    cells = []
    for group in suite.groups:
        variants = [variant for variant in suite.regimes if variant.runs_in(group.name)]
        firsts = [_cell_without_seed(suite, group, variant, identity(group, variant)) for variant in variants]
        configs = [first.config() for first in firsts]
        for seed in suite.seeds:
            for first, config in zip(firsts, configs, strict=True):
                key = cell_key({**config, "seed": seed}, first.identity)
                cells.append(replace(first, seed=seed, key=key))
    return cells


def _cell_without_seed(suite: Suite, group: ModelGroup, variant: Variant, identity: Identity) -> Cell:
    """Make a cell of a variant on a group, with seed 0 and no key: what its cells have in common."""
    # The variant's training is in the cell's `training`; where else it runs is nothing to this cell
    own_variant = variant.model_copy(update={"training": None, "only_in": None})
    return Cell(
        suite.name,
        suite.engine,
        suite.engine_options,
        group,
        own_variant,
        variant.sharing or suite.sharing,
        suite.training_of(variant),
        suite.evaluation,
        seed=0,
        key="",
        baseline=suite.baseline,
        identity=identity,
        keep=suite.keep,
    )


def select_cells(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Select the cells whose label or variant a pattern matches; all without patterns. Raises UsageError for a pattern without
    cells."""
    if not only:
        return list(cells)
    labels: set[str] = set()
    for pattern in only:
        matching = [c.label for c in cells if fnmatchcase(c.label, pattern) or fnmatchcase(c.variant.name, pattern)]
        if not matching:
            raise UsageError(f"--only {pattern}: matches none of the suite's cells (they are named group/regime/seed)")
        labels.update(matching)
    return [cell for cell in cells if cell.label in labels]
