"""Results in the formats of others: exchange formats, Parquet, model cards, trackers. The store and the journals are read alone."""
