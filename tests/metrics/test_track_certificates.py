"""Certificates over time of a run: windows, tracks, the longest hidden time, and what all masks say of rolling ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import generate, one

from objectseeker import Detections, Halves, ObjectSeekerError, Observation, Pairs, Rule
from objectseeker.cli._evaluation_tables import save_tracks, window_rows
from objectseeker.core.boxes import iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import FrameIndex, ObservedImage
from objectseeker.core.recipes import Rolling
from objectseeker.core.temporal import earliest_uncertified_start, frame_positions, frame_positions_not_fabricated
from objectseeker.core.threats import ThreatModel
from objectseeker.metrics.average_precision import MIN_IOU
from objectseeker.metrics.track_certificates import TrackCriteria, certify_tracks, merge_sequences, tally_sequences

WORDS = LabelMap.from_names(("cat", "dog"))
RULE, THREAT = Rule(mask_threshold=0.5), ThreatModel(area=0.05)
BOX = [4.0, 4.0, 12.0, 12.0]


def image(number, *, track=(1,), ignore=None, observation=None, ground_truth=None, sequence="s", fps=10.0):
    truth = (
        Detections([BOX] * len(track), np.ones(len(track)), np.zeros(len(track), int))
        if ground_truth is None
        else ground_truth
    )
    flags = np.zeros(len(truth), bool) if ignore is None else np.array(ignore)
    frame = None if sequence is None else FrameIndex(sequence, number, fps)
    return ObservedImage(
        f"{sequence}/{number}", Path("x"), observation, truth, flags, np.zeros(len(truth), bool), frame, np.array(track)
    )


def seen(masks, sides=(0, 1, 2, 3)):
    """The object is found under the masks of some sides, else never."""
    found = [one(BOX) if side in sides else Detections.empty() for side in np.argmax(masks.is_line, axis=1)]
    return Observation(masks.width, masks.height, masks, Detections.empty(), found)


SIZE, RECIPE = (40, 30), Halves(3)
ALL = RECIPE.masks(*SIZE)


def certify(images, masks=RECIPE, *, label_map=WORDS, rule=RULE, fabrication=False, **criteria):
    criteria = TrackCriteria(masks=masks, **criteria)
    maskings = criteria.maskings()

    def tally(part):
        shown = lambda image: [one.observation(image) for one in maskings]  # noqa: E731
        return tally_sequences(part, label_map, rule, THREAT, shown, fabrication=fabrication)

    parts = [tally(part) for part in (images[:2], images[2:])]
    return certify_tracks(merge_sequences(parts), label_map.dataset_names, criteria, THREAT.anywhere())


def rows(found, **chosen):
    return [row for row in found.rows() if all(row[name] == value for name, value in chosen.items())]


def test_a_window_counts_the_frames_that_are_certified_alone():
    """Frames 0, 3 and 5 of seven show all, the others nothing: each window of four has one of them, 1 to 4 only one."""
    images = [image(t, observation=seen(ALL, (0, 1, 2, 3) if t in (0, 3, 5) else ())) for t in range(7)]
    (once,) = rows(certify(images, windows=(4,), max_motions=(None,)), estimated=False)
    assert once["certified_frames"] == pytest.approx(100 * 3 / 7)
    assert (once["windows"], once["certified_windows"], once["tracks"], once["certified_tracks"]) == (4, 100.0, 1, 1)
    assert (once["longest_uncertified_frames"], once["longest_uncertified_seconds"]) == (2, 0.2)
    (twice,) = rows(certify(images, windows=(4,), max_motions=(None,), min_detections=2), estimated=False)
    assert (twice["certified_windows"], twice["certified_tracks"]) == (75.0, 0)
    assert twice["longest_uncertified_frames"] == 4


def test_a_patch_that_cannot_follow_certifies_what_no_frame_does():
    """Masks on the left prove the object in even frames, those on the right in odd ones."""
    images = [image(t, observation=seen(ALL, (0,) if t % 2 else (2,))) for t in range(6)]
    found = certify(images, windows=(2,), max_motions=(0, 40))
    assert [row["certified_windows"] for row in rows(found, estimated=False)] == [100.0, 0.0]
    assert [row["longest_uncertified_frames"] for row in rows(found, estimated=False)] == [1, 6]
    assert rows(found, estimated=False)[0]["certified_frames"] == 0


def with_output(observation, found=True):
    """The same frame with a box of the object in the unmasked view, or with none."""
    return replace(observation, base=one(BOX) if found else Detections.empty())


def test_windows_are_certified_not_fabricated_if_the_patch_cannot_follow():
    """Views support the box on the left in even frames, on the right in odd ones: no frame is certified alone."""
    images = [image(t, observation=with_output(seen(ALL, (0,) if t % 2 else (2,)))) for t in range(6)]
    found = certify(images, fabrication=True, windows=(2,), max_motions=(0, 40))
    stays, jumps = rows(found, estimated=False)
    assert (stays["windows_not_fabricated"], stays["certified_boxes_not_fabricated"]) == (5, 0.0)
    assert (stays["certified_windows_not_fabricated"], jumps["certified_windows_not_fabricated"]) == (100.0, 0.0)
    alone = [with_output(seen(ALL)) for _ in range(6)]
    sure = certify([image(t, observation=one) for t, one in enumerate(alone)], fabrication=True, windows=(2,))
    assert {row["certified_boxes_not_fabricated"] for row in rows(sure, estimated=False)} == {100.0}


def test_frames_without_an_output_box_of_the_track_support_nothing_and_begin_no_window():
    """Frames 0 and 3 have a box that all views support, 1 one of another class, 2 none, 4 one elsewhere."""
    sure, silent = seen(ALL), seen(ALL, ())
    other, far = one(BOX, label=1), one([20.0, 20.0, 28.0, 28.0])
    shown = [with_output(sure), replace(silent, base=other), silent, with_output(sure), replace(silent, base=far)]
    images = [image(t, observation=observation) for t, observation in enumerate(shown)]
    found = certify(images, fabrication=True, windows=(2, 4), max_motions=(None,))
    two, four = rows(found, estimated=False)
    assert (two["windows_not_fabricated"], two["certified_windows_not_fabricated"]) == (1, 100.0)  # 0-1: 3 is the last
    assert (four["windows_not_fabricated"], four["certified_windows_not_fabricated"]) == (1, 100.0)
    (track,) = [track for track in found.tracks if not track.masking.is_estimated]
    assert (track.boxes, track.output_boxes, track.certified_boxes) == (5, 2, 2)
    strict = certify(images, fabrication=True, windows=(2,), max_motions=(None,), min_detections=2)
    assert rows(strict, estimated=False)[0]["certified_windows_not_fabricated"] == 0.0
    assert "not fabricated: of the output boxes" in " ".join(found.caveats())


def test_fabrication_over_time_is_measured_on_request_only_and_shown(tmp_path):
    images = [image(t, observation=with_output(seen(ALL))) for t in range(5)]
    without, found = (certify(images, fabrication=wanted, windows=(2,)) for wanted in (False, True))
    assert {row["windows_not_fabricated"] for row in without.rows()} == {None}
    assert {track.output_boxes for track in without.tracks} == {None}
    assert "windows not fabricated" not in window_rows(without)[0]
    assert window_rows(found)[0]["windows not fabricated"] == "100.0"
    hiding = [{key: value for key, value in row.items() if "fabricated" not in key} for row in found.rows()]
    assert hiding == [{key: value for key, value in row.items() if "fabricated" not in key} for row in without.rows()]
    save_tracks(tmp_path, found)
    content = json.loads((tmp_path / "tracks.json").read_text())
    assert content["tracks"][0]["windows_not_fabricated"] == {"2": {"certified": 4, "all": 4}}
    assert "boxes not fabricated" in (tmp_path / "tracks.md").read_text()


@pytest.mark.parametrize("seed", range(4))
def test_windows_not_fabricated_are_what_the_core_says(seed):
    images, line, frames = [], [], []
    patch = THREAT.anywhere()
    for t in range(6):
        case = generate(7 * seed + t, smallest=16, largest=16, lines=4, sure=0.95)
        truth = Detections(case.ground_truth.xyxy[:1], [1.0], case.ground_truth.label[:1])
        images.append(image(t, observation=case.observation, ground_truth=truth))
        output = RULE.prune(case.observation)
        fits = [
            box
            for box in range(len(output))
            if output.label[box] == truth.label[0] and iou(truth.xyxy, output.xyxy)[0, box] >= MIN_IOU
        ]
        if fits:
            best = max(fits, key=lambda box: iou(truth.xyxy, output.xyxy)[0, box])
            line += frame_positions_not_fabricated(RULE, case.observation, output[np.array([best])], patch)
            frames.append(t)
    found = certify(images, Halves(4), fabrication=True, windows=(2,), max_motions=(1,))
    row = rows(found, estimated=False)[0]
    begins = [t for t in frames if t + 1 <= frames[-1]] if frames else []
    assert row["windows_not_fabricated"] == len(begins)
    if begins:
        earliest = earliest_uncertified_start(line, 1, numbers=frames)
        last = [max(place for place, frame in enumerate(frames) if frame <= t + 1) for t in begins]
        held = sum(earliest[end] > frames.index(t) for t, end in zip(begins, last, strict=True))
        assert row["certified_windows_not_fabricated"] == pytest.approx(100 * held / len(begins))


def test_gaps_and_ignored_frames_prove_nothing_and_begin_no_window():
    sure = seen(ALL)
    images = [
        image(0, observation=sure),
        image(1, observation=sure, ignore=[True]),
        image(2, observation=sure, track=()),
        image(4, observation=sure),  # frame 3 was not observed
        image(5, observation=sure),
    ]
    found = certify(images, windows=(2, 3), max_motions=(None,))
    two, three = rows(found, estimated=False)
    assert (two["windows"], two["certified_windows"]) == (2, 100.0)  # 0-1 and 4-5
    assert (three["windows"], three["certified_windows"]) == (1, 100.0)  # 0-2
    assert two["longest_uncertified_frames"] == 0
    (row,) = [row for row in found.tracks if not row.masking.is_estimated]
    assert (row.first, row.last, row.boxes, row.certified_frames) == (0, 5, 3, 3)
    nothing = certify([replace(one, observation=seen(ALL, ())) for one in images], windows=(2,), max_motions=(None,))
    assert rows(nothing, estimated=False)[0]["longest_uncertified_frames"] == 6


def test_objects_without_a_track_and_runs_without_frames_have_no_place():
    assert certify([image(0, observation=seen(ALL), track=(-1,))]) is None
    assert certify([image(0, observation=seen(ALL), track=(), sequence=None)]) is None


def test_tracks_of_two_sequences_are_two_and_one_too_short_has_no_window():
    images = [
        image(t, observation=seen(ALL), sequence=name, fps=None) for name in "ab" for t in range(3 + (name == "a"))
    ]
    found = certify(images, windows=(4,), max_motions=(0,))
    (row,) = rows(found, estimated=False)
    assert (row["windows"], row["tracks"], row["longest_uncertified_seconds"]) == (1, 1, None)
    assert "tracks that are shorter than the longest window: 1" in found.caveats()


@pytest.mark.parametrize("rule", [RULE, Rule(mask_threshold=0.75, evidence_threshold=0.1)], ids=["paper", "evidence"])
def test_estimates_of_a_run_with_all_masks_are_what_a_rolling_run_gives(rule):
    """Where the same view always gives the same boxes; and both are what the core says, window by window."""
    rolling, whole, shared, truths = Rolling(Halves(4), 2), [], [], []
    for t in range(6):
        case = generate(t, smallest=16, largest=16, lines=4, sure=0.95)
        share = rolling.recipe_for_frame(t).masks(16, 16)
        truths.append(Detections(case.ground_truth.xyxy[:1], [1.0], case.ground_truth.label[:1]))
        whole.append(image(t, observation=case.observation, ground_truth=truths[-1]))
        shared.append(image(t, observation=case.observation.restricted_to(share), ground_truth=truths[-1]))
    (estimated, certified) = (
        certify(images, masks, rule=rule, windows=(2,), max_motions=(0, 1, None)).rows()
        for images, masks in ((whole, Halves(4)), (shared, rolling))
    )
    estimated = [row | {"estimated": False} for row in estimated if row["estimated"]]
    assert estimated == certified
    patch = THREAT.anywhere()
    line = [frame_positions(rule, one.observation, truth, patch)[0] for one, truth in zip(shared, truths, strict=True)]
    earliest = earliest_uncertified_start(line, 1)
    expected = sum(earliest[t + 1] > t for t in range(5))
    assert certified[1]["certified_windows"] == pytest.approx(100 * expected / 5)


def test_found_under_either_of_two_labels_is_found():
    """The detector has two classes for cats; one view sees the one, the opposite view the other."""
    words = LabelMap(("tom", "kitty"), ("cat",), np.array([0, 0]))
    found = [one(BOX, label=int(side > 1)) for side in np.argmax(ALL.is_line, axis=1)]
    both = Observation(*SIZE, ALL, Detections.empty(), found)
    (row,) = certify([image(0, observation=both)], label_map=words, windows=(1,), max_motions=(0,)).rows()
    assert row["certified_windows"] == 100.0


def test_tracks_of_classes_that_the_detector_does_not_know_are_counted():
    words = LabelMap(("cat",), ("cat", "yeti"), np.array([0]))
    truth = Detections([BOX, BOX], np.ones(2), np.array([0, 1]))
    images = [image(t, track=(1, 2), ground_truth=truth, observation=seen(ALL)) for t in range(4)]
    found = certify(images, label_map=words, windows=(2,))
    assert {row.track for row in found.tracks} == {1}
    assert "tracks skipped because the detector does not know their class: 1" in found.caveats()
    assert found.to_dict()["tracks_of_unmatched_classes"] == 1


def test_a_sequence_of_several_sizes_is_left_out_and_named():
    other = image(1, observation=seen(Halves(3).masks(41, 30)))
    odd = [image(0, observation=seen(ALL)), other, image(2, observation=seen(ALL))]
    whole = [image(t, observation=seen(ALL), sequence="whole") for t in range(4)]
    found = certify([*odd, *whole], windows=(2,))
    assert {row.sequence for row in found.tracks} == {"whole"}
    assert found.rows() == certify(whole, windows=(2,)).rows()
    assert found.sequences == 1
    assert any("several sizes: 1, the first 's'" in said for said in found.caveats())
    alone = certify(odd)
    assert (alone.rows(), alone.to_dict()["sequences_with_mixed_sizes"]) == ([], ["s"])
    assert "several sizes" in alone.caveats()[-1]


def test_a_frame_under_another_share_than_its_number_says_is_refused():
    rolling = Rolling(Halves(3), 2)
    right, wrong = (image(4, observation=seen(rolling.recipe_for_frame(t).masks(*SIZE))) for t in (4, 5))
    assert any("without --stride" in said for said in certify([right], rolling).caveats())
    with pytest.raises(ObjectSeekerError, match="'s/4' was observed under another share of rolling:2:halves:3"):
        certify([wrong], rolling)


def test_a_large_gap_is_one_step_and_a_patch_that_moves_very_far_moves_anywhere():
    """Nothing is certified of a patch that goes from anywhere to anywhere, however many pixels that is said in."""
    sides = {0: (0,), 1: (2,), 2: (0,), 900_000_000: (2,), 900_000_001: (0,)}
    images = [image(t, observation=seen(ALL, sides[t])) for t in sides]
    found = rows(certify(images, windows=(2,), max_motions=(0, 2**63 - 1, 10**30, None)), estimated=False)
    assert [row["certified_windows"] for row in found] == [75.0, 0.0, 0.0, 0.0]  # but 2 and the blind one after it
    assert [row["longest_uncertified_frames"] for row in found] == [1, *[900_000_002] * 3]


@pytest.mark.parametrize(
    "values", [{"windows": (0,)}, {"max_motions": (-1,)}, {"max_motions": (1.5,)}, {"min_detections": 0}]
)
def test_criteria_out_of_range_are_rejected(values):
    with pytest.raises(ObjectSeekerError):
        TrackCriteria(masks=RECIPE, **values)


def test_masks_that_cannot_roll_are_only_counted():
    pairs = Pairs(1).masks(*SIZE)
    found = [one(BOX) for _ in range(len(pairs))]
    images = [image(t, observation=Observation(*SIZE, pairs, Detections.empty(), found)) for t in range(4)]
    assert {row["masks"] for row in certify(images, Pairs(1), windows=(2,)).rows()} == {"pairs:1"}


def test_tables_and_json_say_what_is_estimated(tmp_path):
    images = [image(t, observation=seen(ALL, (0,) if t % 2 else (2,))) for t in range(9)]
    found = certify(images)
    content = json.loads(json.dumps(found.to_dict()))
    assert {row["estimated"] for row in content["rows"]} == {True, False}
    assert {row["window"] for row in content["rows"]} == {4, 8, 16}
    assert content["tracks"][0]["windows"]["4"] == {"certified": 6, "all": 6}
    assert any("to certify" in said for said in found.caveats())
    shown = window_rows(found)
    assert shown[0]["masks"] == "halves:3"
    assert any(row["masks"] == "rolling:4:halves:3 *" for row in shown)
    assert shown[0]["uncertified"] == "1, 0.10 s"
    save_tracks(tmp_path, found)
    assert json.loads((tmp_path / "tracks.json").read_text()) == content
    assert (tmp_path / "tracks.csv").read_text().startswith("track,class,boxes,masks")
    assert "rolling:16:halves:3 *" in (tmp_path / "tracks.md").read_text()
