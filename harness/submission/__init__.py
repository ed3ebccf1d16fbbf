"""Results of others on a shared table: one file that holds a suite's results (`bundle`), and what it must withstand before anybody
believes it (`check`): that it is what it says (`evidence`), that its rows agree (`row_checks`),
that cells come out again (`rerun`).
docs/submit.md is the way a lab goes.
"""
