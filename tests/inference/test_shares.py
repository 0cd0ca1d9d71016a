"""Under rolling masks a frame is shown the share that a run of the same frames has for it."""

import numpy as np
import PIL.Image
import pytest
from observe_job import Spots, run_here

from objectseeker import Halves, ObjectSeeker, Rule
from objectseeker.core.recipes import Rolling
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.defended_video import watch
from objectseeker.inference.frame_sources import Choice, Folder, frames_of

ROLLING = Rolling(Halves(3), 3)
SEEKER = ObjectSeeker(Spots(), Rule(), masks=ROLLING)
GAPS = (1, 2, 4, 5, 6, 7)


def images(folder, names):
    folder.mkdir(parents=True)
    for place, name in enumerate(names):
        pixels = np.random.default_rng(place).integers(0, 256, (20, 24, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{name}.png")


def observed(spec, folder):
    """The masks that every image of a run was seen under, by its name."""
    run = run_here(spec, folder, Spots(("pedestrian", "b", "c")), masks=ROLLING)
    return {image.path.stem: image.observation.masks for image in run.images()}


def deployed(folder, **choice):
    """What `detect` shows: masks by the name of the image, None where the frame is lost."""
    video = Folder(folder)
    names = {number: file.stem for number, file in video.files}
    shown = {}
    for one in watch(SEEKER, frames_of(video, Choice(**choice))):
        name = names[one.frame.number]
        shown[name] = None if one.found is None else SEEKER.of_frame(one.frame.turn).masks.masks(24, 20)
        assert one.found is None or one.masks == str(SEEKER.of_frame(one.frame.turn).masks)
    return shown


@pytest.mark.parametrize(
    ("spec", "below", "names"),
    [("mot:", "img1", GAPS), ("frames:", "", GAPS), ("frames:", "", ("a9", "a10", "b²")), ("frames:", "img1", GAPS)],
)
def test_a_stream_shows_the_shares_of_a_run(tmp_path, spec, below, names):
    clip = tmp_path / "clip"
    images(clip / below, names)
    of_run = observed(f"{spec}{clip}", tmp_path / "run")
    assert deployed(clip / below) == of_run
    assert deployed(clip) == of_run
    later = deployed(clip / below, start=2 / 25)
    assert 0 < len(later) < len(of_run)
    assert later.items() <= of_run.items()
    lost = str(names[1])
    (clip / below / f"{lost}.png").write_bytes(b"no image")
    assert deployed(clip / below) == of_run | {lost: None}


def test_with_a_stride_all_shares_are_shown_in_turn(tmp_path):
    images(tmp_path / "clip", range(12))
    for start in (0, 1, 2):
        video = frames_of(Folder(tmp_path / "clip"), Choice(stride=3, start=start / 25))
        turns = [frame.turn for frame in video]
        assert turns == list(range(turns[0], turns[0] + 4))
    of_run = observed(f"frames:{tmp_path / 'clip'}", tmp_path / "run")
    assert deployed(tmp_path / "clip", stride=3).items() - of_run.items()  # a run of all frames is not about these


def test_a_name_that_is_no_number_among_numbers_is_refused(tmp_path):
    images(tmp_path / "img1", (1, 2, "thumb"))
    with pytest.raises(ObjectSeekerError, match=r"thumb\.png is not named by the number of a frame"):
        Folder(tmp_path / "img1")
