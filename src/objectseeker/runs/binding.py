"""A run and a defense: what is certified from a run must be what is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import BATCH, Defense, spec_resolved_from, spec_without_path
from objectseeker.detectors import OPTIONS, require_spec
from objectseeker.detectors.network.fingerprint import hash_files
from objectseeker.detectors.onnx import external_files
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.manifest import Manifest


def run_defense(manifest: Manifest, rule: AnyRule | None, follow: ThresholdSchedule | None, folder: Path) -> Defense:
    """The defense that was observed into `folder`, with this rule or the default one."""
    if manifest.detector_spec is None:
        raise ObjectSeekerError(
            f"the run does not say how its detector {manifest.detector} is loaded, so no defense can: observe with a "
            "detector named by its SPEC, on the command line or by engines.choice.open_engine"
        )
    observing = manifest.observing
    options = dict(manifest.detector_options)
    if observing.batch not in (None, BATCH):
        options["batch"] = observing.batch
    default = Defense.default(
        spec_resolved_from(manifest.detector_spec, folder),
        masks=observing.masks,
        fill=observing.fill,
        identity=manifest.detector,
        **options,
    )
    if rule is None and follow is not None:
        rule = follow.rule(default.rule, default.rule.base_threshold)
    return default if rule is None else replace(default, rule=rule, follow=follow)


def bind_defense(manifest: Manifest, defense: Defense, folder: Path) -> Defense:
    """`defense`, bound to the run's detector, or all that makes it another one, in a sentence."""
    differences = [*_detector_differences(manifest, defense), *_observation_differences(manifest, defense)]
    if differences:
        raise ObjectSeekerError(
            f"the defense is not that of the run in {folder} ({'; '.join(differences)}): tune one on this run, or "
            "observe with that one"
        )
    return defense.with_fingerprint(manifest.detector)


def _detector_differences(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """How the detectors differ. An identity says everything about one: weights, way of masking, batches, device."""
    options = manifest.detector_options
    if defense.identity is not None:
        if defense.identity != manifest.detector:
            yield f"its detector is {defense.identity}, the run's {manifest.detector}"
    elif manifest.detector_spec is None or spec_without_path(defense.detector) != spec_without_path(
        manifest.detector_spec
    ):
        yield f"its detector is {defense.detector}, the run's {manifest.detector_spec or manifest.detector}"
    else:
        yield from _of_file(manifest, defense)
        for option in OPTIONS:
            theirs, ours = getattr(defense, option), options.get(option)
            if theirs != ours and option not in ("batch", "class_names"):
                yield f"its {option} is {_show(theirs)}, the run's {_show(ours)}"
        if manifest.observing.batch is None and defense.batch != options.get("batch"):
            yield f"its batch is {_show(defense.batch)}, the run's {_show(options.get('batch'))}"
    if defense.class_names not in (options.get("class_names"), manifest.detector_names):
        yield "its class names are not the run's"


def _of_file(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """Whether the ONNX file that the defense names, if it is here, is the one that was observed."""
    kind, name = require_spec(defense.detector)
    if kind == "onnx" and Path(name).is_file():
        file = Path(name)
        if not manifest.detector.endswith(hash_files(file, *external_files(file))):
            yield f"its detector {defense.detector} is another file than the run's {manifest.detector}"


def _observation_differences(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """How what was observed differs from what the defense would see."""
    observing, rule = manifest.observing, defense.rule
    if defense.masks != observing.masks:
        yield f"its masks are {defense.masks}, the run's {observing.masks}"
    if defense.fill != observing.fill:
        yield f"its fill is {defense.fill}, the run's {observing.fill}"
    if observing.batch not in (None, defense.batch or BATCH):
        yield f"its batch is {defense.batch or BATCH}, the run's {observing.batch}"
    for boxes, option, score, floor in (
        ("base", "--base-floor", rule.base_threshold, observing.base_floor),
        ("masked", "--mask-floor", rule.floor, observing.mask_floor),
    ):
        if score < floor:
            yield (
                f"its rule looks at {boxes} boxes from a score of {score} on and the run keeps them from {floor} "
                f"on, observe with a lower {option}"
            )


def _show(value: object) -> str:
    return "the detector's own" if value is None else str(value)
