"""Who sent what to whom, and what became of it: one entry per record and receiver."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec

NAN = float("nan")


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """One record as one receiver saw it. The exchange fills the upper part, the receiver the rest as it learns it.

    step: at which it was collected; made: the step its author names. messages: 1, or how many alike this entry sums up
    (messages that could not be read, or beyond the quota), or 0 for an author that sent nothing. bytes: on the wire.
    source_tokens, receiver_tokens: the answer's length under either tokenizer, EOS left out; 0 where not known.
    residual_*: the five of retokenising. marks_spelled: reasoning marks that became letters.
    verdict: the receiver's own, empty where none was made. used: it gave a nonzero gradient.
    """

    step: int
    author: str
    receiver: str
    kind: str = ""
    prompt_id: str = ""
    index: int = 0
    made: int = -1
    version: int = 0
    messages: int = 1
    bytes: int = 0
    source_tokens: int = 0
    accepted: bool = True
    reason: str = ""
    receiver_tokens: int = 0
    residual_text: float = NAN
    residual_boundary: float = NAN
    residual_mass: float = NAN
    residual_length: float = NAN
    residual_canonical: float = NAN
    marks_spelled: int = 0
    verdict: str = ""
    used: bool = False

    def refuse(self, reason: str) -> None:
        """Take the acceptance back: what retokenising or the receiver's verifier found out."""
        self.accepted, self.reason, self.used = False, str(reason), False


class Ledger:
    """Entries of the running step; the session takes them to the journal after each step."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._lock = threading.Lock()

    def extend(self, entries: list[Entry]) -> None:
        with self._lock:
            self._entries.extend(entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    def refusals(self) -> Counter[tuple[str, str, str]]:
        """Refused messages of the running step by (receiver, author, reason). A silent author counts once."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for entry in self._entries:
            if not entry.accepted:
                counts[entry.receiver, entry.author, entry.reason] += max(1, entry.messages)
        return counts

    def take(self) -> list[Entry]:
        """All entries, which the ledger then forgets."""
        with self._lock:
            taken, self._entries = self._entries, []
        return taken
