"""Texts of the repository that pages show: links in a checkout, files in a wheel."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[2]
_RULE = re.compile(r"^\*\*(?P<name>[-\w]+)\*\*", re.M)
_END = re.compile(r"^## ", re.M)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def is_checkout(root: Path = ROOT) -> bool:
    """Say whether this code lies in a checkout of the repository."""
    return (root / ".git").exists() and (root / "docs").is_dir()


@cache
def read_formulas() -> dict[str, str]:
    """Return by regime what it computes, as Markdown, from docs/formulas.md; links within the documentation are text."""
    text = (FOLDER / "formulas.md").read_text("utf-8")
    places = list(_RULE.finditer(text))
    formulas: dict[str, str] = {}
    for place, following in zip(places, [*places[1:], None], strict=True):
        heading = _END.search(text, place.start())
        ends = [end.start() for end in (following, heading) if end is not None]
        end = min(ends, default=len(text))
        formula = text[place.start() : end].strip()
        formulas[place["name"]] = _LINK.sub(r"\1", formula)
    return formulas


def read_citation() -> dict[str, str]:
    """Return the citation's title, version, year where it is known, and authors."""
    citation = (FOLDER / "CITATION.cff").read_text("utf-8")
    cited = yaml.safe_load(citation)
    authors = cited["authors"]
    names = [author.get("name") or f"{author['given-names']} {author['family-names']}" for author in authors]
    released = str(cited.get("date-released", ""))
    return {
        "title": cited["title"],
        "version": str(cited["version"]),
        "year": released[:4],
        "authors": " and ".join(f"{{{name}}}" for name in names),
        "licence": cited["license"],
    }
