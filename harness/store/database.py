"""The store's DuckDB file (on a local disk, for DuckDB maps and locks it), its tables and views."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from harness.cache import cache_folder, expand_user
from harness.errors import StoreError
from harness.store.rows import SCHEMAS
from harness.store.starts import JUDGEMENT, UNPAIRED

STORE = "harness.duckdb"
VARIABLE = "HARNESS_STORE"
# Several machines may have these mounted, and every `fuse.*` but those of LOCAL_FUSE
NETWORK = {
    "nfs", "nfs3", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "afs", "9p",
    "virtiofs", "wekafs", "panfs", "orangefs", "pvfs2", "gfs2", "ocfs2", "fuse",
}  # fmt: skip
LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.portal", "fuse.lxcfs"}


def store_path(results: Path) -> Path:
    """Find the place of the results' store: where HARNESS_STORE says, else beside the journals where that is a local disk,
    else in the cache. Raises StoreError."""
    whole = results.resolve()  # one folder, whatever path leads there
    own = Path(f"{whole.name or 'results'}-{hashlib.blake2b(bytes(whole), digest_size=6).hexdigest()}", STORE)
    forced = os.environ.get(VARIABLE)
    if forced:
        return expand_user(forced) / own
    read_only = results.is_dir() and not os.access(results, os.W_OK)
    if not (read_only or on_network(results)):
        return results / STORE
    if not on_network(cache_folder()):
        return cache_folder() / "stores" / own
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"experience-sharing-harness-{user}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    if place.is_symlink() or place.stat().st_uid != user:
        raise StoreError(f"{place}: belongs to another user; {VARIABLE} names another folder for the store")
    return place / own


def on_network(path: Path) -> bool:
    kind = kind_of_mount(path)
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def kind_of_mount(path: Path) -> str:
    """Return the kind of the file system that a path lies on, as the system calls it; empty where it is not known."""
    import psutil

    whole = path.resolve()
    mounts: dict[Path, str] = {}
    with suppress(OSError):
        # the later of two hides the earlier
        mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[point] for point in (whole, *whole.parents) if point in mounts), "")


_CELLS = """
CREATE TABLE cells (
    suite VARCHAR, cell VARCHAR, kind VARCHAR, origin VARCHAR, group_name VARCHAR, regime VARCHAR, regime_type VARCHAR,
    seed BIGINT, budget VARCHAR, options VARCHAR, engine VARCHAR, baseline VARCHAR, policies VARCHAR[], models VARCHAR[],
    state VARCHAR, reason VARCHAR, fault VARCHAR, attempts BIGINT, config VARCHAR, code_version VARCHAR, commit_hash VARCHAR,
    dirty BOOLEAN, packages VARCHAR, machine VARCHAR, python VARCHAR, started VARCHAR, finished VARCHAR, fingerprint VARCHAR,
    starts VARCHAR[], identity VARCHAR
);
CREATE TABLE suites (
    suite VARCHAR, title VARCHAR, baseline VARCHAR, engine VARCHAR, variants VARCHAR[], groups VARCHAR[], seeds BIGINT[],
    cells VARCHAR[], bases VARCHAR[], altered VARCHAR[], tuned VARCHAR[][], config VARCHAR, fingerprint VARCHAR
);
CREATE TABLE problems (suite VARCHAR, cell VARCHAR, problem VARCHAR, remedy VARCHAR);
CREATE TABLE unpaired (suite VARCHAR, cell VARCHAR, why VARCHAR);
CREATE TABLE about (version VARCHAR);
"""
# Of a base checkpoint
BASE = "base "
BASE_LABEL = f"'{BASE}' || group_name || '/' || policies[1] || coalesce('/' || seed, '')"
# A cell's key where its manifest cannot be read
LABEL = "CASE group_name || regime WHEN '' THEN cell ELSE group_name || '/' || regime || coalesce('/' || seed, '') END"

# Each question's value under each metric, at the newest checkpoint, as in `evaluation.metrics`
_QUESTIONS = """
WITH ballots AS (
    SELECT suite, cell, policy, task, metric, checkpoint_step, doc_id, vote, any_value(prompt) AS prompt, count(*) AS repeats,
        count(*) FILTER (verdict <> 'invalid') AS answers, count(*) FILTER (verdict = 'right') AS hits,
        count(*) FILTER (verdict = 'invalid') AS invalid, bool_or(repeat = vote AND verdict = 'right') AS good
    FROM {samples} GROUP BY suite, cell, policy, task, metric, checkpoint_step, doc_id, vote
), counts AS (
    SELECT suite, cell, policy, task, metric, checkpoint_step, doc_id, any_value(prompt) AS prompt, sum(repeats)::BIGINT AS repeats,
        sum(answers)::BIGINT AS answers, sum(hits)::BIGINT AS hits, sum(invalid)::BIGINT AS invalid, count(vote) > 0 AS voted,
        coalesce(arg_max(good::INT, [answers, -vote]) FILTER (vote >= 0), 0) AS majority
    FROM ballots GROUP BY suite, cell, policy, task, metric, checkpoint_step, doc_id
), newest AS (
    SELECT *, max(repeats) OVER (PARTITION BY suite, cell, policy, task, metric, checkpoint_step) AS k FROM counts
    QUALIFY checkpoint_step = max(checkpoint_step) OVER (PARTITION BY suite, cell, policy, task, metric)
)
SELECT suite, cell, policy, task, CASE way WHEN 'mean' THEN metric ELSE way || '@' || k END AS metric, checkpoint_step, doc_id,
    prompt, repeats, answers, hits, invalid, CASE WHEN answers > 0 THEN
        CASE way WHEN 'mean' THEN hits / answers WHEN 'best' THEN (hits > 0)::INT ELSE majority END
    END AS value
FROM newest, (VALUES ('mean'), ('best'), ('maj')) AS ways(way)
WHERE way = 'mean' OR metric = 'sampled' AND k > 1 AND (way = 'best' OR voted)
"""
# Rounded, for a parallel sum has no order. No view: it would read all answers
SCORES = f"""
SELECT suite, cell, policy, task, metric, checkpoint_step, max(repeats) AS repeats, count(value) AS questions,
    sum(answers)::BIGINT AS answers, sum(hits)::BIGINT AS right_answers, sum(invalid)::BIGINT AS invalid,
    round(avg(value), 12) AS accuracy, round(stddev_samp(value) / sqrt(count(value)), 12) AS error
FROM ({_QUESTIONS}) GROUP BY ALL
"""


def _of_steps(kind: pa.DataType, select: str) -> str:
    """Return the SELECT list of a step's columns of one kind, without those of CPU time, which is in `spent`."""
    names = [column.name for column in SCHEMAS["steps"] if column.type == kind and not column.name.endswith("_seconds")]
    return ", ".join(select.format(f'"{name}"') for name in names if name not in {"step", "version", "kl_base"})


VIEWS = {
    "questions": _QUESTIONS.format(samples="samples"),
    "totals": f"""
SELECT suite, cell, policy, count(*) AS steps, {_of_steps(pa.int64(), "sum({0})::BIGINT AS {0}")},
    {_of_steps(pa.float64(), "avg({0}) AS {0}")}, max_by(kl_base, step) AS kl_base,
    stddev_samp(gradient_norm) AS gradient_norm_deviation,
    avg(peer_gradient_norm / nullif(own_gradient_norm, 0)) AS peer_gradient_ratio
FROM steps GROUP BY ALL
""",
    "spent": """
SELECT suite, cell, policy, phase, round(sum(cpu_seconds), 6) AS cpu_seconds, round(sum(gpu_seconds), 6) AS gpu_seconds,
    round(sum(wall_seconds), 6) AS wall_seconds
FROM costs GROUP BY ALL
""",
    "flows": """
SELECT suite, cell, author, receiver, kind, accepted, reason, sum(messages)::BIGINT AS records, sum(bytes)::BIGINT AS bytes,
    sum(source_tokens)::BIGINT AS source_tokens, sum(receiver_tokens)::BIGINT AS receiver_tokens,
    coalesce(sum(messages) FILTER (used), 0)::BIGINT AS used,
    coalesce(sum(messages) FILTER (verdict = 'right'), 0)::BIGINT AS peer_right, avg(residual_text) AS residual_text,
    avg(residual_boundary) AS residual_boundary, avg(residual_mass) AS residual_mass, avg(residual_length) AS residual_length,
    avg(residual_canonical) AS residual_canonical
FROM exchanges GROUP BY ALL
""",
    "placed_cells": """
SELECT * FROM cells
WHERE (suite, cell) IN (SELECT suite, unnest(cells || bases) FROM suites)
    OR kind = 'cell' AND suite NOT IN (SELECT suite FROM suites WHERE len(cells) > 0)
    OR kind = 'base' AND suite NOT IN (SELECT suite FROM suites WHERE len(bases) > 0)
QUALIFY row_number() OVER (
    PARTITION BY suite, kind, group_name, regime, seed, CASE kind WHEN 'base' THEN policies END,
        CASE group_name WHEN '' THEN cell END
    ORDER BY state = 'done' DESC, finished DESC, cell
) = 1
""",
    "current_cells": f"""
SELECT c.* REPLACE (
    CASE WHEN u.why IS NULL THEN c.state ELSE '{UNPAIRED}' END AS state, coalesce(u.why, c.reason) AS reason
) FROM placed_cells c LEFT JOIN unpaired u ON u.suite = c.suite AND u.cell = c.cell
""",
}
# Tables with rows of single cells
CELL_TABLES = (*SCHEMAS, "scores", "cells", "problems")
# Views of the cells that a suite shows, which the run that is shown decides
OF_A_RUN = ("placed_cells", "current_cells")


def create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the empty tables of journals, those of cells and suites, the scores, and the views over them."""
    connection.begin()  # one write to the disk, not one for each table
    for name, schema in SCHEMAS.items():
        connection.register("empty", schema.empty_table())
        connection.execute(f"CREATE TABLE {name} AS SELECT '' AS suite, '' AS cell, * FROM empty")
    connection.unregister("empty")
    connection.execute(f"{_CELLS}; CREATE TABLE scores AS {SCORES.format(samples='samples')}")
    for name, select in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {select}")
    connection.execute("INSERT INTO about VALUES (?)", [schema_version()])
    connection.commit()


def schema_version() -> str:
    """Hash of all table definitions, and of how starts are judged: a store of another version is rebuilt."""
    return f"{zlib.crc32(repr((SCHEMAS, _CELLS, SCORES, VIEWS, JUDGEMENT)).encode()):08x}"


def quote_path(path: Path) -> str:
    return str(path).replace("'", "''")
