"""Marks of reasoning and of tool use: the one markup of a peer's answer that maps by meaning.

A policy that thinks between `<think>` and `</think>` has a token for each. Another that has tokens of the same meaning, however
it spells them, gets its own; one that has none reads letters, and how many marks became letters is counted. The table is ours;
spellings are those of the families' published tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

MEANINGS: tuple[tuple[str, ...], ...] = (
    ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "◁think▷"),
    ("</think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "◁/think▷"),
    ("<tool_call>", "[TOOL_CALLS]", "<|START_ACTION|>", "<seed:tool_call>"),
    ("</tool_call>", "[/TOOL_CALLS]", "<|END_ACTION|>", "</seed:tool_call>"),
    ("<tool_response>", "[TOOL_RESULTS]", "<|START_TOOL_RESULT|>"),
    ("</tool_response>", "[/TOOL_RESULTS]", "<|END_TOOL_RESULT|>"),
)
"""One meaning a row."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A text in the receiver's own marks. cuts: (end in the original, start, end in `text`) of each replaced mark, in bytes.
    letters: marks that the receiver has no token for."""

    text: str
    cuts: tuple[tuple[int, int, int], ...] = ()
    letters: int = 0

    def restore(self, ends: Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Byte ends in `text` as ends in the original: inside a replaced mark they are its end."""
        restored = ends.astype(np.int64)
        for original, start, end in self.cuts:
            restored[ends > end] = ends[ends > end] + original - end
            restored[(ends > start) & (ends <= end)] = original
        return restored.astype(np.int32)


class Marks:
    """The marks of one tokenizer: `own` are its spellings, added tokens all."""

    def __init__(self, added: Iterable[str]) -> None:
        has, table = set(added), dict[str, str | None]()
        for row in MEANINGS:
            mine = next((spelling for spelling in row if spelling in has), None)
            table |= {spelling: mine for spelling in row if spelling not in has}
        self.own = frozenset(spelling for row in MEANINGS for spelling in row if spelling in has)
        self._table: Mapping[str, str | None] = table
        self._foreign = re.compile("|".join(map(re.escape, sorted(table, key=len, reverse=True))) or r"(?!)")
        self.foreign = self._foreign.search
        """What is true of a text with a mark that `translate` changes or counts."""

    def translate(self, text: str) -> Translated:
        """The text with foreign marks in the tokenizer's own spelling, as far as it has one."""
        parts: list[str] = []
        cuts: list[tuple[int, int, int]] = []
        letters = old = new = at = 0
        for match in self._foreign.finditer(text):
            mine, before = self._table[match[0]], len(text[at : match.start()].encode())
            parts += [text[at : match.start()], match[0] if mine is None else mine]
            old, new, at = old + before, new + before, match.end()
            sizes = len(match[0].encode()), len(parts[-1].encode())
            if mine is None:
                letters += 1
            else:
                cuts.append((old + sizes[0], new, new + sizes[1]))
            old, new = old + sizes[0], new + sizes[1]
        return Translated("".join([*parts, text[at:]]), tuple(cuts), letters)
