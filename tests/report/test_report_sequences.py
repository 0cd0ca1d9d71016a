"""The report plays sequences: what it says over time is what `evaluate` and the core say, and the page shows that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_cases import EVIDENCE, PAPER, VOCABULARY, columns_of, data_of, filmed, without_objects, write_images

from objectseeker import Defense, Halves, ObjectSeekerError
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Rolling
from objectseeker.core.temporal import (
    UNBOUNDED_MOTION,
    FramePositions,
    earliest_uncertified_start,
    frame_positions,
    intersect_alternatives,
)
from objectseeker.core.threats import ThreatModel
from objectseeker.metrics.track_certificates import MAX_MOTIONS, TrackCriteria, certify_tracks, tally_sequences
from objectseeker.report.certificates import CERTIFIED_FRAME, CERTIFIED_WINDOW, NO_BOX, UNCERTIFIED, track_timelines

ROLLING = Rolling(Halves(6), 4)
SETTINGS = {
    name: replace(settings, threat=ThreatModel(area=0.02))
    for name, settings in (("paper", PAPER), ("evidence", EVIDENCE))
}
NAMES = {CERTIFIED_FRAME: "frame", CERTIFIED_WINDOW: "window", UNCERTIFIED: "uncertified"}


def written(folder, images, recipe, settings=SETTINGS["paper"], **options):
    out = folder / "report.html"
    defense = Defense(detector="python:mine:see", rule=settings.rule, masks=recipe)
    write_images(out, images, VOCABULARY, settings, defense=defense, **options)
    return out


def states(runs, last):
    """Runs as the page has them, frame by frame from 0 on."""
    every = np.full(last + 1, NO_BOX)
    for state, begin, end in runs:
        assert (every[begin : end + 1] == NO_BOX).all()
        every[begin : end + 1] = state
    return every.tolist()


def frames_of(images, rule, track):
    """What the core says of a track, frame by frame."""
    patch, seen = ThreatModel(area=0.02).anywhere(), {}
    for image in images:
        for n in np.flatnonzero((image.track == track) & ~image.ignore):
            targets, _ = VOCABULARY.map_to_detector(image.ground_truth[[n]], classwise=rule.classwise)
            seen[image.frame.number] = intersect_alternatives(frame_positions(rule, image.observation, targets, patch))
    return seen


def asked_of_the_core(seen, moves, frames):
    """What each frame is for a track, and the longest hidden time, from the definitions."""
    patch, first, last = ThreatModel(area=0.02).anywhere(), min(seen), max(seen)
    line = [seen.get(number, FramePositions.unobserved(48, 36, patch)) for number in range(first, last + 1)]
    earliest = [
        first + entry for entry in earliest_uncertified_start(line, UNBOUNDED_MOTION if moves is None else moves)
    ]

    def certified(begin, end):
        return earliest[end - first] > begin

    def state(t):
        if t not in seen:
            return NO_BOX
        if certified(t, t):
            return CERTIFIED_FRAME
        windows = [s for s in range(t - frames + 1, t + 1) if s in seen and s + frames - 1 <= last]
        return CERTIFIED_WINDOW if windows and all(certified(s, s + frames - 1) for s in windows) else UNCERTIFIED

    hidden = max((t - s + 1 for t in seen for s in seen if s <= t and not certified(s, t)), default=0)
    return [state(t) for t in range(last + 1)], hidden


@pytest.mark.parametrize("recipe", [Halves(6), ROLLING], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_page_shows_is_what_the_core_and_evaluate_say(tmp_path, recipe, name):
    images, settings = filmed(tmp_path, recipe), SETTINGS[name]
    shown, columns = track_timelines(images, VOCABULARY, settings.rule, settings.threat, recipe)
    assert shown["windows"] == ((4,) if recipe is ROLLING else (1, 4, 8, 16))
    (sequence,) = shown["sequences"]
    assert sequence["frames"] == [image.frame.number for image in images]
    assert [track["track"] for track in sequence["tracks"]] == ["4", "9"]
    criteria = TrackCriteria(masks=recipe, windows=shown["windows"])
    tally = tally_sequences(
        images,
        VOCABULARY,
        settings.rule,
        settings.threat,
        lambda image: [masking.observation(image) for masking in criteria.maskings()],
    )
    rows = certify_tracks(tally, VOCABULARY.dataset_names, criteria, settings.threat.anywhere()).tracks
    found = set()
    for track in sequence["tracks"]:
        seen = frames_of(images, settings.rule, int(track["track"]))
        for moves, way in zip(MAX_MOTIONS, track["motions"], strict=True):
            (row,) = [
                row
                for row in rows
                if (str(row.track), row.max_motion) == (track["track"], moves) and not row.masking.is_estimated
            ]
            begin, end = way["longest"]
            assert way["uncertified"] == row.uncertified_frames == end - begin + 1
            count = row.uncertified_frames
            assert way["duration"] == f"{count} frame{'' if count == 1 else 's'}, {row.uncertified_seconds:.2f} s"
            for frames, runs in zip(shown["windows"], way["states"], strict=True):
                wanted, hidden = asked_of_the_core(seen, moves, frames)
                assert states(runs, row.last) == wanted
                assert hidden == row.uncertified_frames
                assert wanted.count(CERTIFIED_FRAME) == row.certified_frames
                assert len(wanted) - wanted.count(NO_BOX) == row.boxes
                found |= set(wanted)
                if row.windows[frames][0] < row.windows[frames][1]:
                    assert UNCERTIFIED in wanted
    assert found == {NO_BOX, CERTIFIED_FRAME, CERTIFIED_WINDOW, UNCERTIFIED}
    # Objects that count know their track, the others none.
    tracks = np.concatenate([np.where(image.ignore, -1, np.array(image.track)) for image in images])
    assert columns["track"].tolist() == [{4: 0, 9: 1}.get(track, -1) for track in tracks.tolist()]


def test_a_patch_that_must_stay_is_told_from_one_that_jumps(tmp_path):
    """Left masks prove the object in even frames, right ones in odd ones: held if the patch stays, else hidden."""
    masks = Halves(3).masks(48, 36)
    images = []
    for image in filmed(tmp_path, Halves(3), count=5):
        side = 0 if image.frame.number % 2 else 2
        ground_truth = image.ground_truth[:1]
        views = [ground_truth if one == side else ground_truth[:0] for one in np.argmax(masks.is_line, axis=1)]
        seen = Observation(48, 36, masks, ground_truth[:0], views)
        none = np.zeros(1, bool)
        images.append(
            replace(image, observation=seen, ground_truth=ground_truth, ignore=none, crowd=none, track=np.array([4]))
        )
    shown, _ = track_timelines(images, VOCABULARY, PAPER.rule, ThreatModel(area=0.02), Rolling(Halves(3), 2))
    stays, *_, jumps = shown["sequences"][0]["tracks"][0]["motions"]
    assert [way["duration"] for way in (stays, jumps)] == ["1 frame, 0.12 s", "5 frames, 0.62 s"]
    assert [one["states"] for one in (stays, jumps)] == [[[[CERTIFIED_WINDOW, 0, 4]]], [[[UNCERTIFIED, 0, 4]]]]


def test_images_are_no_sequence_and_sequences_need_no_tracks(tmp_path):
    images = filmed(tmp_path, Halves(6), count=4)
    single = [replace(image, frame=None, track=np.empty(0, np.int64)) for image in images]
    page = written(tmp_path, single, Halves(6)).read_text()
    assert data_of(page)["playback"] is None
    assert "track" not in columns_of(page)
    unlabeled = [replace(without_objects(image), track=np.empty(0, np.int64)) for image in images]
    (sequence,) = data_of(written(tmp_path, unlabeled, Halves(6), is_labeled=False).read_text())["playback"][
        "sequences"
    ]
    assert (sequence["frames"], sequence["tracks"]) == ([0, 1, 2, 3], [])


def test_frames_of_several_sizes_are_played_and_nothing_is_said_over_time(tmp_path):
    images = filmed(tmp_path, Halves(6), count=4)
    masks = Halves(6).masks(50, 36)
    seen = images[1].observation
    images[1] = replace(images[1], observation=Observation(50, 36, masks, seen.base, [seen.base] * len(masks)))
    (sequence,) = data_of(written(tmp_path, images, Halves(6)).read_text())["playback"]["sequences"]
    assert not sequence["one_size"]
    assert [track["motions"] for track in sequence["tracks"]] == [[], []]


def test_a_frame_with_another_share_of_the_masks_is_refused(tmp_path):
    images = filmed(tmp_path, ROLLING, count=4)
    moved = [replace(image, frame=replace(image.frame, number=image.frame.number + 1)) for image in images]
    with pytest.raises(ObjectSeekerError, match="observed under other masks than the defense's rolling:4"):
        written(tmp_path, moved, ROLLING)


def test_the_folder_of_a_sequence_is_not_told(tmp_path):
    images = [replace(one, frame=replace(one.frame, sequence="/home/me/street")) for one in filmed(tmp_path, ROLLING)]
    page = written(tmp_path, images, ROLLING).read_text()
    assert "home/me" not in page
    assert data_of(page)["playback"]["sequences"][0]["name"] == "street"


# --- in a browser ----------------------------------------------------------------------------------------------------


def shown_rows(page):
    """What the rows show, as runs of frames."""
    return page.evaluate(
        "() => [...document.querySelectorAll('#tracks .track')].map((row) =>"
        " [...row.querySelectorAll('.run:not(.longest)')].map((run) =>"
        " [run.getAttribute('class').slice(4), +run.getAttribute('x'), +run.getAttribute('width')]))"
    )


def test_a_sequence_plays(opened, tmp_path):
    """Play, scrub, keys, rows: each moves to its frame, and the rows are Python's."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    images = filmed(tmp_path, ROLLING, fps=4.0)
    played = data_of(written(tmp_path, images, ROLLING).read_text())["playback"]
    tracks = played["sequences"][0]["tracks"]
    page = opened(tmp_path / "report.html", "#sequences")

    def frame():
        return int(page.locator("#frame-words").inner_text().split()[1])

    for place, moves in enumerate(MAX_MOTIONS):
        page.locator("#max-motion").select_option(str(place))
        for row, track in zip(shown_rows(page), tracks, strict=True):
            runs = track["motions"][place]["states"][0]
            assert row == [[NAMES[state], begin, end - begin + 1] for state, begin, end in runs], moves
        assert tracks[1]["motions"][place]["duration"] in page.locator("#tracks .track").nth(1).inner_text()
    # Playing continues until it is stopped.
    page.evaluate("document.activeElement.blur()")
    assert frame() == 0
    page.keyboard.press(" ")
    api.expect(page.locator("#frame-words")).not_to_contain_text("frame 0 ")
    assert page.locator("#play").inner_text() == "Pause"
    page.keyboard.press(" ")
    assert page.locator("#play").inner_text() == "Play"
    assert 0 < frame() < 23
    # Keys, and the slider; frame 5 is missing.
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    assert frame() == 11
    page.keyboard.press("ArrowLeft")
    assert frame() == 10
    page.locator("#scrub").fill("5")
    assert frame() == 6
    assert page.evaluate("objectseeker.view.image") == 5
    assert page.locator("#frame-words").inner_text() == "frame 6 of 0 to 23, 1.50 s"
    page.wait_for_url("**/report.html#sequences/0/6")
    # A click into a row goes there, its name follows the track, and its hidden time is one click away.
    line = page.locator("#tracks .line").nth(1)
    line.click(position={"x": line.bounding_box()["width"] * 20.5 / 24, "y": 5})
    assert frame() == 20
    page.locator("#tracks .track button").first.click()
    chosen = "objectseeker.certificates.track[objectseeker.view.object]"
    assert page.evaluate(chosen) == 0
    page.locator('#tracks [data-row="1"] .jump').click()
    assert frame() == tracks[1]["motions"][-1]["longest"][0]
    assert page.evaluate(chosen) == 1
    # The patch stays where it is dragged to, and is judged in exactly this frame.
    page.locator("#grip").focus()
    before = page.evaluate("objectseeker.view.x"), frame()
    page.keyboard.press("ArrowRight")
    assert (page.evaluate("objectseeker.view.x"), frame()) == (before[0] + 1, before[1])
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("End")
    assert (page.evaluate("objectseeker.view.x"), frame()) == (before[0] + 1, 23)
    assert "this patch position" in page.locator("#sequence-words").inner_text()
    # The image alone states that it shows but a share of the masks, and leads back.
    page.locator("#frame-link").click()
    assert "only its share of the masks, one of 4" in page.locator("#in-sequence").inner_text()
    page.locator("#in-sequence a").click()
    assert frame() == 23
