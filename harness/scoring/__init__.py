"""Ways to decide whether an answer is right: what plugs in through `harness.scorers`, and the shipped ones besides mathematics."""
