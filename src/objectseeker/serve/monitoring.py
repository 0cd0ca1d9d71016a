"""Logs as JSON lines on standard output, and metrics for Prometheus at /metrics."""

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

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

PACKAGE_LOGGER, SERVER_LOGGERS = "objectseeker", ("uvicorn.error", "asyncio")
MAX_EVENT_LENGTH = 500
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds

log = logging.getLogger(f"{PACKAGE_LOGGER}.serve")


class JsonLogHandler(logging.Handler):
    """Writes records as JSON lines: time, level, event, and fields passed as `extra={"fields": ...}`."""

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage()[:MAX_EVENT_LENGTH],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))[-8 * MAX_EVENT_LENGTH :]
        with suppress(OSError):  # keep serving with a full disk or a closed pipe
            print(json.dumps(line), file=sys.stdout, flush=True)


def log_as_json() -> None:
    """Log this package and its server as JSON lines; silence everything else."""
    for name in (PACKAGE_LOGGER, *SERVER_LOGGERS):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [JsonLogHandler()], False
        is_ours = name == PACKAGE_LOGGER
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO) if is_ours else logging.WARNING)


class Metrics:
    """Metrics of one server, in their own registry: servers in one process do not share them."""

    def __init__(self, defense_sha256: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._add(Info, "defense", "The defense that is served.").info({"sha256": defense_sha256})
        self.requests = self._add(Counter, "requests", "Responses, by endpoint and status.", ["endpoint", "status"])
        self.request_seconds = self._add(
            Histogram, "request_seconds", "From request header to response.", ["endpoint"], buckets=BUCKETS
        )
        self.queue_seconds = self._add(Histogram, "queue_seconds", "Time in the queue.", buckets=BUCKETS)
        self.inference_seconds = self._add(
            Histogram, "inference_seconds", "Time on a device, per image.", buckets=BUCKETS
        )
        self.request_slots = self._add(Gauge, "request_slots", "Maximum concurrent requests.")
        self.requests_in_flight = self._add(Gauge, "requests_in_flight", "Requests received, queued or processed.")
        self.images = self._add(Counter, "images", "Images processed.")
        self.forward_passes = self._add(Counter, "forward_passes", "Forward passes.")
        self.boxes = self._add(Counter, "boxes", "Output boxes, by origin.", ["origin"])
        self.alerts = self._add(Counter, "alerts", "Images with recovered boxes.")

    def _add(self, kind: type[Any], name: str, *arguments: Any, **options: Any) -> Any:
        return kind(f"objectseeker_{name}", *arguments, registry=self._registry, **options)

    def prometheus(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
