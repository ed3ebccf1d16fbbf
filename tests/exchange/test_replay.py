"""A stored exchange, served again without the peer."""

from __future__ import annotations

import resource
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from exchange_records import PROMPTS, rollout, step_records, success

from harness.errors import CellError, DiskFullError, StoreError
from harness.exchange.exchange import Collected, Exchange
from harness.exchange.replay import Frame, ReplaySource, ReplayWriter
from harness.experience.records import Record, Refusal, Success, encode_record
from harness.session.cell import exchanges
from harness.suite.schema import Replay, Sharing, edges_of

POLICIES = ("a", "b", "c")
STEPS = range(1, 6)


def record(path: Path, steps: range = STEPS, resume: int = -1) -> list[tuple[Record, ...]]:
    """Run three policies, storing what is accepted; what b accepted step by step."""
    writer = ReplayWriter(path, resume)
    exchange = Exchange(POLICIES, edges_of(POLICIES, "all"), record=writer.record)
    heard = []
    for step in steps:
        for author in POLICIES:
            exchange.publish(author, step, step_records(author, step))
            exchange.post(author, step, [b"junk", encode_record(rollout(author, step - 1))])
        got = {receiver: exchange.collect(receiver, step, PROMPTS) for receiver in POLICIES}
        assert got["a"].refused[Refusal.STALE] == 2
        heard.append(got["b"].records)
    writer.close()
    return heard


def replayed(source: ReplaySource, step: int, receiver: str = "b", share: float = 1.0, seed: int = 0) -> Collected:
    authors = tuple(p for p in POLICIES if p != receiver)
    exchange = Exchange(POLICIES, edges_of(POLICIES, [(author, receiver) for author in authors]))
    source.serve(exchange, step, authors, share, seed)
    return exchange.collect(receiver, step, PROMPTS)


def test_round_trip(tmp_path: Path) -> None:
    heard = record(tmp_path / "exchange.bin")
    source = ReplaySource(tmp_path / "exchange.bin")
    assert source.authors == POLICIES
    for step, records in zip(STEPS, heard, strict=True):
        got = replayed(source, step)
        assert got.records == records
        assert not got.refused
    assert not replayed(source, 9).records
    stored = (tmp_path / "exchange.bin").stat().st_size
    once = sum(len(encode_record(r)) for step in STEPS for author in POLICIES for r in step_records(author, step))
    assert stored < 1.1 * once, "what two receivers accept is stored once"


def test_a_share_of_each_authors_messages_is_drawn_by_seed_and_step(tmp_path: Path) -> None:
    """S2L-PO's annealing on `replay`."""
    record(tmp_path / "log")
    source = ReplaySource(tmp_path / "log")
    whole = replayed(source, 2).records
    of = {author: [r for r in whole if r.author == author] for author in ("a", "c")}
    for share in (0.0, 0.3, 0.5, 1.0):
        got = replayed(source, 2, share=share).records
        for author, sent in of.items():
            assert len([r for r in got if r.author == author]) == int(share * len(sent) + 0.5)
        assert list(got) == [r for r in whole if r in got]
        assert got == replayed(source, 2, share=share).records, "a resumed run draws the same"
    drawn = {str(replayed(source, 2, share=0.5, seed=seed).records) for seed in range(6)}
    assert len(drawn) > 1


def test_a_recording_of_more_rollouts_is_served_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (writer := ReplayWriter(tmp_path / "log")).record(
        1, "b", [encode_record(success("b", 1, index=i)) for i in range(40)]
    )
    writer.close()
    monkeypatch.setattr(exchanges, "_replay_source", lambda *place: ReplaySource(tmp_path / "log"))
    learner: Any = SimpleNamespace(
        name="a",
        rollouts=1,
        regime=SimpleNamespace(shares=frozenset({Success})),
        policy=SimpleNamespace(condition=None),
    )
    cell: Any = SimpleNamespace(
        sharing=Sharing(),
        variant=SimpleNamespace(replay=Replay(suite="x", regime="sgt")),
        training=SimpleNamespace(steps=2, prompts=1, max_new_tokens=9),
        seed=1,
        group=SimpleNamespace(name="pair"),
    )
    line = exchanges.CellExchange(cell, tmp_path, [learner], dict, 0)
    line.begin(1)
    assert len(line.exchange.collect("a", 1, PROMPTS).records) == 40
    both = [
        SimpleNamespace(name=name, **{k: v for k, v in vars(learner).items() if k != "name"}) for name in ("a", "b")
    ]
    with pytest.raises(CellError, match=r"the recording is of b; .* the group pair lacks"):
        exchanges.CellExchange(cell, tmp_path, both, dict, 0)


def test_resuming_drops_what_is_run_again(tmp_path: Path) -> None:
    record(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    record(tmp_path / "cut", range(1, 5))
    with (tmp_path / "cut").open("ab") as file:
        file.write(b"\x00\x00\x01\x00torn")
    record(tmp_path / "cut", range(4, 6), resume=3)
    assert (tmp_path / "cut").read_bytes() == whole
    record(tmp_path / "cut")
    assert (tmp_path / "cut").read_bytes() == whole, "-1 begins anew"
    record(tmp_path / "cut", range(1, 3))
    assert (tmp_path / "cut").stat().st_size < len(whole), "and leaves nothing of the old"


def test_every_altered_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, range(1, 2))
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError, match="altered"):
            ReplaySource(path)
    for cut in (1, 19, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="cut off"):
            ReplaySource(path)
        with pytest.raises(StoreError, match="cut off"):
            ReplayWriter(path, resume=1)
    with pytest.raises(StoreError, match="No such file"):
        ReplaySource(tmp_path / "absent")


def test_frames_cannot_be_left_out_or_moved(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = ReplayWriter(path)
    ends = [0]
    for step in range(3):
        writer.record(step, "a", [bytes([step]) * 50])
        writer.flush()
        ends.append(path.stat().st_size)
    writer.close()
    whole = path.read_bytes()
    first, second, third = (whole[a:b] for a, b in pairwise(ends))
    for forged in (first + third, second + first + third, first + first + second + third):
        path.write_bytes(forged)
        with pytest.raises(StoreError, match="altered"):
            ReplaySource(path)


def test_what_is_no_frame_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xff\xff\xff" + bytes(100))
    with pytest.raises(StoreError, match="cut off"):
        ReplaySource(tmp_path / "log")
    for payload in (b"\x91" * 5000, msgspec.msgpack.encode([1, "a"]), msgspec.msgpack.encode(Frame(1, "a", []))[:-1]):
        digest = blake2b(bytes(16) + payload, digest_size=16).digest()
        (tmp_path / "log").write_bytes(len(payload).to_bytes(4, "big") + digest + payload)
        with pytest.raises(StoreError, match="not a stored exchange"):
            ReplaySource(tmp_path / "log")


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    writer = ReplayWriter(tmp_path / "log")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DiskFullError, match="File too large"):
            writer.record(1, "a", [b"x" * 100_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
