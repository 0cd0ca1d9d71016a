"""Run the command line as a module: python -m objectseeker.cli."""

from objectseeker.cli import main

main()
