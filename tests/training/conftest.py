"""The training program is next to the package, not in it: its tests find it here, or are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
