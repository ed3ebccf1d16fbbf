"""What a cell costs by the tokens that it sampled, scored and trained on: the same number on every machine.

Measured seconds differ between machines and by what else they do: one cell took 17.6 and 23.9 CPU-seconds on two. Each phase is
therefore calibrated once, and a cell's cost counted. The unit is the cost of sampling one token.

Calibration: CPU-seconds of each phase over its tokens, summed over the 210 cells of the reference results of `beyond` (micro
models, AMD EPYC): 70.8, 40.8 and 108.6 microseconds a token. On `matched` they are as 1 to 0.55 to 1.56, on `controls` 1 to 0.56 to
1.58, on the two pretrained models of `pretrained` 1 to 0.64 to 1.46. A machine that samples with another program than it trains
with has other ratios: measured seconds stand beside the counted cost.
"""

from __future__ import annotations

# The cost of scoring a token (a forward pass) and of training on it (forward, backward and update), in sampled tokens
SCORED_TOKEN = 0.58
TRAINED_TOKEN = 1.53


def count_cost(sampled: float, scored: float, trained: float) -> float:
    """Return a cost in sampled tokens. sampled, scored, trained: tokens of these phases, of all that should be counted."""
    return sampled + SCORED_TOKEN * scored + TRAINED_TOKEN * trained
