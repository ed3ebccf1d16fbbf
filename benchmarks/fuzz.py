# ruff: noqa: E501
"""Every parser of what others made, against mutations of valid inputs and random bytes.

    python benchmarks/fuzz.py --inputs 100000 --seed 1 [--parser NAME]

A parser passes if nothing but its own typed errors came out, no input took more than two seconds and its process neither hung
nor died. What fails is written to tests/fuzz/<parser>/ and is tried first from then on. Exit code 1 if any parser failed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import typer

from harness import limits
from harness.errors import HarnessError

SEEDS = Path(__file__).parents[1] / "tests" / "fuzz"
MEMORY = 512 << 20
SECONDS, HANGING = 2.0, 60.0
LONGEST = 16_384


class Parser(NamedTuple):
    parse: Callable[[bytes], object]
    seeds: list[bytes]
    words: list[bytes]


JSON_WORDS = [b"null", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400, b'"\\ud800"', b'"\\u0000"', b"[" * 50, b"{}", b"[]",
              b"true", b"\xff"]  # fmt: skip
YAML_WORDS = [b".nan", b".inf", b"&a ", b"*a", b"!!python/name:os.system ", b"? ", b"- ", b": ", b"<<: ", b"\t", b"\x00", b"|\n",
              b"2001-01-01", b"0x" + b"f" * 80, b"1:30:00", b"[", b"{", b'"\\x1b"', b"'", b"9" * 400, b"\xef\xbb\xbf", b"=", b"~",
              b"null", b"---\n"]  # fmt: skip
BINARY_WORDS = [b"\x00", b"\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xcb\x7f\xf8" + bytes(6),
                b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\x91" * 60, b"\xc1", b"\xa2\xff\xfe", b"\x7f\xff\xff\xff", b"\xff" * 8]  # fmt: skip


def suite(place: Path) -> Parser:
    from harness.engines.backend import read_options
    from harness.engines.embedded.plugin import EmbeddedOptions
    from harness.reading import as_text
    from harness.session.suite.validation import validate_suite
    from harness.suite.load import parse_suite, parse_yaml

    def parse(data: bytes) -> None:
        try:
            text = as_text(data)
        except ValueError:  # `read_text` makes an OSError of it, `read_yaml` a SuiteError
            return
        raw = parse_yaml(text, "fuzz")
        if isinstance(raw, dict):
            validated = validate_suite(parse_suite({"name": "x", **raw}, (), "fuzz"), "fuzz")
            read_options(EmbeddedOptions, validated.engine_options, "fuzz")
            json.dumps(validated.model_dump(mode="json")).encode()

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
    from harness.experience.records import GroupValue, Rollout, Success, TextRollout, decode_record, encode_record

    head: dict[str, Any] = {"author": "a", "version": 1, "step": 2, "prompt_id": "p"}
    records = [
        Rollout(
            **head, index=0, text="ab", tokens=[1, 2], logprobs=[-0.5, -1.0], pieces=[1, 1], finished=True, reward=1.0
        ),
        TextRollout(**head, index=0, text="é", finished=False, reward=0.0),
        GroupValue(**head, count=4, right=2),
        Success(**head, index=3, text="ok"),
    ]
    return Parser(decode_record, [encode_record(r) for r in records], BINARY_WORDS)


WORDS = {"verdict": "right", "own_verdict": "right", "peer_verdict": "right", "metric": "greedy", "source": "own", "policy": "a",
         "author": "a", "receiver": "a"}  # fmt: skip
DEFAULTS: dict[Any, Any] = {
    str: "a",
    int: 1,
    float: 0.5,
    bool: True,
    list[int]: [1, 2],
    list[float]: [-0.5],
    dict[str, str]: {"k": "v"},
}


def _rows() -> dict[str, list[Any]]:
    from harness.store.rows import TABLES

    made = {}
    for name, row in TABLES.items():
        first = row(**{column: WORDS.get(column, DEFAULTS[kind]) for column, kind in get_type_hints(row).items()})
        second = {k: v for k, v in {"step": 2, "doc_id": "b"}.items() if k in row.__struct_fields__}
        made[name] = [first, msgspec.structs.replace(first, **second)]
    return made


def _summed(payload: bytes) -> bytes:
    return b"XSJ1" + zlib.crc32(payload).to_bytes(4, "little") + payload


def _table(name: str) -> bytes:
    import pyarrow as pa

    from harness.store.rows import to_arrow

    sink, data = pa.BufferOutputStream(), to_arrow(name, _rows()[name])
    with pa.ipc.new_file(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(data)
    return bytes(sink.getvalue())


def _tried(file: Path, content: bytes, parse: Callable[[], object]) -> None:
    file.write_bytes(content)
    try:
        parse()
    finally:
        file.unlink()


def journal(place: Path) -> Parser:
    """A part or a table of a compact folder; the first byte says which, and whether its checksum is made to fit."""
    from harness.store.journal import read_journal

    folder = place / "cell" / "journal"
    compact = folder / "compact-000001"
    compact.mkdir(parents=True)

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0) % 8, data[1:]
        file = compact / f"{('samples', 'steps')[kind % 2]}-{zlib.crc32(content):08x}.arrow"
        if kind < 4:
            content = _summed(content[8:]) if kind < 3 and len(content) > 8 else content
            file = folder / "part-000002-000001.rows"
        _tried(file, content, lambda: read_journal(folder.parent))

    part = _summed(msgspec.msgpack.encode(_rows()))
    return Parser(parse, [b"\x00" + part, b"\x04" + _table("samples"), b"\x05" + _table("steps")], BINARY_WORDS)


def importing(place: Path) -> Parser:
    from harness.store.imported_results import ImportReport, check_manifest, check_tables

    folder = place / "s" / "k"
    compact = folder / "journal" / "compact-000001"
    compact.mkdir(parents=True)
    good = json.dumps({
        "suite": "s", "key": "k", "group": "g", "regime": "r", "seed": 1, "state": "done", "policies": [{"name": "a", "model": "m"}],
    }).encode()  # fmt: skip
    samples, part = _table("samples"), _summed(msgspec.msgpack.encode(_rows()))

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0) % 4, data[1:]
        (folder / "manifest.json").write_bytes(content if kind == 0 else good)
        table = samples if kind == 0 else content
        file = compact / f"samples-{zlib.crc32(table):08x}.arrow"
        if kind == 3:
            file, table = folder / "journal" / "part-000002-000001.rows", _summed(content[8:])
        _tried(file, table, lambda: check_tables(check_manifest("s", folder), folder, ImportReport()))

    return Parser(parse, [b"\x00" + good, b"\x01" + samples, b"\x03" + part], BINARY_WORDS + JSON_WORDS)


def _files(place: Path, readers: Mapping[str, Callable[[], object]], seeds: list[bytes]) -> Parser:
    """The first byte says which file the others are."""
    kinds = list(readers.items())

    def parse(data: bytes) -> None:
        name, read = kinds[(data[0] if data else 0) % len(kinds)]
        _tried(place / name, data[1:], read)

    return Parser(parse, [bytes([kind]) + seed for kind, seed in enumerate(seeds)], JSON_WORDS)


def manifest(place: Path) -> Parser:
    from harness.store.manifest import read_manifest, read_suite

    readers = {"manifest.json": lambda: read_manifest(place), "suite.json": lambda: read_suite(place)}
    seeds = [
        b'{"suite":"s","key":"k","group":"g","kind":"base","seed":1,"policies":[{"name":"a","model":"m"}],"state":"done",'
        b'"provenance":{"packages":{"torch":"2"}},"identity":{"models":{"a":"m"}},"pool":{"name":"p","prompts":3,"digest":"d"}}',
        b'{"name":"s","variants":[{"name":"v","regime_type":"sgt","options":{"lambda":0.1}}],"groups":["g"],"seeds":[1],"cells":["c"]}',
    ]
    return _files(place, readers, seeds)


def checkpoint(place: Path) -> Parser:
    from harness.allocation.shapes import read_config
    from harness.engines.checkpoint import INDEX, SEAL, check
    from harness.engines.vocabulary import check_weights
    from harness.session.cell.resume_point import read_resume_point

    readers = {
        "config.json": lambda: read_config(place / "config.json"),
        SEAL: lambda: check(place, "a"),
        "session.json": lambda: read_resume_point(place),
        INDEX: lambda: check_weights(place),
    }
    seeds = [
        b'{"model_type":"llama","hidden_size":64,"num_hidden_layers":[2,2],"rope_scaling":{"factor":8.0},"vocab_size":1000}',
        b'{"format":1,"policy":"a","version":3,"files":{"config.json":"aa"}}',
        b'{"key":"k","step":3,"regimes":{"a":{"mean":[0.5]}},"exchange":{},"best":{"a":{"step":1,"accuracy":0.5}}}',
        b'{"weight_map":{"a":"model-1.safetensors","b":"../x.safetensors"}}',
    ]
    return _files(place, readers, seeds)


def rows(place: Path) -> Parser:
    """Lines of a benchmark set in our own form, and of its public source: the first byte says which."""
    from harness.tasks.data import convert_file, parse_rows
    from harness.tasks.sets import SETS

    sources = list(SETS.values())

    def parse(data: bytes) -> None:
        kind, content = (data[0] if data else 0), data[1:]
        if kind < 128:
            parse_rows(content, "fuzz")
        else:
            source = sources[kind % len(sources)]
            (place / "lines.jsonl").write_bytes(content)
            convert_file(source, source.remote.files[0], place / "lines.jsonl")

    whole = b'{"unique_id":"u","problem":"p","answer":"#### 5","solution":"\\\\boxed{5}","level":3,"subject":"s","question":"q","type":"t",'
    whole += b'"url":"2024_AIME_I_Problems/Problem_1","id":1,"final_answer":["$5$"],"subfield":"x"}\n'
    seeds = [
        b"\x00"
        + b'{"id":"a","problem":"p","answer":"5","solution":"s","level":1,"multi_boxed":true}\n{"id":"b","problem":"p","answer":"5"}\n'
    ]
    return Parser(parse, seeds + [bytes([128 + i]) + whole for i in range(len(sources))], JSON_WORDS)


PARSERS: dict[str, Callable[[Path], Parser]] = {
    "suite": suite, "record": record, "journal": journal, "manifest": manifest, "import": importing, "checkpoint": checkpoint, "rows": rows,
}  # fmt: skip

Name = StrEnum("Name", list(PARSERS))


def mutated(parser: Parser, rng: random.Random) -> bytes:
    """One input: one in ten is random bytes, the others a seed after one to four changes."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(64))
    data = bytearray(rng.choice(parser.seeds))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(1, 16))
        other = rng.choice(parser.seeds)
        begin = rng.randrange(len(other))
        flipped = bytes(b ^ 1 << rng.randrange(8) for b in data[at : at + 1])
        word = rng.choice(parser.words)
        piece = other[begin : begin + rng.randint(1, 64)]
        cut, new = rng.choice(
            [(end, rng.randbytes(end - at)), (end, b""), (at, word), (end, word), (end, piece), (at + 1, flipped)]
        )
        data[at:cut] = new
    return bytes(data[:LONGEST])


def fuzz(name: str, inputs: int, seed: int, folder: str) -> dict[str, Any]:
    """In this process. In the folder `last` is the input being parsed."""
    failures: dict[str, bytes] = {}
    refused, slowest, last = 0, 0.0, Path(folder) / "last"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        parser = PARSERS[name](Path(place))
        for valid in parser.seeds:
            with suppress(HarnessError):
                parser.parse(valid)  # imports, caches
        rng = random.Random(f"{name} {seed}")
        kept = [f.read_bytes() for f in sorted((SEEDS / name).glob("*"))]
        with limits.limit_memory(MEMORY):
            for data in chain(kept, (mutated(parser, rng) for _ in range(inputs))):
                last.write_bytes(data)
                began = time.process_time()
                try:
                    parser.parse(data)
                except HarnessError:
                    refused += 1
                except BaseException as error:  # a panic of a Rust library is no Exception
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(frame.filename).name}:{frame.lineno}"
                    failures.setdefault(f"{type(error).__name__} at {where}: {str(error)[:80]}", data)
                slowest = max(slowest, took := time.process_time() - began)
                if took > SECONDS:
                    failures.setdefault(f"slow: {took:.1f} s", data)
    for failure, data in failures.items():
        keep(name, data, failure)
    return {"parser": name, "inputs": inputs, "kept": len(kept), "refused": refused, "failures": len(failures),
            "slowest_ms": round(1000 * slowest, 1)}  # fmt: skip


def keep(name: str, data: bytes, failure: str) -> None:
    (SEEDS / name).mkdir(parents=True, exist_ok=True)
    (SEEDS / name / f"{zlib.crc32(data):08x}").write_bytes(data)
    print(f"{name}: {failure}: {data[:120]!r}", file=sys.stderr)


def apart(name: str, inputs: int, seed: int) -> bool:
    shared = Path("/dev/shm")  # the machine's memory where there is one: files are written for each input
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        last = Path(place) / "last"
        code = f"import json, fuzz; print(json.dumps(fuzz.fuzz({name!r}, {inputs}, {seed}, {place!r})))"
        try:
            done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
                                  timeout=HANGING + inputs / 100)  # fmt: skip
            report = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError) as error:
            keep(name, last.read_bytes() if last.exists() else b"", f"hung or crashed ({type(error).__name__})")
            return False
    print(" ".join(f"{key}={value}" for key, value in report.items()), flush=True)
    return not report["failures"]


def main(
    inputs: Annotated[int, typer.Option(help="Per parser.")] = 100_000,
    seed: int = 1,
    parser: Annotated[list[Name] | None, typer.Option(help="One parser; may be given several times.")] = None,
) -> None:
    print(f"seed {seed}, {inputs:,} inputs for each parser, {MEMORY >> 20} MiB and {SECONDS:.0f} s at most")
    failed = sum(not apart(name.value, inputs, seed) for name in parser or Name)
    sys.exit(bool(failed))


if __name__ == "__main__":
    typer.run(main)
