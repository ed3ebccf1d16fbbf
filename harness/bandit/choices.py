"""A regime's own random choices, enumerated: expectations stay exact where a regime draws among its peers' answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_UNTOUCHED = np.random.PCG64(0)
"""Gives no bits to any choice that is enumerated; when it has given some, a draw was not."""
_START = _UNTOUCHED.state


class Choices(np.random.Generator):
    """Stands for `Context.rng`. Every uniform choice takes the branch that `path` names, the first one beyond its end."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__(_UNTOUCHED)
        self.path, self.sizes = list(path), list[int]()

    def integers(self, low: Any, high: Any = None, *args: Any, **kwargs: Any) -> Any:
        """One whole number of [low, high), or of [0, low)."""
        if args or kwargs:
            raise ValueError("only single whole numbers can be enumerated")
        low, high = (0, low) if high is None else (low, high)
        return low + self._branch(high - low)

    def choice(self, a: Any, size: Any = None, replace: bool = True, *args: Any, **kwargs: Any) -> Any:
        """`size` of a numbers or items, without replacement unless `size` is None."""
        if args or kwargs or (replace and size is not None):
            raise ValueError("only uniform choices without replacement can be enumerated")
        items = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if size is None:
            return items[self._branch(len(items))]
        branch = self._branch(math.perm(len(items), size))
        return items[list(next(itertools.islice(itertools.permutations(range(len(items)), size), branch, None)))]

    def _branch(self, size: int) -> int:
        place = len(self.sizes)
        self.sizes.append(size)
        if place == len(self.path):
            self.path.append(0)
        return self.path[place]


def every_choice(run: Callable[[np.random.Generator], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of `run` for each combination of choices that it makes with the generator.

    Raises
    ------
    ValueError
        `run` draws in a way that cannot be enumerated.
    """
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        choices = Choices(path)
        result = run(choices)
        if _UNTOUCHED.state != _START:
            _UNTOUCHED.state = _START
            raise ValueError("only uniform choices by `integers` and `choice` can be enumerated")
        for place in range(len(path), len(choices.sizes)):
            paths += [(*choices.path[:place], branch) for branch in range(1, choices.sizes[place])]
        yield 1 / math.prod(choices.sizes), result
