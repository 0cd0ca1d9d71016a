"""The training program lies beside the package, not in it: its tests find it here, or are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Without being asked for."""
