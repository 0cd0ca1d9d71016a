"""Runs to report on: photographs on disk, and observations that put every kind of certificate into the page."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import evaluation_cases
import numpy as np
import PIL.Image

from objectseeker.core.observation import ObservedImage
from objectseeker.evaluation import Settings

PAPER = Settings(alpha=0.65, beta=0.2)
EVIDENCE = Settings(alpha=0.85, beta=0.5, low_alpha=0.1, low_beta=0.0, power=0.8, edge_factor=0.9)
BASE_SCORE = 0.1
TYPES = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "i4": np.int32, "f8": np.float64}


def awkward(seed: int = 5, count: int = 32) -> list[ObservedImage]:
    """Tiny images with ties, fractions of pixels, boxes over the border and outside; ignored objects too.

    The last one has an object that no position is far from.
    """
    generous = evaluation_cases.run(seed, count // 2, generous=0.95, lines=9, crowd=0.95, largest=30)
    box = (0.5, 0, 99.5, 100)
    large = evaluation_cases.image([(*box, 0.9, 0)], [(*box, 0)], [[(*box, 0.9, 0)]] * 4)
    return [*generous, *evaluation_cases.run(seed + 1, count - count // 2), large]


def photographed(folder: Path, count: int, seed: int = 3) -> list[ObservedImage]:
    """Images of 100 x 100 pixels whose photographs lie in `folder`."""
    rng = np.random.default_rng(seed)
    images = []
    for number, image in enumerate(evaluation_cases.noisy(seed, count)):
        path = folder / f"photo {number}.png"
        small = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        PIL.Image.fromarray(small).resize((100, 100)).save(path)
        images.append(replace(image, id=f"{number:03d}", path=path))
    return images


def data_of(page: str) -> dict[str, Any]:
    """What the page computes from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def columns_of(page: str) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(base64.b64decode(column["data"]), TYPES[column["type"]])
        for name, column in data_of(page)["columns"].items()
    }


def details_of(page: str, number: int) -> dict[str, Any]:
    found = re.search(rf'<script type="text/plain" id="details-{number}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]
