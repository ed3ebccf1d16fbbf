"""Tuning under an equal budget (docs/tuning.md). Imports without torch."""
