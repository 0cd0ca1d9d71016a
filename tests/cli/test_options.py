"""Settings on the command line: class names from a file."""

import pytest

from objectseeker import ObjectSeekerError
from objectseeker.cli._options import read_names


def test_names_are_lines(tmp_path):
    (tmp_path / "names.txt").write_text("person\ntraffic light\nPkw\n\n", encoding="utf-8")
    assert read_names(tmp_path / "names.txt") == ("person", "traffic light", "Pkw")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"names\.txt has 0 lines: write one class name per line"),
        ("\n\n", "has 0 lines"),
        ("a\n" * 65_537, "has 65537 lines"),
        ("a\n\nb\n", "line 2 of .* is empty"),
        ("a\nb\na\n", "line 3 of .* repeats 'a'"),
    ],
)
def test_names_that_cannot_be_used_are_refused(content, message, tmp_path):
    (tmp_path / "names.txt").write_text(content)
    with pytest.raises(ObjectSeekerError, match=message):
        read_names(tmp_path / "names.txt")
