"""What a suite's author expects of it before it runs (docs/statistics.md); `harness.store.claims` answers it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.suite.fields import Name, Positive, SuiteModel


class Counterpart(SuiteModel):
    """What a claim compares its statistic with, instead of with a number: the same statistic elsewhere."""

    group: Name | None = Field(default=None, description="In this group; null: in the claim's own.")
    regime: Name | None = Field(default=None, description="Of this variant; null: of the claim's own.")

    @model_validator(mode="after")
    def _elsewhere(self) -> Counterpart:
        if self.group is None and self.regime is None:
            raise ValueError("name a `group`, a `regime`, or both")
        return self


class Claim(SuiteModel):
    """What somebody expects of a suite before it runs (docs/statistics.md)."""

    name: Name = Field(description="In tables.")
    group: Name = Field(description="Where it is said to hold.")
    regime: Name = Field(description="The variant that it is said of.")
    over: Name | None = Field(default=None, description="The variant that it is compared with; null: the baseline.")
    statistic: Literal["gain", "kappa", "reach"] = Field(
        description="`gain`: points of avg@k at the end; `kappa`: pace; `reach`: points by which the ends differ."
    )
    relation: Literal["above", "below", "within"] = Field(
        description="`above` or `below` the bound; `within`: at most the bound away from 0, or for `kappa` from 1."
    )
    bound: Annotated[float, Field(ge=-100, le=100)] = Field(
        description="In points, for `kappa` a ratio; with `against`: of the difference."
    )
    against: Counterpart | None = Field(
        default=None, description="The bound is of the difference from the same statistic elsewhere."
    )
    seeds: Positive | None = Field(
        default=None, description="Answered from so many of the suite's first seeds; null: from all."
    )


def check_claims(
    claims: Sequence[Claim], groups: Sequence[str], groups_of: Mapping[str, Collection[str]], baseline: str, seeds: int
) -> None:
    """Refuse a claim about a variant or a group that the suite does not run.

    groups: the suite's, by name. groups_of: the groups in which each variant runs, by the variant's name. baseline: the
    variant that a claim without `over` is compared with. seeds: how many the suite has. Raises ValueError with the place."""
    for i, claim in enumerate(claims):
        against = claim.against or Counterpart(group=claim.group)
        compared_with = claim.over or baseline
        used = {
            "group": (claim.group, claim.regime),
            "over": (claim.group, compared_with),
            "against": (against.group or claim.group, against.regime or claim.regime),
        }
        for key, (group, variant) in used.items():
            place = f"claims[{i}].{key}"
            if group not in groups:
                raise ValueError(f"{place}: no group {group!r} in the suite ({', '.join(groups)})")
            if variant not in groups_of:
                raise ValueError(f"{place}: no variant {variant!r} in the suite ({', '.join(groups_of)})")
            if group not in groups_of[variant]:
                raise ValueError(f"{place}: {variant!r} does not run in the group {group!r}")
        if claim.regime == compared_with:
            raise ValueError(f"claims[{i}].over: {compared_with!r} is compared with itself")
        if claim.seeds is not None and claim.seeds > seeds:
            raise ValueError(f"claims[{i}].seeds: the suite has {seeds}")
