"""What happens, a line of JSON each, on the output stream."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.process_collector import ProcessCollector

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


# Figures for Prometheus, at /metrics.


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]


class Metrics:
    """All that is counted, in a registry of its own: two servers of one process do not share theirs."""

    def __init__(self, defense: str) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("objectseeker_defense", "Which defense is served.", registry=registry).info({"sha256": defense})
        self.requests = Counter(
            "objectseeker_requests", "Answers, by what was asked for and status.", ["what", "status"], registry=registry
        )
        self.seconds = Histogram(
            "objectseeker_request_seconds", "From header to answer.", ["what"], buckets=SECONDS, registry=registry
        )
        self.waited = Histogram("objectseeker_wait_seconds", "In the queue.", buckets=SECONDS, registry=registry)
        self.worked = Histogram(
            "objectseeker_image_seconds", "On a device, an image.", buckets=SECONDS, registry=registry
        )
        self.places = Gauge("objectseeker_places", "Requests that may be there at once.", registry=registry)
        self.taken = Gauge("objectseeker_places_taken", "Requests received, waiting or worked on.", registry=registry)
        self.images = Counter("objectseeker_images", "Images looked at.", registry=registry)
        self.passes = Counter("objectseeker_passes", "Forward passes.", registry=registry)
        self.boxes = Counter("objectseeker_boxes", "Boxes, by who found them.", ["found_by"], registry=registry)
        self.alerts = Counter("objectseeker_alerts", "Images that masking flags.", registry=registry)

    def text(self) -> bytes:
        return bytes(generate_latest(self._registry))
