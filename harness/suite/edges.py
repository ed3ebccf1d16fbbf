"""Who sends to whom in a group of policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

Edge = tuple[str, str]
"""(author, receiver)"""
Direction = Literal["all", "none", "strong_to_weak", "weak_to_strong"]
Strengths = Callable[[], Mapping[str, float]]


def edges_of(
    policies: Sequence[str], direction: Direction | Iterable[Edge], strengths: Strengths | None = None
) -> tuple[Edge, ...]:
    """Edges in suite order, by receiver, then author. direction: a word, or the edges themselves. strengths: asked where the
    direction depends on it; equals do not send to each other. Raises ValueError."""
    every = tuple((author, receiver) for receiver in policies for author in policies if author != receiver)
    if direction == "none":
        return ()
    if direction == "all":
        return every
    if direction in ("strong_to_weak", "weak_to_strong"):
        if strengths is None:
            raise ValueError(f"{direction} needs the policies' strengths")
        found, sign = strengths(), 1 if direction == "strong_to_weak" else -1
        return tuple((a, r) for a, r in every if sign * found[a] > sign * found[r])
    assert not isinstance(direction, str)
    chosen = {(author, receiver) for author, receiver in direction}
    for author, receiver in sorted(chosen):
        if (author, receiver) not in every:
            raise ValueError(f"no edge {author} -> {receiver}: it does not join two of {', '.join(policies)}")
    return tuple(edge for edge in every if edge in chosen)
