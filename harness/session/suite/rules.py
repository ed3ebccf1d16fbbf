"""What makes a suite sound beyond its own types: its regimes, their options, its bad peers and who sends to whom. No torch."""

from __future__ import annotations

from harness.errors import PluginError, SuiteError
from harness.exchange.misbehaviour import condition_of
from harness.learning import registry
from harness.suite.schema import Sharing, Suite


def validate(suite: Suite, source: str) -> Suite:
    """The suite with every variant's options filled in from its regime's defaults.

    `source` is the file's path, for messages. Raises SuiteError naming the place for an unknown regime or option, for needs
    that a regime's shares cannot meet, and for a sharing regime where nobody could share.
    """
    _conditions(suite, source)
    variants = []
    for i, variant in enumerate(suite.regimes):
        at = f"regimes[{i}]"
        try:
            regime = registry.build(variant.regime, variant.options)
        except PluginError as error:
            text = str(error)
            key, colon, rest = text.partition(": ")
            if colon and key in variant.options:
                raise SuiteError(source, f"{at}.{key}", rest) from None
            raise SuiteError(source, f"{at}.regime", text) from None
        sharing = suite.sharing_of(variant)
        for g, group in enumerate(suite.groups):
            alone = len(group.policies) < 2
            if alone and regime.shares and sharing.direction != "none" and variant.replay is None:
                problem = f"{variant.name!r} shares experience, but the group {group.name!r} has one policy"
                raise SuiteError(
                    source, f"groups[{g}].policies", f"{problem} (use `independent`, or `direction: none`)"
                )
            unequal = len({p.rollouts or suite.training.rollouts for p in group.policies}) > 1
            if unequal and not regime.unequal_rollouts:
                why = f"{variant.name!r} is defined for equal numbers of rollouts per policy: {regime.unequal_reason}"
                raise SuiteError(source, f"groups[{g}].policies", why)
        _edges(suite, sharing, at, source)
        old = variant.old_logprobs or regime.old_logprobs
        if variant.sampler_correction and old == "sampler":
            problem = "corrects what `old_logprobs: sampler` already puts into the ratio; use one of the two"
            raise SuiteError(source, f"{at}.sampler_correction", problem)
        variants.append(variant.model_copy(update={"options": registry.resolved(regime.options), "old_logprobs": old}))
    return suite.model_copy(update={"regimes": variants})


def remarks(suite: Suite) -> list[str]:
    """What the suite's regimes have to say about their settings, each with the variant's name."""
    return [
        f"{variant.name}: {remark}"
        for variant in suite.regimes
        for remark in registry.build(variant.regime, variant.options).remarks(suite.training.updates)
    ]


def _conditions(suite: Suite, source: str) -> None:
    for g, group in enumerate(suite.groups):
        for p, policy in enumerate(group.policies):
            if policy.condition is not None:
                try:
                    condition_of(policy.condition)
                except ValueError as error:
                    raise SuiteError(source, f"groups[{g}].policies[{p}].condition", str(error)) from None


def _edges(suite: Suite, sharing: Sharing, at: str, source: str) -> None:
    for group in suite.groups:
        try:
            if sharing.direction == "edges":
                sharing.among([p.name for p in group.policies])
        except ValueError as error:
            raise SuiteError(source, f"{at}.sharing.edges", f"{error} (the group {group.name!r})") from None
