"""What makes a suite sound beyond its types: conditions, options of regimes, and which regime fits which group."""

from __future__ import annotations

from harness.errors import PluginError, SuiteError
from harness.exchange.misbehaviour import condition_of
from harness.learning import registry
from harness.learning.regime import Need, Regime
from harness.session.suite.places import faults_at, policies_by_place
from harness.suite.schema import ModelGroup, Sharing, Suite, Variant


def validate_suite(suite: Suite, source: str) -> Suite:
    """Check a suite beyond its types: conditions of bad peers, options of regimes, and that each regime fits the groups it runs
    in.

    Returns the suite with every variant's options written out. Raises SuiteError with the place of the first fault."""
    for place, policy in policies_by_place(suite):
        if policy.condition is not None:
            with faults_at(source, f"{place}.condition", ValueError):
                condition_of(policy.condition)
    variants = []
    for i, variant in enumerate(suite.regimes):
        place = f"regimes[{i}]"
        regime = _build_regime(variant, source, place)
        if Need.SCORES in regime.needs and variant.replay is not None:
            problem = f"{variant.name!r} needs peers' scores, and a recording has none"
            raise SuiteError(source, f"{place}.replay", problem)
        fault = _unfit_sampling(variant, regime, variant.sharing or suite.sharing)
        if fault:
            raise SuiteError(source, f"{place}.dynamic_sampling", fault)
        for g, group in enumerate(suite.groups):
            if variant.runs_in(group.name):
                _check_group(suite, variant, regime, group, source, f"groups[{g}].policies", place)
        _check_correction(variant, regime, source, place)
        variants.append(_with_options(variant, regime))
    return suite.model_copy(update={"regimes": variants})


def _build_regime(variant: Variant, source: str, place: str) -> Regime:
    """Build a variant's regime. Raises SuiteError: a fault of an option is placed at the option, any other at the regime's
    name."""
    try:
        return registry.build(variant.regime, variant.options)
    except PluginError as error:
        key, colon, rest = str(error).partition(": ")
        if colon and key in variant.options:
            raise SuiteError(source, f"{place}.{key}", rest) from None
        raise SuiteError(source, f"{place}.regime", str(error)) from None


def _check_group(
    suite: Suite, variant: Variant, regime: Regime, group: ModelGroup, source: str, policies_place: str, place: str
) -> None:
    """Check that a regime can train a group. policies_place, place: where the group's policies and the variant stand in the
    suite. Raises SuiteError."""
    sharing = variant.sharing or suite.sharing
    names = [policy.name for policy in group.policies]
    if len(names) < 2 and regime.shares and sharing.direction != "none" and variant.replay is None:
        problem = (
            f"{variant.name!r} shares experience, but the group {group.name!r} has one policy (use `independent`, or "
            "`direction: none`)"
        )
        raise SuiteError(source, policies_place, problem)
    rollouts = {policy.rollouts or suite.training_of(variant).rollouts for policy in group.policies}
    odd = [count for count in rollouts if count * variant.factor % 1]
    if odd:
        problem = f"{variant.budget} of {odd[0]} rollouts is no whole number of answers"
        raise SuiteError(source, f"{place}.budget", problem)
    if len(rollouts) > 1 and not regime.unequal_rollouts:
        problem = f"{variant.name!r} is defined for equal numbers of rollouts per policy: {regime.unequal_reason}"
        raise SuiteError(source, policies_place, problem)
    if sharing.direction == "edges":
        try:
            sharing.among(names)
        except ValueError as error:
            raise SuiteError(source, f"{place}.sharing.edges", f"{error} (the group {group.name!r})") from None


def _unfit_sampling(variant: Variant, regime: Regime, sharing: Sharing) -> str:
    """Say why a variant's dynamic sampling cannot be; empty where it can."""
    if variant.dynamic_sampling is None:
        return ""
    if variant.replay is not None:
        return "a recording answers the prompts that were asked then; leave out one of the two"
    if sharing.max_staleness or not sharing.defences.staleness:
        return "needs `max_staleness: 0` and its defence: answers to prompts of earlier steps could not be told apart"
    if variant.dynamic_sampling.decided_by == "own" and regime.shares:
        return (
            f"`decided_by: own` gives every policy its own prompts, but {variant.name!r} shares experience (use `all`)"
        )
    return ""


def _denominator_of(variant: Variant, regime: Regime) -> str:
    """Return what the ratio is taken to: the suite's `old_logprobs`, else the regime's."""
    return variant.old_logprobs or regime.old_logprobs


def _check_correction(variant: Variant, regime: Regime, source: str, place: str) -> None:
    """Refuse a correction of the sampler's drift where the ratio holds it already. Raises SuiteError."""
    if variant.sampler_correction and _denominator_of(variant, regime) == "sampler":
        problem = "corrects what `old_logprobs: sampler` already puts into the ratio; use one of the two"
        raise SuiteError(source, f"{place}.sampler_correction", problem)


def _with_options(variant: Variant, regime: Regime) -> Variant:
    """Return the variant with every option of its regime written out, and with what its ratio is taken to."""
    options = registry.resolve_options(regime.options)
    return variant.model_copy(update={"options": options, "old_logprobs": _denominator_of(variant, regime)})
