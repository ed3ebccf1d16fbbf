"""Places in a suite, as its faults name them: `groups[0].policies[1].model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.errors import PluginError, SuiteError
from harness.suite.schema import Policy, Suite, Tune


@contextmanager
def faults_at(
    source: str, place: str, kind: type[Exception] | tuple[type[Exception], ...] = PluginError
) -> Iterator[None]:
    """Raise faults of these kinds as a SuiteError at `place` of the suite read from `source`."""
    try:
        yield
    except kind as error:
        raise SuiteError(source, place, str(error)) from None


def policies_by_place(suite: Suite | Tune | None, within: str = "") -> Iterator[tuple[str, Policy]]:
    """Yield each policy of a suite's groups with its place. within: what comes before the place, such as `tune.`."""
    for g, group in enumerate(suite.groups if suite else ()):
        for p, policy in enumerate(group.policies):
            yield f"{within}groups[{g}].policies[{p}]", policy


def with_policies(suite: Suite, change: Callable[[Policy, str], Policy]) -> Suite:
    """Return the suite with each policy as `change` returns it, given the policy and its place."""
    changed = iter([change(policy, place) for place, policy in policies_by_place(suite)])
    groups = [group.model_copy(update={"policies": [next(changed) for _ in group.policies]}) for group in suite.groups]
    return suite.model_copy(update={"groups": groups})
