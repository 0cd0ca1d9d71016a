"""Detectors that worker processes load by name: python:ray_detectors:NAME, from this folder."""

from __future__ import annotations

import os
import signal
import time

from observe_job import Spots

from objectseeker import Detections


class Spotting(Spots):
    """The detector of the other observe tests, under a name."""


class Slow(Spots):
    def __call__(self, images):
        time.sleep(0.05)
        return super().__call__(images)


class Poisoned(Spots):
    """Ends the whole process on an image that is nothing but red."""

    def __call__(self, images):
        if any((image == (255, 0, 0)).all() for image in images):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(images)


class Failing(Spots):
    def __call__(self, images):
        raise RuntimeError("out of luck")


class Trivial:
    """Finds the same box in every image, whatever it shows, and masks on its own: nothing is cheaper."""

    names = ("thing", "gadget")
    FOUND = Detections([[1, 1, 3, 3]], [0.5], [0])

    def __call__(self, images):
        return [self.FOUND for _ in images]

    def detect_views(self, image, removed, value):
        return [self.FOUND] * len(removed)


class Sleeping(Trivial):
    """Takes a second for an image, and no computing: what it takes beyond that is the engine's."""

    def detect_views(self, image, removed, value):
        time.sleep(1.0)
        return super().detect_views(image, removed, value)


spotting, slow, poisoned, failing = Spotting(), Slow(), Poisoned(), Failing()
trivial, sleeping = Trivial(), Sleeping()
