"""For all tests of the attack."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Without being asked for."""
