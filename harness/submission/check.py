"""`harness submit-check`: what a bundle must withstand. Each check says in one line what it found, or why it refuses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from harness.errors import HarnessError, SuiteError, UsageError
from harness.store.foreign import bounded, import_results
from harness.store.manifest import read_suite, suite_files
from harness.store.submission import Submission, read_submission, write_submission
from harness.store.text import visible
from harness.submission import completeness, origin, recomputed
from harness.submission.category import category
from harness.submission.container import unpack
from harness.submission.evidence import Evidence
from harness.submission.rerun import Again, re_execute
from harness.suite.load import resolve

MEMORY = 1 << 30
"""What reading a bundle may take; then its rows are known, and the store may take what it takes for any import."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One check. words: what it found, or the reason, which begins with the place of the fault."""

    check: str
    good: bool
    words: str


class Report(msgspec.Struct, kw_only=True):
    """A bundle's checks, in order; those that a refusal makes senseless are left out."""

    bundle: str
    lines: list[Line] = []
    submission: Submission | None = None
    """How far it may be believed; None where it is refused."""

    @property
    def refused(self) -> str:
        """The first reason; empty where the bundle is accepted."""
        return next((line.words for line in self.lines if not line.good), "")

    def describe(self) -> str:
        """A line for each check, and what the bundle may be called."""
        width = max(len(line.check) for line in self.lines)
        lines = [
            f"{'ok     ' if x.good else 'REFUSED'}  {x.check:{width}}  {visible(x.words, 600)}" for x in self.lines
        ]
        end = "refused" if self.submission is None else f"accepted: {self.submission.describe()}"
        return "\n".join([*lines, f"{visible(self.bundle)}: {visible(end)}"])


FIRST: dict[str, Callable[[Evidence], str]] = {
    "schema": origin.schema,
    "suite": origin.suite,
    "seeds": origin.seeds,
    "keys": origin.keys,
}
"""In this order; what follows makes no sense after one of them has refused."""
THEN: dict[str, Callable[[Evidence], str]] = {
    "provenance": origin.provenance,
    "text": origin.text,
    "questions": completeness.questions,
    "steps": completeness.steps,
    "cells": completeness.cells,
    "verdicts": completeness.verdicts,
    "table": recomputed.table,
    "a/a": recomputed.noise_floor,
}


@contextmanager
def checked(bundle: Path, results: Path, again: Again | None = None) -> Iterator[tuple[Evidence | None, Report]]:
    """The bundle unpacked in a temporary folder, and its report; None where not even that could be done.

    results: our own, which must not change by taking the bundle over. again: which cells to train again here.
    """
    report = Report(bundle=str(bundle))
    with tempfile.TemporaryDirectory(prefix="submit-check-") as place:
        root, scratch = Path(place) / "bundle", Path(place) / "results"
        root.mkdir()
        scratch.mkdir()
        evidence = None
        try:
            with bounded(MEMORY):
                about, name = unpack(bundle, root)
                evidence = Evidence(bundle, about, name, root, scratch)
                size = f"{bundle.stat().st_size:,} bytes, {len(about.files)} files"
                report.lines.append(Line(check="container", good=True, words=f"{size}, all as stated; content {name}"))
                _judge(report, FIRST, evidence)
            if not report.refused:
                with bounded():
                    _judge(report, {**THEN, "foreign": lambda e: origin.foreign(e, results)}, evidence, go_on=True)
        except (HarnessError, MemoryError) as error:
            report.lines.append(Line(check=getattr(error, "check", "container"), good=False, words=_reason(error)))
        if evidence is not None and not report.refused:
            done: tuple[str, ...] = ()
            if again is not None:
                done = _re_executed(report, evidence, again)
            if not report.refused:
                report.submission = Submission(
                    badge="re-executed" if done else "re-scored",
                    category=category(evidence.resolved),
                    bundle=evidence.name,
                    re_executed=done,
                )
        yield evidence, report


def take_bundle(
    bundle: Path, results: Path, origin_: str | None, again: Again | None = None
) -> tuple[Report, Path | None]:
    """Check the bundle and take it over into results/<suite>@<origin>; the folder is None where it is refused.

    origin_: by default the digest in the bundle's name. Raises UsageError, StoreError, DiskFullError.
    """
    with checked(bundle, results, again) as (evidence, report):
        if evidence is None or report.submission is None:
            return report, None
        label = origin_ or evidence.name.removeprefix(f"{evidence.suite}-").removesuffix(".zip")
        target = results / f"{evidence.suite}@{label}"
        before = read_submission(target)
        if before is not None and before.bundle != evidence.name:
            raise UsageError(f"{target}: holds {before.bundle or 'a folder that was imported'}; give another --origin")
        with bounded():
            origin.foreign(evidence, results, target)
            import_results(evidence.root, results, label)
        if before is None or before.badge != "re-executed":
            write_submission(target, report.submission)
        return report, target


def mark_reported(results: Path, label: str) -> None:
    """Say of what was imported as a folder that nothing of it was checked but its form. Raises DiskFullError, StoreError."""
    for folder in sorted(results.glob(f"*@{label}")):
        if read_submission(folder) is None and suite_files(folder):
            about = ""
            with suppress(SuiteError):
                about = category(resolve(read_suite(folder).config, (), str(folder)))
            write_submission(folder, Submission(category=about))


def _judge(
    report: Report, checks: dict[str, Callable[[Evidence], str]], evidence: Evidence, go_on: bool = False
) -> None:
    for name, check in checks.items():
        try:
            report.lines.append(Line(check=name, good=True, words=check(evidence)))
        except (HarnessError, MemoryError) as error:
            report.lines.append(Line(check=name, good=False, words=_reason(error)))
            if not go_on:
                return


def _re_executed(report: Report, evidence: Evidence, again: Again) -> tuple[str, ...]:
    try:
        found = re_execute(evidence, again)
    except HarnessError as error:
        report.lines.append(Line(check="re-execution", good=False, words=_reason(error)))
        return ()
    report.lines += [Line(check="re-execution", good=True, words=f"{one.label}: {one.words}") for one in found]
    return tuple(one.label for one in found)


def _reason(error: Exception) -> str:
    return str(error) or "more memory than a check may take" if isinstance(error, MemoryError) else str(error)
