"""A bundle unpacked, and what several checks ask of it: manifests, journals, the suite, the cells that it must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness.errors import StoreError, SuiteError
from harness.session.cell.manifests import Base
from harness.store.foreign import import_results
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, SuiteFile, read_manifest, read_suite
from harness.submission.container import About, BundleError
from harness.suite.cells import NO_IDENTITY, Cell, Identity, expand
from harness.suite.load import resolve
from harness.suite.schema import ModelGroup, Suite, Variant

Label = tuple[str, str, int]
ORIGIN = "submitted"


@dataclass
class Evidence:
    """bundle: the file. name: the one that its content has. root: where it is unpacked; scratch: a results folder into which
    `harness import` has taken it over, row by row."""

    bundle: Path
    about: About
    name: str
    root: Path
    scratch: Path

    @property
    def suite(self) -> str:
        return self.about.suite

    @property
    def folder(self) -> Path:
        return self.root / self.suite

    def place(self, *parts: str) -> str:
        """Where in the bundle something stands, for messages."""
        return ": ".join([str(self.bundle), *parts])

    def take(self) -> None:
        """Everything through the importer; what it refuses, the whole bundle is refused for."""
        report = import_results(self.root, self.scratch, ORIGIN)
        if report.refused:
            raise BundleError("schema", self.bundle, report.refused[0].replace(f"{self.root}/", ""))

    @cached_property
    def file(self) -> SuiteFile:
        try:
            return read_suite(self.folder, self.folder / "suite.json")
        except StoreError as error:
            raise BundleError("schema", self.bundle, str(error).replace(f"{self.root}/", "")) from None

    @cached_property
    def resolved(self) -> Suite:
        """The suite of `suite.json`, validated as any other."""
        try:
            return resolve(self.file.config, (), self.place(f"{self.suite}/suite.json: config"))
        except SuiteError as error:
            raise BundleError(
                "suite", self.place(f"{self.suite}/suite.json: config.{error.path}"), error.problem
            ) from None

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """By folder."""
        return {f.parent.name: read_manifest(f.parent) for f in sorted(self.folder.glob("*/manifest.json"))}

    @cached_property
    def cells(self) -> dict[Label, Manifest]:
        """By what they say they are. Raises BundleError where two say the same."""
        found: dict[Label, Manifest] = {}
        for key, manifest in self.manifests.items():
            if manifest.kind == "cell":
                label = manifest.group, manifest.regime, manifest.seed or 0
                if label in found:
                    raise BundleError("keys", self.place(f"{key}/manifest.json"), f"a second cell {named(label)}")
                found[label] = manifest
        return found

    @cached_property
    def bases(self) -> list[Manifest]:
        return [manifest for manifest in self.manifests.values() if manifest.kind == "base"]

    @cached_property
    def derived(self) -> list[Cell]:
        """The suite's cells with their keys, under the identities that the manifests state."""
        first = {(group, regime): manifest.identity for (group, regime, _), manifest in reversed(self.cells.items())}

        def identity(group: ModelGroup, variant: Variant) -> Identity:
            return first.get((group.name, variant.name), NO_IDENTITY)

        return expand(self.resolved, identity)

    def derived_bases(self) -> Iterator[tuple[Base, Manifest | None]]:
        """Every base checkpoint of the suite, and the manifest that says it is that one."""
        suite = self.resolved
        stated = {(m.group, m.policies[0].name, m.seed): m for m in self.bases}
        for group in suite.groups:
            for policy in group.policies:
                for seed in suite.seeds if policy.stage0 is not None and policy.stage0.per_seed else [None]:
                    manifest = stated.get((group.name, policy.name, seed))
                    yield Base(suite, group, policy, seed, manifest.identity if manifest else NO_IDENTITY), manifest

    def tables(self, key: str) -> dict[str, pa.Table]:
        """A cell's journal."""
        return read_journal(self.folder / key).tables


def named(label: Label) -> str:
    """As `--only` matches it."""
    return "/".join(map(str, label))


def plain(value: object) -> Any:
    """Structs as what JSON makes of them, for comparisons."""
    return msgspec.json.decode(msgspec.json.encode(value))
