"""The scorers that come with the harness."""
