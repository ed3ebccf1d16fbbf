"""Every module of this folder that declares a `PAGE`, in the navigation's order."""

from importlib import import_module
from pkgutil import iter_modules

from leaderboard.page import Page


def _pages() -> tuple[Page, ...]:
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    pages = sorted((m.PAGE for m in modules if hasattr(m, "PAGE")), key=lambda page: (page.order, page.slug))
    slugs = [page.slug for page in pages]
    if twice := {slug for slug in slugs if slugs.count(slug) > 1}:
        raise ValueError(f"leaderboard pages share an address: {', '.join(sorted(twice))}")
    return tuple(pages)


PAGES: tuple[Page, ...] = _pages()
