"""`harness submit-check`: a bundle's checks in order, and taking it over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from harness.errors import HarnessError, PluginError, StoreError, SuiteError, UsageError
from harness.learning import registry
from harness.store.foreign import bounded, import_results
from harness.store.journal import read_journal
from harness.store.manifest import Submission, read_submission, read_suite, write_submission
from harness.store.text import visible
from harness.submission import evidence
from harness.submission.bundle import compact
from harness.submission.evidence import Evidence
from harness.submission.rerun import RerunRequest, re_execute
from harness.suite.load import resolve
from harness.suite.schema import Suite, Variant
from harness.tuning.derived import tuned_from

# What reading a bundle may take
MEMORY = 1 << 30
# In this order; what follows makes no sense after a refusal
FIRST: dict[str, Callable[[Evidence], str]] = {
    "container": Evidence.container,
    "schema": evidence.schema,
    "suite": evidence.suite,
    "seeds": evidence.seeds,
    "keys": evidence.keys,
}
THEN: dict[str, Callable[[Evidence], str]] = {
    "provenance": evidence.provenance,
    "text": evidence.text,
    "questions": evidence.questions,
    "steps": evidence.steps,
    "cells": evidence.cells,
    "verdicts": evidence.verdicts,
    "table": evidence.table,
    "a/a": evidence.noise_floor,
    "foreign": evidence.foreign,
}


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """words: what was read, or the reason, which begins with the fault's place."""

    check: str
    good: bool
    words: str


class BundleReport(msgspec.Struct, kw_only=True):
    """submission: how far it may be believed; None where it is refused."""

    bundle: str
    lines: list[CheckResult] = []
    submission: Submission | None = None

    @property
    def refused(self) -> str:
        return next((line.words for line in self.lines if not line.good), "")

    def describe(self) -> str:
        width = max(len(line.check) for line in self.lines)
        lines = [
            f"{'ok     ' if x.good else 'REFUSED'}  {x.check:{width}}  {visible(x.words, 600)}" for x in self.lines
        ]
        end = "refused" if self.submission is None else f"accepted: {self.submission.describe()}"
        return "\n".join([*lines, f"{visible(self.bundle)}: {visible(end)}"])

    def add(self, name: str, check: Callable[[], str]) -> bool:
        try:
            line = CheckResult(check=name, good=True, words=check())
        except (HarnessError, MemoryError, RecursionError) as error:
            line = CheckResult(check=name, good=False, words=str(error) or "more memory than a check may take")
        self.lines.append(line)
        return line.good


@contextmanager
def checked(bundle: Path, results: Path, again: RerunRequest | None = None) -> Iterator[tuple[Evidence, BundleReport]]:
    """The bundle in a temporary folder, and its report. results: our own, left alone."""
    report = BundleReport(bundle=str(bundle))
    with tempfile.TemporaryDirectory(prefix="submit-check-") as place:
        e = Evidence(bundle, results, Path(place))
        with bounded(MEMORY):
            good = all(report.add(name, partial(check, e)) for name, check in FIRST.items())
        if good:
            with bounded():
                for name, check in THEN.items():
                    report.add(name, partial(check, e))
        trained: dict[str, str] = {}
        if again is not None and not report.refused:
            try:
                trained = re_execute(e, again)
            except HarnessError as error:
                report.lines.append(CheckResult(check="re-execution", good=False, words=str(error)))
        for label, how in trained.items():
            report.lines.append(CheckResult(check="re-execution", good=True, words=f"{label}: {how}"))
        if not report.refused:
            report.submission = Submission(
                badge="re-executed" if trained else "re-scored",
                category=category(e.resolved),
                bundle=e.name,
                re_executed=tuple(trained),
            )
        yield e, report


def take_bundle(
    bundle: Path, results: Path, origin: str | None, again: RerunRequest | None = None
) -> tuple[BundleReport, Path | None]:
    """Into results/<suite>@<origin>, by default its name's digest; the folder is None where it is refused. Raises
    UsageError, StoreError, DiskFullError."""
    with checked(bundle, results, again) as (e, report):
        if report.submission is None:
            return report, None
        label = origin or e.name.removeprefix(f"{e.suite}-").removesuffix(".zip")
        target = results / f"{e.suite}@{label}"
        before = read_submission(target)
        if before is not None and before.bundle != e.name:
            raise UsageError(f"{target}: holds {before.bundle or 'a folder that was imported'}; give another --origin")
        with bounded():
            for folder in (target / key for key in e.manifests if (target / key / "manifest.json").is_file()):
                if e.tables(folder.name) != compact(read_journal(folder).tables):
                    raise UsageError(f"{folder}: is here already with other rows; give another --origin")
            import_results(e.root, results, label, e.name)
        if before is None or before.badge != "re-executed":
            write_submission(target, report.submission)
        return report, target


def mark_reported(results: Path, label: str) -> None:
    """Only its form was checked. Raises DiskFullError, StoreError."""
    for folder in sorted(results.glob(f"*@{label}")):
        if folder.is_dir() and read_submission(folder) is None:
            about = ""
            with suppress(SuiteError, StoreError):
                about = category(resolve(read_suite(folder).config, (), str(folder)))
            write_submission(folder, Submission(category=about))


def category(suite: Suite) -> str:
    """Whose settings the suite's regimes have, without the baseline's."""
    tuned = [f"tuned (budget {suite.tune.trials})"] if suite.tune is not None else []
    parts: dict[str, dict[str, None]] = {kind: {} for kind in (PUBLISHED, UNPUBLISHED, OWN, ABSENT)}
    for variant in suite.regimes:
        if kind := _whose(variant, suite):
            parts[kind][variant.name if kind in (OWN, ABSENT) else variant.regime] = None
    return (
        "; ".join([*tuned, *(f"{kind}: {', '.join(names)}" for kind, names in parts.items() if names)])
        or "the baseline alone"
    )


PUBLISHED, UNPUBLISHED = "published defaults", "unpublished defaults"
OWN, ABSENT = "settings of their own", "not installed here"


def _whose(variant: Variant, suite: Suite) -> str:
    """Empty for tuned copies and the baseline."""
    if variant.regime not in registry.installed():
        return ABSENT
    if suite.tune is not None and tuned_from(variant.name, {v.name for v in suite.regimes}):
        return ""
    try:
        regime = registry.load(variant.regime)
        default = registry.resolved(registry.build(variant.regime, {}).options)
        published, same = bool(regime.published), {**default, **variant.options} == default
    except (PluginError, UsageError):
        published, same = False, not variant.options
    if variant.training is not None or not same:
        return OWN if variant.name != suite.baseline else ""
    plain = next(v.regime for v in suite.regimes if v.name == suite.baseline)
    return "" if variant.regime == plain else PUBLISHED if published else UNPUBLISHED
