"""A bundle's checks. Each returns a line on what it read, and raises UsageError with the fault's place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, combinations, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness.errors import DataError, PluginError, StoreError, SuiteError, UsageError
from harness.evaluation.metrics import judged, votes
from harness.learning import registry
from harness.scoring.catalogue import called
from harness.session.cell.manifests import bases_of, label_of, manifest_of, suite_file
from harness.session.single.rescoring import stored_sample
from harness.session.suite import rules
from harness.store.foreign import import_results
from harness.store.ingest import ingest
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, PolicyEntry, Provenance, SuiteFile, read_manifest, read_suite
from harness.store.read import Snapshot
from harness.store.reference_results import KEPT, ResultsIndex
from harness.store.rows import PUBLISHED
from harness.store.table import estimate_difference, group_by_line, read_finished
from harness.store.text import visible
from harness.store.tuning_table import whole_group
from harness.submission.bundle import SCORES, WORDLESS, installed, not_paired, stated, unpack
from harness.suite.cells import NO_IDENTITY, Cell, Identity, digest, expand
from harness.suite.load import load, resolve, shipped
from harness.suite.schema import Suite
from harness.tasks.registry import get_task
from harness.tasks.source import fair_part
from harness.tuning.derived import tuned_from
from harness.verification.verifier import Verifier
from harness.versions import recorded

# How far two labs' clocks may differ
CLOCKS = timedelta(days=1)
ROUNDING = 1e-9
# How often honest A/A controls may be refused (Bonferroni)
ERROR = 0.01
EVERY = "every x86-64"
# Of a first step, without a second round
_sampled = itemgetter("policy", "right", "wrong", "invalid", "truncated", "answers", "answer_tokens_mean")
_asked = itemgetter("task", "metric", "repeat", "doc_id", "checkpoint_step")
_COMMIT = re.compile(r"([0-9a-f]{40})?")
_MARKUP = re.compile(r"<[A-Za-z/!?]")
# Columns without models' text
_NAMES = {"samples": ("policy", "task", "doc_id", "reason"), "costs": ("phase",)}


@dataclass
class Evidence:
    """results: our own. folder: a temporary one. about, name: of `unpack`."""

    bundle: Path
    results: Path
    folder: Path
    about: ResultsIndex = field(init=False)
    name: str = field(init=False)

    @property
    def root(self) -> Path:
        return self.folder / "bundle"

    @property
    def suite(self) -> str:
        return self.about.suite

    def fault(self, problem: object, *parts: str) -> UsageError:
        """The problem at its place, to raise."""
        return UsageError(": ".join([str(self.bundle), *parts, str(problem)]))

    def container(self) -> str:
        self.root.mkdir()
        self.about, self.name = unpack(self.bundle, self.root)
        size = f"{self.bundle.stat().st_size:,} bytes, {len(self.about.files)} files"
        return f"{size}, all as stated; content {self.name}"

    @cached_property
    def file(self) -> SuiteFile:
        try:
            return read_suite(self.root / self.suite, self.root / self.suite / "suite.json")
        except StoreError as error:
            raise self.fault(str(error).replace(f"{self.root}/", "")) from None

    @cached_property
    def resolved(self) -> Suite:
        try:
            return resolve(self.file.config, (), f"{self.bundle}: {self.suite}/suite.json: config")
        except SuiteError as error:
            raise self.fault(error.problem, f"{self.suite}/suite.json: config.{error.path}") from None

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        folders = sorted(file.parent for file in (self.root / self.suite).glob("*/manifest.json"))
        return {folder.name: read_manifest(folder) for folder in folders}

    @cached_property
    def stated(self) -> dict[str, Manifest]:
        stated: dict[str, Manifest] = {}
        for key, manifest in self.manifests.items():
            if stated.setdefault(label_of(manifest), manifest) is not manifest:
                raise self.fault(f"a second cell {label_of(manifest)}", f"{key}/manifest.json")
        return stated

    def _identity(self, *labels: str) -> Identity:
        return next((self.stated[label].identity for label in labels if label in self.stated), NO_IDENTITY)

    @cached_property
    def derived(self) -> list[Cell]:
        """Under the manifests' identities; all seeds of a regime have one."""
        seeds = self.resolved.seeds
        return expand(self.resolved, lambda g, v: self._identity(*(f"{g.name}/{v.name}/{seed}" for seed in seeds)))

    @cached_property
    def expected(self) -> dict[str, Manifest]:
        """What the suite gives, by label: cells, then base checkpoints."""
        bases = bases_of(
            self.resolved,
            lambda g, p, seed: self._identity(f"base {g.name}/{p.name}" + ("" if seed is None else f"/{seed}")),
        )
        return {label_of(m): m for m in (*map(manifest_of, self.derived), *map(manifest_of, bases))}

    def same(self, said: object, right: object, place: str, words: str) -> None:
        """Raises UsageError with the first difference."""
        if difference := first_difference(plain(said), plain(right)):
            raise self.fault(f"{difference[1]} where {words} {difference[2]}", f"{place}: {difference[0]}")

    def tables(self, key: str) -> dict[str, pa.Table]:
        return read_journal(self.root / self.suite / key).tables

    def rows(self, key: str, table: str) -> list[dict[str, Any]]:
        stored = self.tables(key).get(table)
        return [] if stored is None else stored.to_pylist()


def schema(e: Evidence) -> str:
    """By the rules of `harness import`; everything in the bundle belongs to a cell."""
    report = import_results(e.root, e.folder / "imported", "submitted")
    if report.refused:
        raise e.fault(report.refused[0].replace(f"{e.root}/", ""))
    for key, manifest in e.manifests.items():
        if manifest.suite != e.suite or manifest.origin:
            raise e.fault("of another suite, or imported", f"{key}/manifest.json: suite")
        tables = e.tables(key)
        for name in sorted(tables.keys() - {*KEPT}):
            raise e.fault("no table that a bundle has", f"{e.suite}/{key}/{name}")
        for column in WORDLESS:
            if tables["samples"][column].unique().to_pylist() != [""]:
                raise e.fault("not empty, as in a bundle", f"{e.suite}/{key}: samples.{column}")
    if stray := sorted(e.manifests.keys() ^ {*e.file.cells, *e.file.bases}):
        problem = "no cell of the suite" if stray[0] in e.manifests else "absent, though suite.json counts it"
        raise e.fault(problem, f"{e.suite}/{stray[0]}")
    bases = sum(m.kind == "base" for m in e.stated.values())
    return f"{len(e.stated) - bases} cells and {bases} base checkpoints, every row in its bounds"


def suite(e: Evidence) -> str:
    """suite.json agrees with itself, and with a shipped suite of that name."""
    theirs, place = e.resolved, f"{e.suite}/suite.json"
    try:
        installed(theirs)
    except UsageError as error:
        raise e.fault(error, place, "config") from None
    with suppress(PluginError):
        try:
            if rules.validate(theirs, place) != theirs:
                raise e.fault("options that are not resolved", place, "config.regimes")
        except SuiteError as error:
            if not isinstance(error.__cause__, PluginError) and "unknown regime" not in error.problem:
                raise e.fault(error.problem, f"{place}: {error.path}") from None
    whole = suite_file(theirs, [])
    said = msgspec.structs.replace(e.file, cells=(), bases=(), config=whole.config)
    e.same(said, whole, place, "its config gives")
    if e.suite != theirs.name:
        raise e.fault(f"{theirs.name!r} in the folder of {e.suite!r}", place, "name")
    if e.suite not in shipped():
        return f"{e.suite}, a suite of its own"
    names = [v.name for v in theirs.regimes]
    untuned = [v for v in theirs.regimes if tuned_from(v.name, names) is None]
    ours = rules.validate(load(e.suite), place)
    written = _written(theirs.model_copy(update={"regimes": untuned})), _written(ours)
    e.same(*written, f"{place}: altered: config", "the shipped suite has")
    return f"{e.suite}, as it is shipped"


def _written(suite: Suite) -> Any:
    written = suite.model_dump(mode="json")
    written["engine_options"].pop("numerics", None)
    for group in written["groups"]:
        for policy in group["policies"]:
            policy["model"] = Path(policy["model"]).name
            policy.pop("revision", None)
            (policy.get("stage0") or {}).pop("task", None)
    return written


def seeds(e: Evidence) -> str:
    suite = e.resolved
    if missing := [label for label in e.expected if label not in e.stated]:
        problem = f"the cell or base checkpoint {missing[0].removeprefix('base ')} is missing"
        raise e.fault(f"{problem}; a bundle holds all of its suite", e.suite)
    if more := sorted(e.stated.keys() - e.expected.keys()):
        raise e.fault(f"{more[0]} is no cell of the suite", e.suite)
    return f"all of {len(suite.seeds)} seeds x {len(suite.regimes)} regimes x {len(suite.groups)} groups"


def keys(e: Evidence) -> str:
    """Derived again from the suite, with our evaluation sets."""
    for label, right in e.expected.items():
        stated = e.stated[label]
        place = f"{e.suite}/{stated.key}/manifest.json"
        e.same(_planned(stated), _planned(right), place, "the suite gives")
        if right.kind == "cell" and stated.identity.models.keys() != {p.name for p in right.policies}:
            raise e.fault("are not the group's", f"{place}: identity.models")
        for task, checksum in stated.identity.evaluation.items():
            with suppress(PluginError):
                if (get_task(task).checksum or "") != checksum:
                    raise e.fault("another evaluation set than ours", f"{place}: identity.evaluation.{task}")
    ours = {name: str(entry.version) for name, entry in recorded().items()}
    theirs = {k: v for m in e.manifests.values() for k, v in m.identity.versions.items()}
    other = sorted(f"{k} {v} (here {ours[k]})" for k, v in theirs.items() if k in ours and ours[k] != v)
    remark = f"; computed by other results versions: {', '.join(other)}" if other else ""
    return f"{len(e.manifests)} derived again from the suite{remark}"


def _planned(manifest: Manifest) -> Manifest:
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


def provenance(e: Evidence) -> str:
    """No more CPU time than the machine's cores had."""
    for key, manifest in e.manifests.items():
        said, embedded = manifest.provenance, manifest.engine == "embedded"
        versions = digest(dict(manifest.identity.versions))[:12]
        try:
            begin, end = datetime.fromisoformat(said.started), datetime.fromisoformat(said.finished)
            seconds = -1.0 if end > datetime.now(UTC) + CLOCKS else (end - begin).total_seconds()
        except (ValueError, TypeError):
            seconds = -1.0
        cores = said.machine.get("cores", "")
        most = int(cores) * (seconds + 60) if cores.isascii() and cores.isdigit() and len(cores) < 7 else -1.0
        spent = sum(row["cpu_seconds"] or 0.0 for row in e.rows(key, "costs"))
        faults = {
            f"code_version: {said.code_version[:60]!a} is not of the results versions that the key holds":
                not re.fullmatch(rf"[0-9][0-9A-Za-z.+-]{{0,40}}\+{versions}", said.code_version),
            f"commit: not a commit: {said.commit[:60]!a}": not _COMMIT.fullmatch(said.commit),
            f"started: {said.started[:40]!a} to {said.finished[:40]!a}: not a time that has passed": seconds < 0,
            "packages: without torch, which the embedded engine trains by": embedded and not said.packages.get("torch"),
            f"machine: {spent:,.0f} CPU-seconds in {seconds:,.0f} s on {cores[:20]!a} cores": embedded and spent > most,
        }  # fmt: skip
        for problem in (problem for problem, wrong in faults.items() if wrong):
            raise e.fault(problem, f"{e.suite}/{key}/manifest.json: provenance")
    commits = sorted({m.provenance.commit[:12] or "unknown" for m in e.manifests.values()})
    dirty = sum(m.provenance.dirty for m in e.manifests.values())
    changed = f"; {dirty} of {len(e.manifests)} cells by a changed checkout" if dirty else ""
    return f"commit {', '.join(commits)}{changed}"


def text(e: Evidence) -> str:
    for place, word in _names(e):
        free = place.split(": ")[1].startswith(("config.engine_options", "engine_options"))
        markup = not free and _MARKUP.search(word)
        if markup or visible(word) != word or "\n" in word:
            raise e.fault(f"{'markup' if markup else 'a control character'} in {word[:60]!a}", place)
    return "no markup or escapes in any name"


def _names(e: Evidence) -> Iterator[tuple[str, str]]:
    for name, value in [("suite.json", e.file), *((f"{key}/manifest.json", m) for key, m in e.manifests.items())]:
        for path, leaf in _leaves(plain(value)):
            for word in (*path, leaf):
                if isinstance(word, str):
                    yield f"{e.suite}/{name}: {_words(path)[:200]}", word
    for key in e.manifests:
        for table, data in e.tables(key).items():
            for column in _NAMES.get(table, ()):
                for word in data[column].unique().to_pylist():
                    yield f"{e.suite}/{key}: {table}.{column}", word
        for word in {str(w) for pairs in e.tables(key)["samples"]["labels"].to_pylist() for w in chain(*pairs or ())}:
            yield f"{e.suite}/{key}: samples.labels", word


def foreign(e: Evidence) -> str:
    folders = sorted(e.results.glob(f"{e.suite}@*")) if e.results.is_dir() else []
    known = sum((folder / key / "manifest.json").is_file() for folder in folders for key in e.manifests)
    return f"changes nothing in {e.results}" + (f"; {known} of its cells are there" if known else "")


def questions(e: Evidence) -> str:
    """Asked once or k times, with our reference answers, or the first cell's where we lack the set."""
    evaluation, tasks = e.resolved.evaluation, installed(e.resolved)
    golds: dict[str, dict[str, str]] = {}
    labels: dict[tuple[str, str], dict[str, str]] = {}
    wanted: set[tuple[str, str, int]] = set()
    for task in tasks:
        with suppress(DataError, PluginError):
            prompts = fair_part(get_task(task).documents(None, fetch=False), evaluation.limit)
            golds[task] = {prompt.id: prompt.gold for prompt in prompts}
            labels |= {(task, prompt.id): dict(prompt.labels) for prompt in prompts}
        k = get_task(task).k if evaluation.k is None else evaluation.k
        wanted |= {(task, "greedy", 0)} if evaluation.greedy or evaluation.k is None else set()
        wanted |= {(task, "sampled", repeat) for repeat in range(k)}
    unknown = ", ".join(task for task in tasks if task not in golds)
    last, count = {cell.key: cell.training.steps for cell in e.derived}, 0
    for key, manifest in e.manifests.items():
        rows = e.rows(key, "samples")
        count += len(rows)
        for policy in manifest.policies:
            place = f"{e.suite}/{key}: samples of {policy.name}"
            own = [row for row in rows if row["policy"] == policy.name]
            held, step = {row["checkpoint_step"] for row in own}, last.get(key, 0)
            strange = held - {step, *([PUBLISHED] if manifest.kind == "base" else [])}
            if strange or step not in held:
                raise e.fault(f"of step {min(strange, default=None)}; the suite evaluates step {step}", place)
            asked = {_asked(row): row["gold"] for row in own}
            for task in tasks:
                golds.setdefault(task, {one[3]: gold for one, gold in asked.items() if one[0] == task})
            once = {(*one, question): gold for one in wanted for question, gold in golds[one[0]].items()}
            whole = {(*one, at): gold for one, gold in once.items() for at in held}
            for one in sorted(dict(asked.items() ^ whole.items()))[:1]:
                what = "is missing" if one in whole else "is not asked for, or not in the others"
                if one in asked and one in whole:
                    what = f"has {asked[one][:40]!a}, whose answer is {whole[one][:40]!a}"
                raise e.fault(f"{one[0]}, {one[1]}: answer {one[2]} to {one[3][:80]!a} {what}", place)
            for row in own:
                said = dict(row["labels"] or ())  # older bundles have none
                if said and said != labels.get((row["task"], row["doc_id"]), said):
                    raise e.fault(f"{row['task']}: other labels than ours of {row['doc_id'][:80]!a}", place)
    return f"{count:,} answers, none left out" + (f"; not here to compare with: {unknown}" if unknown else "")


def steps(e: Evidence) -> str:
    count = 0
    for cell in e.derived:
        rows, place = e.rows(cell.key, "steps"), f"{e.suite}/{cell.key}: steps of "
        for policy in cell.group.policies:
            own = sorted(row["step"] for row in rows if row["policy"] == policy.name)
            if own != list(range(1, cell.training.steps + 1)):
                raise e.fault(f"not each of the {cell.training.steps} steps once", place + policy.name)
        for row in rows:
            valid = row["right"] + row["wrong"]
            apart = abs(row["right"] / valid - (row["reward_mean"] or 0)) if valid else 0.0
            if valid + row["invalid"] != row["answers"] or apart > 1e-6:
                raise e.fault(f"the counts of step {row['step']} do not add up", place + row["policy"])
        count += len(rows)
    return f"{count:,}, each adds up"


def cells(e: Evidence) -> str:
    """Regimes of one seed start from the same samples, where they state the same start."""
    first: dict[str, tuple[Cell, Any]] = {}
    whole: dict[str, Cell] = {}
    for cell in e.derived:
        rows, place = e.rows(cell.key, "steps"), f"{e.suite}/{cell.key}: steps"
        if not _may_receive(cell) and any(row["peer_received"] for row in rows):
            raise e.fault(
                f"{cell.label} received answers of peers, but its regime shares none: another cell's rows?", place
            )
        if cell.engine != "embedded" or not rows:
            continue
        if made_on := repeats_on(e.manifests[cell.key]):
            starts = [policy.start for policy in e.manifests[cell.key].policies]
            like = f"{made_on}/{_stream(cell)}/{cell.variant.factor}/{cell.training.model_dump_json()}/{starts}"
            mine = sorted(_sampled(row) for row in rows if row["step"] == 1)
            other, theirs = first.setdefault(like, (cell, mine))
            if theirs != mine:
                problem = (
                    f"{cell.label} did not begin with the samples of {other.label}, as a seed on one kind of CPU does"
                )
                raise e.fault(problem, place)
        twin = whole.setdefault(repr([untimed(row) for row in rows]), cell)
        if _stream(twin) != _stream(cell):
            raise e.fault(f"{cell.label} has the rows of {twin.label}", place)
    return f"{len(e.derived)}, each with rows of its own seed"


def repeats_on(manifest: Manifest) -> str:
    """The kind of CPU that repeats its rows, EVERY, or none."""
    machine = manifest.provenance.machine
    if manifest.config["engine_options"].get("numerics") == "portable":
        return EVERY
    return "" if "threads" in machine else machine.get("processor", "unknown")


def _stream(cell: Cell) -> str:
    return f"{cell.group.name}/{cell.seed}/{cell.variant.sampling_stream}"


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without times; NaN, which equals nothing, as None."""
    return {k: None if v != v else v for k, v in row.items() if not k.endswith("_seconds")}


def _may_receive(cell: Cell) -> bool:
    together = cell.sharing.direction != "none" and len(cell.group.policies) > 1
    with suppress(PluginError):
        return cell.variant.replay is not None or (together and bool(registry.load(cell.variant.regime).shares))
    return True


def verdicts(e: Evidence) -> str:
    count = 0
    with Verifier(workers=1) as verifier:
        for key in e.manifests:
            rows = sorted(e.rows(key, "samples"), key=lambda row: (*_question(row), row["repeat"]))
            count += len(rows)
            for task, of_task in groupby(rows, key=lambda row: str(row["task"])):
                own = list(of_task)
                scorer = get_task(task).scorer
                judge = verifier.by(called(scorer))
                pairs, finished = [(row["gold"], row["text"]) for row in own], [row["finished"] for row in own]
                again = iter(judged(judge, pairs, finished))
                for _, answers in groupby(own, key=_question):
                    given = list(answers)
                    samples = [
                        msgspec.structs.replace(stored_sample(row), verdict=next(again), scorer=scorer) for row in given
                    ]
                    for row, sample, vote in zip(given, samples, votes(samples), strict=True):
                        value, extracted = sample.verdict.value, sample.verdict.extracted
                        said = row["verdict"], row["extracted"], vote if row["vote"] is None else row["vote"]
                        if said != (value, extracted, vote):
                            problem = (
                                f"stated {said[0]} ({said[1][:40]!a}), but its text is {value} ({extracted[:40]!a})"
                            )
                            where = f"{task}, {row['metric']}, {row['doc_id'][:80]}#{row['repeat']}"
                            raise e.fault(problem, f"{e.suite}/{key}: samples: {where}")
    return f"{count:,} answers judged again, all as stated"


_question = itemgetter("task", "metric", "policy", "checkpoint_step", "doc_id")


def table(e: Evidence) -> str:
    """scores.json against what the samples give here."""
    try:
        said = msgspec.json.decode((e.root / SCORES).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise e.fault(f"not a bundle's scores: {error}", SCORES) from None
    given = plain(stated(e.root, e.suite))
    if difference := first_difference(said, given, ROUNDING):
        path, theirs, ours = difference
        at = re.match(r"(scores|rows)\[(\d+)\]", path)
        row: Mapping[str, Any] = next(iter(given[at[1]][int(at[2]) :]), {}) if at else {}
        who = ", ".join(str(row[name]) for name in ("cell", "regime", "policy", "task", "metric") if name in row)
        raise e.fault(f"{theirs} for {who}; the samples give {ours}", f"{SCORES}: {path}")
    apart = "".join(f"; in no line: {line}" for line in not_paired(e.root, e.suite))
    return f"{len(given['scores'])} accuracies and {len(given['rows'])} lines, as the samples give them{apart}"


def noise_floor(e: Evidence) -> str:
    """A/A: variants that differ only in their stream of samples differ by chance alone."""
    apart = {"name", "sampling_stream"}
    variants = [(v, v.model_dump(exclude=apart)) for v in e.resolved.regimes]
    pairs = [
        (a.name, b.name)
        for (a, x), (b, y) in combinations(variants, 2)
        if a.sampling_stream != b.sampling_stream and x == y
    ]
    if not pairs:
        return "the suite has no A/A control"
    ingest(e.root)
    with Snapshot(e.root) as snapshot:
        done = read_finished(snapshot, e.suite)
    families = {
        key: lines for key, lines in group_by_line(done.rows).items() if key.policy == whole_group(done, key.group)
    }
    differences = []
    for (group, _, task, metric), family in families.items():
        for first, second in pairs:
            test = estimate_difference(family.get(first, {}), family.get(second, {}))
            if test.n < 2:
                continue
            p, mean = float(test.p), float(test.mean)
            if p * len(pairs) * len(families) < ERROR:
                problem = f"{second} differs from {first} by {-100 * mean:+.1f} points (p = {p:.2g})"
                raise e.fault(f"{problem}, though nothing but chance tells them apart", f"{group}, {task}, {metric}")
            differences.append(abs(mean))
    if not differences:
        return "one seed alone has no noise floor"
    return f"{len(differences)} A/A comparisons inside the noise floor, the largest {100 * max(differences):.1f} points"


def first_difference(left: Any, right: Any, rounding: float = 0.0) -> tuple[str, str, str] | None:
    """Path and both values, shortened. rounding: of numbers."""
    theirs, ours = dict(_leaves(left)), dict(_leaves(right))
    for path in {**theirs, **ours}:
        a, b = theirs.get(path, "nothing"), ours.get(path, "nothing")
        if isinstance(a, float) and isinstance(b, float) and abs(a - b) <= rounding * max(1.0, abs(b)):
            continue
        if type(a) is not type(b) or a != b or (path in theirs) != (path in ours):
            return _words(path), _short(a), _short(b)
    return None


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, inner in sorted(value.items()) if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*path, key))


def _words(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _short(value: Any) -> str:
    words = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return words if len(words) <= 80 else f"{words[:77]}..."


def plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
