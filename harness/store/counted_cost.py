"""What a cell costs by the tokens that it sampled, scored and trained on: the same number on every machine.

Measured seconds differ between machines and by what else they do: one cell took 17.6 and 23.9 CPU-seconds on two. Each phase is
therefore calibrated once, and a cell's cost counted. The unit is the cost of sampling one token.

Calibration: CPU-seconds of each phase over its tokens, summed over the cells of a suite. Sampling, scoring and training are as 1 to
0.48 to 1.39 on the reference results of `map`, 1 to 0.57 to 1.60 on `controls` (micro models), and 1 to 0.39 to 1.52 on
`pretrained` (two real models). The constants are the medians of the three; tests/test_counted_cost.py computes them again.
A machine that samples with another program than it trains with has other ratios: measured seconds stand beside the counted cost.
"""

from __future__ import annotations

# The cost of scoring a token (a forward pass) and of training on it (forward, backward and update), in sampled tokens
SCORED_TOKEN = 0.48
TRAINED_TOKEN = 1.52


def count_cost(sampled: float, scored: float, trained: float) -> float:
    """Return a cost in sampled tokens. sampled, scored, trained: tokens of these phases, of all that should be counted."""
    return sampled + SCORED_TOKEN * scored + TRAINED_TOKEN * trained
