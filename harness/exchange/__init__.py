"""SEE: typed experience records, their exchange, and peers that misbehave on purpose."""
