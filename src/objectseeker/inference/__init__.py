"""The defended detector at work: images, datasets, videos and streams, with certificates of the boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectseeker.defense import BUILTIN_DEFENSES, DEFAULT_RULE, Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.drawing import draw

if TYPE_CHECKING:
    from objectseeker.core.masks import Image
    from objectseeker.core.seeker import Detector, ObjectSeeker
    from objectseeker.core.threats import ThreatModel
    from objectseeker.datasets import Dataset
    from objectseeker.inference.frame_sources import Video
    from objectseeker.inference.results import DetectionRun

__all__ = ["detect", "draw"]


def detect(
    images: str | Path | Iterable[str | Path] | Image | Iterable[Image] | Dataset | Video,
    defense: Defense | ObjectSeeker | Detector | str | Path = "builtin",
    *,
    certify: bool | ThreatModel = False,
    only_certified: bool = False,
    out: Path | str | None = None,
    annotate: bool = True,
    stride: int = 1,
    start: float = 0.0,
    end: float | None = None,
    fps: float | None = None,
    limit: int | None = None,
    sample: int | None = None,
    class_map: Mapping[str, str] | None = None,
    allow_outside_paths: bool = False,
    device: str | None = None,
    trust_detector: bool = False,
) -> DetectionRun:
    """Detect in images, a dataset or a video with a defended detector.

    Nothing is processed until the run that is returned is iterated over, or its `finish` is called. An image that fails
    has an `error` in its result; the others are processed. Images in memory are frames, in order.

    Args:
        images: Files and folders of images; a dataset or its spec; a video: a file, an address, a camera's number,
            video:FOLDER; or arrays, height x width x 3, also of a generator.
        defense: A defense, its file or name; a detector, as SPEC or callable, with its default rule; or a seeker.
        certify: Whether to certify the boxes that are output, against a patch of 1 % or the given threat.
        only_certified: Whether to return only boxes certified not fabricated by a patch anywhere; also certifies.
        out: A folder for the results; an unfinished one of images is resumed.
        annotate: Whether to write annotated images or an annotated video.
        stride: Of a video, use every n-th frame.
        start: Of a video, the first second.
        end: Of a video, the second to stop before.
        fps: Of a folder of frames or of arrays, frames per second.
        limit: Only the first images or frames.
        sample: Only that many images, drawn at random, always the same ones.
        class_map: Dataset classes by detector class, where names do not match.
        allow_outside_paths: Whether a dataset may name images outside its folder.
        device: cpu, cuda or cuda:1.
        trust_detector: Confirms that the detector returns the same boxes as before, if that cannot be verified.

    Returns:
        The run: an iterable of one `ImageResult` per image, with `totals`.

    Raises:
        ObjectSeekerError: The images, the defense or the detector cannot be used.

    Example:
        >>> import numpy as np
        >>> from objectseeker import Detections, Halves, ObjectSeeker, Rule
        >>> detector = lambda images: [Detections([[2, 2, 9, 9]], [0.9], [0]) for _ in images]
        >>> seeker = ObjectSeeker(detector, Rule(), masks=Halves(2))
        >>> run = detect([np.zeros((16, 16, 3), np.uint8)], seeker, certify=True)
        >>> [len(result.detections) for result in run]
        [1]
        >>> run.totals.to_dict()["certificates"]["far"]
        1
    """
    from objectseeker.core.recipes import Rolling
    from objectseeker.core.threats import ThreatModel
    from objectseeker.inference.frame_sources import DecodedVideo, FrameSelection, Video, import_pyav
    from objectseeker.inference.images import ImageDetection, open_images, select_inputs
    from objectseeker.inference.results import Categories, DetectionTotals
    from objectseeker.inference.video import VideoDetection, require_empty

    folder = None if out is None else Path(out)
    chosen = _resolve_defense(defense)
    source = open_images(images, fps=fps, allow_outside_paths=allow_outside_paths)
    if isinstance(source, Video):
        if sample is not None:
            raise ObjectSeekerError(f"sample draws images, not frames: got {sample!r}. Use limit or stride.")
    else:
        source = select_inputs(source, limit, sample)
    selection = FrameSelection(stride=stride, start=start, end=end, limit=limit)
    if isinstance(source, Video):
        if class_map or allow_outside_paths:
            raise ObjectSeekerError("--class-map and --allow-outside-paths are for datasets: omit them for a video")
        if folder is not None:
            require_empty(folder)
            if annotate and not isinstance(source, DecodedVideo):
                try:  # a folder of frames needs it for the annotated video alone
                    import_pyav()
                except ObjectSeekerError:
                    annotate = False
    else:
        used = {"stride": stride != 1, "start": start != 0, "end": end is not None, "fps": fps is not None}
        if any(used.values()):
            options = ", ".join(f"--{name}" for name, is_given in used.items() if is_given)
            raise ObjectSeekerError(
                f"{options}: only for videos; if the images of a folder are frames, write video:FOLDER"
            )
        if isinstance(chosen.masks, Rolling):  # images have no order that they could follow
            raise ObjectSeekerError(
                f"{chosen.masks} shows each frame of a video only its share of the masks: give a video, or "
                "video:FOLDER if the images of a folder are frames in order"
            )
    if isinstance(chosen, Defense):
        seeker = chosen.build(device, trust_detector=trust_detector)
        bound = chosen.with_fingerprint(chosen.fingerprint or getattr(seeker.detector, "fingerprint"))  # noqa: B009
    elif folder is None:
        seeker, bound = chosen, None
    else:
        raise ObjectSeekerError(
            "a folder of results is for one defense: give a Defense, such as python:MODULE:FUNCTION"
        )
    names = tuple(getattr(seeker.detector, "names", ()))
    threat = certify if isinstance(certify, ThreatModel) else ThreatModel() if certify or only_certified else None
    totals = DetectionTotals(
        out=folder,
        threat=None if threat is None else threat.to_dict(seeker.rule) | seeker.rule.support_criteria.to_dict(),
        only_certified=only_certified,
        defense_sha256=None if bound is None else bound.sha256,
    )
    shared: dict[str, Any] = {
        "seeker": seeker,
        "defense": bound,
        "threat": threat,
        "only_certified": only_certified,
        "out": folder,
        "annotate": annotate,
        "totals": totals,
    }
    if isinstance(source, Video):
        totals.unit, totals.source = "frames", source.name
        return VideoDetection(video=source, selection=selection, categories=Categories.from_detector(names), **shared)
    categories, warnings = source.categories(names, class_map, class_agnostic=not seeker.rule.classwise)
    return ImageDetection(
        sources=source.sources, categories=categories, warnings=warnings, trust_detector=trust_detector, **shared
    )


def _resolve_defense(source: Defense | ObjectSeeker | Detector | str | Path) -> Defense | ObjectSeeker:
    """Return a defense from its file, its name or a SPEC of a detector, or a seeker for a callable."""
    from objectseeker.core.seeker import ObjectSeeker
    from objectseeker.detectors import SPECS, load_detector

    if isinstance(source, Defense | ObjectSeeker):
        return source
    if isinstance(source, str | Path):
        kinds = {spec.partition(":")[0] for spec in SPECS}
        is_spec = str(source).partition(":")[0] in kinds and str(source) not in BUILTIN_DEFENSES
        return Defense.for_detector(str(source)) if is_spec and not Path(source).is_file() else Defense.load(source)
    return ObjectSeeker(load_detector(source), DEFAULT_RULE)
