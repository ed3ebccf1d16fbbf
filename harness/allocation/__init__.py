"""MWRA: what there is to run on, what cells ask for, how they are laid out, and when they run. Imports without torch.

inventory   nodes, GPUs, cores, memory: stated, found here, or a Ray cluster's
shapes      configs, and what is read off them;  meta: the model on torch's meta device (the one module with torch)
demand      what a cell asks for;  cells_as_demand: from a suite's cells
size, work  the account: bytes of every part, seconds of every phase;  embedded, disk: of one process, of results
layout      one policy on so many GPUs;  placement: one cell;  planner: all cells of a suite;  plan_text: for people
scheduler   which cell runs when and where;  gangs: bundles onto nodes;  estimates, shares: what is learnt from running
"""
