"""What a cell's or a base checkpoint's manifest says, and its changes of state."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import StoreError
from harness.session.provenance import now, stamp
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    State,
    SuiteFile,
    VariantEntry,
    read_manifest,
    write_manifest,
)
from harness.suite.cells import Cell, digest
from harness.suite.schema import Group, Policy, Suite, Variant


@dataclass(frozen=True, slots=True)
class Base:
    """A start checkpoint that a suite evaluates once. `seed` is None where all seeds share it."""

    suite: Suite
    group: Group
    policy: Policy
    seed: int | None
    sources: str

    @property
    def key(self) -> str:
        """Folder name under the suite's results."""
        evaluation = self.suite.evaluation.model_dump(mode="json")
        return "base-" + digest(
            self.group.name, self.policy.model_dump(mode="json"), self.seed, evaluation, self.sources
        )


def variant_options(variant: Variant) -> dict[str, Any]:
    """Every setting of a variant besides its name and budget: what must agree for a budget-matched baseline."""
    sharing = variant.sharing.model_dump(mode="json") if variant.sharing else None
    own = {
        "sampling_stream": variant.sampling_stream,
        "sharing": sharing,
        "replay": variant.replay.model_dump() if variant.replay else None,
    }
    return {**variant.options, **{k: v for k, v in own.items() if v}}


def cell_manifest(cell: Cell) -> Manifest:
    return Manifest(
        suite=cell.suite,
        key=cell.key,
        group=cell.group.name,
        regime=cell.variant.name,
        regime_type=cell.variant.regime,
        seed=cell.seed,
        budget=cell.variant.budget,
        options=variant_options(cell.variant),
        engine=cell.engine,
        baseline=cell.baseline,
        policies=tuple(_entry(p) for p in cell.group.policies),
        config=cell.config(),
    )


def base_manifest(base: Base) -> Manifest:
    return Manifest(
        kind="base",
        suite=base.suite.name,
        key=base.key,
        group=base.group.name,
        seed=base.seed,
        engine=base.suite.engine,
        baseline=base.suite.baseline,
        policies=(_entry(base.policy),),
    )


def suite_file(suite: Suite, cells: list[Cell]) -> SuiteFile:
    return SuiteFile(
        name=suite.name,
        title=suite.title,
        baseline=suite.baseline,
        engine=suite.engine,
        variants=tuple(
            VariantEntry(name=v.name, regime_type=v.regime, budget=v.budget, options=variant_options(v))
            for v in suite.regimes
        ),
        groups=tuple(g.name for g in suite.groups),
        seeds=tuple(suite.seeds),
        cells=tuple(c.key for c in cells),
        config=suite.model_dump(mode="json"),
    )


def mark(folder: Path, manifest: Manifest, state: State, reason: str = "", attempts: int = 0) -> None:
    """Write the manifest with its new state; provenance keeps the first start and, for a finished cell, the end."""
    started = now()
    if (folder / "manifest.json").exists():
        with contextlib.suppress(StoreError):
            started = read_manifest(folder).provenance.started or started
    provenance = stamp(manifest.engine, started, now() if state in {"done", "failed"} else "")
    write_manifest(
        folder,
        msgspec.structs.replace(manifest, state=state, reason=reason, attempts=attempts, provenance=provenance),
    )


def state_of(folder: Path) -> tuple[str, str, int]:
    """(state, reason, attempts) of a cell's folder; a cell that left no manifest is pending."""
    try:
        found = read_manifest(folder)
    except StoreError as error:
        return ("failed", str(error), 0) if (folder / "manifest.json").exists() else ("pending", "", 0)
    return found.state, found.reason, found.attempts


def _entry(policy: Policy) -> PolicyEntry:
    return PolicyEntry(policy.name, policy.model, policy.revision or "")
