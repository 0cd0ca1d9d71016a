"""What happens, a line of JSON each, on the output stream."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

OURS, SERVERS = "objectseeker", ("uvicorn.error", "asyncio")
LONGEST = 500  # characters of a text that is not ours

log = logging.getLogger(f"{OURS}.serve")


class Lines(logging.Handler):
    """Records as JSON: when, how serious, what, and the fields given as `extra={"fields": {...}}`."""

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage()[:LONGEST],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))[-8 * LONGEST :]
        with suppress(OSError):  # a full disk, or nobody reads it: no reason to stop answering
            print(json.dumps(line), file=sys.stdout, flush=True)


def write_lines() -> None:
    """From here on everything that this package and its server log is such a line, and nothing else is printed."""
    for name in (OURS, *SERVERS):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [Lines()], False
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO) if name == OURS else logging.WARNING)
