"""Results in the formats of others: lm-eval's folders, Parquet, model cards. The store and the journals are read alone."""
