"""Every module of this folder that declares a `PAGE`, in the navigation's order."""

from importlib import import_module
from pkgutil import iter_modules

from leaderboard.page import Page

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
_DECLARED: list[Page] = [module.PAGE for module in _MODULES if hasattr(module, "PAGE")]
PAGES: tuple[Page, ...] = tuple(sorted(_DECLARED, key=lambda page: (page.order, page.slug)))
