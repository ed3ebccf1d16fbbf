"""`python -m harness`, wherever the environment's scripts lie."""

from harness.cli import main

main()
