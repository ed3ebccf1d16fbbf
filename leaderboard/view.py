"""What a page is given, and what a page is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leaderboard.data import Store


@dataclass(frozen=True, slots=True)
class View:
    """The store and the suite chosen in the sidebar; both None where there are no results. `links` are the other pages."""

    store: Store | None
    suite: str | None
    links: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """One page, declared as `PAGE` in a module of `leaderboard.views`: that file is all there is to it.

    slug: its address. order: its place in the navigation, by which equals follow their slugs. needs_results: asks for an empty
    state instead of `draw` where there are none. figures: whether it draws one of every suite with results.
    """

    slug: str
    title: str
    icon: str
    lead: str
    draw: Callable[[Store, str, View], None]
    order: int
    needs_results: bool = True
    figures: bool = True
