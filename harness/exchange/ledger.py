"""Who sent what to whom, and what became of it: one entry per record and receiver."""

from __future__ import annotations

from harness.store.rows import ExchangeRow

Entry = ExchangeRow
"""The exchange fills the upper part of an entry, the receiver the rest as it learns it."""


class Ledger(list[Entry]):
    """Entries of the running step; the session takes them to the journal after each step."""

    def take(self) -> list[Entry]:
        """All entries, which the ledger then forgets."""
        taken = self.copy()
        self.clear()
        return taken
