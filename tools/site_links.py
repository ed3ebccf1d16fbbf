"""A hook of the documentation's site (mkdocs.yml): `docs/NAME.md` becomes a link; a link to the README leads to the first
page, one to another file outside docs/ is left as its text. A page or file that is not there is a warning, which ends a
strict build. `$...$` and `$$...$$` become MathML, which browsers draw without a script."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.utils import get_relative_url

log = logging.getLogger("mkdocs.hooks.site_links")
MENTION = re.compile(r"(?s)(<(a|pre)\b.*?</\2>|<[^>]+>)|(?<![\w/.])docs/([\w/-]+\.md)\b")
OUTSIDE = re.compile(r"\[([^]]+)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")
FORMULA = re.compile(r"(?ms)(^```.*?^```|^ {4}.*?$|`[^`]*`)|\$\$(.+?)\$\$|\$([^$]+?)\$")
ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page without links that leave docs/. A mark stands for each formula: Markdown would make a block of markup."""
    folder = posixpath.dirname(page.file.src_uri)

    def within(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if target.startswith("docs/") or not (ROOT / target).exists():
            return match[0]  # for mkdocs to judge
        return f"[{match[1]}]({posixpath.relpath('index.md', folder or '.')})" if target == "README.md" else match[1]

    formulas = page.meta["formulas"] = []

    def marked(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        formulas.append(convert(match[2] or match[3], display="block" if match[2] else "inline"))
        return f"\ue000{len(formulas) - 1}\ue001"

    return FORMULA.sub(marked, OUTSIDE.sub(within, markdown))


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """The page with its formulas drawn and its mentions linked, but for those inside links and blocks of code."""

    def linked(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        file = files.get_file_from_path(match[3])
        if file is None:
            log.warning("%s names %s, which is no page", page.file.src_uri, match[0])
            return match[0]
        return f'<a href="{get_relative_url(file.url, page.url)}">{match[0]}</a>'

    return re.sub("\ue000(\\d+)\ue001", lambda mark: page.meta["formulas"][int(mark[1])], MENTION.sub(linked, html))
