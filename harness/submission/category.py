"""Whose settings a suite's regimes have: a table of tuned regimes is another one than that of published defaults."""

from __future__ import annotations

from harness.errors import PluginError, UsageError
from harness.learning import registry
from harness.suite.schema import Suite, Variant
from harness.tuning.derived import tuned_from

PUBLISHED = "published defaults"


def category(suite: Suite) -> str:
    """*published defaults*, or *tuned (budget N)* with the number of trials per regime; variants with settings of their own that no
    search chose are named, and those whose defaults nobody here knows."""
    names = {v.name for v in suite.regimes}
    chosen = {n for n in names if suite.tune is not None and tuned_from(n, names)}
    kind = f"tuned (budget {suite.tune.trials})" if suite.tune is not None else PUBLISHED
    known = [v for v in suite.regimes if v.name not in chosen and v.regime in registry.installed()]
    own = [v.name for v in known if v.name != suite.baseline and not _published(v)]
    unknown = [v.name for v in suite.regimes if v.regime not in registry.installed()]
    kind += f"; settings of their own: {', '.join(own)}" if own else ""
    return kind + (f"; not installed here: {', '.join(unknown)}" if unknown else "")


def _published(variant: Variant) -> bool:
    """Whether a variant has its regime's own defaults and the suite's training."""
    if variant.training is not None:
        return False
    try:
        default = registry.resolved(registry.build(variant.regime, {}).options)
    except (PluginError, UsageError):
        return not variant.options
    return {**default, **variant.options} == default
