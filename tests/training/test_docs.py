"""docs/guides/train-with-masks.md as a new user would follow it: every block of Python, in order, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from objectseeker.errors import ObjectSeekerError

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "train-with-masks.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The values of the page's names once all of it has run."""
    if not PAGE.is_file():
        pytest.skip("the documentation is not part of the package")
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("scipy")  # YOLOS' loss needs it
    names: dict[str, object] = {}
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("docs"))
    try:
        for number, block in enumerate(blocks(), 1):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
        yield names
    finally:
        patch.undo()


def test_the_loss_falls(followed):
    losses = followed["losses"]
    assert len(losses) == 24
    assert sum(losses[-4:]) / 4 < 0.9 * sum(losses[:4]) / 4


def test_training_saw_masked_images(followed):
    import numpy as np

    dataset = followed["dataset"]
    gray = []
    for index in [*range(len(dataset))] * 4:  # half of them are masked, so that none is does not happen
        image = np.asarray(dataset[index]["image"])
        edges = (image[0], image[-1], image[:, 0], image[:, -1])
        gray.append(any((edge == 114).all() for edge in edges))
    assert any(gray)


def test_the_saved_folder_is_a_detector(followed):
    from objectseeker.detectors import load_detector
    from objectseeker.files.images import load_image

    detector = load_detector("transformers:masked-yolos")
    assert detector.names[0] == "aeroplane"
    (found,) = detector([load_image(followed["sample"].path)])
    assert len(found) == 0 or found.label.max() < 20


def test_the_page_masks_what_it_says(followed):
    masked = followed["masked"]
    assert masked.image.shape == followed["tensor"].shape
    assert masked.keep.shape == (len(followed["boxes"]),)
    assert len(followed["result"]["bboxes"]) == len(followed["result"]["class_labels"])
    assert len(followed["masked_boxes"]) == len(followed["masked_labels"])
    assert followed["banded_image"].shape == followed["tensor"].shape
    assert not (followed["middle"].image == followed["tensor"]).all()
    assert 0 < followed["banded"].band_widths[0] < followed["shares"].min() < followed["banded"].band_widths[1] < 1
    assert followed["masked_batch"].shape == followed["batch"].shape
    assert followed["masked_objects"].shape[:2] == followed["still_present"].shape


def test_keypoints_are_refused_as_the_page_says(followed):
    with pytest.raises(ObjectSeekerError, match="keypoints"):
        followed["transform"](followed["tensor"], {**followed["target"], "keypoints": []})
