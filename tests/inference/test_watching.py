"""A video, defended frame by frame: what fails, what is shown under rolling masks, and what is written down."""

import json

import numpy as np
import pytest
from clips import bright_box, moving, scene

from objectseeker import Detections, Halves, ObjectSeeker, Rule
from objectseeker.core.recipes import Rolling
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference import detect
from objectseeker.inference.frame_sources import LostFrame, VideoFrame
from objectseeker.inference.results import Categories, DetectionTotals
from objectseeker.inference.video import annotate_frame, detect_frames
from objectseeker.metrics import ThreatModel

SEEKER = ObjectSeeker(bright_box, Rule(), masks=Halves(3))


def events(images):
    for number, image in enumerate(images):
        yield LostFrame(number, "it is damaged") if image is None else VideoFrame(number, number / 10, image, number)


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
    seen = list(detect_frames(rolling, events(given)))
    assert [frame.number for frame, _ in seen] == list(range(len(given)))
    for number, ((_, one), image) in enumerate(zip(seen, given, strict=True)):
        if image is None:
            assert one.error == "it is damaged"
            continue
        alone = rolling.for_frame(number)  # whatever was lost or failed before it
        if image is black:
            assert one.error == "the detector failed: it is dark"
        else:
            assert one.detections == alone.defend(image).detections
            assert (one.masks, one.forward_passes) == (str(alone.masks), alone.masks.forward_passes(64, 48))


def test_a_source_that_raises_ends_the_video_after_its_frames():
    def broken():
        yield from events(moving(2))
        raise OSError("the cable is out")

    for detector in (bright_box, OneAhead()):
        seen = list(detect_frames(ObjectSeeker(detector, Rule(), masks=Halves(3)), broken()))
        assert [(frame.number, one.error) for frame, one in seen] == [(0, ""), (1, ""), (None, "the cable is out")]


def test_frame_records_and_totals():
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
    categories, totals = Categories.from_detector(["bright"]), DetectionTotals(unit="frames")
    written = []
    for _, one in detect_frames(seeker, events([scene(30, 20), attacked, None]), threat=threat):
        written.append(json.loads(json.dumps(one.to_frame_record("a.mp4", categories, "abc"))))
        totals.add(one, categories)
    clean, flagged, lost = written
    keys = ("video", "frame", "time", "size", "masks", "forward_passes", "alert", "defense_sha256")
    assert [clean[name] for name in keys] == [
        "a.mp4", 0, 0.0, [64, 48], "halves:3", 13, False, "abc",
    ]  # fmt: skip
    (box,) = clean["boxes"]
    assert (box["bbox"], box["category_id"], box["origin"]) == ([30, 20, 20, 16], 1, "base")
    assert {"far", "close", "over", "anywhere", "largest_square"} <= box.keys()
    assert {box["origin"] for box in flagged["boxes"]} == {"recovered"}
    assert flagged["recovered_boxes"] == len(flagged["boxes"]) > 0
    assert flagged["alert"]
    assert lost == {"video": "a.mp4", "frame": 2, "error": "it is damaged", "defense_sha256": "abc"}
    assert (totals.images, totals.forward_passes, totals.failed, totals.flagged) == (2, 26, 1, 1)
    assert totals.boxes == 1 + len(flagged["boxes"])
    assert totals.certified["over"] == sum(box["over"] for line in (clean, flagged) for box in line["boxes"])
    assert totals.errors == {"frame 2": "it is damaged"}


def test_images_of_one_video_have_one_size():
    for threat in (None, ThreatModel()):
        images = [scene(30, 20, (320, 200)), np.zeros((200, 320, 3), np.uint8)]
        seen = list(detect_frames(SEEKER, events(images), threat=threat))
        assert [len(one.detections) for _, one in seen] == [1, 0]
        annotated = [annotate_frame(frame.image, one, ["bright"], threat) for frame, one in seen]
        assert annotated[0].size == annotated[1].size
        assert annotated[0].size[0] == 320
        assert annotated[0].size[1] > 200
        assert np.array_equal(np.asarray(annotated[1])[:200], images[1])


def test_arrays_are_frames_and_nothing_is_read_ahead_of_need():
    read = []

    def frames():
        for number, image in enumerate(moving(5)):
            read.append(number)
            yield image

    rolling = ObjectSeeker(bright_box, Rule(), masks=Rolling(Halves(3), 2))
    run = detect(frames(), rolling, certify=True)
    stream = iter(run)
    first, second = next(stream), next(stream)
    stream.close()
    assert [first.id, second.id, first.time, second.time] == [0, 1, 0.0, 1 / 25]
    assert [first.masks, second.masks] == [str(rolling.for_frame(number).masks) for number in (0, 1)]
    assert len(read) < 5
    assert (run.totals.images, run.totals.boxes) == (2, 2)
    assert run.totals.to_dict()["certificates"]["patch_area"] == 0.01
    assert "2 boxes in 2 frames" in run.totals._repr_html_()


def test_a_run_in_python_says_how_far_it_is_and_what_cannot_be():
    seen, costs = [], []
    images = list(moving(3))
    totals = detect(images, SEEKER).finish(costs.append, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert costs == ["3 lines per axis are 12 half masks: about 3 frames x 13 views = 39 forward passes"]
    assert (totals.exit_status, totals.boxes) == (0, 3)
    one_image = detect(images[0], bright_box)  # a callable has the default rule and masks
    assert [len(result.detections) for result in one_image] == [1]
    with pytest.raises(ObjectSeekerError, match="give a Defense"):
        detect(images, SEEKER, out="somewhere")
    with pytest.raises(ObjectSeekerError, match="for datasets"):
        detect(images, SEEKER, class_map={"a": "b"})
