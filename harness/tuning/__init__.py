"""Tuning under an equal budget: trials as cells of a suite of their own, then the table (docs/tuning.md). Imports without torch."""
