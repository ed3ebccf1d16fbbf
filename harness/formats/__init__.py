"""Results in the formats of others. The store and the journals are only read."""
