"""Synthetic results folders for tests and scale trials of the store and the leaderboard."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.store.journal import Journal, write_columns
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    Provenance,
    SuiteFile,
    VariantEntry,
    read_suite,
    write_manifest,
    write_suite,
)
from harness.store.rows import SCHEMAS, Row, without_nan
from harness.store.tuning import Trial, Tuned, Tuning, write_tuning


@dataclass(frozen=True)
class Regime:
    """A variant and its true effect on accuracy beyond the independent baseline."""

    name: str
    kind: str
    effect: float
    budget: str = "1x"
    shares: str = "rollout"
    used: float = 0.8
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)


REGIMES = (
    Regime("independent", "independent", 0.0, shares=""),
    Regime("independent-2x", "independent", 0.005, "2x", shares=""),
    Regime("prp", "prp", 0.01, used=0.6),
    Regime("xgrpo", "xgrpo", -0.005, shares="value", used=0.0),
    Regime("sgt", "sgt", 0.09, shares="success", used=1.0),
    Regime("hacpo", "hacpo", 0.005, used=0.03),
    Regime("hacpo-wide", "hacpo", 0.10, used=0.77, options={"delta": 0.8}),
)
GROUPS = {"llama-qwen": ("llama", "qwen"), "neox-gpt2": ("neox", "gpt2")}
PROVENANCE = Provenance(
    code_version="0.1.0",
    commit="0" * 40,
    packages={"torch": "2.13.0"},
    machine={"cpu": "synthetic", "cores": "4"},
    python="3.11",
    started="2026-01-01T00:00:00Z",
    finished="2026-01-01T00:01:00Z",
)


def write_results(
    results: Path,
    suite: str = "synthetic-small",
    groups: dict[str, tuple[str, ...]] | None = None,
    regimes: Sequence[Regime] = REGIMES,
    seeds: Sequence[int] = (1, 2, 3),
    steps: int = 30,
    questions: int = 40,
    repeats: int = 2,
    tasks: Sequence[str] = ("micro",),
    exchanges: int = 12,
    text: str = "",
    baseline: str = "independent",
    preset: str = "",
    per_seed: bool = False,
    rate: float | None = None,
) -> None:
    """A whole suite under `results`; `text` is put into every sample. preset: of the bases; without one
    the suite has no config. per_seed: a base for each. rate: the suite's learning rate."""
    groups = groups or GROUPS
    cells = []
    for group, policies in groups.items():
        for policy in policies:
            write_base(results, suite, group, policy, tasks, questions, repeats, text)
        for seed in seeds:
            for regime in regimes:
                cells.append(
                    write_cell(
                        results,
                        suite,
                        group,
                        policies,
                        regime,
                        seed,
                        steps,
                        questions,
                        repeats,
                        tasks,
                        exchanges,
                        text,
                        baseline,
                    )
                )
    write_suite(
        results / suite,
        SuiteFile(
            name=suite,
            title="Synthetic results, for tests",
            engine="embedded",
            baseline=baseline,
            variants=tuple(
                VariantEntry(name=r.name, regime_type=r.kind, budget=r.budget, options=dict(r.options)) for r in regimes
            ),
            groups=tuple(groups),
            seeds=tuple(seeds),
            cells=tuple(cells),
            config={
                **({"training": {"learning_rate": rate}} if rate else {}),
                "regimes": [{"name": r.name, "regime": r.kind, "options": dict(r.options)} for r in regimes],
                "groups": [
                    {
                        "name": g,
                        "policies": [
                            {"name": p, "model": f"micro/{p}", "stage0": {"preset": preset, "per_seed": per_seed}}
                            for p in names
                        ],
                    }
                    for g, names in groups.items()
                ],
            }
            if preset
            else {},
        ),
    )


def write_rows(results: Path, rows: Iterable[Row], key: str = "cell", **manifest: Any) -> Path:
    """A finished cell of the suite `hand` with these rows, beside those that it has."""
    folder = results / "hand" / key
    write_manifest(
        folder, Manifest(**{"suite": "hand", "key": key, "group": "pair", "state": "done", "attempts": 1, **manifest})
    )
    journal = Journal(folder)
    journal.append(rows)
    journal.commit(9)
    return folder


def write_trials(results: Path, suite: str) -> Tuning:
    """What the tuning of a suite found that is there already: three trials of the baseline and of the regime after it, whose
    last one failed."""

    def variant(name: str, final: str, options: list[dict[str, object]], scores: list[float | None]) -> Tuned:
        trials = [
            Trial(number=i, variant=f"{name}.{i}", settings=o, steps=8, score=s, fault="" if s else "training failed")
            for i, (o, s) in enumerate(zip(options, scores, strict=True))
        ]
        return Tuned(variant=name, final=final, chosen=1, trials=tuple(trials), checked=0.5, checked_published=0.45)

    rates: list[dict[str, object]] = [{"training.learning_rate": r} for r in (1e-4, 3e-4, 2e-3)]
    base, ours, tuned = REGIMES[0].name, REGIMES[1].name, REGIMES[2].name
    both: list[dict[str, object]] = [{**r, "external": e, "fixed": 1} for r, e in zip(rates, (None, 4, 8), strict=True)]
    tuning = Tuning(
        suite=suite, trials_in=f"{suite}-tuning", task="micro_dev", metric="avg@4", steps=8, baseline=base,
        variants=(variant(base, base, rates, [0.4, 0.5, 0.3]), variant(ours, tuned, both, [0.45, 0.6, None])),
    )  # fmt: skip
    write_tuning(results, read_suite(results / suite), tuning)
    return tuning


def write_base(
    results: Path,
    suite: str,
    group: str,
    policy: str,
    tasks: Sequence[str],
    questions: int,
    repeats: int,
    text: str = "",
) -> str:
    generator = np.random.default_rng(_hash(group, policy))
    folder = results / suite / f"base-{_hash(suite, group, policy):08x}"
    manifest = Manifest(
        suite=suite,
        key=folder.name,
        kind="base",
        group=group,
        engine="embedded",
        state="done",
        attempts=1,
        policies=(PolicyEntry(policy, f"micro/{policy}"),),
        provenance=PROVENANCE,
    )
    samples = _samples(generator, policy, 0, 0.4, 0.02, tasks, questions, repeats, text)
    _write(folder, manifest, {"samples": samples})
    return folder.name


def write_cell(
    results: Path,
    suite: str,
    group: str,
    policies: tuple[str, ...],
    regime: Regime,
    seed: int,
    steps: int,
    questions: int,
    repeats: int,
    tasks: Sequence[str],
    exchanges: int,
    text: str = "",
    baseline: str = "independent",
) -> str:
    shared = np.random.default_rng(_hash(group, seed))
    generator = np.random.default_rng(_hash(suite, group, regime.name, seed))
    key = f"{_hash(suite, group, regime.name, seed):08x}{_hash(regime.name, seed, group):08x}"
    factor = int(regime.budget[0])
    tables: dict[str, list[pa.Table]] = {}
    for policy in policies:
        luck = shared.normal(0, 0.015)
        final = 0.5 + luck + regime.effect + generator.normal(0, 0.008)
        peers = len(policies) - 1 if regime.shares in ("rollout", "success") else 0
        data = _steps(generator, policy, steps, final, factor, peers, regime.used)
        tables.setdefault("steps", []).append(data)
        tables.setdefault("samples", []).append(
            _samples(generator, policy, steps, final, 0.015, tasks, questions, repeats, text)
        )
        tables.setdefault("curves", []).append(_curves(generator, policy, steps, final))
        tables.setdefault("costs", []).append(_costs(generator, policy, steps, factor))
        if regime.shares and exchanges:
            tables.setdefault("exchanges", []).append(_exchanges(generator, policy, policies, regime, steps, exchanges))
            tables.setdefault("traces", []).append(_traces(policy, policies, steps, text))
    manifest = Manifest(
        suite=suite,
        key=key,
        group=group,
        regime=regime.name,
        regime_type=regime.kind,
        seed=seed,
        budget=regime.budget,
        options=dict(regime.options),
        engine="embedded",
        baseline=baseline,
        state="done",
        attempts=1,
        provenance=PROVENANCE,
        policies=tuple(PolicyEntry(policy, f"micro/{policy}") for policy in policies),
        config={"training": {"steps": steps, "rollouts": 8 * factor}, "seed": seed},
    )
    _write(results / suite / key, manifest, {name: pa.concat_tables(parts) for name, parts in tables.items()})
    return key


def _write(folder: Path, manifest: Manifest, tables: dict[str, pa.Table]) -> None:
    compact = folder / "journal" / "compact-000001"
    compact.mkdir(parents=True)
    for name, data in tables.items():
        write_columns(compact, name, data)
    write_manifest(folder, manifest)


def _hash(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def _table(name: str, rows: int, **columns: object) -> pa.Table:
    arrays = []
    for field in SCHEMAS[name]:
        value = columns.pop(field.name, None)
        if value is None or isinstance(value, str | int | float | bool):
            arrays.append(
                pa.repeat(pa.scalar(value, field.type), rows) if value is not None else pa.nulls(rows, field.type)
            )
        elif isinstance(value, pa.Array):
            arrays.append(value)
        else:
            arrays.append(pa.array(value, field.type))
    assert not columns, columns
    return without_nan(pa.Table.from_arrays(arrays, schema=SCHEMAS[name]))


def _steps(
    generator: np.random.Generator, policy: str, steps: int, final: float, factor: int, peers: int, used: float
) -> pa.Table:
    step = np.arange(1, steps + 1)
    progress = 1 - np.exp(-4 * step / steps)
    accuracy = np.clip(0.4 + (final - 0.4) * progress + generator.normal(0, 0.03, steps), 0, 1)
    rollouts = 128 * factor
    right = generator.binomial(rollouts, accuracy)
    all_wrong = generator.binomial(16, 0.3 * (1 - progress) + 0.02)
    norm = generator.lognormal(0, 0.2, steps)
    received = 128 * peers
    rescued = generator.binomial(all_wrong, 0.8) if peers else np.zeros(steps, dtype=int)
    nothing = np.full(steps, np.nan)
    moment = 1 + generator.lognormal(-1, 0.4, steps) if peers else nothing
    return _table(
        "steps",
        steps,
        policy=policy,
        step=step,
        version=step,
        reward_mean=right / rollouts,
        right=right,
        wrong=rollouts - right,
        invalid=0,
        truncated=generator.poisson(0.4, steps),
        answers=rollouts,
        answer_tokens_mean=13 + 8 * progress,
        entropy=0.5 * np.exp(-2 * step / steps) + 0.08,
        loss=generator.normal(0, 0.02, steps),
        gradient_norm=norm,
        updates=1,
        own_gradient_norm=norm * 0.8,
        peer_gradient_norm=norm * 0.5 if peers else nothing,
        own_peer_cosine=generator.normal(0.3, 0.1, steps) if peers else nothing,
        kl_step=generator.lognormal(-7, 0.3, steps),
        kl_base=0.15 * progress,
        sampler_drift=6e-6 * (1 + progress),
        sampler_drift_p99=4e-5 * (1 + progress),
        sampler_drift_outside=0.0,
        weight_second_moment=pa.array(moment, from_pandas=True),
        effective_sample_size=pa.array(1 / moment, from_pandas=True),
        clipped_share=pa.array(generator.beta(2, 8, steps) if peers else nothing, from_pandas=True),
        refused_share=pa.array(generator.beta(1, 300, steps) if peers else nothing, from_pandas=True),
        peer_received=received,
        peer_used=generator.binomial(received, used, steps),
        prompts=16,
        prompts_all_wrong=all_wrong,
        prompts_rescued=rescued,
        peer_only_support_share=pa.array(generator.beta(2, 20, steps) if peers else nothing, from_pandas=True),
        rollouts=rollouts,
        generated_tokens=(rollouts * (13 + 8 * progress)).astype(int),
        trained_tokens=(rollouts * (1 + peers) * 15),
        exchanged_tokens=received * 20,
        exchanged_bytes=received * 300,
        generate_seconds=generator.gamma(9, 0.02, steps),
        verify_seconds=0.001,
        exchange_seconds=0.01 * peers,
        score_seconds=0.02 * peers,
        train_seconds=generator.gamma(9, 0.03, steps),
    )


def _samples(
    generator: np.random.Generator,
    policy: str,
    step: int,
    accuracy: float,
    spread: float,
    tasks: Sequence[str],
    questions: int,
    repeats: int,
    text: str,
) -> pa.Table:
    parts = []
    for task in tasks:
        hard = np.random.default_rng(_hash(task)).normal(0, 0.25, questions)
        for metric, count, bonus in (("greedy", 1, 0.1), ("sampled", repeats, 0.0)):
            if not count:
                continue
            rows = questions * count
            chance = np.clip(accuracy + bonus + np.repeat(hard, count) + generator.normal(0, spread), 0, 1)
            right = generator.random(rows) < chance
            question = np.repeat(np.arange(questions), count)
            value = question * 7 + 3
            answer = np.where(right, value, value + 1).astype(str)
            by_question = right.reshape(questions, count)
            vote = np.where(by_question, by_question.argmax(1)[:, None], by_question.argmin(1)[:, None]).ravel()
            skill = pa.array(
                [[("skill", s)] for s in np.where(question % 2, "add", "mul")], pa.map_(pa.string(), pa.string())
            )
            prompt = np.char.add(np.char.add("Q: ", question.astype(str)), "*7+3\nA:")
            parts.append(
                _table(
                    "samples",
                    rows,
                    policy=policy,
                    checkpoint_step=step,
                    task=task,
                    metric=metric,
                    doc_id=np.char.add(f"{task}-", question.astype(str)),
                    repeat=np.tile(np.arange(count), questions),
                    labels=skill,
                    prompt=prompt,
                    text=np.char.add(np.char.add(text + " so it is \\boxed{", answer), "}"),
                    extracted=answer,
                    vote=vote,
                    gold=value.astype(str),
                    verdict=np.where(right, "right", "wrong"),
                    reason="",
                    tokens=20,
                    finished=True,
                )
            )
    return pa.concat_tables(parts)


def _curves(generator: np.random.Generator, policy: str, steps: int, final: float) -> pa.Table:
    at = np.unique(np.linspace(0, steps, 4).astype(int))
    height = 0.4 + (final - 0.4) * (1 - np.exp(-4 * at / max(steps, 1)))
    return _table(
        "curves",
        len(at),
        policy=policy,
        step=at,
        metric="sampled",
        answers=120,
        accuracy=np.clip(height + generator.normal(0, 0.01, len(at)), 0, 1),
    )


def _costs(generator: np.random.Generator, policy: str, steps: int, factor: int) -> pa.Table:
    phases = ["generate", "verify", "exchange", "score", "train", "evaluate"]
    seconds = steps * factor * np.array([0.18, 0.001, 0.01, 0.02, 0.25, 0.1]) * generator.lognormal(0, 0.05, 6)
    return _table(
        "costs",
        6,
        attempt=1,
        policy=policy,
        phase=phases,
        cpu_seconds=seconds,
        gpu_seconds=0.0,
        wall_seconds=seconds,
        rollouts=128 * factor * steps,
        tokens=128 * factor * steps * 20,
    )


def _exchanges(
    generator: np.random.Generator, policy: str, policies: tuple[str, ...], regime: Regime, steps: int, rows: int
) -> pa.Table:
    author = next(name for name in policies if name != policy) if len(policies) > 1 else policy
    accepted = generator.random(rows) < 0.96
    text = regime.shares != "value"
    tokens = generator.integers(12, 30, rows)
    blank = np.full(rows, np.nan)
    return _table(
        "exchanges",
        rows,
        step=np.sort(generator.integers(1, steps + 1, rows)),
        author=author,
        receiver=policy,
        kind=regime.shares,
        prompt_id=np.char.add("p", generator.integers(0, 999, rows).astype(str)),
        index=generator.integers(0, 8, rows),
        version=1,
        messages=1,
        bytes=tokens * 14,
        source_tokens=tokens,
        receiver_tokens=(tokens * 1.3).astype(int),
        accepted=accepted,
        reason=np.where(accepted, "", np.where(generator.random(rows) < 0.5, "residual_text", "stale")),
        residual_text=0.0 if text else None,
        residual_boundary=pa.array(generator.beta(2, 9, rows) if text else blank, from_pandas=True),
        residual_mass=pa.array(generator.gamma(1, 1e-7, rows) if text else blank, from_pandas=True),
        residual_length=pa.array(generator.beta(3, 9, rows) if text else blank, from_pandas=True),
        residual_canonical=0.0 if text else None,
        verdict=np.where(generator.random(rows) < 0.5, "right", "wrong"),
        used=accepted & (generator.random(rows) < regime.used),
    )


def _traces(policy: str, policies: tuple[str, ...], steps: int, text: str) -> pa.Table:
    author = next((name for name in policies if name != policy), policy)
    answer = text + " 2*10=20, 20+16=36. \\boxed{36}"
    size = len(answer.encode())
    source = [3] * (size // 3) + [size % 3] * bool(size % 3)
    mine = [4] * (size // 4) + [size % 4] * bool(size % 4)
    return _table(
        "traces",
        2,
        step=[1, steps],
        author=author,
        receiver=policy,
        prompt_id=["p1", "p2"],
        prompt="Q: 2*18\nA:",
        gold="36",
        own_text=f"{text} \\boxed{{35}}",
        own_verdict="wrong",
        peer_text=answer,
        peer_verdict="right",
        used=True,
        index=0,
        source_pieces=[source] * 2,
        source_logprobs=[[-0.3] * len(source)] * 2,
        receiver_pieces=[mine] * 2,
        aligned=[[-0.4] * len(mine)] * 2,
        receiver_logprobs=[list(np.linspace(-3, -0.1, len(mine)))] * 2,
    )
