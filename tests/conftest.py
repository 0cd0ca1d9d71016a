"""What tests of several folders share."""

from __future__ import annotations

import os
from importlib.util import find_spec

# Tests run side by side, so threads of NumPy and torch would only wait for each other: a quarter of the time. What a
# test calls the command line for inherits it. Before anything imports NumPy.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    # How long an example takes says how busy the machine is: benchmarks are commands, not tests.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
