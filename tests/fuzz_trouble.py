"""A kind of input whose attempts hang or end the process: where worker processes can import it."""

import os
import time

from fuzz_kinds import Kind


class Trouble(Kind):
    """By turns a result, a hang and a death."""

    name = "trouble"
    seconds = 0.5

    def attempt(self, rng):
        way = int(rng.integers(3))
        if way == 1:
            time.sleep(60)
        if way == 2:
            os._exit(1)
