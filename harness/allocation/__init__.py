"""MWRA: what there is to run on, what cells ask for, how they are laid out, and when they run. Imports without torch.

inventory   nodes, GPUs, cores, memory: stated, found here, or a Ray cluster's
models      shapes of models from config.json or a shipped table
demand      bytes per policy and role;  work: seconds per step
layout      one cell on so many GPUs;  planner: all cells of a suite;  suites: from a suite's cells;  report: as text
scheduler   which cell runs when and where;  packing: gangs onto nodes;  estimates, shares: what is learnt from running
simulate    random mixtures of cells and failures, to try the scheduler on
"""
