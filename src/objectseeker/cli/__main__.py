"""python -m objectseeker.cli"""

from objectseeker.cli import main

main()
