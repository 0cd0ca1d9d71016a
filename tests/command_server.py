"""A process that has the command line imported and forks for every call: starting Python anew takes most of a test.

A child is what a fresh process would be: its own folder, its own streams, nothing of earlier calls. A call is a line of
JSON, and so is the answer, the exit code.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy  # what nearly every command needs  # noqa: F401
import onnxruntime  # noqa: F401
import PIL.Image  # noqa: F401
import pyarrow.parquet  # noqa: F401

import objectseeker.metrics
import objectseeker.runs.observe  # noqa: F401
from objectseeker.cli import main

LONGEST = 300  # seconds that a command may take


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _call(asked)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _call(asked: dict[str, Any]) -> None:
    """Run the command in this forked process, and end it."""
    code = 1
    try:
        os.setsid()  # Ctrl-C for the tests is none for it
        signal.alarm(LONGEST)
        os.chdir(asked["folder"])
        for stream, name in ((0, os.devnull), (1, asked["stdout"]), (2, asked["stderr"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), stream)
        sys.path[0] = str(Path.cwd())  # as `python -m` has it
        sys.argv = ["objectseeker", *asked["arguments"]]
        tempfile.tempdir = None
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
