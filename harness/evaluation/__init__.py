"""lm-eval on checkpoints: every sample stored, one scoring rule."""
