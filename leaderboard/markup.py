"""HTML from the templates of this package; every value is escaped, and its control characters are made visible."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader

from harness.store.text import visible


def _printable(value: Any) -> Any:
    return visible(value, 20_000) if isinstance(value, str) and not hasattr(value, "__html__") else value


_templates = Environment(
    loader=PackageLoader("leaderboard"), autoescape=True, finalize=_printable, trim_blocks=True, lstrip_blocks=True
)


def filled(template: str, **values: Any) -> str:
    """A template of `leaderboard/templates`."""
    return _templates.get_template(template).render(values)
