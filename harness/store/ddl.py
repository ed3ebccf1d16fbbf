"""The store's tables: those of the journals (`rows.TABLES`, with suite and cell in front) and the derived ones."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa

from harness.store.columns import SCHEMAS

CELLS = """
CREATE TABLE cells (
    suite VARCHAR, cell VARCHAR, kind VARCHAR, origin VARCHAR, group_name VARCHAR, regime VARCHAR, regime_type VARCHAR,
    seed BIGINT, budget VARCHAR, options VARCHAR, engine VARCHAR, baseline VARCHAR, policies VARCHAR[], models VARCHAR[],
    state VARCHAR, reason VARCHAR, fault VARCHAR, attempts BIGINT, config VARCHAR, code_version VARCHAR, commit_hash VARCHAR,
    dirty BOOLEAN, packages VARCHAR, machine VARCHAR, python VARCHAR, started VARCHAR, finished VARCHAR, fingerprint VARCHAR
);
CREATE TABLE suites (
    suite VARCHAR, title VARCHAR, baseline VARCHAR, engine VARCHAR, variants VARCHAR[], groups VARCHAR[], seeds BIGINT[],
    cells VARCHAR[], bases VARCHAR[], altered VARCHAR[], tuned VARCHAR[][], config VARCHAR, fingerprint VARCHAR
);
"""
CURRENT = """
CREATE VIEW current_cells AS
SELECT * FROM cells
WHERE (suite, cell) IN (SELECT suite, unnest(cells || bases) FROM suites)
    OR kind = 'cell' AND suite NOT IN (SELECT suite FROM suites WHERE len(cells) > 0)
    OR kind = 'base' AND suite NOT IN (SELECT suite FROM suites WHERE len(bases) > 0)
QUALIFY row_number() OVER (
    PARTITION BY suite, kind, group_name, regime, seed, CASE kind WHEN 'base' THEN policies END,
        CASE group_name WHEN '' THEN cell END
    ORDER BY state = 'done' DESC, finished DESC, cell
) = 1;
"""
LABEL = "CASE group_name || regime WHEN '' THEN cell ELSE group_name || '/' || regime || coalesce('/' || seed, '') END"
"""What people read for a line of `cells`: its key where its manifest cannot be read."""
# state: another one after each change.
ABOUT = "CREATE TABLE about (version VARCHAR, state VARCHAR);"
MORE = """
CREATE TABLE problems (suite VARCHAR, cell VARCHAR, problem VARCHAR, remedy VARCHAR);
CREATE TABLE scores (
    suite VARCHAR, cell VARCHAR, policy VARCHAR, task VARCHAR, metric VARCHAR, checkpoint_step BIGINT, repeats BIGINT,
    questions BIGINT, answers BIGINT, right_answers BIGINT, invalid BIGINT, accuracy DOUBLE, error DOUBLE
);
CREATE TABLE totals (
    suite VARCHAR, cell VARCHAR, policy VARCHAR, steps BIGINT, rollouts BIGINT, generated_tokens BIGINT,
    trained_tokens BIGINT, exchanged_tokens BIGINT, exchanged_bytes BIGINT, peer_received BIGINT, peer_used BIGINT,
    prompts BIGINT, prompts_all_wrong BIGINT, prompts_rescued BIGINT, weight_second_moment DOUBLE,
    effective_sample_size DOUBLE, clipped_share DOUBLE, refused_share DOUBLE, kl_step DOUBLE, kl_base DOUBLE,
    gradient_norm DOUBLE, gradient_norm_deviation DOUBLE, own_peer_cosine DOUBLE, entropy DOUBLE,
    peer_only_support_share DOUBLE, peer_gradient_ratio DOUBLE, sampler_drift DOUBLE, sampler_drift_p99 DOUBLE,
    sampler_drift_outside DOUBLE
);
CREATE TABLE spent (
    suite VARCHAR, cell VARCHAR, policy VARCHAR, phase VARCHAR, cpu_seconds DOUBLE, gpu_seconds DOUBLE, wall_seconds DOUBLE
);
CREATE TABLE flows (
    suite VARCHAR, cell VARCHAR, author VARCHAR, receiver VARCHAR, kind VARCHAR, accepted BOOLEAN, reason VARCHAR,
    records BIGINT, bytes BIGINT, source_tokens BIGINT, receiver_tokens BIGINT, used BIGINT, peer_right BIGINT,
    residual_text DOUBLE, residual_boundary DOUBLE, residual_mass DOUBLE, residual_length DOUBLE, residual_canonical DOUBLE
);
"""

DERIVED = ("scores", "totals", "spent", "flows")

# Each question's value under each metric, at the newest checkpoint. An invalid verdict is left out of all of them, as in
# `evaluation.metrics`: best@k of k samples asks for one right answer, maj@k for the most frequent one, the earliest of equals.
QUESTIONS = """
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

# `{samples}` and its like name the relation that holds the new cells' rows.
# Rounding takes away what the order of a parallel sum changes: the same journals give the same scores, and the same costs to the
# microsecond.
DERIVE = {
    "scores": f"""
SELECT suite, cell, policy, task, metric, checkpoint_step, max(repeats), count(value), sum(answers), sum(hits), sum(invalid),
    round(avg(value), 12), round(stddev_samp(value) / sqrt(count(value)), 12)
FROM ({QUESTIONS}) GROUP BY ALL
""",
    "totals": """
SELECT suite, cell, policy, count(*), sum(rollouts), sum(generated_tokens), sum(trained_tokens), sum(exchanged_tokens),
    sum(exchanged_bytes), sum(peer_received), sum(peer_used), sum(prompts), sum(prompts_all_wrong), sum(prompts_rescued),
    avg(weight_second_moment), avg(effective_sample_size), avg(clipped_share), avg(refused_share), avg(kl_step),
    max_by(kl_base, step), avg(gradient_norm), stddev_samp(gradient_norm), avg(own_peer_cosine), avg(entropy),
    avg(peer_only_support_share), avg(peer_gradient_norm / nullif(own_gradient_norm, 0)),
    avg(sampler_drift), avg(sampler_drift_p99), avg(sampler_drift_outside)
FROM {steps} GROUP BY ALL
""",
    "spent": """
SELECT suite, cell, policy, phase, round(sum(cpu_seconds), 6), round(sum(gpu_seconds), 6), round(sum(wall_seconds), 6)
FROM {costs} GROUP BY ALL
""",
    "flows": """
SELECT suite, cell, author, receiver, kind, accepted, reason, sum(messages), sum(bytes), sum(source_tokens),
    sum(receiver_tokens), coalesce(sum(messages) FILTER (used), 0), coalesce(sum(messages) FILTER (verdict = 'right'), 0),
    avg(residual_text), avg(residual_boundary), avg(residual_mass), avg(residual_length), avg(residual_canonical)
FROM {exchanges} GROUP BY ALL
""",
}
SOURCE = {"scores": "samples", "totals": "steps", "spent": "costs", "flows": "exchanges"}

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.float64(): "DOUBLE",
    pa.float32(): "FLOAT",
    pa.bool_(): "BOOLEAN",
}


def create_statements() -> list[str]:
    """SQL that makes an empty store of this version."""
    tables = []
    for name, schema in SCHEMAS.items():
        columns = ", ".join(f'"{field.name}" {_sql(field.type)}' for field in schema)
        tables.append(f"CREATE TABLE {name} (suite VARCHAR, cell VARCHAR, {columns})")
    view = f"CREATE VIEW questions AS {QUESTIONS.format(samples='samples')}"
    return [*tables, CELLS, CURRENT, MORE, view, ABOUT, f"INSERT INTO about VALUES ('{version()}', '')"]


def version() -> str:
    """Hash of all table definitions: a store of another version is built anew."""
    return f"{zlib.crc32(repr((SCHEMAS, CELLS, CURRENT, MORE, ABOUT, QUESTIONS, DERIVE)).encode()):08x}"


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return "MAP(VARCHAR, VARCHAR)"
    if pa.types.is_list(kind):
        return f"{_sql(kind.value_type)}[]"
    return _SQL_TYPES[kind]


def quoted(path: Path) -> str:
    """A path inside an SQL string."""
    return str(path).replace("'", "''")
