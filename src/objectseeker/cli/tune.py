"""The verb tune."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import (
    ProgressBar,
    describe_duration,
    escape,
    print_json,
    print_next,
    progress,
    say,
    stderr_console,
    warn,
)
from objectseeker.cli._options import (
    OUTPUT,
    THREAT,
    Json,
    Slices,
    TagsFile,
    ThreatModelOptions,
    change_settings,
    expand_groups,
    open_run,
    option,
    parse_operating_point,
    print_rule,
    split_setting,
    tags_and_slices,
)
from objectseeker.defense import DETECTOR_SETTINGS

if TYPE_CHECKING:
    from objectseeker.core.masks import Image
    from objectseeker.core.threats import ThreatModel
    from objectseeker.metrics import Tuning
    from objectseeker.metrics.slices import ImageTags, SliceMetrics
    from objectseeker.runs.run import Run


FIXABLE = ("filter_ioa", "edge_factor", "cluster_distance")  # of the rule
LABELS = "Price by labels"


@app.command()
@expand_groups
def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run, a folder, a dataset or a video.")],
    detector: Annotated[str | None, option(None, "SPEC", "Detector. Not needed for a run.", "--detector", "-d")] = None,
    out: Annotated[Path | None, option(OUTPUT, "DIR", "Folder for defense.json, tables and the run.")] = None,
    threshold: Annotated[float | None, option(None, "X", "Score at which the detector is deployed.")] = None,
    spurious: Annotated[float | None, option(None, "X", "Boxes masks may add per clean image. [0.25]")] = None,
    passes: Annotated[list[int] | None, option(None, "N", "Forward passes per image: choose masks, too.")] = None,
    latency: Annotated[float | None, option(None, "MS", "Milliseconds per image: choose masks, too.")] = None,
    masks: Annotated[
        list[str] | None, option(None, "RECIPE", "Masks to use; of a run, among its masks. [halves:30]")
    ] = None,
    sample: Annotated[int | None, option(None, "N", "Number of images to observe. [200]", min=1)] = None,
    seed: Annotated[int, option(None, "N", "Seed of --sample and of the split.", min=0)] = 0,
    patch_location: Annotated[
        str | None, option(THREAT, "LOCATION", "far, close, over, anywhere or outside alone.")
    ] = None,
    max_ap_loss: Annotated[float | None, option(LABELS, "POINTS", "Clean AP50 that may be lost, in points.")] = None,
    operating_point: Annotated[
        str | None, option(LABELS, "KEY=VALUE", "Certify most at clean_recall=0.8 or fppi=1.")
    ] = None,
    settings: Annotated[
        list[str] | None, option(None, "KEY=VALUE", "Fix a setting instead of searching it.", "--set")
    ] = None,
    tags: TagsFile = None,
    slices: Slices = None,
    as_json: Json = False,
    *,
    threat: ThreatModelOptions,
) -> None:
    """Choose a defense for a detector from unlabeled images: the rule and, within a budget, the masks.

    --threshold is the score at which you deploy the detector. A defense outputs its boxes and, on clean images, a few
    spurious ones that masks add. Of all rules that add at most --spurious boxes per image, at the upper end of the 95 %
    interval, the one is chosen that certifies most of the detector's own boxes. The images are split in two: one part
    is searched, the other measures exactly the rule that is written. Exit code 1: it exceeds the price there.

    Certified counts the mean of far, close and over, or --patch-location alone: outside is any number of patches of
    any size and shape away from the object, which windows withstand.

    The default threshold is that of the best F1 where there are annotations, otherwise 0.5. --set fixes filter_ioa,
    edge_factor and cluster_distance, or sets an option of the detector. With annotations the price may be --max-ap-loss
    at an --operating-point instead, as in the paper.

    Example:  objectseeker tune images/ --detector onnx:model.onnx --threshold 0.4 --out tuned
    Example:  objectseeker tune clip.mp4 --detector onnx:model.onnx --latency 500 --out tuned
    Example:  objectseeker tune runs/mine --threshold 0.4 --spurious 0.5 --passes 40 --out tuned
    Example:  objectseeker tune images/ --detector builtin --patch-location outside --passes 60 --out tuned
    Example:  objectseeker tune runs/voc --max-ap-loss 1 --operating-point clean_recall=0.8 --out tuned
    Example:  objectseeker detect images/ --defense tuned/defense.json --certify --out found
    """
    from objectseeker import metrics
    from objectseeker.cli._tuning_tables import render_tuning, save_tuning, tuning_dict
    from objectseeker.core.recipes import Halves, parse_recipe
    from objectseeker.metrics.search import LABELED_SPACE
    from objectseeker.metrics.tuning import masks_to_observe
    from objectseeker.report.plots import unavailable_reason

    labels = {"--max-ap-loss": max_ap_loss, "--operating-point": operating_point, "--tags": tags, "--by": slices}
    by_labels = next((name for name, value in labels.items() if value), None)
    if by_labels and (threshold is not None or spurious is not None):
        raise ObjectSeekerError(f"{by_labels} states the price by labels: omit --threshold and --spurious")
    point = parse_operating_point(operating_point)
    if "base_threshold" in point:
        raise ObjectSeekerError(f"tune searches at clean_recall or fppi: got --operating-point {operating_point}")
    fixed, of_detector = _fixed_settings(settings or ())
    location: Any = patch_location  # Patch rejects unknown locations
    model, is_run = threat.threat_model(), (Path(source) / "run.json").is_file()
    if is_run:
        if detector is not None or of_detector:
            raise ObjectSeekerError(f"the run has its own detector: omit {detector or of_detector[0]}")
        stored = open_run(Path(source))
    else:
        if detector is None or out is None:
            raise ObjectSeekerError(
                f"{source!r} is not a run, so its images are observed first: add --detector SPEC and --out DIR"
            )
        if len(masks or []) > 1:
            raise ObjectSeekerError(
                f"images are observed with one recipe, give one: got --masks {' --masks '.join(masks or [])}"
            )
        recipe = parse_recipe(masks[0]) if masks else masks_to_observe(passes, model, location) or Halves()
        defense = change_settings(Defense.for_detector(detector, masks=recipe), of_detector)
        stored = _observe(source, defense, out / "run", sample, seed)
    if not stored.has_detector:
        warn("the run does not say how its detector is loaded: what is found is shown, but no defense is written")
    tagged, asked = tags_and_slices(stored, tags, slices)
    if asked and passes:
        raise ObjectSeekerError(f"--by {asked[0]} is about one rule: omit --passes, or evaluate what it chose")
    if by_labels:
        point["max_ap_loss"] = 1.0 if max_ap_loss is None else max_ap_loss
    with stage_progress() as show_stage:
        tuning = metrics.tune(
            stored,
            threshold=threshold,
            spurious=spurious,
            passes=passes,
            latency=latency,
            masks=masks if is_run else None,
            threat=model,
            location=location,
            seed=seed,
            search_space=replace(LABELED_SPACE if by_labels else metrics.SearchSpace(), **fixed),
            on_progress=show_stage,
            **point,
        )
    if tuning.threshold < stored.manifest.observation_settings.base_floor:
        warn(f"base_threshold {tuning.threshold} is below the lowest score that the run stores of base boxes")
    rows = _sliced(stored, tuning, model, tagged, asked) if asked else []
    files = [] if out is None else save_tuning(out, tuning, rows)
    if out is not None and (note := unavailable_reason()) is not None:
        warn(note)
    if as_json:
        print_json(tuning_dict(tuning, rows))
    else:
        say(*render_tuning(tuning, rows))
    if tuning.broken_promise is not None:
        stderr_console.print(f"[bold red]target missed:[/] {escape(tuning.broken_promise)}")
    if not as_json:
        _print_next(tuning, files, out, None if is_run else source)
    if tuning.broken_promise is not None:
        raise typer.Exit(1)


def _print_next(tuning: Tuning, files: list[Path], out: Path | None, images: str | None) -> None:
    """Print where the defense is, and the next step: on `images`, if they were not a run."""
    if tuning.defense is None:
        return
    if out is None:
        print_rule(tuning.defense)
        return
    written = [shlex.quote(str(file)) for file in files]
    say(f"Written: {', '.join(written)}; other prices: {out / 'tuning.md'}")
    if images is None:
        print_next(f"objectseeker evaluate RUN_OF_OTHER_IMAGES --defense {written[-1]}")
    else:
        print_next(f"objectseeker detect {shlex.quote(images)} --defense {written[-1]} --certify --out found")


def _observe(source: str, defense: Defense, folder: Path, sample: int | None, seed: int) -> Run:
    """Observe the images of a source in a folder next to the results, after an estimate of the time."""
    from objectseeker.detectors import load_detector
    from objectseeker.inference.frame_sources import is_video
    from objectseeker.metrics.tuning import DEFAULT_SAMPLE
    from objectseeker.runs.manifest import ObservationSettings
    from objectseeker.runs.observe import dataset_of, observe, plan_run, time_view

    count = sample or DEFAULT_SAMPLE
    video = is_video(source)
    if video and not (folder / "run.json").is_file():
        data = dataset_of(_frames(source, count), folder)
    elif video:  # its frames are stored already
        data = dataset_of(folder / "images", folder)
    else:
        data = dataset_of(source, folder)
    order = None if video or len(data) <= count else seed
    for warning in data.warnings:
        warn(warning)
    stored = ObservationSettings.from_defense(defense)
    plan = plan_run(data, stored, limit=count)
    drawn = "" if order is None else f" drawn with seed {order} from {len(data):,}"
    cost = f"{plan.images:,} images{drawn} x {plan.views_per_image:,} views = {plan.forward_passes:,} forward passes"
    loaded = load_detector(defense.detector, **defense.options)
    if not (folder / "run.json").is_file():
        seconds = time_view(data, loaded, stored, limit=count, seed=order)
        cost += f", {1000 * seconds:.1f} ms each here: about {describe_duration(plan.forward_passes * seconds)}"
    stderr_console.print(f"{escape(cost)}. Interrupted, the same command resumes.")
    with progress("observing", plan.images) as bar:
        return observe(data, defense, out=folder, limit=count, seed=order, on_progress=bar.update, on_warning=warn)


def _frames(source: str, count: int) -> Iterator[Image]:
    """Return the requested number of frames, spread over the video."""
    from objectseeker.inference.frame_sources import FrameSelection, VideoFrame, open_video, read_frames

    video = open_video(source)
    stride = max((video.total or count) // count, 1)
    frames = read_frames(video, FrameSelection(stride=stride))
    return islice((frame.image for frame in frames if isinstance(frame, VideoFrame)), count)


def _fixed_settings(settings: Sequence[str]) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    """Return the settings of the rule that --set fixes, and the settings that are about the detector."""
    fixed: dict[str, tuple[float, ...]] = {}
    others: list[str] = []
    for setting in settings:
        key, value = split_setting(setting)
        if key not in FIXABLE:
            if key not in DETECTOR_SETTINGS:
                known = ", ".join((*FIXABLE, *DETECTOR_SETTINGS))
                raise ObjectSeekerError(f"--set fixes {known}: got {setting[:80]!r}. Use KEY=VALUE.")
            others.append(setting)
            continue
        try:
            fixed[key] = (float(value),)
        except ValueError:
            raise ObjectSeekerError(f"--set {key} must be a number: got {setting[:80]!r}. Use KEY=VALUE.") from None
    return fixed, others


def _sliced(run: Run, tuning: Tuning, threat: ThreatModel, tags: ImageTags, requested: list[str]) -> list[SliceMetrics]:
    """Return the metrics of the best rule slice by slice, on the images that were not searched."""
    from objectseeker.metrics import EvaluationSettings, evaluate_images

    schedule = tuning.best.search_split.schedule
    assert schedule is not None  # by labels
    settings = EvaluationSettings(rule=tuning.best.rule, threshold_schedule=schedule, threat=threat)
    every = run.images()
    images = [every[n] for n in tuning.held_out.tolist()]
    with progress("measuring slices", len(images)) as bar:
        found = evaluate_images(images, run.label_map, settings, intervals=False, on_image=bar.advance)
    return found.by(*requested, tags=tags.of(tuning.held_out))


@contextmanager
def stage_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for the stage that is under way."""
    bars: dict[str, ProgressBar] = {}
    with ExitStack() as stack:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                stack.close()
                bars.clear()
                bars[stage] = stack.enter_context(progress(stage, total))
            bars[stage].update(done, total)

        yield update
