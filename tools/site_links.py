"""A hook of the documentation's site (mkdocs.yml): `docs/NAME.md`, wherever a page or a docstring says it, becomes a link.

So pages and docstrings name each other as one finds them in the repository. A name without a page is a warning, which ends a
strict build.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from mkdocs.utils import get_relative_url

log = logging.getLogger("mkdocs.hooks.site_links")
TAG = re.compile(r"(<[^>]+>)")
MENTION = re.compile(r"(?<![\w/.])docs/([\w/-]+\.md)\b")


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """The page with its mentions linked, but for those inside links and blocks of code."""

    def linked(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[1])
        if file is None:
            log.warning("%s names %s, which is no page", page.file.src_uri, found[0])
            return found[0]
        return f'<a href="{get_relative_url(file.url, page.url)}">{found[0]}</a>'

    parts, depth = TAG.split(html), 0
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = part if depth else MENTION.sub(linked, part)
        elif re.match(r"<(a|pre)\b", part):
            depth += 1
        elif re.match(r"</(a|pre)>", part):
            depth -= 1
    return "".join(parts)
