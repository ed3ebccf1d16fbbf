# ruff: noqa: E501
"""SECURITY.md, kept: what the code may not do, what a reader of results cannot do, who is served."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from synthetic_results import Regime, write_results

from harness.errors import StoreError, UsageError
from harness.store import read
from harness.store.ingest import ingest_journals
from harness.store.read import START_SECONDS, Limits, Snapshot, ask_in_process
from leaderboard import command

ROOT = Path(__file__).parents[1]
FILES = [
    file
    for folder in ("harness", "regimes", "leaderboard", "tools", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
UNPICKLING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
EVALUATING = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "signal.alarm",
    "numpy.fromfile",
}


REASONED = {
    "harness/verification/sandbox.py": [
        "compile",
        "exec",
        "eval",
    ],  # an answer that is a program, in a process of its own with limits
    # a look at the count of calls, in the main thread of a process that decides one answer and ends
    "harness/verification/work.py": ["signal.setitimer", "signal.setitimer"],
}


def _faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno}: {n.name}" for n in names if n.name.split(".")[0] in UNPICKLING)
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in UNPICKLING:
                    yield f"{node.lineno}: {module}"
                yield from (f"{node.lineno}: {module}.{n.name}" for n in names if f"{module}.{n.name}" in CALLS)
            case ast.Call(func=ast.Name(id=name)) if name in EVALUATING:
                yield f"{node.lineno}: {name}"
            case ast.Call(func=called, args=args, keywords=keywords):
                name, given = ast.unparse(called), {k.arg: ast.unparse(k.value) for k in keywords}
                if name in CALLS:
                    yield f"{node.lineno}: {name}"
                # the profiling timer has no handler: it ends the process that has used too much of the processor
                if name == "signal.setitimer" and ast.unparse(args[0]) != "signal.ITIMER_PROF":
                    yield f"{node.lineno}: {name}"
                if name.endswith("torch.load") and given.get("weights_only") != "True":
                    yield f"{node.lineno}: torch.load without weights_only"
                trusting = ("shell", "allow_pickle", "trust_remote_code")
                yield from (f"{node.lineno}: {word}" for word in trusting if given.get(word, "False") != "False")
            case ast.Attribute(attr="SIGALRM"):
                yield f"{node.lineno}: SIGALRM"
            case ast.ExceptHandler(type=None):
                yield f"{node.lineno}: bare except"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_no_code_from_data_no_shell_no_alarm_no_bare_except(file: Path) -> None:
    faults = [fault.partition(": ")[2] for fault in _faults(file.read_text("utf-8"))]
    assert faults == REASONED.get(file.relative_to(ROOT).as_posix(), [])


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "eval('1')", "exec(x)", "torch.load(f)", "torch.load(f, weights_only=False)", "yaml.load(f)",
     "subprocess.run('ls', shell=True)", "from os import system", "signal.alarm(3)", "signal.signal(signal.SIGALRM, f)", "np.load(f, allow_pickle=True)",
     "try:\n    pass\nexcept:\n    pass", "AutoModel.from_pretrained(x, trust_remote_code=True)", "os.system('ls')"],
)  # fmt: skip
def test_the_check_above_finds(source: str) -> None:
    assert list(_faults(source))
    assert not list(_faults("model.eval()\ntorch.load(f, weights_only=True)\nre.compile('x')\nyaml.safe_load(f)"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(
        folder,
        "s",
        regimes=[Regime("independent", "independent", 0.0)],
        seeds=[0, 1],
        steps=2,
        questions=2,
        repeats=2,
        exchanges=2,
    )
    ingest_journals(folder)
    return folder


REACHING = [
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM '/etc/passwd'", "SELECT * FROM read_text('/proc/self/environ')", "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM glob('/*')", "SELECT * FROM read_parquet('https://example.org/x')", "SELECT * FROM read_json('/etc/passwd')", "SELECT * FROM 's3://x/y.parquet'",
    "COPY cells TO '/tmp/x.csv'", "COPY (SELECT 1) TO '/dev/stdout'", "EXPORT DATABASE '/tmp/x'", "ATTACH '/tmp/y.duckdb'", "ATTACH ':memory:' AS z", "LOAD httpfs",
    "INSTALL httpfs", "SET enable_external_access = true", "RESET enable_external_access", "SET memory_limit = '100GB'", "PRAGMA memory_limit='100GB'",
    "INSERT INTO cells SELECT * FROM cells", "UPDATE cells SET regime = 'x'", "DELETE FROM cells", "DROP TABLE cells", "CREATE TABLE x AS SELECT 1", "VACUUM", "CHECKPOINT",
    "CREATE TABLE store.x AS SELECT 1", "CREATE VIEW store.x AS SELECT 1", "EXPLAIN ANALYZE DELETE FROM cells", "SELECT 1; DROP TABLE cells", "CALL pragma_version()",
    "SELECT * FROM query('DROP TABLE cells')", "SELECT getenv('HOME')", "SELECT * FROM sniff_csv('/etc/passwd')", "FROM snapshot", "FROM statement", "BEGIN TRANSACTION", "SELECT 1; SELECT 2", "SELEC 1", "PRAGMA database_list",
]  # fmt: skip
WRITTEN = [Path("/tmp/x.csv"), Path("/tmp/y.duckdb"), Path("/tmp/x")]


@pytest.mark.parametrize("statement", REACHING)
def test_sql_neither_writes_nor_reaches_files(results: Path, statement: str) -> None:
    store = (results / "harness.duckdb").read_bytes()
    listed = sorted(results.rglob("*"))
    there = [made for made in WRITTEN if made.exists()]
    with Snapshot(results) as snapshot:
        with pytest.raises(UsageError):
            snapshot.sql(statement)
        with suppress(StoreError):  # nor a statement of ours, were one made of a reader's words
            snapshot.query(statement)
    assert (results / "harness.duckdb").read_bytes() == store
    assert sorted(results.rglob("*")) == listed
    assert [made for made in WRITTEN if made.exists()] == there


GREEDY = {
    "one giant value": ("SELECT repeat('x', 2000000000)", "memory"), "a list of all": ("SELECT range(500000000)", "memory"),
    "sorting it": ("SELECT list_sort(range(200000000))", "memory"), "formatting": ("SELECT format('{:>1000000000}', 'x')", "statement"),
    "grouping": ("SELECT i, count(*) FROM range(200000000) t(i) GROUP BY i", "statement"), "a product": ("SELECT count(*) FROM range(1000000000) a, range(1000000000) b", "statement"),
    "no end": ("WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r", "longer"),
    "no interruption": ("SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))", "longer"),
}  # fmt: skip


ASK = """
import resource, sys, time
from pathlib import Path
from harness.errors import UsageError
from harness.store.read import Limits, ask_in_process
started = time.monotonic()
try:
    ask_in_process(Path(sys.argv[1]), sys.argv[2], Limits(seconds=2, memory=int(sys.argv[3])))
except UsageError as error:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10, time.monotonic() - started, error)
"""


@pytest.mark.slow_but("one giant value")
@pytest.mark.parametrize("case", GREEDY)
def test_sql_has_limits_of_memory_and_time(results: Path, case: str) -> None:
    statement, words = GREEDY[case]
    # asked by a small process: a child's peak counts what its parent had when it was started
    command = [sys.executable, "-c", ASK, str(results), statement, str(512 << 20)]
    peak, seconds, said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split(
        maxsplit=2
    )
    assert words in said
    assert float(seconds) < 2 + START_SECONDS + 5
    assert int(peak) < (512 + 384) << 20  # what the process is without a statement comes to that


@pytest.mark.slow
def test_sql_cuts_long_answers_and_says_so(results: Path) -> None:
    rows = ask_in_process(results, "SELECT * FROM range(20000000)", Limits(rows=100))
    assert (len(rows.rows), rows.cut, rows.columns) == (100, "rows", ["range"])
    assert ask_in_process(results, "SELECT * FROM range(100)", Limits(rows=100)).cut == ""
    size = ask_in_process(results, "SELECT repeat('x', 100000) FROM range(1000)", Limits(bytes=1 << 20))
    assert (len(size.rows), size.cut) == (10, "bytes")


def test_our_own_statements_have_limits_too(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "OWN_SECONDS", 0.3)
    recursive = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r"
    with Snapshot(results) as snapshot, pytest.raises(StoreError, match=r"[Ii]nterrupt"):
        snapshot.query(recursive)
    with Snapshot(results, memory=64 << 20) as snapshot, pytest.raises(StoreError, match=r"[Mm]emory|[Ii]nterrupt"):
        snapshot.query("SELECT list(i) FROM range(300000000) t(i)")


def test_the_leaderboard_listens_on_this_machine_alone(results: Path) -> None:
    """And does so, in tests/cli/test_commands.py."""
    assert "--server.address=localhost" in command(results, 8501)
    assert "--server.address=0.0.0.0" in command(results, 8501, "0.0.0.0")


@pytest.mark.slow
def test_fuzzing_finds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "fuzz.py", "--inputs", "400", "--seed", "7"],
        capture_output=True, text=True, timeout=110, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [dict(pair.split("=") for pair in line.split()) for line in done.stdout.splitlines()[1:]]
    assert len(lines) == 7
    assert sum(int(line["kept"]) for line in lines) == sum(f.is_file() for f in (ROOT / "tests" / "fuzz").rglob("*"))
    assert all(int(line["refused"]) > 0 for line in lines if line["parser"] != "journal"), json.dumps(lines)
