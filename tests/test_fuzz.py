"""A short round of `scripts/fuzz.py`: broken and hostile input ends in a result or in one sentence."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from fuzz import fuzz, try_one
from fuzz_kinds import Kind, generator
from fuzz_trouble import Trouble

from objectseeker import ObjectSeekerError


def test_a_short_round_finds_nothing():
    outcome = fuzz(seed=23, inputs=500, seconds=60)
    assert [finding.told(23) for finding in outcome.findings] == []
    assert all(outcome.counts.values()), outcome.counts
    assert all(outcome.rejected.values()), outcome.rejected


def saying(text):
    """An error that says what ours cannot: they see to it themselves."""
    error = ObjectSeekerError("")
    error.args = (text,)
    return error


@pytest.mark.parametrize(
    ("ending", "what"),
    [
        (ObjectSeekerError("one sentence"), None),
        (saying("two\nlines"), "lines"),
        (saying("a\u2028b"), "lines"),
        (saying(""), "lines"),
        (saying("x" * 5000), "length"),
        (saying("half \ud800"), "traceback"),
        (KeyError("id"), "traceback"),
        (SystemExit(2), "traceback"),
        ("taken for whole", "silent"),
        (None, None),
    ],
)
def test_what_counts_as_a_finding(tmp_path, ending, what):
    class Made(Kind):
        name = "made"

        def write(self, rng):
            return rng.random()

        def judge(self, made):
            if isinstance(ending, BaseException):
                raise ending
            return ending

    _, finding = try_one(Made(tmp_path), 0, 0)
    assert (finding and finding.what) == what


def test_a_worker_that_hangs_or_dies_is_told_and_replaced():
    ways = [int(generator(35, "trouble", number).integers(3)) for number in range(3)]
    assert sorted(ways) == [0, 1, 2]
    outcome = fuzz(seed=35, seconds=60, inputs=3, kinds=(Trouble,))
    assert [(one.number, one.what) for one in outcome.findings] == [
        (number, ("", "hang", "crash")[way]) for number, way in enumerate(ways) if way
    ]
