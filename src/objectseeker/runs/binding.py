"""Bind a defense to a run: the certified defense must be the deployed one.

All checks are here: whether a defense is that of a run, and whether a run stores scores low enough for what uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from objectseeker.core.rules import PruningRule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import BATCH, Defense, spec_resolved_from, spec_without_path
from objectseeker.detectors import OPTIONS, require_spec
from objectseeker.detectors.network.fingerprint import hash_files
from objectseeker.detectors.onnx import external_files
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.manifest import Manifest, ObservationSettings


def run_defense(
    manifest: Manifest, rule: PruningRule | None, threshold_schedule: ThresholdSchedule | None, folder: Path
) -> Defense:
    """Return the defense that was observed into `folder`, with this rule or the default one."""
    if manifest.detector_spec is None:
        raise ObjectSeekerError(
            f"the run does not state how its detector {manifest.detector_fingerprint} is loaded, so it has no defense: "
            "observe with a detector named by its SPEC, or pass a defense"
        )
    settings = manifest.observation_settings
    options = dict(manifest.detector_options)
    if settings.batch_size not in (None, BATCH):
        options["batch_size"] = settings.batch_size
    default = Defense.for_detector(
        spec_resolved_from(manifest.detector_spec, folder),
        masks=settings.masks,
        fill=settings.fill,
        fingerprint=manifest.detector_fingerprint,
        **options,
    )
    if rule is None and threshold_schedule is not None:
        rule = threshold_schedule.rule(default.rule, default.rule.base_threshold)
    return default if rule is None else replace(default, rule=rule, threshold_schedule=threshold_schedule)


def bind_defense(manifest: Manifest, defense: Defense, folder: Path) -> Defense:
    """Return `defense` with the fingerprint of the run's detector; reject another one and say why."""
    settings = manifest.observation_settings
    differences = [
        *_detector_differences(manifest, defense),
        *_observation_differences(settings, defense),
        *missing_scores(settings, lowest_base=defense.rule.base_threshold, lowest_masked=defense.rule.min_mask_score),
    ]
    if differences:
        raise ObjectSeekerError(
            f"the defense is not that of the run in {folder} ({'; '.join(differences)}): tune one on this run, or "
            "observe with that one"
        )
    return defense.with_fingerprint(manifest.detector_fingerprint)


def missing_scores(
    settings: ObservationSettings, *, lowest_base: float | None = None, lowest_masked: float | None = None
) -> list[str]:
    """Name the thresholds that are below the scores a run stores: boxes would be missing there."""
    needed = (
        ("base", "raise the threshold, lower the clean recall", "--base-floor", lowest_base, settings.base_floor),
        ("masked", "raise the thresholds", "--mask-floor", lowest_masked, settings.mask_floor),
    )
    return [
        f"{boxes} boxes with scores of at least {threshold} are used, but the run stores none below {floor}: {advice}, "
        f"or observe with a lower {option}"
        for boxes, advice, option, threshold, floor in needed
        if threshold is not None and threshold < floor
    ]


def _detector_differences(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """Name how the detectors differ. A fingerprint covers everything: weights, mask mode, batches, device."""
    options = manifest.detector_options
    if defense.fingerprint is not None:
        if defense.fingerprint != manifest.detector_fingerprint:
            yield f"its detector is {defense.fingerprint}, the run's {manifest.detector_fingerprint}"
    elif manifest.detector_spec is None or spec_without_path(defense.detector_name) != spec_without_path(
        manifest.detector_spec
    ):
        observed = manifest.detector_spec or manifest.detector_fingerprint
        yield f"its detector is {defense.detector_name}, the run's {observed}"
    else:
        yield from _file_difference(manifest, defense)
        for option in OPTIONS:
            expected, actual = options.get(option), getattr(defense, option)
            if actual != expected and option not in ("batch_size", "class_names"):
                yield f"its {option} is {_format(actual)}, the run's {_format(expected)}"
        if manifest.observation_settings.batch_size is None and defense.batch_size != options.get("batch_size"):
            yield f"its batch size is {_format(defense.batch_size)}, the run's {_format(options.get('batch_size'))}"
    if defense.class_names not in (options.get("class_names"), manifest.detector_names):
        yield "its class names are not the run's"


def _file_difference(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """Compare the ONNX file that the defense names, if it exists here, with the one that was observed."""
    if not isinstance(defense.detector, str):
        return
    kind, name = require_spec(defense.detector)
    if kind == "onnx" and Path(name).is_file():
        file = Path(name)
        if not manifest.detector_fingerprint.endswith(hash_files(file, *external_files(file))):
            yield f"its detector {defense.detector} is another file than the run's {manifest.detector_fingerprint}"


def _observation_differences(settings: ObservationSettings, defense: Defense) -> Iterator[str]:
    """Name how the views that were observed differ from those of the defense."""
    expected = ObservationSettings.from_defense(defense)
    for name in ("masks", "fill", "batch_size"):
        ours, theirs = getattr(settings, name), getattr(expected, name)
        if ours != theirs and not (name == "batch_size" and ours is None):
            yield f"its {name.replace('_', ' ')} {'are' if name == 'masks' else 'is'} {theirs}, the run's {ours}"


def _format(value: object) -> str:
    return "the detector's default" if value is None else str(value)
