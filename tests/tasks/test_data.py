"""Sets from a folder and from their pinned public source."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_data import data_folder, serving
from running import here

from harness.errors import DataError
from harness.tasks import data, data_files, set_rows
from harness.tasks.registry import list_tasks
from harness.tasks.sets import SETS
from harness.verification.equivalence import same_answer

FOLDER = data_folder()
needs_data = pytest.mark.skipif(FOLDER is None, reason="no benchmark folder (HARNESS_DATA)")
BOTH_WAYS = r"either name a folder that holds math500\.jsonl \(--data-dir FOLDER, or HARNESS_DATA=FOLDER\), or run once"


BODY = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "HARNESS_DATA",
        "HF_HUB_OFFLINE",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")


def refused(monkeypatch: pytest.MonkeyPatch, address: str, words: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(DataError, match=words) as caught:
        data.load_set("math500")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_hub_that_answers_with_an_error_and_is_not_asked_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}, lambda request, body: request.send_error(503)) as (address, requests):
        refused(monkeypatch, address, f"HTTP status 503.*{BOTH_WAYS}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        refused(monkeypatch, address, "HF_HUB_OFFLINE")
        monkeypatch.setenv("HARNESS_CACHE", f"{__file__}/cache")  # where nothing can be written
        refused(monkeypatch, address, "HF_HUB_OFFLINE")
    paths = [request.path for request in requests]
    assert paths == [f"/datasets/HuggingFaceH4/MATH-500/resolve/{SETS['math500'].remote.revision}/test.jsonl"]


def test_a_hub_that_never_answers_or_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_files.CONNECT_SECONDS <= 4
    monkeypatch.setattr(data_files, "CONNECT_SECONDS", 0.5)
    begin = time.monotonic()
    with serving({}, lambda request, body: time.sleep(10)) as (address, _):
        refused(monkeypatch, address, BOTH_WAYS)
        assert time.monotonic() - begin < 5
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        refused(monkeypatch, f"http://127.0.0.1:{held.getsockname()[1]}", BOTH_WAYS)


def test_a_fetched_file_that_is_not_what_its_checksum_says_and_one_without_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving({"": b'{"problem": "altered"}\n'}) as (address, _):
        refused(monkeypatch, address, "checksum")
        monkeypatch.setattr(data_files, "_MAX_FETCHED", 10)
        refused(monkeypatch, address, "larger than expected")
    assert not list((tmp_path / "cache").rglob("test.jsonl"))
    kept = data_files.cached_path(SETS["math500"].remote, "test.jsonl")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("altered")
    assert next(info.state for info in data.list_sets() if info.name == "math500") == "altered"
    unsigned = data_files.cached_path(SETS["minerva"].remote, SETS["minerva"].remote.files[0])
    unsigned.parent.mkdir(parents=True)
    unsigned.write_text("damaged")
    with pytest.raises(DataError, match=f"{unsigned}, .* remove it"):
        data.load_set("minerva")


def fetched(host: Literal["hub", "github"] = "hub") -> bytes:
    remote = replace(SETS["math500"].remote, host=host, sha256={"f": hashlib.sha256(BODY).hexdigest()})
    return data_files.ensure_downloaded(
        replace(SETS["math500"], remote=remote), "f", data_files.cached_path(remote, "f")
    ).read_bytes()


@pytest.mark.parametrize(("host", "variable"), [("hub", "HF_ENDPOINT"), ("github", "HARNESS_GITHUB")])
def test_the_token_goes_to_the_hub_alone(
    host: Literal["hub", "github"], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"": BODY}) as (address, requests):
        monkeypatch.setenv(variable, address)
        assert fetched(host) == BODY
    assert [r.headers.get("Authorization") for r in requests] == ["Bearer hf_secret" if host == "hub" else None]


def test_a_broken_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = iter([BODY[:200_000], BODY])

    def answer(request: BaseHTTPRequestHandler, body: bytes | None) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(BODY)))
        request.end_headers()
        request.wfile.write(next(broken))
        request.close_connection = True

    with serving({}, answer) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert fetched() == BODY


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"": BODY}) as (address, requests):
        monkeypatch.setenv("HTTP_PROXY", address)
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
        fetched()
    assert requests[0].path.startswith("http://hub.invalid/datasets/")


def test_folder_without_the_file_and_with_an_altered_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_DATA", "~/sets")
    assert data.folder_in_use(None) == data.folder_in_use(Path("~/sets")) == Path.home() / "sets"
    with pytest.raises(DataError, match=r"no aime24\.jsonl in .*leave the data folder out"):
        data.load_set("aime24", tmp_path)
    (tmp_path / "aime24.jsonl").write_text('{"id": "1", "problem": "p", "answer": "1"}\n')
    with pytest.raises(DataError, match="altered"):
        data.load_set("aime24", tmp_path)
    assert {"altered", "absent"} == {info.state for info in data.list_sets(tmp_path)}
    os.truncate(tmp_path / "aime24.jsonl", data_files.MAX_BYTES + 1)  # too large to be read
    assert {"altered", "absent"} == {info.state for info in data.list_sets(tmp_path)}


def test_inventory_and_listing_fetch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as (address, requests):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HARNESS_GITHUB", address)
        assert {info.state for info in data.list_sets()} == {"absent"}
        shown = {info.name: info for info in list_tasks()}
        said = here("tasks")[1]
    assert not requests
    assert "absent: harness data" in " ".join(said.split())
    assert "fetched" not in said
    assert shown["micro"].perfect == 1.0
    assert shown["micro"].empty == 0.0
    assert shown["math500"].perfect is None
    assert "HARNESS_DATA" in shown["math500"].problem


Raw = dict[str, object]


def _raw_row(name: str, row: dict[str, str]) -> Raw:
    """A row of the folder in the columns of the set's public source."""
    match name:
        case "gsm8k" | "gsm8k_train":
            return {"question": row["problem"], "answer": f"{row['solution']}\n#### {int(row['answer']):,}"}
        case "math" | "math_train":
            level = f"Level {row['level'] or '?'}"
            return {"problem": row["problem"], "solution": row["solution"], "type": row["subject"], "level": level}
        case "minerva":
            return {"problem": row["problem"], "solution": row["solution"], "type": row["subject"]}
        case "olympiad":
            texts: Raw = {"question": row["problem"], "solution": [row["solution"]], "subfield": row["subject"]}
            return {"id": int(row["id"]), "final_answer": [row["answer_raw"]], **texts}
        case "amc23":
            return {"question": row["problem"], "answer": float(row["answer"]), "url": row["url"]}
        case "aime24":
            return {**row, "answer": row["answer_raw"], "id": 0}
        case "aime25":
            return {"problem": row["problem"], "answer": row["answer"], "id": "0"}
        case _:
            return {**row, "unique_id": row["id"]}


def _published(name: str, local: list[dict[str, str]]) -> dict[str, list[Raw]]:
    files: dict[str, list[Raw]] = {file: [] for file in SETS[name].remote.files}
    for row in local:
        subject = row["id"].split("/")[1] if name in ("math", "math_train") else ""
        file = next(file for file in files if file.startswith(subject))
        files[file].append(_raw_row(name, row))
    if SETS[name].by_text:  # the hub's order is its own
        files = {file: rows[::-1] for file, rows in files.items()}
    return files


def _encoded(file: str, content: list[dict[str, object]]) -> bytes:
    if file.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(content), buffer)
    return buffer.getvalue()


@needs_data
@pytest.mark.parametrize("name", list(SETS))
def test_the_public_form_of_a_set_gives_the_same_problems_and_golds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOLDER is not None
    local = [json.loads(line) for line in (FOLDER / SETS[name].file).read_text("utf-8").split("\n") if line]
    files = _published(name, local)
    remote = replace(SETS[name].remote, sha256={})  # the rows are the set's, the bytes are not the public file's
    monkeypatch.setattr(data, "SETS", {name: replace(SETS[name], remote=remote)})
    prefix = f"/datasets/{remote.repository}/resolve" if remote.host == "hub" else f"/{remote.repository}"
    with serving(
        {f"{prefix}/{remote.revision}/{file}": _encoded(file, content) for file, content in files.items()}
    ) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HARNESS_GITHUB", address)
        fetched = data.load_set(name)
        assert data.load_set(name) == fetched
    kept = data.load_set(name, FOLDER)
    assert [(row.id, row.problem, row.multi_boxed) for row in fetched] == [
        (r.id, r.problem, r.multi_boxed) for r in kept
    ]
    pairs = [(row.answer, other.answer) for row, other in zip(kept, fetched, strict=True)]
    assert all(gold == answer or (name == "minerva" and same_answer(gold, answer)) for gold, answer in pairs)


def test_damage_in_aime25_of_the_hub_is_mended() -> None:
    problem = set_rows.numbered_row(
        {"problem": "\x0crac{1}{2} of \triangle ABC, $x$ and $y$$", "answer": "70^\\circ"}, "", 18
    )
    assert (problem.id, problem.answer) == ("2025-II-4", "70")
    assert problem.problem == r"\frac{1}{2} of \triangle ABC, $x$ and $y$"


def test_multi_boxed_solutions_are_marked_and_empty_ones_left_out() -> None:
    raw = {"problem": "p", "type": "Algebra", "level": "Level 3"}
    solutions = (r"either \boxed{1} or \boxed{2}", r"so \boxed{1}, that is \boxed{1}.", r"\boxed{}")
    rows = [set_rows.math_row({**raw, "solution": text}, "algebra/train.parquet", 0) for text in solutions]
    assert [row and (row.answer, row.multi_boxed) for row in rows] == [("2", True), ("1", False), None]
