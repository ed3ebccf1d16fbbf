"""The way of a suite of real models from start to table, rehearsed with tiny ones on this machine."""
