"""The former place of the scorers' contract, which scaffolded packages name: all of it is in `harness.verification`."""
