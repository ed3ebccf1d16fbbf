"""A suite's cells and base checkpoints with their states: what a run still has to do, and what `harness status` says. No
torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from harness.errors import StoreError
from harness.session.cell.log import LOG
from harness.session.cell.manifests import BaseCheckpoint, suite_file
from harness.session.suite.changes import describe_changes, read_forerunners
from harness.session.suite.identity import describe_models
from harness.session.suite.lock import keys_held
from harness.session.suite.resolved import ResolvedSuite
from harness.store.cell_state import CellFolder, CellState, read_cell_folder, read_state, state_of
from harness.store.diagnosis import damages_by_key, read_damages
from harness.store.manifest import Manifest, SuiteFile, read_suite, suite_files, write_suite
from harness.store.read import Snapshot
from harness.store.remarks import describe_mixed_processors
from harness.suite.cells import Cell, Identity
from harness.suite.schema import FileTask, Suite


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `harness status`. reason: of a failure, or why the cell is run anew. log: of its newest start."""

    key: str
    regime: str
    group: str
    seed: int | None
    state: str
    reason: str
    attempts: int
    suite: str
    log: str
    identity: Identity | None = None

    @property
    def label(self) -> str:
        """`group/regime/seed`, or the key where the manifest that would tell them cannot be read."""
        seed = "" if self.seed is None else f"/{self.seed}"
        if self.regime:
            return f"{self.group}/{self.regime}{seed}"
        return f"{self.group}{seed}" or self.key


@dataclass(frozen=True, slots=True)
class StoredCells:
    """What the folders of cells and bases said at one moment, by key. damages: what the store knows of their journals, and, by
    the empty key, of the suite's own file. in_store: whether the store had all this then."""

    folders: Mapping[str, CellFolder]
    states: Mapping[str, CellState]
    damages: Mapping[str, str]
    in_store: bool = False

    def manifest(self, key: str) -> Manifest | None:
        """Return a cell's manifest, or None where it was not started or cannot be read."""
        return self.folders[key].manifest if key in self.folders else None


def read_stored_cells(
    folder: Path, keys: Iterable[str], damages: Mapping[str, str], before: StoredCells | None = None
) -> StoredCells:
    """Read the folders of cells once and compute their states.

    damages: what the store knows of journals, by key. before: the reading from before a run laid its claim. Between the two another
    run may have trained a cell anew. Its manifest has changed then, and the damage that the store knew was that of the old journal,
    so it is dropped."""
    folders = {key: read_cell_folder(f"{folder}/{key}") for key in keys}
    held = keys_held(folder)
    states = {}
    for key, found in folders.items():
        changed = before is not None and before.manifest(key) != found.manifest
        states[key] = state_of(found, key in held, "" if changed else damages.get(key, ""))
    return StoredCells(folders, states, damages)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A suite ready to be planned and run. all_cells: of the suite; cells: those of them that were asked for. altered: settings
    other than as written. bases_of_other_shards: keys of base checkpoints that other shards measure. stored: states as
    `with_states` read them; None reads each state when it is asked for."""

    resolved: ResolvedSuite
    folder: Path
    all_cells: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    bases: tuple[BaseCheckpoint, ...]
    altered: tuple[str, ...]
    bases_of_other_shards: frozenset[str] = frozenset()
    stored: StoredCells | None = None

    @property
    def suite(self) -> Suite:
        """The suite as its cells have it: validated, with files and models pinned."""
        return self.resolved.suite

    @property
    def source(self) -> str:
        """Where the suite was read: a file, or the folder of its results."""
        return self.resolved.source

    @property
    def has_files(self) -> bool:
        """Whether a task of training or evaluation is a file of the user's own."""
        tasks = [*self.suite.training.tasks, *self.suite.evaluation.tasks]
        return any(isinstance(task, FileTask) for task in tasks)

    def with_states(self, snapshot: Snapshot | None = None) -> Prepared:
        """Read all states once, for all that one command asks of them. snapshot: the store, brought up to date by the caller;
        without one the store is brought up to date here, unless no cell was ever started."""
        keys = [*(cell.key for cell in self.cells), *(base.key for base in self.bases)]
        stored = read_stored_cells(self.folder, keys, {})
        if all(state.state == "pending" for state in stored.states.values()):
            return replace(self, stored=stored)
        if snapshot is None:
            damages, in_store = read_damages(self.folder.parent, self.suite.name)
        else:
            damages = damages_by_key(snapshot, self.suite.name)
            in_store = True
        if damages:
            stored = read_stored_cells(self.folder, keys, damages)
        return replace(self, stored=replace(stored, in_store=in_store))

    def with_states_under_claim(self) -> Prepared:
        """Read the cells' folders again after the run has laid its claim.

        Two runs of one suite could else train a cell twice: one reads the states while the other still has the cell, and lays
        its claim when the other has ended. The cell is free by then and, by what was read, still to be done. Under the claim
        nobody else writes these folders. The store is not read again: that takes longer, and tells nothing newer of them."""
        before = self.stored
        if before is None:
            return self.with_states()
        return replace(self, stored=read_stored_cells(self.folder, before.states, before.damages, before))

    def state(self, key: str) -> CellState:
        """Return the state of a cell or a base checkpoint."""
        if self.stored is None:
            return read_state(f"{self.folder}/{key}")
        return self.stored.states[key]

    def statuses(self) -> list[CellStatus]:
        """Return a line of `harness status` for each cell. A pending cell that ran under another key says why it is to be run
        anew."""
        states = {cell.key: self.state(cell.key) for cell in self.cells}
        before: Mapping[tuple[str, str, int | None], Manifest] = {}
        if any(state.state == "pending" for state in states.values()):
            before = read_forerunners(
                self.folder, {*(cell.key for cell in self.all_cells), *self._keys_of_altered_runs()}
            )
        # `with_states` has already called cells without a living run "cut off"; states that are read one by one have not
        held = keys_held(self.folder) if self.stored is None else None
        statuses = []
        for cell in self.cells:
            state, reason, attempts = states[cell.key]
            if held is not None and state == "running" and cell.key not in held:
                state = "cut off"
            older = before.get((cell.group.name, cell.variant.name, cell.seed))
            if state == "pending" and older is not None:
                reason = describe_changes(cell, older)
            log = f"{self.folder}/{cell.key}/{LOG}"
            statuses.append(
                CellStatus(
                    key=cell.key, regime=cell.variant.name, group=cell.group.name, seed=cell.seed, state=state, reason=reason,
                    attempts=attempts, suite=cell.suite, log=log if os.path.exists(log) else "", identity=cell.identity,
                )
            )  # fmt: skip
        return statuses

    def _keys_of_altered_runs(self) -> set[str]:
        """List the keys of cells that ran with other settings (`--set`): no older versions of this suite's cells."""
        keys = set[str]()
        for file in suite_files(self.folder):
            with suppress(StoreError):
                run = read_suite(self.folder, file)
                if run.altered:
                    keys |= {*run.cells}
        return keys

    def suite_file(self) -> SuiteFile:
        """Return what `suite.json`, or an altered run's file, says of this suite."""
        return suite_file(self.suite, self.all_cells, self.bases, self.altered)

    def write_suite_file(self) -> bool:
        """Write the suite's file unless it is there as it should be; returns whether it was written. An altered run's file is
        always written, for the newest one is shown. Raises DiskFullError, StoreError."""
        file = self.suite_file()
        with suppress(StoreError):
            before = read_suite(self.folder, self.folder / "suite.json")
            # The same claims keep the time at which they were first stated
            if before.claims.digest == file.claims.digest:
                file = msgspec.structs.replace(file, claims=before.claims)
            if not self.altered and before == file:
                return False
        write_suite(self.folder, file)
        return True

    def pending_cells(self) -> list[Cell]:
        """Return the cells that are not done; failed ones are tried again."""
        return [cell for cell in self.cells if self.state(cell.key).state != "done"]

    def done_cells(self) -> list[Cell]:
        """Return the cells that are done."""
        return [cell for cell in self.cells if self.state(cell.key).state == "done"]

    def missing_bases(self) -> list[BaseCheckpoint]:
        """Return the base checkpoints that a cell needs, done or not, and that are not measured yet."""
        needed = {base.key: base for cell in self.cells for base in self.bases_of(cell)}
        return [base for base in needed.values() if self.state(base.key).state != "done"]

    def cells_to_run(self) -> list[Cell]:
        """Return the pending cells, and one cell for each missing base of a group whose cells are all done."""
        remaining = self.pending_cells()
        for base in self.missing_bases():
            if not any(base.group.name == cell.group.name for cell in remaining):
                remaining.append(next(cell for cell in self.cells if base.needed_by(cell)))
        return remaining

    def describe_inputs(self) -> list[str]:
        """Return remarks on models, training pool and machines of what is stored, and on damage of the suite's own file."""
        stored = self.stored
        if stored is None:
            return self.with_states().describe_inputs()
        manifests = [manifest for cell in self.cells if (manifest := stored.manifest(cell.key)) is not None]
        remarks = describe_models(self.suite, manifests)
        if self.suite.engine_options.get("numerics") != "portable":  # else rows are the same on every machine
            remarks.append(describe_mixed_processors((m.group, m.seed, m.provenance.machine) for m in manifests))
        remarks.append(stored.damages.get("", ""))
        return [remark for remark in remarks if remark]

    def bases_of(self, cell: Cell) -> list[BaseCheckpoint]:
        """Return the base checkpoints that this cell needs and this shard measures."""
        return [base for base in self.bases if base.needed_by(cell) and base.key not in self.bases_of_other_shards]

    def keys(self) -> set[str]:
        """Return the keys of the cells asked for and of their bases: what a run claims."""
        own = {cell.key for cell in self.cells}
        return own | {base.key for cell in self.cells for base in self.bases_of(cell)}
