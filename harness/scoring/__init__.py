"""Ways to decide whether an answer is right."""
