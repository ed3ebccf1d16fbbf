"""What is checked of a bundle. Each check returns a line on what it read, and raises UsageError with the fault's place.

Three things prove: keys derive from the configuration, every answer is judged again, and cells are trained again
(`submission.rerun`). The other checks are for the form, which a reader relies on: the container, bounds of rows, no markup in
names, and every cell, question and step that the configuration gives, once. What no check proves is said in docs/submit.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from harness.errors import DataError, PluginError, StoreError, SuiteError, UsageError
from harness.learning import registry
from harness.session.cell.manifests import bases_of, label_of, manifest_of, suite_file
from harness.session.suite.validation import validate_suite
from harness.store.manifest import ORIGIN, Manifest, PolicyEntry, Provenance, SuiteFile, read_sealed, read_suite
from harness.store.results_folder import SUITE, TUNING, ResultsFolder, read_results_folder
from harness.store.rows import PUBLISHED
from harness.store.text import visible
from harness.store.tuning import Tuning
from harness.store.validation import find_tuning_fault
from harness.submission.bundle import WORDLESS, OpenedBundle, compute_table, list_public_tasks, open_bundle
from harness.submission.judging import is_of_our_verifier, judge_again, keep_stated_words
from harness.suite.cells import NO_IDENTITY, Cell, Identity, digest_of, expand_cells
from harness.suite.load import load_suite, parse_suite, shipped_suites
from harness.suite.schema import Suite
from harness.tasks.registry import get_task
from harness.tasks.source import fair_part
from harness.tuning.derived import tuned_from
from harness.verification.verifier import Verifier
from harness.versions import recorded_versions

# How far two labs' clocks may differ
CLOCKS = timedelta(days=1)
# Digits of a number of cores, and seconds that a cell's process may take beside its stated time
MOST_CORE_DIGITS, SPARE_SECONDS = 6, 60
_COMMIT = re.compile(r"([0-9a-f]{40})?")
_MARKUP = re.compile(r"<[A-Za-z/!?]")
# Columns of names and words, which are shown as they are; others hold models' text
_NAMES = {"samples": ("policy", "task", "doc_id", "reason"), "costs": ("phase",)}


@dataclass
class SubmittedBundle:
    """A bundle that is being checked. folder: a temporary one. opened: once its container is checked."""

    bundle: Path
    folder: Path
    opened: OpenedBundle = field(init=False)

    def fault(self, problem: object, *parts: str) -> UsageError:
        """Return the problem at its place, to raise."""
        return UsageError(": ".join([str(self.bundle), *parts, str(problem)]))

    @property
    def root(self) -> Path:
        """A folder of results whose only suite is the bundle's, as reference results."""
        return self.folder / "bundle"

    @cached_property
    def content(self) -> ResultsFolder:
        """The manifests and rows, each within its bounds."""
        try:
            return read_results_folder(self.opened.folder)
        except StoreError as error:
            raise self.fault(str(error).replace(f"{self.opened.folder.parent}/", "")) from None

    @property
    def suite(self) -> str:
        return self.content.index.suite

    @property
    def manifests(self) -> dict[str, Manifest]:
        return self.content.manifests

    def tables(self, key: str) -> dict[str, pa.Table]:
        return dict(self.content.cells[key].tables)

    def rows(self, key: str, table: str) -> list[dict[str, Any]]:
        """Return the rows of a cell's table, none where the cell has no such table."""
        stored = self.content.cells[key].tables.get(table)
        return [] if stored is None else stored.to_pylist()

    @cached_property
    def file(self) -> SuiteFile:
        try:
            return read_suite(self.opened.folder, self.opened.folder / SUITE)
        except StoreError as error:
            raise self.fault(str(error).replace(f"{self.opened.folder.parent}/", "")) from None

    @cached_property
    def resolved(self) -> Suite:
        """The suite that suite.json describes."""
        try:
            suite = parse_suite(self.file.config, (), f"{self.bundle}: {self.suite}/{SUITE}: config")
            suite.model_dump(mode="json")  # fails where an option is nested too deeply
            return suite
        except SuiteError as error:
            raise self.fault(error.problem, f"{self.suite}/{SUITE}: config.{error.path}") from None
        except (ValueError, RecursionError):
            raise self.fault("nested too deeply", f"{self.suite}/{SUITE}: config") from None

    @cached_property
    def stated(self) -> dict[str, Manifest]:
        """The manifests by label (group, regime and seed)."""
        stated: dict[str, Manifest] = {}
        for key, manifest in self.manifests.items():
            if stated.setdefault(label_of(manifest), manifest) is not manifest:
                raise self.fault(f"a second cell {label_of(manifest)}", f"{self.suite}/{key}: manifest")
        return stated

    @cached_property
    def derived(self) -> list[Cell]:
        """The cells that the suite gives, under the identities (weights, pool, versions) that the manifests state."""
        seeds = self.resolved.seeds

        def identity_of(group: Any, variant: Any) -> Identity:
            # All seeds of a regime have one
            return self._stated_identity(*(f"{group.name}/{variant.name}/{seed}" for seed in seeds))

        return expand_cells(self.resolved, identity_of)

    @cached_property
    def expected(self) -> dict[str, Manifest]:
        """What the suite gives, by label: cells, then base checkpoints."""

        def identity_of(group: Any, policy: Any, seed: int | None) -> Identity:
            own = "" if seed is None else f"/{seed}"
            return self._stated_identity(f"base {group.name}/{policy.name}{own}")

        cells = [manifest_of(cell) for cell in self.derived]
        bases = [manifest_of(base) for base in bases_of(self.resolved, identity_of)]
        return {label_of(manifest): manifest for manifest in (*cells, *bases)}

    def _stated_identity(self, *labels: str) -> Identity:
        """Return the identity that the first of these labels states which has a manifest."""
        return next((self.stated[label].identity for label in labels if label in self.stated), NO_IDENTITY)

    def require_same(self, stated: object, right: object, place: str, words: str) -> None:
        """Raise UsageError with the first difference between two values, if any. words: what gives the right one."""
        difference = find_first_difference(_as_json(stated), _as_json(right))
        if difference is not None:
            path, theirs, ours = difference
            raise self.fault(f"{theirs} where {words} {ours}", f"{place}: {path}")


# The form -------------------------------------------------------------------------------------------------------------


def check_container(submission: SubmittedBundle) -> str:
    """Check that the bundle is packed as `harness bundle` does, and open it."""
    place = submission.root / ORIGIN
    place.mkdir(parents=True)
    submission.opened = open_bundle(submission.bundle, place)
    older = ", of an older version's format" if submission.opened.older else ""
    return f"{submission.bundle.stat().st_size:,} bytes{older}; content {submission.opened.name}"


def check_schema(submission: SubmittedBundle) -> str:
    """Check every manifest and row by the rules of an import, and that everything belongs to a cell of the suite."""
    for key, manifest in submission.manifests.items():
        place = f"{submission.suite}/{key}"
        if manifest.suite != submission.suite or manifest.origin:
            raise submission.fault("of another suite, or imported", f"{place}: manifest: suite")
        problem = _find_provenance_fault(manifest.provenance)
        if not problem and manifest.engine == "embedded":
            problem = _find_time_fault(manifest.provenance, submission.rows(key, "costs"))
        if problem:
            raise submission.fault(problem, f"{place}: manifest: provenance")
        tables = submission.tables(key)
        if "samples" not in tables:
            raise submission.fault("no evaluation samples", place)
        for column in WORDLESS:
            if tables["samples"][column].unique().to_pylist() != [""]:
                raise submission.fault("not empty, as in a bundle", f"{place}: samples.{column}")
    stray = sorted(submission.manifests.keys() ^ {*submission.file.cells, *submission.file.bases})
    if stray:
        problem = "no cell of the suite" if stray[0] in submission.manifests else f"absent, though {SUITE} counts it"
        raise submission.fault(problem, f"{submission.suite}/{stray[0]}")
    _check_tuning(submission)
    bases = sum(manifest.kind == "base" for manifest in submission.stated.values())
    return f"{len(submission.stated) - bases} cells and {bases} base checkpoints, every row in its bounds"


def _find_provenance_fault(provenance: Provenance) -> str:
    """Return what of the provenance has another form than a run's, or empty. Its content is not proved."""
    if not _COMMIT.fullmatch(provenance.commit):
        return f"commit: not a commit: {provenance.commit[:60]!a}"
    begin = datetime.fromisoformat(provenance.started)
    end = datetime.fromisoformat(provenance.finished)
    if not begin <= end <= datetime.now(UTC) + CLOCKS:
        return f"started: {provenance.started[:40]!a} to {provenance.finished[:40]!a}: not a time that has passed"
    return ""


def _find_time_fault(provenance: Provenance, costs: Sequence[Mapping[str, Any]]) -> str:
    """Return how the costs of a cell contradict its own provenance, or empty: more CPU-seconds than its cores had in its time.

    A cell is one process of one machine. Times are in whole seconds, and a process starts before its cell: a minute is spare.
    """
    seconds = (datetime.fromisoformat(provenance.finished) - datetime.fromisoformat(provenance.started)).total_seconds()
    spent = sum(row["cpu_seconds"] or 0.0 for row in costs)
    cores = provenance.machine.get("cores", "")
    readable = cores.isascii() and cores.isdigit() and len(cores) <= MOST_CORE_DIGITS
    if readable and spent <= int(cores) * (seconds + SPARE_SECONDS):
        return ""
    return f"machine: {spent:,.0f} CPU-seconds in {seconds:,.0f} s on {cores[:20]!a} cores"


def _check_tuning(submission: SubmittedBundle) -> None:
    """Check that the choice of tuned settings, if there is one, is one that a search makes. Raises UsageError."""
    if TUNING not in submission.content.index.files:
        return
    place = f"{submission.suite}/{TUNING}"
    try:
        tuning = read_sealed(submission.opened.folder / TUNING, Tuning)
    except StoreError as error:
        raise submission.fault(str(error).replace(f"{submission.opened.folder.parent}/", "")) from None
    problem = find_tuning_fault(tuning, {variant.name for variant in submission.file.variants})
    if problem:
        raise submission.fault(problem, place)


def check_text(submission: SubmittedBundle) -> str:
    """Check that no name holds markup or control characters, which a page or a terminal would obey."""
    for place, word in _each_name(submission):
        # Options of an engine are the user's own words; they are shown as code
        is_free = place.split(": ")[1].startswith(("config.engine_options", "engine_options"))
        markup = not is_free and _MARKUP.search(word)
        if markup or visible(word) != word or "\n" in word:
            raise submission.fault(f"{'markup' if markup else 'a control character'} in {word[:60]!a}", place)
    return "no markup or escapes in any name"


def _each_name(submission: SubmittedBundle) -> Iterator[tuple[str, str]]:
    """Yield place and text of every word of the suite's file and the manifests, and of the columns that hold names."""
    documents: list[tuple[str, object]] = [(SUITE, submission.file)]
    documents += [(f"{key}/manifest", manifest) for key, manifest in submission.manifests.items()]
    for name, document in documents:
        for path, leaf in _each_leaf(_as_json(document)):
            for word in (*path, leaf):
                if isinstance(word, str):
                    yield f"{submission.suite}/{name}: {_write_path(path)[:200]}", word
    for key in submission.manifests:
        tables = submission.tables(key)
        for name, columns in _NAMES.items():
            for column in columns if name in tables else ():
                for word in tables[name][column].unique().to_pylist():
                    yield f"{submission.suite}/{key}: {name}.{column}", word
        labels = tables["samples"]["labels"].to_pylist()
        for word in {str(word) for pairs in labels for word in chain(*pairs or ())}:
            yield f"{submission.suite}/{key}: samples.labels", word


# What derives from the configuration ----------------------------------------------------------------------------------


def check_suite(submission: SubmittedBundle) -> str:
    """Check that suite.json agrees with itself, and with a shipped suite of its name.

    In this order, since each check relies on those before it:

    1. The tasks are public ones: options and keys of others cannot be told here.
    2. The options of each regime are whole and valid, as a run writes them; a regime that is not installed is left unchecked.
    3. The rest of the file is what such a config gives.
    4. The suite has the name of its folder, by which all that follows finds it.
    5. A suite that has the name of a shipped one is that suite, tuned variants and machines aside.
    """
    theirs = submission.resolved
    place = f"{submission.suite}/{SUITE}"
    try:
        list_public_tasks(theirs)
    except UsageError as error:
        raise submission.fault(error, place, "config") from None
    _check_regimes(submission, place)
    whole = suite_file(theirs, [])
    since = submission.file.claims.since  # when they were stated cannot be derived
    whole = msgspec.structs.replace(whole, claims=msgspec.structs.replace(whole.claims, since=since))
    stated = msgspec.structs.replace(submission.file, cells=(), bases=(), config=whole.config)
    submission.require_same(stated, whole, place, "its config gives")
    if submission.suite != theirs.name:
        raise submission.fault(f"{theirs.name!r} in the folder of {submission.suite!r}", place, "name")
    if submission.suite not in shipped_suites():
        return f"{submission.suite}, a suite of its own"
    names = [variant.name for variant in theirs.regimes]
    untuned = [variant for variant in theirs.regimes if tuned_from(variant.name, names) is None]
    ours = validate_suite(load_suite(submission.suite), place)
    as_written = comparable_suite(theirs.model_copy(update={"regimes": untuned}))
    submission.require_same(as_written, comparable_suite(ours), f"{place}: altered: config", "the shipped suite has")
    return f"{submission.suite}, as it is shipped"


def _check_regimes(submission: SubmittedBundle, place: str) -> None:
    """Check the suite with those of its regimes that are installed here. place: of the suite's file. Raises UsageError."""
    theirs = submission.resolved
    installed = registry.installed()
    places = [i for i, variant in enumerate(theirs.regimes) if variant.regime in installed]
    known = theirs.model_copy(update={"regimes": [theirs.regimes[i] for i in places]})
    try:
        resolved = validate_suite(known, place)
    except SuiteError as error:  # its place among all regimes, not among those that are installed
        where = re.sub(r"^regimes\[(\d+)\]", lambda found: f"regimes[{places[int(found[1])]}]", error.path)
        raise submission.fault(error.problem, f"{place}: {where}") from None
    if resolved != known:
        raise submission.fault("options that are not resolved", place, "config.regimes")


def comparable_suite(suite: Suite) -> Any:
    """Return the suite without what differs between machines: numerics, paths and revisions of models."""
    written = suite.model_dump(mode="json")
    written["engine_options"].pop("numerics", None)
    for group in written["groups"]:
        for policy in group["policies"]:
            policy["model"] = Path(policy["model"]).name
            policy.pop("revision", None)
            (policy.get("stage0") or {}).pop("task", None)
    return written


def check_seeds(submission: SubmittedBundle) -> str:
    """Check that every cell and base checkpoint of the suite is there, and no other."""
    suite = submission.resolved
    missing = [label for label in submission.expected if label not in submission.stated]
    if missing:
        problem = f"the cell or base checkpoint {missing[0].removeprefix('base ')} is missing"
        raise submission.fault(f"{problem}; a bundle holds all of its suite", submission.suite)
    more = sorted(submission.stated.keys() - submission.expected.keys())
    if more:
        raise submission.fault(f"{more[0]} is no cell of the suite", submission.suite)
    return f"all of {len(suite.seeds)} seeds x {len(suite.regimes)} regimes x {len(suite.groups)} groups"


def check_keys(submission: SubmittedBundle) -> str:
    """Derive every manifest again from the suite, with its key, and compare evaluation sets with ours."""
    for label, right in submission.expected.items():
        stated = submission.stated[label]
        place = f"{submission.suite}/{stated.key}: manifest"
        submission.require_same(_as_planned(stated), _as_planned(right), place, "the suite gives")
        if right.kind == "cell" and stated.identity.models.keys() != {policy.name for policy in right.policies}:
            raise submission.fault("are not the group's", f"{place}: identity.models")
        versions = digest_of(dict(stated.identity.versions))[:12]
        code_version = stated.provenance.code_version
        if not re.fullmatch(rf"[0-9][0-9A-Za-z.+-]{{0,40}}\+{versions}", code_version):
            problem = f"{code_version[:60]!a} is not of the results versions that the key holds"
            raise submission.fault(problem, f"{place}: provenance.code_version")
        for task, checksum in stated.identity.evaluation.items():
            with suppress(PluginError):  # a task that is not installed here has no set to compare with
                if (get_task(task).checksum or "") != checksum:
                    raise submission.fault("another evaluation set than ours", f"{place}: identity.evaluation.{task}")
    return f"{len(submission.manifests)} derived again from the suite{_remark_on_versions(submission)}"


def _as_planned(manifest: Manifest) -> Manifest:
    """Return the manifest as it is before its cell has run."""
    policies = tuple(PolicyEntry(policy.name, policy.model) for policy in manifest.policies)
    return msgspec.structs.replace(
        manifest,
        policies=policies,
        state="pending",
        reason="",
        fault=None,
        attempts=0,
        provenance=Provenance(),
        pool=None,
        carried={},
    )


def _remark_on_versions(submission: SubmittedBundle) -> str:
    """Name the packages whose results version differs from ours, for the line on keys."""
    ours = {name: str(entry.version) for name, entry in recorded_versions().items()}
    theirs: dict[str, str] = {}
    for manifest in submission.manifests.values():
        theirs |= manifest.identity.versions
    other = [
        f"{name} {version} (here {ours[name]})"
        for name, version in theirs.items()
        if ours.get(name, version) != version
    ]
    return f"; computed by other results versions: {', '.join(sorted(other))}" if other else ""


class _Asked(NamedTuple):
    """What the suite asks. ways: task, metric and number of the answer. golds: reference answers by task and question, at first
    without the tasks whose questions are not here (`_take_over_golds`). labels: by task and question."""

    ways: set[tuple[str, str, int]]
    golds: dict[str, dict[str, str]]
    labels: dict[tuple[str, str], dict[str, str]]


class _AnswerPlace(NamedTuple):
    """Which answer a row holds, all but its cell and policy. repeat: number of the answer to the question. step: of training."""

    task: str
    metric: str
    repeat: int
    question: str
    step: int


def check_questions(submission: SubmittedBundle) -> str:
    """Check that each policy answered every question as often as the suite asks, with our reference answers and labels.

    Of a task whose questions are not here, the first cell's questions stand for them: all cells must have the same.
    """
    tasks = list_public_tasks(submission.resolved)
    asked = _find_asked(submission.resolved, tasks)
    unknown = [task for task in tasks if task not in asked.golds]
    last_steps = {cell.key: cell.training.steps for cell in submission.derived}
    count = 0
    for key, manifest in submission.manifests.items():
        rows = submission.rows(key, "samples")
        count += len(rows)
        for policy in manifest.policies:
            place = f"{submission.suite}/{key}: samples of {policy.name}"
            own = [row for row in rows if row["policy"] == policy.name]
            steps = {row["checkpoint_step"] for row in own}
            step = last_steps.get(key, 0)
            may_be = {step, PUBLISHED} if manifest.kind == "base" else {step}
            strange = steps - may_be
            if strange or step not in steps:
                said = min(strange, default=None)
                raise submission.fault(f"of step {said}; the suite evaluates step {step}", place)
            given = _gather_golds(own)
            _take_over_golds(asked, given)
            _check_answers(submission, place, given, steps, asked)
            _check_labels(submission, place, own, asked)
    return f"{count:,} answers, none left out" + (
        f"; not here to compare with: {', '.join(unknown)}" if unknown else ""
    )


def _find_asked(suite: Suite, tasks: Sequence[str]) -> _Asked:
    """Find what a suite asks: its greedy and sampled answers, and the questions of the tasks that are here, with our golds."""
    asked = _Asked(set(), {}, {})
    for task in tasks:
        with suppress(DataError, PluginError):  # the questions are not here
            prompts = fair_part(get_task(task).documents(None, fetch=False), suite.evaluation.limit)
            asked.golds[task] = {prompt.id: prompt.gold for prompt in prompts}
            for prompt in prompts:
                asked.labels[task, prompt.id] = dict(prompt.labels)
        k = suite.evaluation.samples_of(task)
        if suite.evaluation.greedy or k is None:
            asked.ways.add((task, "greedy", 0))
        for repeat in range(get_task(task).k if k is None else k):
            asked.ways.add((task, "sampled", repeat))
    return asked


def _gather_golds(rows: Sequence[Mapping[str, Any]]) -> dict[_AnswerPlace, str]:
    """Return the gold that each of a policy's answers states, by the answer's place."""
    given: dict[_AnswerPlace, str] = {}
    for row in rows:
        place = _AnswerPlace(row["task"], row["metric"], row["repeat"], row["doc_id"], row["checkpoint_step"])
        given[place] = row["gold"]
    return given


def _take_over_golds(asked: _Asked, given: Mapping[_AnswerPlace, str]) -> None:
    """Fill in `asked.golds` for the tasks whose questions are not here, from the golds that answers state.

    Tasks that have golds keep them: those of the first policy of the first cell stand for all others.
    """
    for task in {task for task, _, _ in asked.ways}:
        if task not in asked.golds:
            asked.golds[task] = {place.question: gold for place, gold in given.items() if place.task == task}


def _check_answers(
    submission: SubmittedBundle, place: str, given: Mapping[_AnswerPlace, str], steps: set[int], asked: _Asked
) -> None:
    """Check that a policy's answers are those to all questions at each of the steps, and state our golds. Raises UsageError."""
    wanted: dict[_AnswerPlace, str] = {}
    for task, metric, repeat in asked.ways:
        for question, gold in asked.golds[task].items():
            for step in steps:
                wanted[_AnswerPlace(task, metric, repeat, question, step)] = gold
    differing = sorted({answer for answer, _ in given.items() ^ wanted.items()})
    if differing:
        raise submission.fault(_describe_difference(differing[0], given, wanted), place)


def _describe_difference(
    place: _AnswerPlace, given: Mapping[_AnswerPlace, str], wanted: Mapping[_AnswerPlace, str]
) -> str:
    """Say how the answer at a place differs: it is missing, not asked for, or states another gold."""
    if place not in given:
        problem = "is missing"
    elif place not in wanted:
        problem = "is not asked for, or not in the others"
    else:
        problem = f"has {given[place][:40]!a}, whose answer is {wanted[place][:40]!a}"
    return f"{place.task}, {place.metric}: answer {place.repeat} to {place.question[:80]!a} {problem}"


def _check_labels(submission: SubmittedBundle, place: str, rows: Sequence[Mapping[str, Any]], asked: _Asked) -> None:
    """Check that answers have the labels of their questions, as far as these are here. Raises UsageError."""
    for row in rows:
        labels = dict(row["labels"] or ())  # older bundles have none
        if labels and labels != asked.labels.get((row["task"], row["doc_id"]), labels):
            raise submission.fault(f"{row['task']}: other labels than ours of {row['doc_id'][:80]!a}", place)


def check_steps(submission: SubmittedBundle) -> str:
    """Check that every policy of every cell has each training step once."""
    count = 0
    for cell in submission.derived:
        rows = submission.rows(cell.key, "steps")
        count += len(rows)
        for policy in cell.group.policies:
            own = sorted(row["step"] for row in rows if row["policy"] == policy.name)
            if own != list(range(1, cell.training.steps + 1)):
                place = f"{submission.suite}/{cell.key}: steps of {policy.name}"
                raise submission.fault(f"not each of the {cell.training.steps} steps once", place)
    return f"{count:,}, each once"


# What is computed again -----------------------------------------------------------------------------------------------


def check_verdicts(submission: SubmittedBundle) -> str:
    """Judge every answer again, and compare verdict, extracted answer and vote with what is stated.

    Another version of the verifier may have read other words of an answer. Then the verdict must be today's all the same, the words
    must be the answer's, and votes must follow from them.
    """
    count = 0
    read_otherwise = 0
    with Verifier(workers=1) as verifier:
        for key, manifest in submission.manifests.items():
            rows = submission.rows(key, "samples")
            count += len(rows)
            judged = judge_again(rows, verifier)
            if is_of_our_verifier(manifest):
                wanted = judged
            else:
                wanted = keep_stated_words(rows, judged)
                read_otherwise += sum(one != other for one, other in zip(wanted, judged, strict=True))
            for row, again in zip(rows, wanted, strict=True):
                verdict = again.sample.verdict
                # Older bundles have no votes
                stated_vote = again.vote if row["vote"] is None else row["vote"]
                stated = row["verdict"], row["extracted"], stated_vote
                if stated != (verdict.value, verdict.extracted, again.vote):
                    is_said = f"stated {row['verdict']} ({row['extracted'][:40]!a})"
                    is_found = f"its text is {verdict.value} ({verdict.extracted[:40]!a})"
                    sample = f"{row['task']}, {row['metric']}, {row['doc_id'][:80]}#{row['repeat']}"
                    place = f"{submission.suite}/{key}: samples: {sample}"
                    raise submission.fault(f"{is_said}, but {is_found}", place)
    remark = f"; another version read other words in {read_otherwise:,}, to the same verdict" if read_otherwise else ""
    return f"{count:,} answers judged again, all as stated{remark}"


def check_table(submission: SubmittedBundle) -> str:
    """Compute the table from the rows; there is none in a bundle that could say anything else."""
    table = compute_table(submission.root, submission.suite)
    older = "; the table in the bundle is of an older version and was not read" if submission.opened.older else ""
    apart = "".join(f"; in no line: {line}" for line in table.unpaired)
    return f"{table.scores} accuracies and {table.rows} lines, computed from the rows{older}{apart}"


CONTAINER_CHECKS: dict[str, Callable[[SubmittedBundle], str]] = {
    "container": check_container,
    "schema": check_schema,
    "suite": check_suite,
    "seeds": check_seeds,
    "keys": check_keys,
}
"""In this order; what follows makes no sense after a refusal."""
CONTENT_CHECKS: dict[str, Callable[[SubmittedBundle], str]] = {
    "text": check_text,
    "questions": check_questions,
    "steps": check_steps,
    "verdicts": check_verdicts,
    "table": check_table,
}
"""Each by itself, so that all faults are named."""


# Differences between documents ----------------------------------------------------------------------------------------


def find_first_difference(left: Any, right: Any) -> tuple[str, str, str] | None:
    """Return the path of the first difference between two JSON values, and both values shortened; None where they are equal."""
    theirs = dict(_each_leaf(left))
    ours = dict(_each_leaf(right))
    for path in {**theirs, **ours}:
        one = theirs.get(path, "nothing")
        other = ours.get(path, "nothing")
        if type(one) is not type(other) or one != other or (path in theirs) != (path in ours):
            return _write_path(path), _shorten_value(one), _shorten_value(other)
    return None


def _each_leaf(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and value of everything in a JSON value that holds nothing else."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, inner in sorted(value.items()) if isinstance(value, dict) else enumerate(value):
        yield from _each_leaf(inner, (*path, key))


def _write_path(path: tuple[str | int, ...]) -> str:
    """Write a path within a JSON value, as `groups[0].name`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _shorten_value(value: Any) -> str:
    words = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return words if len(words) <= 80 else f"{words[:77]}..."


def _as_json(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
