"""What policies learn from: prompts, answers, groups, what peers send and why it was refused. Data only."""
