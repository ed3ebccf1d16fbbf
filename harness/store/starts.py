"""Which finished cells may be compared: those of one group and seed that started from the same weights.

A paired difference says what a regime does only where both cells started alike. A manifest therefore holds a digest of each
policy's start (`PolicyEntry.start`), and equal digests alone are paired. Cells from before have none. Of those the same draws
(stream, prompts, rollouts) must give the same first step, which comes before any update. Where draws differ (an A/A control,
another budget, prompts that are replaced or shared out) the start must at least have been made in a way that gives the same
weights: by portable numerics, or on one kind of processor.

The judgement is made when the store is built: a cell that is not paired has the state UNPAIRED in `current_cells`, so that no
table, sentence or figure counts it, and every list of missing cells names it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

UNPAIRED = "unpaired"
# Raised where the judgement changes: a store that was judged otherwise is built again
JUDGEMENT = 1
OTHER_WEIGHTS = "started from other weights than {}"
OTHER_FIRST_STEP = "no digest of its start, and its first step has other answers to the same draws than that of {}"
OTHER_MACHINE = "no digest of its start, made in numerics that differ between its kind of processor and that of {}"
OTHER_VERSION = "no digest of its start, made by another version than that of {}"
_AGAIN = "; to make it again, remove its folder and run the suite"
# What of `training` decides only what is learnt from the first answers
_LEARNING = {
    "steps", "updates", "learning_rate", "betas", "weight_decay", "clip_norm", "kl", "checkpoint_every", "measure_every",
    "max_invalid", "rollouts",
}  # fmt: skip
# Of a first step: what was sampled, and how it was judged
_SAMPLED = ("answers", "truncated", "answer_tokens_mean")
_JUDGED = ("right", "wrong", "invalid")
_CELLS = """
WITH firsts AS (
    SELECT suite, cell, list({
        'policy': policy, 'answers': answers, 'truncated': truncated, 'answer_tokens_mean': answer_tokens_mean,
        'right': "right", 'wrong': wrong, 'invalid': invalid
    }) AS first
    FROM steps WHERE step = 1 GROUP BY suite, cell
)
SELECT c.suite, c.cell, c.kind, c.group_name, c.regime, c.seed, c.policies, c.starts, c.engine, c.machine, c.identity,
    c.config -> '$.group' AS models, c.config -> '$.training' AS training, c.config ->> '$.engine_options.numerics' AS numerics,
    c.config ->> '$.variant.sampling_stream' AS stream, c.config ->> '$.variant.budget' AS budget,
    c.config ->> '$.variant.sampling' AS sampling, c.config ->> '$.variant.dynamic_sampling' AS dynamic_sampling,
    coalesce(nullif(s.baseline, ''), c.baseline) AS baseline, coalesce(list_position(s.variants, c.regime), 0) AS place, f.first
FROM placed_cells c LEFT JOIN suites s USING (suite) LEFT JOIN firsts f USING (suite, cell)
WHERE c.state = 'done' AND c.suite IN (SELECT unnest($1::VARCHAR[])) ORDER BY c.suite, c.cell
"""


class _Done(NamedTuple):
    """A finished cell, or a base checkpoint. starts: by policy, empty where unknown. models, training: of its configuration.
    draws: what else of it decides the first answers. first: the first step's row by policy."""

    suite: str
    key: str
    base: bool
    group: str
    regime: str
    seed: int | None
    starts: Mapping[str, str]
    engine: str
    models: Mapping[str, Any]
    training: Mapping[str, Any]
    numerics: str
    draws: tuple[str | None, ...]
    machine: Mapping[str, str]
    identity: Mapping[str, Any]
    rank: tuple[bool, int, str]
    first: Mapping[str, Mapping[str, Any]]


def write_unpaired(connection: duckdb.DuckDBPyConnection, suites: Collection[str]) -> None:
    """Judge those suites of the open database anew, from its cells and their first steps, into its table `unpaired`."""
    names = sorted(suites)
    found = connection.sql(_CELLS, params=[names]).to_arrow_table()
    reasons = find_unpaired([_make_done(row) for row in found.to_pylist()])
    connection.execute("DELETE FROM unpaired WHERE suite IN (SELECT unnest($1::VARCHAR[]))", [names])
    if reasons:
        suites_of, cells = zip(*reasons, strict=True)
        table = pa.table({"suite": suites_of, "cell": cells, "why": list(reasons.values())})
        connection.register("found", table)
        connection.execute("INSERT INTO unpaired FROM found")
        connection.unregister("found")


def find_unpaired(cells: Iterable[_Done]) -> dict[tuple[str, str], str]:
    """Return, by suite and key, why a cell or base checkpoint is not paired.

    Cells of a group and seed are compared with the baseline's; without one, with the first variant's in the suite's order.
    """
    blocks: dict[tuple[str, str, int | None], list[_Done]] = {}
    bases: list[_Done] = []
    for done in cells:
        if done.base:
            bases.append(done)
        else:
            blocks.setdefault((done.suite, done.group, done.seed), []).append(done)
    reasons: dict[tuple[str, str], str] = {}
    references: dict[tuple[str, str, int | None], _Done] = {}
    for place, block in blocks.items():
        reference = min(block, key=lambda done: done.rank)
        references[place] = reference
        references.setdefault((*place[:2], None), reference)  # a base checkpoint that all seeds share
        for done in block:
            why = _explain_apart(done, reference)
            if why:
                reasons[done.suite, done.key] = _in_words(why, reference)
    for base in bases:
        seen = references.get((base.suite, base.group, base.seed))
        why = _explain_apart(base, seen) if seen else ""
        if seen and why:
            reasons[base.suite, base.key] = _in_words(why, seen)
    return reasons


def _in_words(why: str, reference: _Done) -> str:
    """Write a reason with what it was compared with, and what to do about results that were made here."""
    compared_with = f"{reference.group}/{reference.regime}"
    advice = "" if "@" in reference.suite else _AGAIN
    return why.format(compared_with) + advice


def _explain_apart(one: _Done, reference: _Done) -> str:
    """Say why both may have started from other weights; empty where they have not."""
    names = [name for name in one.starts if name in reference.starts]
    known = [name for name in names if one.starts[name] and reference.starts[name]]
    if any(one.starts[name] != reference.starts[name] for name in known):
        return OTHER_WEIGHTS
    unknown = [name for name in names if name not in known]
    policies = {policy["name"]: policy for policy in reference.models.get("policies", ())}
    made = [name for name in unknown if name in policies and _is_made(policies[name])]
    models = one.identity.get("models", {})
    theirs = reference.identity.get("models", {})
    in_both = [name for name in unknown if name in models and name in theirs]
    if any(models[name] != theirs[name] for name in in_both):
        return OTHER_WEIGHTS
    return _explain_made_apart(one, reference, made) if made else ""


def _explain_made_apart(one: _Done, reference: _Done, policies: Sequence[str]) -> str:
    """Say why starts that were trained, and have no digest, may have other weights; empty where they have not."""
    versions = one.identity.get("versions", {})
    their_versions = reference.identity.get("versions", {})
    both_known = "stage0" in versions and "stage0" in their_versions
    if both_known and versions["stage0"] != their_versions["stage0"]:
        return OTHER_VERSION
    if not one.base and _first_draws(one) == _first_draws(reference) and one.first and reference.first:
        # another verifier may judge the same answers otherwise
        same_verifier = versions.get("verification") == their_versions.get("verification")
        columns = (*_SAMPLED, *_JUDGED) if same_verifier else _SAMPLED
        if _read_first_step(one, policies, columns) == _read_first_step(reference, policies, columns):
            return ""
        if _repeats_rows(one) and _repeats_rows(reference):
            return OTHER_FIRST_STEP
    if reference.numerics == "portable":
        return ""
    processors = {_name_processor(one), _name_processor(reference)} - {""}
    return OTHER_MACHINE if len(processors) > 1 else ""


def _is_made(policy: Mapping[str, Any]) -> bool:
    """Say whether a policy's start is trained by a machine, rather than published."""
    return policy["model"].startswith("micro/") or bool(policy.get("stage0"))


def _first_draws(done: _Done) -> tuple[object, ...]:
    """Return what decides a first step's answers besides the weights."""
    asked = {name: value for name, value in done.training.items() if name not in _LEARNING}
    rollouts = done.training.get("rollouts")
    return asked, rollouts, done.draws, done.models, done.engine, done.identity.get("pool")


def _read_first_step(done: _Done, policies: Sequence[str], columns: Sequence[str]) -> list[list[Any]]:
    """Return these columns of each policy's first step."""
    rows = [done.first.get(policy, {}) for policy in policies]
    return [[row.get(column) for column in columns] for row in rows]


def _repeats_rows(done: _Done) -> bool:
    """Say whether the same weights and draws give the same answers again; several threads, or vLLM, round otherwise each time."""
    return done.engine == "embedded" and "threads" not in done.machine


def _name_processor(done: _Done) -> str:
    """Return the processor of a cell, with the GPU where it had one; empty where neither is known."""
    parts = (done.machine.get("processor"), done.machine.get("gpu"))
    return " with ".join(filter(None, parts))


def _make_done(row: Mapping[str, Any]) -> _Done:
    """Make a finished cell of its row of `_CELLS`."""
    regime = row["regime"]
    policies = row["policies"]
    starts = row["starts"] or []
    # older cells have no digests
    digests = dict(zip(policies, starts, strict=True)) if len(starts) == len(policies) else {}
    draws = (row["stream"], row["budget"], row["sampling"], row["dynamic_sampling"])
    # the baseline first, then in the suite's order
    rank = (regime != row["baseline"], row["place"], row["cell"])
    first_steps = row["first"] or ()
    return _Done(
        suite=row["suite"],
        key=row["cell"],
        base=row["kind"] == "base",
        group=row["group_name"],
        regime=regime,
        seed=row["seed"],
        starts=digests,
        engine=row["engine"],
        models=_parse_mapping(row["models"]),
        training=_parse_mapping(row["training"]),
        numerics=row["numerics"] or "",
        draws=draws,
        machine=_parse_mapping(row["machine"]),
        identity=_parse_mapping(row["identity"]),
        rank=rank,
        first={step["policy"]: step for step in first_steps},
    )


@lru_cache(maxsize=1024)
def _parse_mapping(text: str | None) -> Mapping[str, Any]:
    """Return a JSON object, empty for anything else; many cells have the same text, which is parsed once."""
    value = json.loads(text or "{}")
    return value if isinstance(value, dict) else {}
