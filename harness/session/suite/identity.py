"""What a cell's key hashes besides its configuration: models, training pool, evaluation sets, results versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.engines.catalogue import PLUGINS
from harness.learning import registry
from harness.plugins import blame_plugin
from harness.session.policy import COMMIT, has_unknown_commit, identity_of, local_folder, on_hub
from harness.session.suite.places import policies_by_place
from harness.session.suite.resolved import ResolvedSuite
from harness.store.manifest import Manifest
from harness.suite.cells import Identity
from harness.suite.schema import Policy, Suite, Variant
from harness.tasks.registry import results_versions
from harness.versions import BASE, CELL, versions_of


def identity_maker(resolved: ResolvedSuite) -> Callable[[Sequence[Policy], Variant | None], Identity]:
    """Return what makes the identity of a cell from its policies and its variant, or of a base checkpoint from its policy and
    None. Raises PluginError, DataError."""
    suite = resolved.suite
    training = resolved.training
    evaluation = {str(task.name): task.task.checksum or "" for task in resolved.evaluation}
    shared = dict([PLUGINS.results_version(suite.engine)])
    for task in resolved.evaluation:
        shared |= results_versions(*task)
    with blame_plugin(f"task {training.task.name}"):
        pool = training.source.pool_digest()
        trained = results_versions(*training)
    models = {(policy.model, policy.revision): policy for _, policy in policies_by_place(suite)}
    known = {name: identity_of(policy) for name, policy in models.items()}
    dtype = suite.engine_options.get("dtype")
    half = resolved.engine.half_precision

    def identity(policies: Sequence[Policy], variant: Variant | None) -> Identity:
        """Make what the keys of a variant's cells hash beside the configuration; of a base checkpoint without a variant."""
        packages = [*(BASE if variant is None else CELL)]
        if any(policy.is_micro or policy.stage0 is not None for policy in policies):
            packages.append("stage0")
        own = {}
        if variant is not None:
            own = {**trained, **dict([registry.PLUGINS.results_version(variant.regime)])}
        pretrained = [policy for policy in policies if not policy.is_micro]
        if half and pretrained and not dtype:
            own["dtype of half-precision models"] = half
        rounds = half and (dtype or pretrained)
        starts = any(policy.stage0 for policy in pretrained)
        if dtype != "fp32" and (rounds or starts):
            own["rounding to bf16"] = "dithered"
        return Identity(
            models={p.name: known[p.model, p.revision] for p in policies},
            pool="" if variant is None else pool,
            evaluation=evaluation,
            versions={**versions_of(packages), **shared, **own},
        )

    return identity


def describe_models(suite: Suite, stored: Iterable[Manifest]) -> list[str]:
    """Return a line for each model that is not micro, and for the training pool once it was used. stored: finished cells, which
    note the commits that were loaded."""
    policies = {p.name: p for group in suite.groups for p in group.policies if not p.is_micro}
    lines = {name: f"model {name}: {policy.model}, {_describe_revision(policy)}" for name, policy in policies.items()}
    pools: dict[str, None] = {}
    for manifest in stored:
        for entry in manifest.policies:
            if entry.name in policies and has_unknown_commit(policies[entry.name]) and COMMIT.fullmatch(entry.revision):
                lines[entry.name] = f"model {entry.name}: {entry.model}, commit {entry.revision} was loaded"
        if manifest.pool is not None:
            pools[f"training pool {manifest.pool.describe()} (digest {manifest.pool.digest})"] = None
    return [*lines.values(), *pools]


def _describe_revision(policy: Policy) -> str:
    if has_unknown_commit(policy):
        return "its commit is not known here; `harness run` asks the hub, and notes the one it loads"
    if local_folder(policy.model):
        return identity_of(policy)
    return f"commit {policy.revision}" if on_hub(policy) else "there is no such folder"


def unknown_commits(suite: Suite) -> list[str]:
    """Return a line for each hub model whose commit neither a download nor the hub tells."""
    groups = [*suite.groups, *(suite.tune.groups if suite.tune else [])]
    models = dict.fromkeys(p.model for group in groups for p in group.policies if has_unknown_commit(p))
    return [f"{m}: neither a download nor the hub tells its commit; the one that is loaded is noted" for m in models]
