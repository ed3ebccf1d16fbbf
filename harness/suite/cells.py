"""Cells: one regime on one group of policies with one seed; the unit of work, of resume and of statistics."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.suite.schema import Evaluation, Group, Sharing, Suite, Training, Variant


@dataclass(frozen=True, slots=True)
class Cell:
    """Everything that decides one cell's result, and the key that is its content hash."""

    suite: str
    engine: str
    engine_options: Mapping[str, Any]
    group: Group
    variant: Variant
    sharing: Sharing
    training: Training
    evaluation: Evaluation
    seed: int
    key: str
    baseline: str = "independent"

    @property
    def label(self) -> str:
        """`group/variant/seed`, what --only matches and people read."""
        return f"{self.group.name}/{self.variant.name}/{self.seed}"

    def rollouts(self, policy_index: int) -> int:
        """Answers per prompt of one policy, budget applied."""
        own = self.group.policies[policy_index].rollouts or self.training.rollouts
        return own * self.variant.factor

    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data: what the key hashes."""
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


def digest(*parts: Any) -> str:
    """16 hexadecimal digits of a hash over JSON-compatible parts."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def expand(suite: Suite, sources: Mapping[str, str], data_revision: str = "") -> list[Cell]:
    """All cells in the order group, seed, regime: a cut-off run leaves comparable cells.

    `sources` maps a regime's name to the hash of the sources that compute its results.
    """
    cells = []
    for group in suite.groups:
        for seed in suite.seeds:
            for variant in suite.regimes:
                cell = Cell(
                    suite.name, suite.engine, suite.engine_options, group, variant, suite.sharing_of(variant),
                    suite.training, suite.evaluation, seed, "", suite.baseline,
                )  # fmt: skip
                cells.append(replace(cell, key=digest(cell.config(), sources[variant.regime], data_revision)))
    return cells


def select(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    """The cells whose label or regime matches the glob."""
    if only is None:
        return list(cells)
    return [c for c in cells if fnmatch.fnmatchcase(c.label, only) or fnmatch.fnmatchcase(c.variant.name, only)]
