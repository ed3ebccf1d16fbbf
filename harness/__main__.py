"""`python -m harness`: the command line by the interpreter that has it, wherever its environment's scripts lie."""

from harness.cli import main

main()
