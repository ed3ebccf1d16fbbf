"""`harness submit-check`: the checks of a bundle in their order, and taking the bundle over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from harness.errors import HarnessError, PluginError, StoreError, SuiteError, UsageError
from harness.learning import registry
from harness.store.imported_results import import_results, limit_import_memory
from harness.store.journal import read_journal
from harness.store.manifest import Submission, read_submission, read_suite, write_submission
from harness.store.rows import without_nan
from harness.store.text import visible
from harness.submission.bundle import select_tables
from harness.submission.proofs import CONTAINER_CHECKS, CONTENT_CHECKS, SubmittedBundle
from harness.submission.rerun import RerunRequest, re_execute
from harness.suite.load import parse_suite
from harness.suite.schema import Suite, Variant
from harness.tuning.derived import tuned_from

# Bytes of memory that reading a bundle may take
MEMORY = 1 << 30


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """words: what was read, or the reason of a refusal, which begins with the fault's place."""

    check: str
    good: bool
    words: str


class BundleReport(msgspec.Struct, kw_only=True):
    """A line per check. submission: how far the bundle may be believed; None where it is refused."""

    bundle: str
    lines: list[CheckResult] = []
    submission: Submission | None = None

    @property
    def refused(self) -> str:
        """The first reason of a refusal, or empty."""
        return next((line.words for line in self.lines if not line.good), "")

    def describe(self) -> str:
        """Return the report as lines for people."""
        width = max(len(line.check) for line in self.lines)
        lines = []
        for line in self.lines:
            lines.append(f"{'ok     ' if line.good else 'REFUSED'}  {line.check:{width}}  {visible(line.words, 600)}")
        end = "refused" if self.submission is None else f"accepted: {self.submission.describe()}"
        return "\n".join([*lines, f"{visible(self.bundle)}: {visible(end)}"])

    def run_check(self, name: str, check: Callable[[], str]) -> bool:
        """Run one check and add its line; say whether it is good."""
        try:
            line = CheckResult(check=name, good=True, words=check())
        except (HarnessError, MemoryError, RecursionError) as error:
            line = CheckResult(check=name, good=False, words=str(error) or "more memory than a check may take")
        self.lines.append(line)
        return line.good


@contextmanager
def check_bundle(
    bundle: Path, results: Path, again: RerunRequest | None = None
) -> Iterator[tuple[SubmittedBundle, BundleReport]]:
    """Check a bundle; give it, in a temporary folder, and its report.

    results: our own, in which nothing changes. again: which cells to train again.
    """
    report = BundleReport(bundle=str(bundle))
    with tempfile.TemporaryDirectory(prefix="submit-check-") as place:
        submitted = SubmittedBundle(bundle, Path(place))
        with limit_import_memory(MEMORY):
            good = all(report.run_check(name, partial(check, submitted)) for name, check in CONTAINER_CHECKS.items())
        if good:
            with limit_import_memory():
                for name, check in CONTENT_CHECKS.items():
                    report.run_check(name, partial(check, submitted))
            report.run_check("known", lambda: _count_known(submitted, results))
        trained: dict[str, str] = {}
        if again is not None and not report.refused:
            try:
                trained = re_execute(submitted, again)
            except HarnessError as error:
                report.lines.append(CheckResult(check="re-execution", good=False, words=str(error)))
        for label, words in trained.items():
            report.lines.append(CheckResult(check="re-execution", good=True, words=f"{label}: {words}"))
        if not report.refused:
            report.submission = Submission(
                badge="re-executed" if trained else "re-scored",
                category=describe_settings(submitted.resolved),
                bundle=submitted.opened.name,
                re_executed=tuple(trained),
            )
        yield submitted, report


def _count_known(submitted: SubmittedBundle, results: Path) -> str:
    """Say how many of the bundle's cells were imported before. Refuses nothing."""
    folders = sorted(results.glob(f"{submitted.suite}@*")) if results.is_dir() else []
    known = 0
    for folder in folders:
        known += sum((folder / key / "manifest.json").is_file() for key in submitted.manifests)
    return f"changes nothing in {results}" + (f"; {known} of its cells are there" if known else "")


def take_bundle(
    bundle: Path, results: Path, origin: str | None, again: RerunRequest | None = None
) -> tuple[BundleReport, Path | None]:
    """Check a bundle and take it into results/<suite>@<origin>; by default the origin is the digest in its name.

    The folder is None where the bundle is refused. Raises UsageError where the folder holds something else, StoreError,
    DiskFullError.
    """
    with check_bundle(bundle, results, again) as (submitted, report):
        if report.submission is None:
            return report, None
        name = submitted.opened.name
        label = origin or name.removeprefix(f"{submitted.suite}-").removesuffix(".zip")
        target = results / f"{submitted.suite}@{label}"
        before = read_submission(target)
        if before is not None and before.bundle != name:
            raise UsageError(f"{target}: holds {before.bundle or 'a folder that was imported'}; give another --origin")
        with limit_import_memory():
            for key in submitted.manifests:
                if (target / key / "manifest.json").is_file():
                    here = select_tables(read_journal(target / key).tables)
                    given = {table: without_nan(rows) for table, rows in submitted.tables(key).items()}
                    if given != here:
                        raise UsageError(f"{target / key}: is here already with other rows; give another --origin")
            import_results(submitted.opened.folder, results, label, name)
        if before is None or before.badge != "re-executed":
            write_submission(target, report.submission)
        return report, target


def mark_reported(results: Path, label: str) -> None:
    """Mark the suites of that origin as reported: only their form was checked. Raises DiskFullError, StoreError."""
    for folder in sorted(results.glob(f"*@{label}")):
        if folder.is_dir() and read_submission(folder) is None:
            about = ""
            with suppress(SuiteError, StoreError):
                about = describe_settings(parse_suite(read_suite(folder).config, (), str(folder)))
            write_submission(folder, Submission(category=about))


PUBLISHED, UNPUBLISHED = "published defaults", "unpublished defaults"
OWN, ABSENT = "settings of their own", "not installed here"


def describe_settings(suite: Suite) -> str:
    """Say whose settings the suite's regimes have, without the baseline's."""
    names: dict[str, dict[str, None]] = {kind: {} for kind in (PUBLISHED, UNPUBLISHED, OWN, ABSENT)}
    for variant in suite.regimes:
        kind = _whose_settings(variant, suite)
        if kind:
            names[kind][variant.name if kind in (OWN, ABSENT) else variant.regime] = None
    parts = [f"tuned (budget {suite.tune.trials})"] if suite.tune is not None else []
    parts += [f"{kind}: {', '.join(regimes)}" for kind, regimes in names.items() if regimes]
    return "; ".join(parts) or "the baseline alone"


def _whose_settings(variant: Variant, suite: Suite) -> str:
    """Return whose settings a variant has. Empty for tuned copies, for the baseline, and for other variants of its regime that
    change nothing."""
    if variant.regime not in registry.installed():
        return ABSENT
    if suite.tune is not None and tuned_from(variant.name, {other.name for other in suite.regimes}):
        return ""
    try:
        regime = registry.load(variant.regime)
        default = registry.resolve_options(registry.build(variant.regime, {}).options)
        published = bool(regime.published)
        has_defaults = {**default, **variant.options} == default
    except (PluginError, UsageError):  # a regime without defaults
        published = False
        has_defaults = not variant.options
    if variant.training is not None or not has_defaults:
        return OWN if variant.name != suite.baseline else ""
    baseline = next(other.regime for other in suite.regimes if other.name == suite.baseline)
    if variant.regime == baseline:
        return ""
    return PUBLISHED if published else UNPUBLISHED
