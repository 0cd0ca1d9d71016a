"""What `evaluate` asks of sequences on the command line."""

import json

import numpy as np
import PIL.Image
import pytest
from observe_job import make_dataset, run_here

from objectseeker import Halves, ObjectSeekerError, Rule
from objectseeker.cli.evaluate import TrackOptions, track_criteria, usable_tracks
from objectseeker.core.recipes import Rolling
from objectseeker.core.threats import ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, evaluate_images

RULE = Rule(mask_threshold=0.2)


def certify(run, threat, options):
    criteria = track_criteria(run, threat, options)
    if criteria is None:
        return None
    settings = EvaluationSettings(rule=RULE, threshold_schedule=ThresholdSchedule.from_rule(RULE), threat=threat)
    found = evaluate_images(run.images(), run.label_map, settings, tracks=criteria, intervals=False)
    return usable_tracks(run, found.tracks, options)


def make_clip(folder, widths):
    (folder / "frames").mkdir(parents=True)
    for t, width in enumerate(widths):
        PIL.Image.fromarray(np.random.default_rng(t).integers(0, 256, (20, width, 3), np.uint8)).save(
            folder / "frames" / f"{t}.png"
        )
    boxes = [[t, 1, "thing", 4, 4, 12, 12] for t in range(5)]
    content = {"fps": 5, "frames": [f"{t}.png" for t in range(5)], "boxes": boxes}
    (folder / "boxes.json").write_text(json.dumps(content))
    return run_here(f"boxes:{folder}", folder / "run", masks=Rolling(Halves(3), 2))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return make_clip(tmp_path_factory.mktemp("clip"), [24] * 5)


def test_windows_moves_and_times(clip):
    found = certify(clip, ThreatModel(), TrackOptions(window=["2:2", "3:2"], max_motion=["1", "any"]))
    assert [(row["window"], row["max_motion"], row["min_detections"]) for row in found.rows()] == [
        (2, 1, 2),
        (3, 1, 2),
        (2, None, 2),
        (3, None, 2),
    ]
    usual = certify(clip, ThreatModel(), TrackOptions())
    assert {row["window"] for row in usual.rows()} == {2}
    assert [row["max_motion"] for row in usual.rows()] == [0, 2, 8, None]


def test_tracks_are_tallied_while_the_images_are_read_once(clip):
    read = []
    criteria = track_criteria(clip, ThreatModel(), TrackOptions())
    settings = EvaluationSettings(rule=RULE, threshold_schedule=ThresholdSchedule.from_rule(RULE))
    images, options = clip.images(), {"tracks": criteria, "intervals": False, "on_image": lambda: read.append(1)}
    first = evaluate_images(images, clip.label_map, settings, **options)
    assert len(read) == len(images)
    found = evaluate_images(images, clip.label_map, settings, processes=2, **options)
    assert found.tracks.to_dict() == first.tracks.to_dict()


def test_fabrication_over_time_is_measured_with_evaluate(clip):
    """Of one process and of two the same; verdicts against hiding stay."""
    criteria = track_criteria(clip, ThreatModel(), TrackOptions(window=["2"], max_motion=["0"]))
    settings = EvaluationSettings(rule=RULE, threshold_schedule=ThresholdSchedule.from_rule(RULE))
    (plain, one, two) = (
        evaluate_images(
            clip.images(), clip.label_map, settings, tracks=criteria, intervals=False, processes=processes, **options
        ).tracks.to_dict()
        for processes, options in ((1, {}), (1, {"fabrication": True}), (2, {"fabrication": True}))
    )
    assert one == two
    (row,), (without,) = one["rows"], plain["rows"]
    assert without["windows_not_fabricated"] is None
    assert row["windows_not_fabricated"] is not None
    same = [key for key in row if "fabricated" not in key]
    assert {key: row[key] for key in same} == {key: without[key] for key in same}


@pytest.mark.parametrize("moves", ["x", "-1", "1.5", "", "9" * 5000])
def test_moves_that_are_none_are_refused(clip, moves):
    with pytest.raises(ObjectSeekerError, match="whole number of pixels per frame"):
        certify(clip, ThreatModel(), TrackOptions(max_motion=[moves]))


def test_a_sequence_of_several_sizes_is_said_to_be_left_out(tmp_path, capsys):
    run = make_clip(tmp_path / "odd", [24, 24, 25, 24, 24])
    assert certify(run, ThreatModel(), TrackOptions(window=["2"])) is None
    assert "have several sizes: 1, the first 'odd'" in " ".join(capsys.readouterr().err.split())


def test_a_run_without_tracks_and_two_patches_have_nothing_over_time(tmp_path, clip):
    run = run_here(make_dataset(tmp_path / "images", 2), tmp_path / "run")
    assert certify(run, ThreatModel(), TrackOptions()) is None
    assert certify(clip, ThreatModel(count=2), TrackOptions()) is None
    with pytest.raises(ObjectSeekerError, match="--window needs one patch and the tracks of a sequence"):
        certify(run, ThreatModel(), TrackOptions(window=["2"]))
