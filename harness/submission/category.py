"""Whose settings a suite's regimes have: a table of tuned regimes is another one than that of published defaults."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import PluginError, UsageError
from harness.learning import registry
from harness.suite.schema import Suite, Variant
from harness.tuning.derived import tuned_from

PUBLISHED = "published defaults"


def category(suite: Suite) -> str:
    """Which of the suite's regimes besides the baseline's stand there with *published defaults*, and which with defaults that
    nobody published (`Regime.published`); *tuned (budget N)* with the number of trials per regime; variants with settings of their
    own that no search chose are named, and those whose defaults nobody here knows."""
    names = {v.name for v in suite.regimes}
    plain = next(v.regime for v in suite.regimes if v.name == suite.baseline)
    chosen = {n for n in names if suite.tune is not None and tuned_from(n, names)}
    known = [v for v in suite.regimes if v.name not in chosen and v.regime in registry.installed()]
    shared = [v for v in known if v.regime != plain and _published(v)]
    parts = {
        PUBLISHED: [v.regime for v in shared if _source(v.regime)],
        "defaults that nobody published": [v.regime for v in shared if not _source(v.regime)],
        "settings of their own": [v.name for v in known if v.name != suite.baseline and not _published(v)],
        "not installed here": [v.name for v in suite.regimes if v.regime not in registry.installed()],
    }
    found = [f"{what}: {', '.join(dict.fromkeys(each))}" for what, each in parts.items() if each]
    tuned = [f"tuned (budget {suite.tune.trials})"] if suite.tune is not None else []
    return "; ".join([*tuned, *found]) or "the baseline alone"


def _source(regime: str) -> str:
    """`Regime.published`; empty for a plugin that does not load."""
    with suppress(PluginError):
        return registry.load(regime).published
    return ""


def _published(variant: Variant) -> bool:
    """Whether a variant has its regime's own defaults and the suite's training."""
    if variant.training is not None:
        return False
    try:
        default = registry.resolved(registry.build(variant.regime, {}).options)
    except (PluginError, UsageError):
        return not variant.options
    return {**default, **variant.options} == default
