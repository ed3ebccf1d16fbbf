"""Forged bundles: each is refused, by the check that is there for it, with the place and the reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from forging import Forgery, column
from running import arrow_bomb
from synthetic_results import Regime, write_results

from harness.errors import UsageError
from harness.store.journal import write_columns
from harness.store.manifest import read_manifest
from harness.store.rows import ExchangeRow, to_arrow
from harness.submission.bundle import ABOUT, SCORES, pack
from harness.submission.check import checked
from harness.submission.evidence import cells, noise_floor
from harness.suite.schema import Variant

pytestmark = pytest.mark.timeout(300)  # the first test waits for nine cells
replace = msgspec.structs.replace


Forge = Callable[[Forgery], None]


def _rows(name: str, of: str, change: Callable[[dict[str, object]], object]) -> Forge:
    return lambda f: f.table(f.cell("sgt", 1), name, lambda t: column(t, of, change))


def _stated(change: Callable[[dict[str, list[dict[str, float]]]], None]) -> Forge:
    def forge(f: Forgery) -> None:
        said = json.loads((f.root / SCORES).read_bytes())
        change(said)
        (f.root / SCORES).write_bytes(json.dumps(said).encode())

    return forge


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


def more_tables(f: Forgery) -> None:
    rows = [ExchangeRow(step=1, author="llama", receiver="qwen")]
    write_columns(next(f.cell("sgt", 1).glob("journal/*")), "exchanges", to_arrow("exchanges", rows))


def nested(f: Forgery) -> None:
    value: dict[str, object] = {}
    for _ in range(450):
        value = {"a": value}
    f.suite(lambda s: replace(s, config={**s.config, "engine_options": value}))


def _dropped(kind: str, find: Callable[[Forgery], Path]) -> Forge:
    def forge(f: Forgery) -> None:
        bad = find(f)
        shutil.rmtree(bad)
        f.suite(lambda s: replace(s, **{kind: tuple(key for key in getattr(s, kind) if key != bad.name)}))

    return forge


def _swapped(*other: object, part: str = "journal") -> Forge:
    """The rows, or the whole folders, of two cells exchanged."""

    def forge(f: Forgery) -> None:
        one, two = f.cell("sgt", 1) / part, f.cell(*other) / part
        one.rename(f.root / "aside")
        two.rename(one)
        (f.root / "aside").rename(two)

    return forge


def relabelled(f: Forgery) -> None:
    """Each cell's manifest says it is the other, keys and folders along."""
    one, other = f.cell("sgt", 1), f.cell("sgt", 2)
    f.manifest(one, lambda m: replace(m, seed=2))
    f.manifest(other, lambda m: replace(m, seed=1))


def copied_cell(f: Forgery) -> None:
    one, other = f.cell("sgt", 1), f.cell("sgt", 3)
    shutil.rmtree(other / "journal")
    shutil.copytree(one / "journal", other / "journal")


def shipped_name(f: Forgery) -> None:
    """Other settings under the name of a suite that everybody has."""
    f.folder = f.folder.rename(f.root / "smoke")
    f.about = replace(f.about, suite="smoke")
    _suite(name="smoke")(f)
    for cell in [m.parent for m in f.folder.glob("*/manifest.json")]:
        f.manifest(cell, lambda m: replace(m, suite="smoke"))


def foreign_code(f: Forgery) -> None:
    identity = read_manifest(f.cell("sgt", 1)).identity
    _manifest(identity=replace(identity, versions={**identity.versions, "session": "99"}))(f)


def lying_controls(f: Forgery) -> None:
    """A/A cells with texts made right, verdicts and votes along."""
    for seed in (1, 2, 3):
        cell = f.cell("independent-aa", seed)
        for name, made in (
            ("text", lambda r: f"\\boxed{{{r['gold']}}}"), ("extracted", lambda r: r["gold"]), ("verdict", lambda r: "right"),
            ("vote", lambda r: 0), ("reason", lambda r: ""),
        ):  # fmt: skip
            f.table(cell, "samples", lambda t, name=name, made=made: column(t, name, made))


FORGERIES: dict[str, tuple[Forge, str, str]] = {
    "edited accuracy": (
        _stated(lambda said: said["scores"][0].update(accuracy=said["scores"][0]["accuracy"] + 0.01)), "table",
        r"scores\[0\]\.accuracy.*the samples give",
    ),
    "edited gain": (
        _stated(lambda said: next(r for r in said["rows"] if r["gain"] is not None).update(gain=0.5)), "table",
        r"rows\[\d+\]\.gain.*the samples give",
    ),
    "edited verdicts": (_rows("samples", "verdict", lambda r: "right"), "verdicts", "stated right.*its text is wrong"),
    "edited votes": (_rows("samples", "vote", lambda r: 1), "verdicts", "samples"),
    "edited answers": (_rows("samples", "gold", lambda r: r["extracted"] or r["gold"]), "questions", "whose answer is"),
    "dropped questions": (dropped_questions, "questions", "answer 0 to .* is missing"),
    "more questions": (more_questions, "questions", "of step 1; the suite evaluates step 2"),
    "dropped steps": (
        lambda f: f.table(f.cell("sgt", 1), "steps", lambda t: t.slice(1)), "steps", "not each of the 2 steps once",
    ),
    "dropped seed": (_dropped("cells", lambda f: f.cell("sgt", 2)), "seeds", "llama-qwen/sgt/2 is missing"),
    "dropped base": (_dropped("bases", lambda f: next(f.folder.glob("base-*"))), "seeds", "base checkpoint .* is missing"),
    "hidden seed": (_suite(seeds=[1, 2]), "seeds", "3 is no cell of the suite"),
    "swapped seeds": (_swapped("sgt", 2), "cells", "did not begin with the samples of llama-qwen/independent/"),
    "swapped regimes": (_swapped("independent", 1), "cells", "independent/1 received answers of peers"),
    "swapped folders": (_swapped("sgt", 2, part=""), "schema", "key: is not the folder's name"),
    "relabelled": (relabelled, "keys", "manifest.json: config.seed"),
    "copied cell": (copied_cell, "cells", "sgt/3 did not begin"),
    "altered suite": (
        _training(learning_rate=0.001), "keys", "manifest.json: config.training.learning_rate: 0.0001 where the suite gives 0.001",
    ),
    "altered options": (_manifest(options={"lambda": 1.0}), "keys", "manifest.json: options.lambda"),
    "shipped name": (shipped_name, "suite", "altered: .* where the shipped suite has"),
    "foreign code version": (
        _provenance(code_version="0.1.0+000000000000"), "provenance", "code_version.*not of the results versions",
    ),
    "no commit": (_provenance(commit="main"), "provenance", "not a commit"),
    "not over yet": (_provenance(finished="2099-01-01T00:00:00+00:00"), "provenance", "not a time that has passed"),
    "no time at all": (
        _provenance(started="2026-01-01T00:00:00+00:00", finished="2026-01-01T00:00:00+00:00", machine={"cores": "0"}),
        "provenance", "CPU-seconds in 0 s on '0' cores",
    ),
    "more cores than digits": (_provenance(machine={"cores": "9" * 5000}), "provenance", "CPU-seconds in .* s on '9+' cores"),
    "foreign code": (foreign_code, "keys", "identity.versions.session: 99|manifest.json: key: .* where the suite gives"),
    "html title": (_suite(title="<script>alert(1)</script>"), "text", "suite.json: config.title: markup"),
    "escape in machine": (
        _provenance(machine={"cores": "2", "system": "\x1b[2J\x1b]0;owned\x07"}), "text", "machine.system: a control character",
    ),
    "html in reason": (_rows("samples", "reason", lambda r: "<img src=x onerror=alert(1)>"), "text", "samples.reason: markup"),
    "lying controls": (lying_controls, "a/a", "independent-aa differs from independent by"),
    "other labels": (_rows("samples", "labels", lambda r: {"skill": "x"}), "questions", "micro: other labels than ours"),
    "html in labels": (_rows("samples", "labels", lambda r: {"<b>": ""}), "text", "samples.labels: markup"),
    "a table more": (more_tables, "schema", "exchanges: no table that a bundle has"),
    "prompts": (_rows("samples", "prompt", lambda r: "![x](https://x)"), "schema", "samples.prompt: not empty"),
    "nested": (nested, "schema", "suite.json: config: nested too deeply"),
    "negative costs": (_rows("costs", "cpu_seconds", lambda r: -1.0), "schema", r"cpu_seconds: not in \[0, "),
    "out of bounds": (_rows("steps", "reward_mean", lambda r: 1.5), "schema", "reward_mean: not in"),
}  # fmt: skip


# one of every second check
@pytest.mark.slow_but(*[*{check: kind for kind, (_, check, _) in FORGERIES.items()}.values()][::2])
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_bundle_is_refused_by_the_check_for_it(bundle: Path, tmp_path: Path, kind: str) -> None:
    forge, check, words = FORGERIES[kind]
    forgery = Forgery(bundle, tmp_path / "apart")
    forge(forgery)
    with checked(forgery.pack(tmp_path), tmp_path / "results") as (_, report):
        pass
    refused = {line.check: line.words for line in report.lines if not line.good}
    assert re.search(words, refused.get(check, "")), report.describe()
    assert ("\x1b" in report.describe(), report.submission) == (False, None)


def test_first_samples_are_compared_where_they_repeat(bundle: Path, tmp_path: Path) -> None:
    forgery = Forgery(bundle, tmp_path / "apart")
    _swapped("sgt", 2)(forgery)
    with checked(forgery.pack(tmp_path), tmp_path / "results") as (e, _):
        honest = e.manifests
        for numerics, machine, faulty in (
            ("portable", {}, True), ("portable", {"processor": "another"}, True), ("fast", {}, True),
            ("fast", {"processor": "another"}, False), ("fast", {"threads": "2"}, False),
        ):  # fmt: skip
            e.manifests = {
                key: replace(
                    m,
                    config=m.config | {"engine_options": {"numerics": numerics}},
                    provenance=replace(
                        m.provenance, machine=m.provenance.machine | (machine if m.regime == "sgt" else {})
                    ),
                )
                for key, m in honest.items()
            }
            with (
                pytest.raises(UsageError, match="sgt/1 did not begin with the samples of") if faulty else nullcontext()
            ):
                cells(e)


def test_a_control_of_one_policy_is_compared_too(tmp_path: Path) -> None:
    regimes = Regime("independent", "independent", 0.0), Regime("independent-aa", "independent", 0.3)
    write_results(tmp_path, "s", groups={"g": ("a",)}, regimes=regimes, seeds=range(8), steps=1, questions=60)
    variants = [Variant(regime="independent", name=r.name, sampling_stream=i) for i, r in enumerate(regimes)]
    e = SimpleNamespace(root=tmp_path, suite="s", resolved=SimpleNamespace(regimes=variants), fault=UsageError)
    with pytest.raises(UsageError, match="independent-aa differs from independent"):
        noise_floor(e)


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
        file.open("bundle.json", "w") as member,
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


def _file_as_folder(bundle: Path, out: Path) -> Path:
    with zipfile.ZipFile(bundle) as file:
        files = {name: file.read(name) for name in file.namelist() if name != ABOUT}
    name, data = pack("labs", {**files, "labs/suite.json/manifest.json": b"{}"}, "1", "")
    (out / name).write_bytes(data)
    return out / name


def _arrow_bomb(bundle: Path, out: Path) -> Path:
    """A table that unpacks to 4 GB."""
    forgery = Forgery(bundle, out / "apart")
    arrow_bomb(next(forgery.cell("sgt", 1).glob("journal/*/samples-*")))
    return forgery.pack(out)


CONTAINERS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "parent folder": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("../../evil"), b"x")), "not a path"),
    "folder inside": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/../../evil"), b"x")), "not a path"),
    "absolute": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("/etc/cron.d/evil"), b"x")), "not a path"),
    "backslash": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs\\..\\evil"), b"x")), "not a path"),
    "hidden": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/.fence"), b"x")), "not a path"),
    "symlink": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/tuning.json", stat.S_IFLNK), b"/etc/passwd")), "not in"),
    "device": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("labs/tuning.json", stat.S_IFCHR), b"")), "not in bundle.json"),
    "duplicate": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("bundle.json"), b"{}")), "absent or not what"),
    "unlisted": (lambda b, o: _zip(b, o, lambda z: z.writestr(_member("other/suite.json"), b"{}")), "not in bundle.json"),
    "file as a folder": (_file_as_folder, "labs/suite.json/manifest.json: inside a file"),
    "ten gigabytes declared": (_declared, "members state 4,"),
    "ten gigabytes": (_sparse, "cannot be read: larger than 67,108,864 bytes"),
    "compression bomb": (_bomb, "state 1,073,741,824 bytes"),
    "compressed": (_compressed, "its members state"),
    "many members": (_many, "60,000 members; a bundle has at most 20,000"),
    "arrow bomb": (_arrow_bomb, "malloc|memory|create failed"),
}  # fmt: skip

GREEDY = "ten gigabytes declared", "ten gigabytes", "compression bomb", "many members", "arrow bomb"
"""What would take memory: each in a process of its own, which is measured."""
CHECK = """
import json, re, sys
from pathlib import Path
from harness.submission import check
check.MEMORY = 256 << 20
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
with check.checked(Path(sys.argv[1]), Path("results")) as (_, report):
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
        with checked(path, tmp_path / "results") as (_, report):
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
        with checked(path, tmp_path / "results") as (evidence, report):
            assert report.submission is None or evidence.name == bundle.name
