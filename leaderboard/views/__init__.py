"""Every module of this folder that declares a `PAGE`, in the navigation's order."""

from importlib import import_module
from pkgutil import iter_modules

from leaderboard.page import Page


def _pages() -> tuple[Page, ...]:
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return tuple(sorted((m.PAGE for m in modules if hasattr(m, "PAGE")), key=lambda page: (page.order, page.slug)))


PAGES: tuple[Page, ...] = _pages()
