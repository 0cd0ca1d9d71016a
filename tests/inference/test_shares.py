"""Under rolling masks each frame is shown the share that a run of the same frames has for it."""

import json

import numpy as np
import PIL.Image
import pytest
from observe_job import Spots, run_here

from objectseeker import Halves, ObjectSeeker, Rule
from objectseeker.core.recipes import Rolling
from objectseeker.datasets import open_dataset
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.frame_sources import FrameFolder, FrameSelection, read_frames
from objectseeker.inference.video import detect_frames

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
    video = FrameFolder(folder)
    names = {number: file.stem for number, file in video.files}
    shown = {}
    for frame, result in detect_frames(SEEKER, read_frames(video, FrameSelection(**choice))):
        name = names[frame.number]
        recipe = None if result.error else SEEKER.for_frame(frame.rolling_index).masks
        shown[name] = None if recipe is None else recipe.masks(24, 20)
        assert recipe is None or result.masks == str(recipe)
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
        video = read_frames(FrameFolder(tmp_path / "clip"), FrameSelection(stride=3, start=start / 25))
        turns = [frame.rolling_index for frame in video]
        assert turns == list(range(turns[0], turns[0] + 4))
    of_run = observed(f"frames:{tmp_path / 'clip'}", tmp_path / "run")
    assert deployed(tmp_path / "clip", stride=3).items() - of_run.items()  # a run of all frames is not about these


def test_a_name_that_is_no_number_among_numbers_is_refused(tmp_path):
    images(tmp_path / "img1", (1, 2, "thumb"))
    with pytest.raises(ObjectSeekerError, match=r"thumb\.png is not named by the number of a frame"):
        FrameFolder(tmp_path / "img1")


# --- whatever is below, next to or before the folder: the same numbers, or an error ----------------------------------

LATE = ("000003", "000005")  # counted they would be frames 0 and 1


def numbers_of_video(folder):
    return {file.name: number for number, file in FrameFolder(folder).files}


def numbers_of_dataset(spec):
    return {image.path.name: image.frame_number for image in open_dataset(spec).images}


def mot(root, image_folder="img1", seqinfo=None):
    images(root / image_folder, LATE)
    if seqinfo is not None:
        (root / "seqinfo.ini").write_text(f"[Sequence]\nimDir={seqinfo}\n")
    return root


BY_NAME = {"000003.png": 2, "000005.png": 4}


@pytest.mark.parametrize("below", ["thumbs", "thumbs/more", "img1"])
def test_a_stray_image_below_the_frames_is_an_error_for_a_video(tmp_path, below):
    root = mot(tmp_path / "seq")
    images(root / "img1" / below, ("t",))
    assert numbers_of_dataset(f"mot:{root}") == BY_NAME
    assert numbers_of_dataset(f"frames:{root / 'img1'}").items() >= BY_NAME.items()
    for folder in (root / "img1", root):
        with pytest.raises(ObjectSeekerError, match=r"holds images in several folders, such as .*img1 and .*img1/"):
            FrameFolder(folder)


def test_an_image_beside_or_before_the_folder_of_frames_is_an_error_for_a_video(tmp_path):
    root = mot(tmp_path / "seq")
    images(root / "preview", ("p",))
    PIL.Image.new("RGB", (4, 4)).save(tmp_path / "cover.png")
    for folder in (root, tmp_path):
        with pytest.raises(ObjectSeekerError, match="several folders"):
            FrameFolder(folder)
    assert numbers_of_video(root / "img1") == numbers_of_dataset(f"mot:{root}") == BY_NAME
    mot(tmp_path / "seq2")
    with pytest.raises(ObjectSeekerError, match="several folders"):
        FrameFolder(tmp_path)


def test_frames_of_several_folders_in_one_sequence_are_an_error(tmp_path):
    root = mot(tmp_path / "seq")
    images(tmp_path / "other", ("000009",))
    (tmp_path / "list.txt").write_text(f"{root}/img1/000003.png\n{tmp_path}/other/000009.png\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\nval: [seq/img1, other]\n")
    spec = f"frames:yolo:{tmp_path / 'data.yaml'}"
    assert numbers_of_dataset(spec) == BY_NAME | {"000009.png": 0}
    content = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    for number, name in enumerate(("seq/img1/000003.png", "other/000009.png")):
        content["images"].append({"id": number, "file_name": name})
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ObjectSeekerError, match=r"img1 holds the numbered frames .* but .*other holds images, too"):
        open_dataset(f"frames:coco:{tmp_path / 'a.json'}:{tmp_path}")


def test_a_link_of_another_name_is_the_folder_it_leads_to(tmp_path):
    root = mot(tmp_path / "seq")
    (tmp_path / "cam1").symlink_to(root / "img1")
    (tmp_path / "cam2").symlink_to(tmp_path / "cam1")
    for folder in (root / "img1", tmp_path / "cam1", tmp_path / "cam2"):
        assert numbers_of_video(folder) == BY_NAME
        assert numbers_of_dataset(f"frames:{folder}") == BY_NAME


def test_images_of_a_sequence_that_are_elsewhere_have_the_same_numbers_or_there_is_an_error(tmp_path):
    images(tmp_path / "store", LATE)
    (tmp_path / "seq").mkdir()
    (tmp_path / "seq" / "img1").symlink_to(tmp_path / "store")
    assert numbers_of_video(tmp_path / "seq" / "img1") == {"000003.png": 0, "000005.png": 1}
    with pytest.raises(
        ObjectSeekerError, match=r"img1 is .*store, where video: would not number frames by their names"
    ):
        open_dataset(f"mot:{tmp_path / 'seq'}")
    (tmp_path / "seqinfo.ini").write_text("[Sequence]\nimDir=store\n")  # as the error advises
    assert numbers_of_dataset(f"mot:{tmp_path / 'seq'}") == BY_NAME
    assert numbers_of_video(tmp_path / "seq" / "img1") == numbers_of_video(tmp_path / "store") == BY_NAME


@pytest.mark.parametrize("named", ["pics", "./pics/", "deep/pics"])
def test_the_folder_that_seqinfo_names(tmp_path, named):
    root = mot(tmp_path / "seq", named, named)
    if named == "deep/pics":  # seqinfo.ini is not next to it
        with pytest.raises(ObjectSeekerError, match="would not number frames by their names"):
            open_dataset(f"mot:{root}")
        return
    assert numbers_of_dataset(f"mot:{root}") == BY_NAME
    for folder in (root / "pics", root):
        assert numbers_of_video(folder) == BY_NAME
    assert numbers_of_dataset(f"frames:{root / 'pics'}") == BY_NAME


def test_numbers_that_are_not_those_of_the_video_are_said(tmp_path):
    images(tmp_path / "frames", ("a", "b", "c"))
    boxes = tmp_path / "boxes.json"
    for names, differs in (
        (["a.png", "b.png", "c.png"], False),
        (["b.png", "a.png", "c.png"], True),
        (["b.png"], True),
    ):
        boxes.write_text(json.dumps({"frames": names, "boxes": []}))
        warnings = open_dataset(f"boxes:{tmp_path}").warnings
        assert [said.split(":")[0] for said in warnings] == ["sequences whose frames video"] * differs
    assert open_dataset(f"frames:{tmp_path / 'frames'}").warnings == ()
    (tmp_path / "list.txt").write_text("frames/b.png\nframes/c.png\n")
    (warning,) = open_dataset(f"frames:list:{tmp_path / 'list.txt'}").warnings
    assert "with rolling masks, certificates over time do not cover that video" in warning
