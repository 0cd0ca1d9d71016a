"""What tests of several folders share."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

# Tests run side by side, so threads of NumPy and torch would only wait for each other: a quarter of the time. What a
# test calls the command line for inherits it. Before anything imports NumPy.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    # How long an example takes says how busy the machine is: benchmarks are commands, not tests.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")


@pytest.fixture(scope="module", autouse=True)
def forget_temporary_modules(tmp_path_factory):
    """Several files of tests write a `mine.py` of their own and import it."""
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(folder):
            del sys.modules[name]
