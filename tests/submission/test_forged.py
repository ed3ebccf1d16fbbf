"""Forged bundles: each is refused by the check that is there for it, with the place and the reason.

What only training again can tell stands in `RETRAINED`, what no check proves in `UNPROVED`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forging import Forgery, column, forge_older, request_for
from running import arrow_bomb, ok

from harness.store.results_folder import INDEX
from harness.submission.bundle import _zip_members as zip_members
from harness.submission.bundle import pack_folder
from harness.submission.check import check_bundle

OLDER = Path(__file__).parent / "older-d4b0d29b35270975.zip"
"""Made by `harness bundle` at the commit 2fa0e0fd, of a suite with three regimes and one seed."""
pytestmark = pytest.mark.timeout(300)  # the first test waits for nine cells
replace = msgspec.structs.replace


Forge = Callable[[Forgery], None]


def _rows(name: str, of: str, change: Callable[[dict[str, object]], object]) -> Forge:
    return lambda f: f.table(f.cell("sgt", 1), name, lambda t: column(t, of, change))


def _manifest(**changed: object) -> Forge:
    return lambda f: f.manifest(f.cell("sgt", 1), lambda m: replace(m, **changed))


def _provenance(**changed: object) -> Forge:
    return lambda f: f.manifest(f.cell("sgt", 1), lambda m: replace(m, provenance=replace(m.provenance, **changed)))


def _suite(**changed: object) -> Forge:
    return lambda f: f.suite(lambda s: replace(s, **changed, config={**s.config, **changed}))


def _training(**changed: object) -> Forge:
    return lambda f: f.suite(lambda s: replace(s, config={**s.config, "training": {**s.config["training"], **changed}}))


def dropped_questions(f: Forgery) -> None:
    def good(t: pa.Table) -> pa.Table:
        worst = next(r["doc_id"] for r in t.to_pylist() if r["verdict"] == "wrong")
        return t.filter(pa.array([r["doc_id"] != worst for r in t.to_pylist()]))

    f.table(f.cell("sgt", 1), "samples", good)


def more_questions(f: Forgery) -> None:
    """Chosen ones of another task, of a step before the last."""

    def with_more(t: pa.Table) -> pa.Table:
        right = t.filter(pa.array([r["verdict"] == "right" for r in t.to_pylist()]))
        other = column(column(right, "task", lambda r: "gsm8k"), "checkpoint_step", lambda r: 1)
        return pa.concat_tables([t, other])

    f.table(f.cell("sgt", 1), "samples", with_more)


def _behind_a_strange_regime(**options: object) -> Forge:
    """Other options of `sgt`, behind a regime that nobody here has."""

    def changed(variant: dict[str, object]) -> dict[str, object]:
        return {**variant, "options": {**variant["options"], **options}} if variant["regime"] == "sgt" else variant

    def forge(f: Forgery) -> None:
        regimes = [changed(variant) for variant in f.file.config["regimes"]]
        f.suite(lambda s: replace(s, config={**s.config, "regimes": [{"regime": "nobodys"}, *regimes]}))

    return forge


def nested(f: Forgery) -> None:
    value: dict[str, object] = {}
    for _ in range(450):
        value = {"a": value}
    f.suite(lambda s: replace(s, config={**s.config, "engine_options": value}))


def _dropped(kind: str, find: Callable[[Forgery], str]) -> Forge:
    def forge(f: Forgery) -> None:
        bad = find(f)
        del f.manifests[bad]
        f.suite(lambda s: replace(s, **{kind: tuple(key for key in getattr(s, kind) if key != bad)}))

    return forge


def _first_base(f: Forgery) -> str:
    return next(key for key in f.manifests if key.startswith("base-"))


def _swapped(regime: str, seed: int, whole: bool = False) -> Forge:
    """The rows of two cells exchanged; whole: their manifests too."""

    def forge(f: Forgery) -> None:
        one, other = f.cell("sgt", 1), f.cell(regime, seed)
        f.tables[one], f.tables[other] = f.tables[other], f.tables[one]
        if whole:
            f.manifests[one], f.manifests[other] = f.manifests[other], f.manifests[one]

    return forge


def relabelled(f: Forgery) -> None:
    """Each cell's manifest says it is the other, keys along."""
    one, other = f.cell("sgt", 1), f.cell("sgt", 2)
    f.manifest(one, lambda m: replace(m, seed=2))
    f.manifest(other, lambda m: replace(m, seed=1))


def copied_cell(f: Forgery) -> None:
    f.tables[f.cell("sgt", 3)] = f.tables[f.cell("sgt", 1)]


def shipped_name(f: Forgery) -> None:
    """Other settings under the name of a suite that everybody has."""
    _suite(name="smoke")(f)
    for key in f.manifests:
        f.manifest(key, lambda m: replace(m, suite="smoke"))


def foreign_code(f: Forgery) -> None:
    identity = f.manifests[f.cell("sgt", 1)].identity
    _manifest(identity=replace(identity, versions={**identity.versions, "session": "99"}))(f)


def lying_controls(f: Forgery) -> None:
    """A/A cells with texts made right, verdicts and votes along."""
    for seed in (1, 2, 3):
        cell = f.cell("independent-aa", seed)
        for name, made in (
            ("text", lambda r: f"\\boxed{{{r['gold']}}}"), ("extracted", lambda r: r["gold"]), ("verdict", lambda r: "right"),
            ("vote", lambda r: 0), ("reason", lambda r: ""), ("finished", lambda r: True),
        ):  # fmt: skip
            f.table(cell, "samples", lambda t, name=name, made=made: column(t, name, made))


FORGERIES: dict[str, tuple[Forge, str, str]] = {
    "edited verdicts": (_rows("samples", "verdict", lambda r: "right"), "verdicts", "stated right.*its text is wrong"),
    "edited votes": (_rows("samples", "vote", lambda r: 1), "verdicts", "samples"),
    "edited answers": (_rows("samples", "gold", lambda r: r["extracted"] or r["gold"]), "questions", "whose answer is"),
    "dropped questions": (dropped_questions, "questions", "answer 0 to .* is missing"),
    "more questions": (more_questions, "questions", "of step 1; the suite evaluates step 2"),
    "dropped steps": (
        lambda f: f.table(f.cell("sgt", 1), "steps", lambda t: t.slice(1)), "steps", "not each of the 2 steps once",
    ),
    "dropped seed": (_dropped("cells", lambda f: f.cell("sgt", 2)), "seeds", "llama-qwen/sgt/2 is missing"),
    "dropped base": (_dropped("bases", _first_base), "seeds", "base checkpoint .* is missing"),
    "hidden seed": (_suite(seeds=[1, 2]), "seeds", "3 is no cell of the suite"),
    "swapped folders": (_swapped("sgt", 2, whole=True), "schema", "key: is not the folder's name"),
    "relabelled": (relabelled, "keys", "manifest: config.seed"),
    "altered suite": (
        _training(learning_rate=0.001), "keys", "manifest: config.training.learning_rate: 0.0001 where the suite gives 0.001",
    ),
    "altered options": (_manifest(options={"lambda": 1.0}), "keys", "manifest: options.lambda"),
    "options behind a strange regime": (
        _behind_a_strange_regime(**{"lambda": -1.0}), "suite", r"suite.json: regimes\[3\].lambda: ",
    ),
    "shipped name": (shipped_name, "suite", "altered: .* where the shipped suite has"),
    "foreign code version": (
        _provenance(code_version="0.1.0+000000000000"), "keys", "code_version.*not of the results versions",
    ),
    "no commit": (_provenance(commit="main"), "schema", "not a commit"),
    "not over yet": (_provenance(finished="2099-01-01T00:00:00+00:00"), "schema", "not a time that has passed"),
    "no time at all": (
        _provenance(started="2026-01-01T00:00:00+00:00", finished="2026-01-01T00:00:00+00:00", machine={"cores": "0"}),
        "schema", "CPU-seconds in 0 s on '0' cores",
    ),
    "more cores than digits": (_provenance(machine={"cores": "9" * 5000}), "schema", "CPU-seconds in .* s on '9+' cores"),
    "foreign code": (foreign_code, "keys", "identity.versions.session: 99|manifest: key: .* where the suite gives"),
    "html title": (_suite(title="<script>alert(1)</script>"), "text", "suite.json: config.title: markup"),
    "escape in machine": (
        _provenance(machine={"cores": "2", "system": "\x1b[2J\x1b]0;owned\x07"}), "text", "machine.system: a control character",
    ),
    "html in reason": (_rows("samples", "reason", lambda r: "<img src=x onerror=alert(1)>"), "text", "samples.reason: markup"),
    "other labels": (_rows("samples", "labels", lambda r: {"skill": "x"}), "questions", "micro: other labels than ours"),
    "html in labels": (_rows("samples", "labels", lambda r: {"<b>": ""}), "text", "samples.labels: markup"),
    "prompts": (_rows("samples", "prompt", lambda r: "![x](https://x)"), "schema", "samples.prompt: not empty"),
    "nested": (nested, "suite", "suite.json: config: nested too deeply"),
    "negative costs": (_rows("costs", "cpu_seconds", lambda r: -1.0), "schema", r"cpu_seconds: not in \[0, "),
    "out of bounds": (_rows("steps", "reward_mean", lambda r: 1.5), "schema", "reward_mean: not in"),
}  # fmt: skip


# one of every second check, and what is left out
@pytest.mark.slow_but(*[*{check: kind for kind, (_, check, _) in FORGERIES.items()}.values()][::2], "dropped seed")
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_bundle_is_refused_by_the_check_for_it(bundle: Path, tmp_path: Path, kind: str) -> None:
    forge, check, words = FORGERIES[kind]
    forgery = Forgery(bundle, tmp_path / "apart")
    forge(forgery)
    with check_bundle(forgery.pack(tmp_path), tmp_path / "results") as (_, report):
        pass
    refused = {line.check: line.words for line in report.lines if not line.good}
    assert re.search(words, refused.get(check, "")), report.describe()
    assert ("\x1b" in report.describe(), report.submission) == (False, None)


RETRAINED: dict[str, tuple[Forge, str]] = {
    "swapped seeds": (_swapped("sgt", 2), "llama-qwen/sgt/1"),
    "swapped regimes": (_swapped("independent", 1), "llama-qwen/independent/1"),
    "copied cell": (copied_cell, "llama-qwen/sgt/3"),
    "lying controls": (lying_controls, "llama-qwen/independent-aa/2"),
    "counts of a step": (_rows("steps", "right", lambda r: r["right"] + 1), "llama-qwen/sgt/1"),
}
"""With the cell whose training again shows it: nothing else tells these rows from true ones."""


@pytest.mark.slow_but("swapped seeds")
@pytest.mark.parametrize("kind", RETRAINED)
def test_other_rows_than_the_configurations_are_refused_where_the_cell_is_trained_again(
    bundle: Path, tmp_path: Path, kind: str
) -> None:
    forge, label = RETRAINED[kind]
    forgery = Forgery(bundle, tmp_path / "apart")
    forge(forgery)
    with check_bundle(forgery.pack(tmp_path), tmp_path / "results", request_for(forgery, label)) as (_, report):
        pass
    assert [line.check for line in report.lines if not line.good] == ["re-execution"], report.describe()
    assert (f"({label}, " in report.refused, "other rows" in report.refused, report.submission) == (True, True, None)


UNPROVED: dict[str, Forge] = {
    "costs": _rows("costs", "cpu_seconds", lambda r: 0.0),
    "machine": _provenance(machine={"cores": "96", "processor": "another one"}),
    "commit": _provenance(commit="0" * 40),
    "time": _provenance(started="2026-01-01T00:00:00+00:00", finished="2026-01-01T00:00:00+00:00"),
}


@pytest.mark.slow_but("costs")
@pytest.mark.parametrize("kind", UNPROVED)
def test_what_no_check_proves_is_taken_as_stated(bundle: Path, tmp_path: Path, kind: str) -> None:
    """docs/submit.md names it."""
    forgery = Forgery(bundle, tmp_path / "apart")
    UNPROVED[kind](forgery)
    with check_bundle(forgery.pack(tmp_path), tmp_path / "results") as (_, report):
        assert report.submission is not None, report.describe()
    page = (Path(__file__).parents[2] / "docs/submit.md").read_text()
    assert kind in page.partition("No check proves")[2].partition("\n\n")[0]


def test_a_bundle_of_an_older_version_is_read_and_its_table_computed(tmp_path: Path) -> None:
    with check_bundle(OLDER, tmp_path) as (_, report):
        assert report.submission is not None, report.describe()
    assert (report.submission.bundle, report.submission.badge) == (OLDER.name, "re-scored")
    (table,) = [line.words for line in report.lines if line.check == "table"]
    assert table.endswith("computed from the rows; the table in the bundle is of an older version and was not read")
    ok("import", OLDER, "--origin", "old", "--results", tmp_path)
    rows = json.loads(ok("show", "older@old", "--format", "json", "--results", tmp_path))["rows"]
    with zipfile.ZipFile(OLDER) as file:
        stated = json.loads(file.read("scores.json"))["rows"]
    # what "used" counts has changed since, and from how many seeds on ties are shown
    changed = {"peer_used", "tie_group", "best"}
    same = [{name: value for name, value in row.items() if name not in changed} for row in stated]
    assert [{name: row[name] for name in old} for row, old in zip(rows, same, strict=True)] == same
    assert {(row["tie_group"], row["best"]) for row in rows} == {("–", False)}, "of fewer than five seeds"


OLDER_FORGERIES: dict[str, tuple[Callable[[dict[str, bytes]], None], bool, str]] = {
    "altered": (lambda m: m.update({"older/suite.json": b"{}"}), False, "suite.json: altered"),
    "a member less": (lambda m: m.pop("older/suite.json"), False, "suite.json: absent"),
    "a member more": (lambda m: m.update({"older/tuning.json": b"{}"}), False, "tuning.json: not in bundle.json"),
    "no suite": (lambda m: m.update({"older/suite.json": b"{"}), True, "not a suite file"),
    "another suite": (lambda m: m.update({"other/suite.json": b"{}"}), True, "not of the suite older"),
    "file as a folder": (
        lambda m: m.update({"older/suite.json/manifest.json": b"{}"}), True, "manifest.json: inside a file",
    ),
    "a table more": (
        lambda m: m.update({_renamed(m, "steps", "exchanges"): m[_first(m, "steps")]}), True,
        "exchanges",
    ),
}  # fmt: skip


def _first(members: dict[str, bytes], table: str) -> str:
    return next(name for name in members if f"/{table}-" in name)


def _renamed(members: dict[str, bytes], table: str, other: str) -> str:
    return _first(members, table).replace(f"/{table}-", f"/{other}-")


@pytest.mark.parametrize("kind", OLDER_FORGERIES)
def test_a_forged_bundle_of_an_older_version_is_refused(tmp_path: Path, kind: str) -> None:
    change, restate, words = OLDER_FORGERIES[kind]
    with check_bundle(forge_older(OLDER, tmp_path, change, restate), tmp_path / "results") as (_, report):
        assert (report.submission, words in report.refused) == (None, True), report.describe()


def _reword_wrong_answer(
    change: Callable[[dict[str, object]], dict[str, object]],
) -> Callable[[dict[str, bytes]], None]:
    """Change one wrong answer of a cell of the older bundle, whose text has a box."""

    def change_samples(members: dict[str, bytes]) -> None:
        name = _first(members, "samples")
        with pa.ipc.open_file(members[name]) as file:
            table = file.read_all()
        rows = table.to_pylist()
        place = next(i for i, row in enumerate(rows) if row["verdict"] == "wrong" and "boxed" in row["text"])
        rows[place] |= change(rows[place])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, table.schema))
        del members[name]
        content = sink.getvalue().to_pybytes()
        members[f"{name.rpartition('-')[0]}-{zlib.crc32(content):08x}.arrow"] = content

    return change_samples


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        (lambda row: {"extracted": "boxed"}, True),
        (lambda row: {"extracted": "no word of the text"}, False),
        (lambda row: {"extracted": "boxed", "verdict": "right"}, False),
        (lambda row: {"extracted": "boxed", "vote": 7}, False),
    ],
    ids=["other words of the text", "words of no text", "another verdict", "a vote for no answer"],
)
def test_an_older_verifier_may_have_read_other_words_to_the_same_verdict(
    tmp_path: Path, change: Callable[[dict[str, object]], dict[str, object]], taken: bool
) -> None:
    with check_bundle(forge_older(OLDER, tmp_path, _reword_wrong_answer(change)), tmp_path / "results") as (_, report):
        verdicts = next(line for line in report.lines if line.check == "verdicts")
        assert (verdicts.good, report.submission is not None) == (taken, taken), report.describe()
    assert verdicts.words.endswith("; another version read other words in 1, to the same verdict") == taken


def test_answers_that_our_verifier_judged_are_read_as_it_reads_them(bundle: Path, tmp_path: Path) -> None:
    forgery = Forgery(bundle, tmp_path / "apart")
    _rows(
        "samples",
        "extracted",
        lambda r: r["text"].split()[0] if r["verdict"] == "wrong" and r["text"] else r["extracted"],
    )(forgery)
    with check_bundle(forgery.pack(tmp_path), tmp_path / "results") as (_, report):
        assert report.submission is None
    assert [line.check for line in report.lines if not line.good] == ["verdicts"], report.describe()


def test_an_older_table_that_says_something_else_changes_nothing(tmp_path: Path) -> None:
    def lie(members: dict[str, bytes]) -> None:
        stated = json.loads(members["scores.json"])
        for row in stated["rows"]:
            row["gain"] = 0.9
        members["scores.json"] = json.dumps(stated).encode()

    for bundle, label in ((OLDER, "true"), (forge_older(OLDER, tmp_path, lie), "lie")):
        ok("import", bundle, "--origin", label, "--results", tmp_path / label)
    tables = [
        json.loads(ok("show", f"older@{label}", "--format", "json", "--results", tmp_path / label))["rows"]
        for label in ("true", "lie")
    ]
    assert tables[0] == tables[1]


def _zip(bundle: Path, out: Path, more: Callable[[zipfile.ZipFile], None]) -> Path:
    path = out / bundle.name
    shutil.copy(bundle, path)
    with zipfile.ZipFile(path, "a") as file:
        more(file)
    return path


def _member(name: str, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, (kind | 0o644) << 16
    return member


def _special(kind: int, content: bytes) -> Callable[[Path, Path], Path]:
    """With a link or a device in the place of a file."""
    return lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/tuning.json", kind), content))


def _declared(bundle: Path, out: Path) -> Path:
    """One member states 10 GB in the zip's list and in its own head."""
    data = bytearray(bundle.read_bytes())
    size = struct.pack("<2L", 0xFFFFFFFE, 0xFFFFFFFE)
    place = data.index(b"PK\1\2")
    data[place + 20 : place + 28] = size
    data[18:26] = size
    path = out / bundle.name
    path.write_bytes(bytes(data))
    return path


def _sparse(bundle: Path, out: Path) -> Path:
    path = out / bundle.name
    path.touch()
    os.truncate(path, 10 << 30)
    return path


def _bomb(bundle: Path, out: Path) -> Path:
    with (
        zipfile.ZipFile(path := out / bundle.name, "w", zipfile.ZIP_DEFLATED) as file,
        file.open(f"labs/{INDEX}", "w") as member,
    ):
        for _ in range(1024):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 2 << 20
    return path


def _compressed(bundle: Path, out: Path) -> Path:
    with (
        zipfile.ZipFile(bundle) as plain,
        zipfile.ZipFile(path := out / bundle.name, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for name in plain.namelist():
            file.writestr(name, plain.read(name))
    return path


def _many(bundle: Path, out: Path) -> Path:
    with zipfile.ZipFile(path := out / bundle.name, "w") as file:
        for i in range(60_000):
            file.writestr(f"labs/{i}/manifest.json", b"")
    return path


def _stray(bundle: Path, out: Path) -> Path:
    """A file that the index does not name, packed as the others are."""
    with zipfile.ZipFile(bundle) as file:
        members = {name: file.read(name) for name in file.namelist()}
    path = out / bundle.name
    path.write_bytes(zip_members({**members, "labs/tuning.json": b"{}"}, f"labs/{INDEX}"))
    return path


def _swollen(bundle: Path, out: Path, store_schema: bool) -> Path:
    """Texts that unpack to 4 GB: one text of a megabyte, and 4,200 rows that repeat it."""
    forgery = Forgery(bundle, out / "apart")
    folder = forgery.write()
    table = pq.read_table(folder / "samples.parquet").slice(0, 1)
    rows = pa.concat_tables([table] * 4200)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), dtype=np.int32)), pa.array(["x" * (1 << 20)]))
    rows = rows.set_column(rows.schema.get_field_index("text"), "text", text)
    pq.write_table(rows, folder / "samples.parquet", compression="zstd", store_schema=store_schema)
    index = json.loads((folder / INDEX).read_bytes())
    index["files"]["samples.parquet"] = hashlib.sha256((folder / "samples.parquet").read_bytes()).hexdigest()
    (folder / INDEX).write_text(json.dumps(index))
    name, data = pack_folder("labs", folder)
    assert len(data) < 1 << 20
    (out / name).write_bytes(data)
    return out / name


def _arrow_bomb(_: Path, out: Path) -> Path:
    """Of the older format: a table that unpacks to 4 GB."""

    def swell(members: dict[str, bytes]) -> None:
        name = _first(members, "samples")
        file = out / Path(name).name
        file.write_bytes(members.pop(name))
        arrow_bomb(file)
        made = next(out.glob("samples-*.arrow"))
        members[str(Path(name).with_name(made.name))] = made.read_bytes()

    return forge_older(OLDER, out, swell)


CONTAINERS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "parent folder": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("../../evil"), b"x")), "not a path"),
    "folder inside": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/../../evil"), b"x")), "not a path"),
    "absolute": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("/etc/cron.d/evil"), b"x")), "not a path"),
    "backslash": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs\\..\\evil"), b"x")), "not a path"),
    "hidden": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/.fence"), b"x")), "not a path"),
    "symlink": (_special(stat.S_IFLNK, b"/etc/passwd"), "not packed as"),
    "device": (_special(stat.S_IFCHR, b""), "not packed as"),
    "duplicate": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member(f"labs/{INDEX}"), b"{}")), "not packed as"),
    "unlisted": (_stray, "labs/tuning.json: not in reference.json"),
    "another suite": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("other/suite.json"), b"{}")), "not of the suite labs"),
    "a table more": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/exchanges.parquet"), b"")), "not a path"),
    "a stated table": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("scores.json"), b"{}")), "not a path"),
    "ten gigabytes declared": (_declared, "members state 4,"),
    "ten gigabytes": (_sparse, "cannot be read: larger than 67,108,864 bytes"),
    "compression bomb": (_bomb, "state 1,073,741,824 bytes"),
    "compressed": (_compressed, "its members state"),
    "many members": (_many, "60,000 members; a bundle has at most 20,000"),
    "parquet bomb": (lambda b, o: _swollen(b, o, store_schema=False), "malloc|memory|create failed"),
    "dictionary bomb": (lambda b, o: _swollen(b, o, store_schema=True), "malloc|memory|create failed"),
    "arrow bomb": (_arrow_bomb, "malloc|memory|create failed"),
}  # fmt: skip

GREEDY = (
    "ten gigabytes declared", "ten gigabytes", "compression bomb", "many members", "parquet bomb", "dictionary bomb", "arrow bomb",
)  # fmt: skip
"""What would take memory: each in a process of its own, which is measured."""
CHECK = """
import json, re, sys
from pathlib import Path
from harness.submission import check
check.MEMORY = 256 << 20
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
with check.check_bundle(Path(sys.argv[1]), Path("results")) as (_, report):
    pass
print(json.dumps([report.refused, report.submission is None, peak() - before]))
"""


@pytest.mark.slow_but(*(kind for kind in CONTAINERS if kind not in GREEDY))
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_that_means_harm_is_refused_and_takes_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    make, words = CONTAINERS[kind]
    path = make(bundle, tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    if kind in GREEDY:
        environment = {**os.environ, "TMPDIR": str(temporary)}
        command = [sys.executable, "-c", CHECK, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, timeout=100, env=environment)
        reason, refused, grown = json.loads(done.stdout)
        assert grown < 420 << 20
    else:
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        with check_bundle(path, tmp_path / "results") as (_, report):
            reason, refused = report.refused, report.submission is None
    assert refused
    assert re.search(words, reason), reason
    assert (list(temporary.iterdir()), (tmp_path.parent / "evil").exists()) == ([], False)


def test_every_altered_byte_of_the_digests_is_noticed(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    for place in np.random.default_rng(0).integers(0, len(data), 40):
        changed = bytearray(data)
        changed[place] ^= 1
        path = tmp_path / bundle.name
        path.write_bytes(bytes(changed))
        with check_bundle(path, tmp_path / "results") as (submitted, report):
            assert report.submission is None or submitted.opened.name == bundle.name
