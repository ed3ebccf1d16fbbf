"""Results in others' formats; the store and journals are only read."""
