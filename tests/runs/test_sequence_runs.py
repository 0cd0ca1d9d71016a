"""Runs of sequences: frames and tracks are stored, and rolling masks show each frame its share."""

import json
from dataclasses import replace

import numpy as np
import PIL.Image
import pyarrow.parquet as pq
import pytest
from observe_job import Spots, content_of, make_dataset, run_here

from objectseeker import Halves, ObjectSeekerError, codec
from objectseeker.core.observation import FrameIndex
from objectseeker.core.recipes import Rolling, parse_recipe
from objectseeker.core.seeker import detect_views
from objectseeker.datasets import open_dataset
from objectseeker.runs import observe as job
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.run import open_run
from objectseeker.runs.tables import INDEX_SCHEMA

ROLLING = Rolling(Halves(3), 2)


def sequence(folder, count=5):
    """A bright square that wanders over a dark image, and one that comes later."""
    (folder / "frames").mkdir(parents=True)
    boxes = []
    for t in range(count):
        frame = np.full((20, 24, 3), 20, np.uint8)
        for track, x in ((3, 2 + 2 * t), *([(8, 18 - t)] if t > 1 else [])):
            frame[4 + track : 9 + track, x : x + 5, 1] = 255
            boxes.append([t, track, "thing", x, 4 + track, x + 5, 9 + track])
        PIL.Image.fromarray(frame).save(folder / "frames" / f"{t}.png")
    content = {"fps": 10, "frames": [f"{t}.png" for t in range(count)], "boxes": boxes}
    (folder / "boxes.json").write_text(json.dumps(content))
    return f"boxes:{folder}"


def test_a_frame_shows_its_share_and_the_run_knows_frames_and_tracks(tmp_path):
    spec = sequence(tmp_path / "clip")
    run = run_here(spec, tmp_path / "run", masks=ROLLING, base_floor=0.0, mask_floor=0.0)
    assert run.manifest.observation_settings.masks == ROLLING
    for entry, image in zip(open_dataset(spec).images, open_run(tmp_path / "run").images(), strict=True):
        assert image.frame == entry.frame == FrameIndex("clip", image.frame.number, 10.0)
        assert image.track.tolist() == entry.track.tolist() == ([3] if image.frame.number < 2 else [3, 8])
        masks = ROLLING.recipe_for_frame(image.frame.number).masks(24, 20)
        assert image.observation.masks == masks
        base, *masked = detect_views(Spots(), entry.load(), masks, value=114, batch_size=8)
        assert image.observation.base.xyxy.tolist() == base.xyxy.tolist()
        assert [one.xyxy.tolist() for one in image.observation.masked] == [one.xyxy.tolist() for one in masked]


def test_a_sequence_that_grows_ends_as_one_made_at_once(tmp_path):
    spec = sequence(tmp_path / "clip")
    for limit in (2, 99):
        run_here(spec, tmp_path / "grown", masks=ROLLING, limit=limit)
    run_here(spec, tmp_path / "once", masks=ROLLING)
    assert content_of(tmp_path / "grown") == content_of(tmp_path / "once")


def test_a_sample_keeps_the_numbers_of_its_frames(tmp_path):
    run = run_here(sequence(tmp_path / "clip"), tmp_path / "run", masks=ROLLING, limit=3, seed=1)
    numbers = [image.frame.number for image in run.images()]
    assert sorted(numbers) != numbers or numbers != [0, 1, 2]
    for image in run.images():
        assert image.observation.masks == ROLLING.recipe_for_frame(image.frame.number).masks(24, 20)


def test_tracks_of_classes_the_detector_does_not_know_are_left_out_with_them(tmp_path):
    spec = sequence(tmp_path / "clip")
    content = json.loads((tmp_path / "clip" / "boxes.json").read_text())
    content["boxes"][-2][2] = "rarity"  # track 3 in the last frame
    (tmp_path / "clip" / "boxes.json").write_text(json.dumps(content))
    last = run_here(spec, tmp_path / "run").images()[-1]
    assert last.track.tolist() == [8]


def test_other_runs_are_written_as_ever(tmp_path):
    run_here(make_dataset(tmp_path / "images", 3), tmp_path / "run")
    assert pq.read_schema(tmp_path / "run" / "images.parquet").names == INDEX_SCHEMA.names
    image = open_run(tmp_path / "run").images()[0]
    assert image.frame is None
    assert len(image.track) == 0


def test_rolling_masks_are_refused_for_images_that_are_no_frames(tmp_path):
    spec = make_dataset(tmp_path / "images", 2)
    with pytest.raises(ObjectSeekerError, match="rolling:2:halves:3 is for sequences"):
        run_here(spec, tmp_path / "run", masks=ROLLING)
    assert not (tmp_path / "run").exists()
    assert run_here(f"frames:{spec}", tmp_path / "run", masks=ROLLING).complete


def test_the_settings_survive_their_file_and_the_plan_knows_the_passes(tmp_path):
    observing = ObservationSettings(Rolling(Halves(30), 8))
    assert codec.read_json(codec.write_json(observing), ObservationSettings, "it") == observing
    plan = job.plan_run(open_dataset(sequence(tmp_path / "clip")), observing)
    assert plan.views_per_image == 17
    assert "8 frames show all of them" in plan.reason
    assert job.time_view(open_dataset(f"boxes:{tmp_path / 'clip'}"), Spots(), replace(observing, masks=ROLLING)) > 0
    assert parse_recipe(str(observing.masks)) == observing.masks
