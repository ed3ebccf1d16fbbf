"""Values from peers, models and other labs, made safe to print."""

from __future__ import annotations

import unicodedata


def visible(text: str, limit: int = 0) -> str:
    """Control and direction characters as escapes. A text longer than `limit` (0: none) is cut."""
    cut = text[:limit] if limit and len(text) > limit else text
    if not cut.isprintable():
        cut = "".join(c if c in "\n\t" or not _is_control(c) else f"\\x{ord(c):02x}" for c in cut)
    if len(text) <= limit or not limit:
        return cut
    return f"{cut}… ({len(text):,} characters in all)"


def _is_control(character: str) -> bool:
    if ord(character) & 0xFFFE == 0xFFFE:
        return True
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and character != "\u200d"


def harmless(value: object) -> object:
    """Quoted where a spreadsheet would take it for a formula."""
    if isinstance(value, str) and value[:1] in tuple("=+-@\t\r"):
        return f"'{value}"
    return value
