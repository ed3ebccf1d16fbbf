"""The shipped regimes: one short module each, registered through the entry-point group `harness.regimes` like anyone's plugin."""
