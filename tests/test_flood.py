"""A flood of boxes, in a process with 2 GiB of address space: all is answered, nothing that was certified is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "flood.py"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory in this way")
@pytest.mark.parametrize(("masks", "places"), [("halves:30", 3), ("pairs:4", 2)])
def test_no_flood_stops_a_deployed_defense_or_hides_a_certified_object(masks, places):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--boxes", "12", "--masks", masks, "--memory", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    proven = [one for one in outcome["rounds"] if one["certified"]]
    assert len(proven) == 4 * places  # every flood
    assert all(one["found"] for one in proven)
    assert not any(
        one["found"] for one in outcome["rounds"] if one["patch"] == "every view"
    )  # it does hide what it can
