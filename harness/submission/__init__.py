"""Results of others on a shared table: one file that holds a suite's results (`bundle`, `container`), and what it must withstand
before anybody believes it (`check`, `evidence`, `rerun`). docs/submit.md is the way a lab goes.
"""
