"""Who sent what to whom, and what became of it: one entry per record and receiver."""

from __future__ import annotations

import msgspec

NAN = float("nan")


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """One record as one receiver saw it. The exchange fills the upper part, the receiver the rest as it learns it.

    step: at which it was collected; made: the step its author names. messages: 1, or how many alike this entry sums up
    (messages that could not be read, or beyond the quota), or 0 for an author that sent nothing. bytes: on the wire.
    source_tokens, receiver_tokens: the answer's length under either tokenizer, EOS left out; 0 where not known.
    residual_*: the five of retokenising. marks_spelled: reasoning tags that the receiver has no token for.
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


class Ledger(list[Entry]):
    """Entries of the running step; the session takes them to the journal after each step."""

    def take(self) -> list[Entry]:
        """All entries, which the ledger then forgets."""
        taken = self.copy()
        self.clear()
        return taken
