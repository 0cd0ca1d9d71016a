"""What tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads of torch wait for each other: on small networks and busy machines that takes longer than the work."""
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
