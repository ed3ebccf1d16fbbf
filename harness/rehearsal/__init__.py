"""A suite of real models, rehearsed with tiny ones on this machine."""
