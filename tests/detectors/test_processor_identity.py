"""How an image is resized and normalized is part of a detector's fingerprint, as its weights are."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from objectseeker.detectors.transformers import transformers_detector


class Processor:
    def __init__(self, size):
        self.size = size

    def to_json_string(self):
        return f'{{"size": {self.size}}}'


def test_another_image_processor_is_another_detector():
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(id2label={0: "thing"})
    small, large, again = (transformers_detector(model, Processor(size)).fingerprint for size in (320, 640, 320))
    assert small == again
    assert small != large
