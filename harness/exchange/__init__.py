"""SEE: typed experience records, their exchange, its ledger, and peers that misbehave on purpose."""
