"""Benchmarking harness for experience-sharing regimes among language models trained by RL with verifiable rewards."""

__version__ = "0.1.0"
