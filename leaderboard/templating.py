"""HTML from the templates: values are escaped, and their control characters made visible."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader

from harness.store.text import visible


def _make_printable(value: Any) -> Any:
    """Return a value as a template prints it; text that is HTML already stays as it is."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return visible(value, 20_000) if is_text else value


_templates = Environment(
    loader=PackageLoader("leaderboard"), autoescape=True, finalize=_make_printable, trim_blocks=True, lstrip_blocks=True
)


def fill_template(template: str, **values: Any) -> str:
    """Return a template of `leaderboard/templates` as HTML. values: by their name there; all are escaped."""
    chosen = _templates.get_template(template)
    return chosen.render(values)
