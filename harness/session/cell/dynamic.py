"""Dynamic sampling: prompts whose groups teach nothing are replaced by new ones (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from harness.experience.answers import Group, Prompt

__all__ = ["has_equal_rewards", "places_to_replace", "prompts_not_asked"]


def has_equal_rewards(group: Group) -> bool:
    """Say whether all valid answers have one reward, or none is valid: GRPO's advantages are 0."""
    return len(set(group.rewards.tolist())) <= 1


def places_to_replace(groups: Mapping[str, Sequence[Group]], decided_by: Literal["all", "own"]) -> dict[str, list[int]]:
    """List, by policy, the places in its groups whose prompts are to be replaced.

    groups: of one step, by policy; with `all` they are to the same prompts in one order, and a prompt is replaced only where
    every policy's group has equal rewards: the prompts that one policy solves and another does not are those from which
    policies learn of each other (our reading). With `own` each policy's own groups decide."""
    equal = {
        name: {place for place, group in enumerate(own) if has_equal_rewards(group)} for name, own in groups.items()
    }
    if decided_by == "all":
        common = set.intersection(*equal.values())
        equal = dict.fromkeys(equal, common)
    return {name: sorted(places) for name, places in equal.items()}


def prompts_not_asked(offered: Iterable[Prompt], asked: Iterable[str]) -> list[Prompt]:
    """Return the offered prompts, in order, that the step has not asked. asked: ids, also of prompts that were replaced."""
    known = set(asked)
    return [prompt for prompt in offered if prompt.id not in known]
