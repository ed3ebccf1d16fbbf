"""What policies learn from: prompts, answers, groups, peers' records. Data only."""
