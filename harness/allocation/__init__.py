"""What there is to run on, what cells ask for, how they are laid out, and when they run. Only `meta` imports torch."""
