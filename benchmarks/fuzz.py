# ruff: noqa: E501
"""Every parser of what others made, against mutations of valid inputs and random bytes.

    python benchmarks/fuzz.py --inputs 100000 --seed 1 [--parser NAME ...]

Each parser runs in a process of its own whose memory the operating system bounds. It passes if nothing but its own typed errors
came out, no input took more than two seconds of computing and the bound was never met. What fails is written to tests/fuzz/<parser>/ and is
tried first from then on. Exit code 1 if any parser failed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import limits
from harness.errors import HarnessError

SEEDS = Path(__file__).parents[1] / "tests" / "fuzz"
MEMORY = 512 << 20
"""What a parser may take beyond what it starts with."""
SECONDS = 2.0
HANGING = 60.0
LONGEST = 4096

Parse = Callable[[bytes], object]


@dataclass(frozen=True)
class Parser:
    """parse: raises a HarnessError or returns. seeds: valid inputs. words: what mutations insert."""

    parse: Parse
    seeds: list[bytes]
    words: list[bytes]


JSON_WORDS = [
    b"null",
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e999",
    b"9" * 400,
    b'"\\ud800"',
    b'"\\u0000"',
    b"[" * 50,
    b"{}",
    b"[]",
    b"true",
    b"\xff",
]
YAML_WORDS = [
    b".nan",
    b".inf",
    b"&a ",
    b"*a",
    b"!!python/name:os.system ",
    b"? ",
    b"- ",
    b": ",
    b"<<: ",
    b"\t",
    b"\x00",
    b"|\n",
    b"2001-01-01",
    b"0x" + b"f" * 80,
    b"1:30:00",
    b"[",
    b"{",
    b'"\\x1b"',
    b"'",
    b"9" * 400,
    b"\xef\xbb\xbf",
    b"=",
    b"~",
    b"null",
    b"---\n",
]
BINARY_WORDS = [b"\x00", b"\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xcb\x7f\xf8" + bytes(6),
                b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\x91" * 60, b"\xc1", b"\xa2\xff\xfe", b"\x7f\xff\xff\xff", b"\xff" * 8]  # fmt: skip


def suite(place: Path) -> Parser:
    """As `plan` reads it, without the folder."""
    from harness.engines import options
    from harness.engines.options import Embedded
    from harness.reading import as_text
    from harness.session.suite import rules
    from harness.suite import yaml
    from harness.suite.load import resolve

    def parse(data: bytes) -> None:
        try:
            text = as_text(data)
        except ValueError:  # `read_text` makes an OSError of it, `yaml.read` a SuiteError
            return
        raw = yaml.parse(text, "fuzz")
        if isinstance(raw, dict):
            found = rules.validate(resolve({"name": "x", **raw}, (), "fuzz"), "fuzz")
            options.read(Embedded, found.engine_options, "fuzz")
            json.dumps(found.model_dump(mode="json")).encode()

    group = b"groups: [{name: g, policies: [{name: a, model: micro/llama}, {name: b, model: m}]}]\n"
    seeds = [
        group + b"regimes: [independent, sgt]\nseeds: [1]\n",
        group
        + b"regimes: [{regime: hacpo, window: 2, sharing: {direction: edges, edges: [[a, b]]}}, independent]\nseeds: [1]\n",
        group
        + b"regimes:\n- regime: independent\n  name: x\nbaseline: x\nseeds: [0, 7]\ntraining: {steps: 1, betas: [0.9, 0.99]}\n",
        group
        + b"regimes: [independent]\nseeds: [1]\nevaluation: {k: 2}\nengine_options: {device: cpu}\ntitle: |\n  two\n  lines\n",
        b"groups: [{name: g, policies: [{name: a, model: m, condition: {kind: noisy, share: 0.5}}]}]\nregimes: [independent]\nseeds: [1]\n",
    ]
    return Parser(parse, seeds, YAML_WORDS)


def record(place: Path) -> Parser:
    from harness.exchange.wire import decode, encode
    from harness.experience.records import GroupValue, Rollout, Success, TextRollout

    head: dict[str, Any] = {"author": "a", "version": 1, "step": 2, "prompt_id": "p"}
    records = [
        Rollout(
            **head, index=0, text="ab", tokens=[1, 2], logprobs=[-0.5, -1.0], pieces=[1, 1], finished=True, reward=1.0
        ),
        TextRollout(**head, index=0, text="é", finished=False, reward=0.0),
        GroupValue(**head, count=4, right=2),
        Success(**head, index=3, text="ok"),
    ]
    return Parser(decode, [encode(r) for r in records], BINARY_WORDS)


WORDS = {"verdict": "right", "own_verdict": "right", "peer_verdict": "right", "metric": "greedy", "source": "own", "policy": "a",
         "author": "a", "receiver": "a"}  # fmt: skip


def _rows() -> dict[str, list[Any]]:
    """Two rows of each table, of plausible values."""
    import msgspec

    from harness.store.rows import TABLES

    defaults: dict[str, Any] = {
        "str": "a",
        "int": 1,
        "float": 0.5,
        "bool": True,
        "list[int]": [1, 2],
        "list[float]": [-0.5],
        "dict[str, str]": {"k": "v"},
    }
    made = {}
    for name, row in TABLES.items():
        values = {}
        for field in msgspec.structs.fields(row):
            kind = str(getattr(field.type, "__name__", field.type)) if "[" not in str(field.type) else str(field.type)
            values[field.name] = WORDS.get(field.name, defaults[kind])
        second = {**values, "step": 2, "doc_id": "b"}
        made[name] = [row(**values), row(**{k: second[k] for k in values})]
    return made


def _part() -> bytes:
    import msgspec

    payload = msgspec.msgpack.encode(_rows())
    return b"XSJ1" + zlib.crc32(payload).to_bytes(4, "little") + payload


def _tables() -> list[bytes]:
    import pyarrow as pa

    from harness.store.rows import to_arrow

    contents = []
    for name in ("samples", "steps"):
        sink = pa.BufferOutputStream()
        data = to_arrow(name, _rows()[name])
        with pa.ipc.new_file(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(data)
        contents.append(sink.getvalue().to_pybytes())
    return contents


def journal(place: Path) -> Parser:
    """A part or a table of a compact folder; the first byte says which, and whether its checksum is made to fit."""
    from harness.store.journal import read_journal

    folder = place / "cell" / "journal"
    compact = folder / "compact-000001"
    compact.mkdir(parents=True)
    names = ["samples", "steps"]

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0) % 8, data[1:]
        if kind < 4:
            if kind < 3 and len(content) > 8:
                content = b"XSJ1" + zlib.crc32(content[8:]).to_bytes(4, "little") + content[8:]
            file = folder / "part-000002-000001.rows"
        else:
            file = compact / f"{names[kind % 2]}-{zlib.crc32(content):08x}.arrow"
        file.write_bytes(content)
        try:
            read_journal(folder.parent)
        finally:
            file.unlink()

    tables = _tables()
    return Parser(parse, [b"\x00" + _part(), b"\x04" + tables[0], b"\x05" + tables[1]], BINARY_WORDS)


def manifest(place: Path) -> Parser:
    """A cell's manifest, or a suite's file."""
    from harness.store.manifest import read_manifest, read_suite

    def parse(data: bytes) -> None:
        (place / "manifest.json").write_bytes(data)
        (place / "suite.json").write_bytes(data)
        with suppress(HarnessError):
            read_manifest(place)
        read_suite(place)

    seeds = [
        b'{"suite":"s","key":"k","group":"g","kind":"base","seed":1,"policies":[{"name":"a","model":"m"}],"state":"done",'
        b'"provenance":{"packages":{"torch":"2"}},"identity":{"models":{"a":"m"}},"pool":{"name":"p","prompts":3,"digest":"d"}}',
        b'{"name":"s","variants":[{"name":"v","regime_type":"sgt","options":{"lambda":0.1}}],"groups":["g"],"seeds":[1],"cells":["c"]}',
    ]
    return Parser(parse, seeds, JSON_WORDS)


def importing(place: Path) -> Parser:
    """Another lab's cell: the first byte says which of its files is the input's."""
    from harness.store.foreign import ImportReport, _checked_manifest, _checked_tables

    folder = place / "s" / "k"
    compact = folder / "journal" / "compact-000001"
    compact.mkdir(parents=True)
    good = json.dumps({
        "suite": "s", "key": "k", "group": "g", "regime": "r", "seed": 1, "state": "done", "policies": [{"name": "a", "model": "m"}],
    }).encode()  # fmt: skip
    samples, _ = _tables()
    target = folder / "manifest.json"

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0) % 4, data[1:]
        target.write_bytes(content if kind == 0 else good)
        table = samples if kind == 0 else content
        if kind == 3:
            file = folder / "journal" / "part-000002-000001.rows"
            table = b"XSJ1" + zlib.crc32(content[8:]).to_bytes(4, "little") + content[8:]
        else:
            file = compact / f"samples-{zlib.crc32(table):08x}.arrow"
        file.write_bytes(table)
        try:
            _checked_tables(_checked_manifest("s", folder), folder, ImportReport())
        finally:
            file.unlink()

    return Parser(parse, [b"\x00" + good, b"\x01" + samples, b"\x03" + _part()], BINARY_WORDS + JSON_WORDS)


def config(place: Path) -> Parser:
    """A checkpoint folder's config, its seal, its session and its index of weights: the first byte says which."""
    from harness.allocation.config import read_config
    from harness.engines.checkpoint import SEAL, check
    from harness.engines.folder import check_weights
    from harness.engines.weight_files import INDEX
    from harness.session.cell.resume_point import read

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0) % 4, data[1:]
        file = place / ("config.json", SEAL, "session.json", INDEX)[kind]
        file.write_bytes(content)
        try:
            (lambda: read_config(file), lambda: check(place, "a"), lambda: read(place), lambda: check_weights(place))[
                kind
            ]()
        finally:
            file.unlink()

    seeds = [
        b'\x00{"model_type":"llama","hidden_size":64,"num_hidden_layers":[2,2],"rope_scaling":{"factor":8.0},"vocab_size":1000}',
        b'\x01{"format":1,"policy":"a","version":3,"files":{"config.json":"aa"}}',
        b'\x02{"key":"k","step":3,"regimes":{"a":{"mean":[0.5]}},"exchange":{},"best":{"a":{"step":1,"accuracy":0.5}}}',
        b'\x03{"weight_map":{"a":"model-1.safetensors","b":"../x.safetensors"}}',
    ]
    return Parser(parse, seeds, JSON_WORDS)


def rows(place: Path) -> Parser:
    """Lines of a benchmark set in our own form, and of its public source: the first byte says which."""
    from harness.errors import DataError
    from harness.tasks.data import convert, parse_rows
    from harness.tasks.sets import SETS

    sources = list(SETS.values())

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0), data[1:]
        if kind < 128:
            parse_rows(content, "fuzz")
        else:
            source = sources[kind % len(sources)]
            (place / "lines.jsonl").write_bytes(content)
            with suppress(DataError):
                convert(source, source.remote.files[0], place / "lines.jsonl")

    whole = b'{"unique_id":"u","problem":"p","answer":"#### 5","solution":"\\\\boxed{5}","level":3,"subject":"s","question":"q","type":"t",'
    whole += b'"url":"2024_AIME_I_Problems/Problem_1","id":1,"final_answer":["$5$"],"subfield":"x"}\n'
    seeds = [
        b"\x00"
        + b'{"id":"a","problem":"p","answer":"5","solution":"s","level":1,"multi_boxed":true}\n{"id":"b","problem":"p","answer":"5"}\n'
    ]
    return Parser(parse, seeds + [bytes([128 + i]) + whole for i in range(len(sources))], JSON_WORDS)


PARSERS: dict[str, Callable[[Path], Parser]] = {
    "suite": suite, "record": record, "journal": journal, "manifest": manifest, "import": importing, "checkpoint": config, "rows": rows,
}  # fmt: skip


def mutated(parser: Parser, rng: random.Random) -> bytes:
    """One input: one in ten is random bytes, the others a seed after one to four changes."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(64))
    data = bytearray(rng.choice(parser.seeds))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(1, 16))
        match rng.randrange(6):
            case 0:
                data[at:end] = rng.randbytes(end - at)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = rng.choice(parser.words)
            case 3:
                data[at:end] = rng.choice(parser.words)
            case 4:
                other = rng.choice(parser.seeds)
                begin = rng.randrange(len(other))
                data[at:end] = other[begin : begin + rng.randint(1, 64)]
            case _ if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
    return bytes(data[: LONGEST * 4])


def fuzz(name: str, inputs: int, seed: int, last: mmap.mmap) -> dict[str, Any]:
    """Run one parser here. `last` is told each input before it is tried, so that a crash is not lost."""
    failures: dict[str, bytes] = {}
    refused, slowest = 0, 0.0
    # the file system of the machine's memory where there is one: files are written for each input
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        parser = PARSERS[name](Path(place))
        for valid in parser.seeds:
            with suppress(HarnessError):
                parser.parse(valid)  # imports, caches
        rng = random.Random(f"{name} {seed}")
        kept = sorted(f for f in (SEEDS / name).glob("*") if f.is_file())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, computed = time.monotonic(), time.process_time()
        with limits.memory(MEMORY):
            for i in range(len(kept) + inputs):
                data = kept[i].read_bytes() if i < len(kept) else mutated(parser, rng)
                last[:4] = len(data).to_bytes(4, "little")
                last[4 : 4 + len(data)] = data
                began = time.process_time()
                try:
                    parser.parse(data)
                except HarnessError:
                    refused += 1
                except BaseException as error:  # a panic of a Rust library is no Exception
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    failures.setdefault(
                        f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {str(error)[:80]}", data
                    )
                took = time.process_time() - began
                slowest = max(slowest, took)
                if took > SECONDS:
                    failures.setdefault(f"slow: {took:.1f} s", data)
        seconds, computed = time.monotonic() - started, time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for failure, data in failures.items():
        keep(name, data)
        print(f"{name}: {failure}: {data[:120]!r}", file=sys.stderr)
    return {
        "parser": name, "inputs": inputs, "kept": len(kept), "refused": refused, "failures": len(failures), "seconds": round(seconds, 1), "cpu_seconds": round(computed, 1),
        "slowest_ms": round(1000 * slowest, 1), "peak_mib": peak >> 10, "grown_mib": (peak - before) >> 10,
    }  # fmt: skip


def keep(name: str, data: bytes) -> None:
    folder = SEEDS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{zlib.crc32(data):08x}").write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="per parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parser", nargs="*", choices=PARSERS, default=list(PARSERS))
    parser.add_argument("--here", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        with open(arguments.here, "r+b") as file, mmap.mmap(file.fileno(), 0) as last:
            print(json.dumps(fuzz(arguments.parser[0], arguments.inputs, arguments.seed, last)))
        return
    print(
        f"seed {arguments.seed}, {arguments.inputs:,} inputs for each parser, {MEMORY >> 20} MiB and {SECONDS:.0f} s at most"
    )
    failed = False
    for name in arguments.parser:
        failed |= not _apart(name, arguments.inputs, arguments.seed)
    sys.exit(failed)


def _apart(name: str, inputs: int, seed: int) -> bool:
    """Run one parser in a process of its own and print its line; whether it passed."""
    with tempfile.NamedTemporaryFile() as told:
        told.truncate(1 << 20)
        command = [
            sys.executable,
            __file__,
            "--inputs",
            str(inputs),
            "--seed",
            str(seed),
            "--parser",
            name,
            "--here",
            told.name,
        ]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANGING + inputs / 100)
            found = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError) as error:
            data = Path(told.name).read_bytes()
            data = data[4 : 4 + int.from_bytes(data[:4], "little")]
            keep(name, data)
            print(f"{name}: hung or crashed ({type(error).__name__}) on {data[:120]!r}", file=sys.stderr)
            return False
    print(" ".join(f"{key}={value}" for key, value in found.items()), flush=True)
    return not found["failures"]


if __name__ == "__main__":
    main()
