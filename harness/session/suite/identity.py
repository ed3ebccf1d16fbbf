"""What a cell's key hashes besides its configuration: models, training pool, evaluation sets, results versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.engines.catalogue import PLUGINS, backend_of
from harness.learning import registry
from harness.plugins import blamed
from harness.session.policy import COMMIT, identity_of, local_folder, on_hub, unpinned
from harness.store.manifest import Manifest
from harness.suite.cells import Identity
from harness.suite.schema import Policy, Suite, Variant
from harness.tasks.registry import get_task, results_versions, training_source
from harness.versions import BASE, CELL, versions


def identities(suite: Suite) -> Callable[[Sequence[Policy], Variant | None], Identity]:
    """Return what makes the identity of a cell from its policies and its variant, or of a base checkpoint from its policy and None.
    Raises PluginError, DataError."""
    training, tasks = suite.training.task, suite.evaluation.tasks
    evaluation = {str(name): get_task(name).checksum or "" for name in tasks}
    shared = dict([PLUGINS.results_version(suite.engine)])
    shared |= {package: version for name in tasks for package, version in results_versions(name).items()}
    with blamed(f"task {training}"):
        pool, trained = training_source(training).pool_digest(), results_versions(training)
    models = {(p.model, p.revision): p for group in suite.groups for p in group.policies}
    known = {name: identity_of(policy) for name, policy in models.items()}
    asked, half = suite.engine_options.get("dtype"), backend_of(suite.engine).half_precision

    def identity(policies: Sequence[Policy], variant: Variant | None) -> Identity:
        packages = [*(BASE if variant is None else CELL)]
        packages += ["stage0"] if any(p.is_micro or p.stage0 is not None for p in policies) else []
        own = {} if variant is None else {**trained, **dict([registry.PLUGINS.results_version(variant.regime)])}
        pretrained = [p for p in policies if not p.is_micro]
        if half and pretrained and not asked:
            own["dtype of half-precision models"] = half
        if asked != "fp32" and ((half and (asked or pretrained)) or any(p.stage0 for p in pretrained)):
            own["rounding to bf16"] = "dithered"
        return Identity(
            models={p.name: known[p.model, p.revision] for p in policies},
            pool="" if variant is None else pool,
            evaluation=evaluation,
            versions={**versions(packages), **shared, **own},
        )

    return identity


def describe_models(suite: Suite, stored: Iterable[Manifest]) -> list[str]:
    """Return a line for each model that is not micro, and for the training pool once it was used. stored: finished cells, which
    note the commits that were loaded."""
    policies = {p.name: p for group in suite.groups for p in group.policies if not p.is_micro}
    lines = {name: f"model {name}: {policy.model}, {_which(policy)}" for name, policy in policies.items()}
    pools: dict[str, None] = {}
    for manifest in stored:
        for entry in manifest.policies:
            if entry.name in policies and unpinned(policies[entry.name]) and COMMIT.fullmatch(entry.revision):
                lines[entry.name] = f"model {entry.name}: {entry.model}, commit {entry.revision} was loaded"
        if manifest.pool is not None:
            pools[f"training pool {manifest.pool.describe()} (digest {manifest.pool.digest})"] = None
    return [*lines.values(), *pools]


def _which(policy: Policy) -> str:
    if unpinned(policy):
        return "its commit is not known here; `harness run` asks the hub, and notes the one it loads"
    if local_folder(policy.model):
        return identity_of(policy)
    return f"commit {policy.revision}" if on_hub(policy) else "there is no such folder"


def unknown_commits(suite: Suite) -> list[str]:
    """Return a line for each hub model whose commit neither a download nor the hub tells."""
    groups = [*suite.groups, *(suite.tune.groups if suite.tune else [])]
    models = dict.fromkeys(p.model for group in groups for p in group.policies if unpinned(p))
    return [f"{m}: neither a download nor the hub tells its commit; the one that is loaded is noted" for m in models]
