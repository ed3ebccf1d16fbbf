"""The shipped regimes, registered through the entry-point group `harness.regimes` like anyone's plugin."""
