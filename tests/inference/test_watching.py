"""A video, defended frame by frame: what fails, what is shown under rolling masks, and what is written down."""

import json

import numpy as np
import pytest
from clips import bright_box, moving, scene

from objectseeker import Detections, Halves, ObjectSeeker, Rule
from objectseeker.core.recipes import Rolling
from objectseeker.inference.defended_video import Lines, Sums, annotated, watch
from objectseeker.inference.frame_sources import Frame, Lost
from objectseeker.inference.image_sources import Categories
from objectseeker.metrics import ThreatModel

SEEKER = ObjectSeeker(bright_box, Rule(), masks=Halves(3))


def events(images):
    for number, image in enumerate(images):
        yield Lost(number, "it is damaged") if image is None else Frame(number, number / 10, image, number)


class OneAhead:
    """A detector that begins with the next image before it answers for this one, and fails on black ones."""

    names = ("bright",)

    def __call__(self, images):
        return bright_box(images)

    def detect_views(self, image, removed, value):
        (found,) = self.detect_views_of([(image, removed)], value)
        return found

    def detect_views_of(self, images, value):
        before = None
        for image, removed in images:
            if not image.any():
                raise ValueError("it is dark")
            views = np.repeat(image[None], len(removed), axis=0)
            for view, ((x1, y1, x2, y2),) in zip(views, removed, strict=True):
                view[y1:y2, x1:x2] = value
            if before is not None:
                yield before
            before = bright_box(views)
        if before is not None:
            yield before


def fails_on_black(images):
    if not any(image.any() for image in images):
        raise ValueError("it is dark")
    return bright_box(images)


@pytest.mark.parametrize("detector", [fails_on_black, OneAhead()])
def test_frames_that_fail_do_not_stop_the_others_and_keep_their_place(detector):
    black = np.zeros((48, 64, 3), np.uint8)
    given = [*moving(2), None, black, scene(9), black, black, None, scene(12), None]
    rolling = ObjectSeeker(detector, Rule(), masks=Rolling(Halves(3), 2), batch_size=1, fill=0)
    seen = list(watch(rolling, events(given)))
    assert [one.frame.number for one in seen] == list(range(len(given)))
    for number, (one, image) in enumerate(zip(seen, given, strict=True)):
        if image is None:
            assert one.failure == "it is damaged"
            continue
        alone = rolling.for_frame(number)  # whatever was lost or failed before it
        if image is black:
            assert one.failure == "the detector failed: it is dark"
        else:
            assert one.found.boxes == alone.defend(image).detections
            assert (one.masks, one.passes) == (str(alone.masks), alone.masks.forward_passes(64, 48))


def test_a_source_that_raises_ends_the_video_after_its_frames():
    def broken():
        yield from events(moving(2))
        raise OSError("the cable is out")

    for detector in (bright_box, OneAhead()):
        seen = list(watch(ObjectSeeker(detector, Rule(), masks=Halves(3)), broken()))
        assert [(one.frame.number, one.failure) for one in seen] == [(0, ""), (1, ""), (None, "the cable is out")]


def test_lines_and_sums():
    def hides(images):
        """Sees nothing where the upper left corner is bright: base boxes are lost, masked ones are not."""
        found = bright_box(images)
        return [
            Detections.empty() if image[0, 0, 0] > 200 else boxes for image, boxes in zip(images, found, strict=True)
        ]

    attacked = scene(30, 20)
    attacked[:4, :4] = 255
    seeker = ObjectSeeker(hides, Rule(), masks=Halves(3))
    threat = ThreatModel()
    lines, sums = Lines("a.mp4", Categories.of_detector(["bright"]), "abc", alert=True), Sums()
    written = []
    for one in watch(seeker, events([scene(30, 20), attacked, None]), threat=threat):
        written.append(json.loads(json.dumps(lines.of(one))))
        sums.add(one)
    clean, flagged, lost = written
    assert [clean[name] for name in ("video", "frame", "time", "size", "masks", "passes", "alert", "defense")] == [
        "a.mp4", 0, 0.0, [64, 48], "halves:3", 13, False, "abc",
    ]  # fmt: skip
    (box,) = clean["boxes"]
    assert (box["bbox"], box["category_id"], box["found_by"]) == ([30, 20, 20, 16], 1, "image")
    assert {"far", "close", "over", "anywhere", "largest_square"} <= box.keys()
    assert {box["found_by"] for box in flagged["boxes"]} == {"masks"}
    assert flagged["found_by_masks_only"] == len(flagged["boxes"]) > 0
    assert flagged["alert"]
    assert lost == {"video": "a.mp4", "frame": 2, "failed": "it is damaged", "defense": "abc"}
    assert (sums.frames, sums.passes, sums.failed, sums.flagged) == (2, 26, 1, 1)
    assert sums.boxes == 1 + len(flagged["boxes"])
    assert sums.certified["over"] == sum(box["over"] for line in (clean, flagged) for box in line["boxes"])
    assert sums.reasons == ["frame 2: it is damaged"]


def test_pictures_of_one_video_have_one_size():
    for threat in (None, ThreatModel()):
        images = [scene(30, 20, (320, 200)), np.zeros((200, 320, 3), np.uint8)]
        seen = list(watch(SEEKER, events(images), threat=threat))
        assert [len(one.found.boxes) for one in seen] == [1, 0]
        pictures = [annotated(one.frame.image, one.found, ["bright"], threat) for one in seen]
        assert pictures[0].size == pictures[1].size
        assert pictures[0].size[0] == 320
        assert pictures[0].size[1] > 200
        assert np.array_equal(np.asarray(pictures[1])[:200], images[1])
