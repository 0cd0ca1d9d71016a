"""What tests of detectors share."""

import pytest


@pytest.fixture
def one_thread():
    """Threads of torch wait for each other: on a busy machine that takes longer than the work."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
