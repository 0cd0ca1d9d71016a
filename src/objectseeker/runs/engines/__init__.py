"""Who observes the images of a run: this machine, or a Ray cluster.

`work` says what is to be done and how one image is done; an engine only decides where. Whatever the engine, only the
process that called `observe` writes the run.
"""

from __future__ import annotations

from objectseeker.runs.engines.local import LocalEngine
from objectseeker.runs.engines.tasks import DetectorDescription, Engine, ImageTask, ObservationJob

__all__ = ["DetectorDescription", "Engine", "ImageTask", "LocalEngine", "ObservationJob"]
