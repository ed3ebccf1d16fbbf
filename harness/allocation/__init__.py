"""MWRA: what there is to run on, what cells ask for, how they are laid out, and when they run. Imports without torch.

inventory   nodes, GPUs, cores, memory: stated, found here, or a Ray cluster's
models      configs, and what is read off them: shapes;  meta: the model on torch's meta device (the one module with torch)
demand      what a cell asks for;  suites: from a suite's cells
size, work  the account: bytes of every part, seconds of every phase;  embedded, disk: of one process, of results
layout      one policy on so many GPUs;  arrangement: one cell;  planner: all cells of a suite;  report: as text
scheduler   which cell runs when and where;  packing: gangs onto nodes;  estimates, shares: what is learnt from running
"""
