"""The state of a cell, computed in one place. It depends on the cell's folder, on whether a living run holds the cell, and on the
damage that was found in its journal; on nothing else. The store keeps what these functions found, so that no journal is read twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.errors import Fault, StoreError
from harness.store.manifest import MANIFEST, Manifest, read_manifest, remedy_for

JOURNAL = "journal"


class CellState(NamedTuple):
    """state: of `store.manifest.State`. reason: why it failed, or empty. attempts: how often it was started."""

    state: str
    reason: str
    attempts: int


class CellFolder(NamedTuple):
    """What a cell's folder says. manifest: None where there is none that can be read. damage: why, and what to do; empty where the
    cell was never started."""

    manifest: Manifest | None
    damage: str


PENDING = CellState("pending", "", 0)


def read_cell_folder(folder: Path | str) -> CellFolder:
    """Read the manifest of a cell that may have been started, finished or damaged."""
    try:
        return CellFolder(read_manifest(folder), "")
    except StoreError as error:
        began = any(os.path.exists(f"{folder}/{name}") for name in (MANIFEST, JOURNAL))
        return CellFolder(None, f"{error}; {remedy_for(Path(folder), removed=False)}" if began else "")


def state_of(folder: CellFolder, held: bool = True, journal_damage: str = "") -> CellState:
    """Return the state of a cell. held: whether a living run writes it; without one a running cell is cut off. journal_damage: why
    its journal cannot be read, and what to do."""
    manifest = folder.manifest
    if manifest is None:
        damage = journal_damage or folder.damage  # a damaged journal's remedy is the larger one
        return CellState("failed", damage, 0) if damage else PENDING
    if manifest.state == "running":
        return CellState("running" if held else "cut off", manifest.reason, manifest.attempts)
    if journal_damage:
        return CellState("failed", journal_damage, manifest.attempts)
    return CellState(manifest.state, manifest.reason, manifest.attempts)


def read_state(folder: Path | str) -> CellState:
    """Return the state of one cell from its folder alone: a running cell counts as held, its journal as whole."""
    return state_of(read_cell_folder(folder))


def as_damaged(manifest: Manifest, problem: str, remedy: str) -> Manifest:
    """Return the manifest of a cell whose manifest or journal cannot be read, as the store keeps it."""
    return msgspec.structs.replace(manifest, state="failed", reason=f"{problem}; {remedy}", fault=Fault.DAMAGED)
