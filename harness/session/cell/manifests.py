"""What a cell's or a base checkpoint's manifest says, and its changes of state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import Fault, StoreError
from harness.session.cell.provenance import now, stamp
from harness.session.policy.weights import loaded_commit
from harness.store.fence import Guard
from harness.store.manifest import (
    MANIFEST,
    Manifest,
    PolicyEntry,
    State,
    SuiteFile,
    VariantEntry,
    read_manifest,
    write_manifest,
)
from harness.suite.cells import Cell, Identity, digest, keyed, placeless
from harness.suite.schema import ModelGroup, Policy, Suite, Variant


@dataclass(frozen=True, slots=True)
class Base:
    """A start checkpoint that a suite evaluates once. `seed` is None where all seeds share it; key: its folder's name under the
    suite's results."""

    suite: Suite
    group: ModelGroup
    policy: Policy
    seed: int | None
    identity: Identity
    key: str = field(init=False)

    def __post_init__(self) -> None:
        evaluation = self.suite.evaluation.model_dump(mode="json")
        evaluation["tasks"] = [placeless(task) for task in evaluation["tasks"]]
        found = digest(
            self.group.name,
            keyed(self.policy.model_dump(mode="json")),
            self.seed,
            evaluation,
            msgspec.to_builtins(self.identity),
        )
        object.__setattr__(self, "key", f"base-{found}")

    def needed_by(self, cell: Cell) -> bool:
        return self.group.name == cell.group.name and self.seed in (None, cell.seed)


def variant_options(variant: Variant) -> dict[str, Any]:
    """Every setting of a variant besides its name and budget: what must agree for a budget-matched baseline."""
    sharing = variant.sharing.model_dump(mode="json") if variant.sharing else None
    own = {
        "sampling_stream": variant.sampling_stream,
        "sharing": sharing,
        "replay": variant.replay.model_dump() if variant.replay else None,
        "training": variant.training.model_dump(exclude_none=True) if variant.training else None,
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
        identity=cell.identity,
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
        identity=base.identity,
    )


def with_commits(manifest: Manifest, bases: Mapping[str, Path], precision: Mapping[str, str] = {}) -> Manifest:
    """The manifest with the hub commits that were loaded, as far as the policies' folders tell, and what they compute in."""
    entries = (
        PolicyEntry(e.name, e.model, loaded_commit(bases[e.name]) or e.revision, precision.get(e.name, ""))
        if e.name in bases
        else e
        for e in manifest.policies
    )
    return msgspec.structs.replace(manifest, policies=tuple(entries))


def suite_file(
    suite: Suite, cells: Sequence[Cell], bases: Sequence[Base] = (), altered: Sequence[str] = ()
) -> SuiteFile:
    """altered: the settings by which the suite differs from the one as written."""
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
        bases=tuple(b.key for b in bases),
        altered=tuple(altered),
        config=suite.model_dump(mode="json"),
    )


def mark(
    folder: Path,
    manifest: Manifest,
    state: State,
    reason: str = "",
    attempts: int = 0,
    guard: Guard = nullcontext,
    fault: Fault | None = None,
) -> None:
    """Write the manifest with its new state; it keeps the first start and what was noted of the training pool."""
    started, pool = now(), manifest.pool
    if (folder / "manifest.json").exists():
        with contextlib.suppress(StoreError):
            before = read_manifest(folder)
            started, pool = before.provenance.started or started, pool or before.pool
    versions = manifest.identity.versions
    provenance = stamp(versions, started, now() if state in {"done", "failed"} else "")
    write_manifest(
        folder,
        msgspec.structs.replace(
            manifest, state=state, reason=reason, fault=fault, attempts=attempts, provenance=provenance, pool=pool
        ),
        guard,
    )


def cut_off(folder: Path, states: Container[State] = ("running",)) -> None:
    """Note that nobody runs this job any more. states: what the manifest may say now; any other stays."""
    with contextlib.suppress(StoreError):
        found = read_manifest(folder)
        if found.state in states:
            write_manifest(folder, msgspec.structs.replace(found, state="cut off", reason="", fault=None))


def state_of(folder: Path | str) -> tuple[str, str, int]:
    """(state, reason, attempts) of a cell's folder; a cell that left no manifest is pending."""
    try:
        found = read_manifest(folder)
    except StoreError as error:
        return ("failed", str(error), 0) if os.path.exists(f"{folder}/{MANIFEST}") else ("pending", "", 0)
    return found.state, found.reason, found.attempts


def _entry(policy: Policy) -> PolicyEntry:
    return PolicyEntry(policy.name, policy.model, policy.revision or "")
