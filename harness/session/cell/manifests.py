"""Manifests, their states, and where a result came from. No torch."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import msgspec
import psutil

import harness
from harness.allocation.inventory import list_visible_gpus
from harness.engines import catalogue
from harness.engines.embedded import numerics
from harness.errors import Fault, StoreError
from harness.limits import count_cores
from harness.session.policy import loaded_commit, weights_digest
from harness.store.manifest import (
    Manifest,
    PolicyEntry,
    Provenance,
    State,
    StatedClaims,
    SuiteFile,
    VariantEntry,
    read_manifest,
    read_suite,
    write_manifest,
)
from harness.suite.cells import Cell, Identity, digest_of, policy_as_keyed, without_place
from harness.suite.schema import ModelGroup, Policy, Suite, Variant

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "lm-eval", "math-verify", "sympy", "datasets", "duckdb")
# What decides threads and devices; others hold tokens and passwords.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", *numerics.ENVIRONMENT,
)  # fmt: skip
_LONGEST = 100
_NUMERIC = ("avx", "fma", "amx", "sse", "f16c", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class BaseCheckpoint:
    """A start checkpoint. seed: None where all seeds share it."""

    suite: Suite
    group: ModelGroup
    policy: Policy
    seed: int | None
    identity: Identity
    key: str = field(init=False)

    def __post_init__(self) -> None:
        evaluation = self.suite.evaluation.model_dump(mode="json")
        evaluation["tasks"] = [without_place(task) for task in evaluation["tasks"]]
        hashed = digest_of(
            self.group.name,
            policy_as_keyed(self.policy.model_dump(mode="json")),
            self.seed,
            evaluation,
            msgspec.to_builtins(self.identity),
            *({"portable"} & {self.suite.engine_options.get("numerics")}),  # older bases keep their keys
        )
        object.__setattr__(self, "key", f"base-{hashed}")

    def needed_by(self, cell: Cell) -> bool:
        return self.group.name == cell.group.name and self.seed in (None, cell.seed)


def bases_of(suite: Suite, identity: Callable[[ModelGroup, Policy, int | None], Identity]) -> list[BaseCheckpoint]:
    """Return the base checkpoints that a suite measures: one of each policy, or one for each seed where starts differ by seed."""
    bases = []
    for group in suite.groups:
        for policy in group.policies:
            has_one_per_seed = policy.stage0 is not None and policy.stage0.per_seed
            seeds: Sequence[int | None] = suite.seeds if has_one_per_seed else [None]
            for seed in seeds:
                bases.append(BaseCheckpoint(suite, group, policy, seed, identity(group, policy, seed)))
    return bases


def variant_options(variant: Variant) -> dict[str, Any]:
    """Write what must agree for a budget-matched baseline."""
    own: dict[str, Any] = {"sampling_stream": variant.sampling_stream}
    if variant.sampling != "all":
        own["sampling"] = variant.sampling
    if variant.sharing:
        own["sharing"] = variant.sharing.model_dump(mode="json")
    if variant.replay:
        own["replay"] = variant.replay.model_dump()
    if variant.training:
        own["training"] = variant.training.model_dump(exclude_none=True)
    if variant.dynamic_sampling:
        own["dynamic_sampling"] = variant.dynamic_sampling.model_dump()
    stated = {name: value for name, value in own.items() if value}
    return {**variant.options, **stated}


def manifest_of(work: Cell | BaseCheckpoint) -> Manifest:
    """Make the manifest of work that has not begun."""
    if isinstance(work, BaseCheckpoint):
        return _manifest_of_base(work)
    return Manifest(
        suite=work.suite,
        key=work.key,
        group=work.group.name,
        regime=work.variant.name,
        regime_type=work.variant.regime,
        seed=work.seed,
        budget=work.variant.spent(len(work.group.policies)),
        options=variant_options(work.variant),
        engine=work.engine,
        baseline=work.baseline,
        policies=_policy_entries(work.group.policies),
        config=work.config(),
        identity=work.identity,
    )


def _manifest_of_base(base: BaseCheckpoint) -> Manifest:
    """Make the manifest of a base checkpoint that was not measured yet."""
    return Manifest(
        kind="base",
        suite=base.suite.name,
        key=base.key,
        group=base.group.name,
        seed=base.seed,
        engine=base.suite.engine,
        baseline=base.suite.baseline,
        policies=_policy_entries([base.policy]),
        identity=base.identity,
    )


def _policy_entries(policies: Sequence[Policy]) -> tuple[PolicyEntry, ...]:
    """Say which models a suite names; what was loaded is noted when it starts."""
    return tuple(PolicyEntry(policy.name, policy.model, policy.revision or "") for policy in policies)


def label_of(manifest: Manifest) -> str:
    seed = "" if manifest.seed is None else f"/{manifest.seed}"
    if manifest.kind == "cell":
        return f"{manifest.group}/{manifest.regime}{seed}"
    return f"base {manifest.group}/{manifest.policies[0].name}{seed}"


def with_starts(manifest: Manifest, bases: Mapping[str, Path], precision: Mapping[str, str]) -> Manifest:
    """Note in a manifest the hub commits that were loaded, the precision, and the digest of the weights that each policy starts
    from. Raises DataError."""
    entries = []
    for entry in manifest.policies:
        folder = bases[entry.name]
        revision = loaded_commit(folder) or entry.revision
        start = weights_digest(folder)
        entries.append(msgspec.structs.replace(entry, revision=revision, precision=precision[entry.name], start=start))
    return msgspec.structs.replace(manifest, policies=tuple(entries))


def with_starts_of(before: Manifest, manifest: Manifest) -> Manifest:
    """Note in a manifest the digests of starts that an earlier manifest of the same cell has, or none."""
    noted = {entry.name: entry.start for entry in before.policies}
    entries = (msgspec.structs.replace(e, start=noted.get(e.name, "")) for e in manifest.policies)
    return msgspec.structs.replace(manifest, policies=tuple(entries))


def frozen_dates(folder: Path, policies: Sequence[Policy]) -> dict[str, str]:
    """Return the day of each policy's chat template: that of the first start, else today."""
    today = datetime.now().astimezone().date().isoformat()
    dates = {policy.name: today for policy in policies}
    with suppress(StoreError):
        dates |= {entry.name: entry.date for entry in read_manifest(folder).policies if entry.date}
    return dates


def with_dates(manifest: Manifest, dates: Mapping[str, str]) -> Manifest:
    """Note in a manifest the days that templates write."""
    entries = (msgspec.structs.replace(e, date=dates.get(e.name, "")) for e in manifest.policies)
    return msgspec.structs.replace(manifest, policies=tuple(entries))


def suite_file(
    suite: Suite, cells: Sequence[Cell], bases: Sequence[BaseCheckpoint] = (), altered: Sequence[str] = ()
) -> SuiteFile:
    """Make what a suite's file in its results says: its variants, groups, cells and base checkpoints."""
    variants = []
    for variant in suite.regimes:
        options = variant_options(variant)
        entry = VariantEntry(name=variant.name, regime_type=variant.regime, budget=variant.budget, options=options)
        variants.append(entry)
    group_names = [group.name for group in suite.groups]
    cell_keys = [cell.key for cell in cells]
    base_keys = [base.key for base in bases]
    return SuiteFile(
        name=suite.name,
        title=suite.title,
        baseline=suite.baseline,
        engine=suite.engine,
        variants=tuple(variants),
        groups=tuple(group_names),
        seeds=tuple(suite.seeds),
        cells=tuple(cell_keys),
        bases=tuple(base_keys),
        altered=tuple(altered),
        config=suite.model_dump(mode="json"),
        claims=_state_claims(suite),
    )


def _state_claims(suite: Suite) -> StatedClaims:
    """Return the digest of the suite's claims, stated now; nothing where it has none."""
    if not suite.claims:
        return StatedClaims()
    said = digest_of([claim.model_dump(mode="json") for claim in suite.claims])
    return StatedClaims(said, datetime.now(UTC).isoformat(timespec="seconds"))


def mark_state(
    folder: Path, manifest: Manifest, state: State, reason: str = "", attempts: int = 0, fault: Fault | None = None
) -> None:
    """Mark a manifest's new state; the first start, what was claimed before it, the training pool, what was measured at the start
    and, where the manifest has none, the digests of starts are kept."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    started = now
    pool = manifest.pool
    carried = manifest.carried
    dates = dict[str, str]()
    claims = _claims_of(folder.parent)
    with suppress(StoreError):
        before = read_manifest(folder)
        claims = before.claims if before.provenance.started else claims
        started = before.provenance.started or started
        pool = pool or before.pool
        if not any(entry.start for entry in manifest.policies):
            manifest = with_starts_of(before, manifest)
        carried = carried or before.carried
        dates = {entry.name: entry.date for entry in before.policies}
    finished = now if state in {"done", "failed"} else ""
    provenance = _make_provenance(manifest.identity, started, finished)
    entries = [msgspec.structs.replace(e, date=e.date or dates.get(e.name, "")) for e in manifest.policies]
    marked = msgspec.structs.replace(
        manifest,
        policies=tuple(entries),
        state=state,
        reason=reason,
        fault=fault,
        attempts=attempts,
        provenance=provenance,
        pool=pool,
        carried=carried,
        claims=claims,
    )
    write_manifest(folder, marked)


def _make_provenance(identity: Identity, started: str, finished: str) -> Provenance:
    """Say what code computes on what machine. started, finished: times in UTC; empty where it has not ended."""
    commit, dirty = _current_commit()
    versions = digest_of(dict(identity.versions))[:12]
    environment = {name: os.environ[name][:_LONGEST] for name in ENVIRONMENT if name in os.environ}
    return Provenance(
        code_version=f"{harness.__version__}+{versions}",
        commit=commit,
        dirty=dirty,
        packages=package_versions(),
        machine=_describe_machine() | _thread_settings(),
        environment=environment,
        python=platform.python_version(),
        started=started,
        finished=finished,
    )


def _claims_of(folder: Path) -> StatedClaims:
    """Return what a suite's file says of its claims; nothing where there is none."""
    with suppress(StoreError):
        return read_suite(folder).claims
    return StatedClaims()


def mark_interrupted(folder: Path, states: Container[State] = ("running",)) -> None:
    """Mark a job without a process as interrupted. states: that are changed."""
    with suppress(StoreError):
        manifest = read_manifest(folder)
        if manifest.state in states:
            write_manifest(folder, msgspec.structs.replace(manifest, state="cut off", reason="", fault=None))


@functools.cache
def _current_commit() -> tuple[str, bool]:
    """Read the commit that this package is at, and whether files differ from it; empty where it is no checkout of its own."""
    folder = Path(str(resources.files(harness))).parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(folder), *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != folder:
            return "", False
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no")
        return commit, bool(changes)
    except (OSError, subprocess.SubprocessError):
        return "", False


@functools.cache
def package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {**versions, **catalogue.packages_of_engines()}


@functools.cache
def _describe_machine() -> dict[str, str]:
    """Return the facts of this machine on which digits or seconds may depend, once a process."""
    gibibytes = psutil.virtual_memory().total / 2**30
    facts = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": describe_processor(),
        "cores": str(count_cores()),
        "memory_gib": f"{gibibytes:.0f}",
    }
    kinds = sorted({card.kind for card in list_visible_gpus()})
    if kinds:
        facts["gpu"] = ", ".join(kinds)
    return facts


def _thread_settings() -> dict[str, str]:
    """Return the threads of torch, where it is loaded and has several."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    count = torch.get_num_threads()
    return {"threads": str(count)} if count > 1 else {}


def describe_processor() -> str:
    """Describe the processor: model, and a digest of numerical instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.machine()
    facts = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    model = facts.get("model name") or facts.get("CPU part") or platform.machine()
    flags = facts.get("flags") or facts.get("Features") or ""  # x86 and Arm name them differently
    numeric = sorted(flag for flag in flags.split() if flag.startswith(_NUMERIC))
    digest = hashlib.blake2b(" ".join(numeric).encode(), digest_size=4).hexdigest()
    return f"{platform.machine()}, {' '.join(model.split())}, {digest}"
