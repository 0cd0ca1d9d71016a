"""For all tests of the command line."""

import pytest
from command import run


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The command line in a folder of its own: what it printed, and what it noted."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        done = run(tmp_path, *words, code=code)
        return done.stdout, done.stderr

    return call
