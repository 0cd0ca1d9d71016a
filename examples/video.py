"""Your video: an eighth of the masks in every frame, and how long a patch could keep an object hidden.

python video.py clip.mp4 defense.json

A frame shows few masks, under which little adds up: take a rule by which single boxes decide, one without
evidence_threshold.
"""

import sys
from dataclasses import replace

from objectseeker import Defense, Patch
from objectseeker.core.boxes import iou
from objectseeker.core.recipes import Rolling
from objectseeker.core.temporal import FramePositions, earliest_uncertified_start, frame_positions
from objectseeker.inference.frame_sources import FrameSelection, VideoFrame, open_video, read_frames

MOVES = 2  # pixels that the patch moves from one frame to the next, at most
clip, file = sys.argv[1:]
defense = Defense.load(file)
seeker = replace(defense, masks=Rolling(defense.masks, 8)).build()
patch = Patch(area=0.01, location="anywhere")
turns = []


def frames():
    """Yield decoded frames with the number that decides their share of the masks; lost frames are skipped."""
    for frame in read_frames(open_video(clip), FrameSelection()):
        if isinstance(frame, VideoFrame):
            turns.append(frame.rolling_index)
            yield frame.rolling_index, frame.image


followed, track = None, []  # the first object, by a tracker of two lines: use your own
for number, seen in enumerate(seeker.defend_stream(frames())):
    found = seen.detections  # robust boxes: this is what you build on
    print(f"frame {number}: {1 + len(seen.observation.masks)} passes, {len(found)} boxes", end="")
    print(f", {len(seen.recovered)} of them by masking only" if seen.alert else "")
    near = found if followed is None else found[iou(followed.xyxy, found.xyxy)[0] > 0.3]
    near = near if followed is None else near[near.label == followed.label]
    if len(near):
        followed = near[[near.score.argmax()]]
        track += frame_positions(seeker.rule, seen.observation, followed, patch)
    else:  # nothing is proven of this frame
        track.append(FramePositions.unobserved(seen.observation.width, seen.observation.height, patch))

if followed is not None:
    name = seeker.detector.names[int(followed.label[0])]
    since = earliest_uncertified_start(track, MOVES, numbers=turns)
    longest = max(end - begin + 1 for end, begin in enumerate(since))
    print(f"{name}: {sum(instant.certified for instant in track)} of {len(track)} frames are certified alone;", end=" ")
    print(f"a patch of 1 % that moves {MOVES} pixels per frame cannot hide it for more than {longest} frames in a row")
