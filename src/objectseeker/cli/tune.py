"""The verb tune."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import (
    describe_duration,
    escape,
    print_json,
    print_next,
    progress,
    stderr_console,
    stdout_console,
    warn,
)
from objectseeker.cli._options import (
    Json,
    Slices,
    TagsFile,
    ThreatModelOptions,
    expand_groups,
    open_run,
    parse_operating_point,
    print_rule,
    tags_and_slices,
)
from objectseeker.cli._settings import change_settings
from objectseeker.defense import DETECTOR_SETTINGS

if TYPE_CHECKING:
    from objectseeker.core.masks import Image
    from objectseeker.core.threats import ThreatModel
    from objectseeker.metrics import SearchSpec, TuningResult
    from objectseeker.metrics.slices import ImageTags, SliceMetrics
    from objectseeker.runs.run import Run


FIXABLE = ("filter_ioa", "edge_factor", "cluster_distance")  # of the rule
LABELS = "Price by labels"


@app.command()
@expand_groups
def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run, a folder, a dataset or a video.")],
    detector: Annotated[
        str | None, typer.Option("--detector", "-d", metavar="SPEC", help="Detector. Not needed for a run.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for defense.json, tables and the run.", rich_help_panel="Output"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="X", help="Score at which the detector is deployed."),
    ] = None,
    spurious: Annotated[
        float | None, typer.Option(metavar="X", help="Boxes masks may add per clean image. [0.25]")
    ] = None,
    passes: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Forward passes per image: choose masks, too."),
    ] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Milliseconds per image: choose masks, too.")
    ] = None,
    masks: Annotated[
        list[str] | None,
        typer.Option(metavar="RECIPE", help="Masks to use; of a run, among its masks. [halves:30]"),
    ] = None,
    sample: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of images to observe. [200]")] = None,
    split: Annotated[
        float, typer.Option(metavar="X", help="Share of the images to search. [0.5]", show_default=False)
    ] = 0.5,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of --sample and of the split.")] = 0,
    max_ap_loss: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="Clean AP50 that may be lost, in points.", rich_help_panel=LABELS),
    ] = None,
    operating_point: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Certify most at clean_recall=0.8 or fppi=1.", rich_help_panel=LABELS),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Fix a setting instead of searching it.",
        ),
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
    is searched, the other measures exactly the rule that is written. Exit code 1: it breaks the promise there.

    The default threshold is that of the best F1 where there are annotations, otherwise 0.5. --set fixes filter_ioa,
    edge_factor and cluster_distance, or sets an option of the detector. With annotations the price may be --max-ap-loss
    at an --operating-point instead, as in the paper.

    Example:  objectseeker tune images/ --detector onnx:model.onnx --threshold 0.4 --out tuned
    Example:  objectseeker tune clip.mp4 --detector onnx:model.onnx --latency 500 --out tuned
    Example:  objectseeker tune runs/mine --threshold 0.4 --spurious 0.5 --passes 40 --out tuned
    Example:  objectseeker tune runs/voc --max-ap-loss 1 --operating-point clean_recall=0.8 --out tuned
    Example:  objectseeker detect images/ --defense tuned/defense.json --certify --out found
    """
    from objectseeker.core.recipes import parse_recipe
    from objectseeker.metrics.tuning import masks_for_budget

    labels = {"--max-ap-loss": max_ap_loss, "--operating-point": operating_point, "--tags": tags, "--by": slices}
    by_labels = next((name for name, value in labels.items() if value), None)
    if by_labels and (threshold is not None or spurious is not None or latency is not None):
        raise ObjectSeekerError(f"{by_labels} states the price by labels: omit --threshold, --spurious and --latency")
    fixed, of_detector = _fixed_settings(settings or ())
    model = threat.threat_model()
    if (Path(source) / "run.json").is_file():
        if detector is not None or of_detector:
            raise ObjectSeekerError(f"the run has its own detector: omit {detector or of_detector[0]}")
        stored, recipes = open_run(Path(source)), masks or []
    else:
        if detector is None or out is None:
            raise ObjectSeekerError(
                f"{source!r} is not a run, so its images are observed first: add --detector SPEC and --out DIR"
            )
        if len(masks or []) > 1:
            raise ObjectSeekerError(f"images are observed with one recipe: got --masks {' --masks '.join(masks or [])}")
        recipe = masks_for_budget(max(passes) if passes else None, model) if not masks else parse_recipe(masks[0])
        defense = change_settings(Defense.for_detector(detector, masks=recipe), of_detector)
        stored, recipes = (
            _observe(source, defense, out / "run", sample, seed),
            [],
        )
    if not stored.has_detector:
        warn("the run does not say how its detector is loaded: what is found is shown, but no defense is written")
    request = _Request(stored, source, passes or [], recipes, fixed, model, seed, out, as_json)
    if by_labels:
        broken = _tune_by_labels(request, max_ap_loss, operating_point, tags, slices)
    else:
        broken = _tune_without_labels(request, threshold, spurious, latency, split)
    if broken is not None:
        stderr_console.print(f"[bold red]promise broken:[/] {escape(broken)}")
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Request:
    """The run to tune, and the options that both ways to state a price have in common."""

    run: Run
    source: str
    passes: list[int]
    masks: list[str]
    fixed: dict[str, tuple[float, ...]]  # settings of the rule that are not searched
    threat: ThreatModel
    seed: int
    out: Path | None
    as_json: bool

    def finish(self, defense: Defense | None, evaluated: bool) -> None:
        """Print where the defense is, and the next step."""
        if defense is None:
            return
        if self.out is None:
            print_rule(defense)
            return
        written = shlex.quote(str(self.out / "defense.json"))
        stdout_console.print(f"Written: {escape(written)}; the frontier: {escape(str(self.out / 'tuning.md'))}")
        if evaluated:
            print_next(f"objectseeker evaluate RUN_OF_OTHER_IMAGES --defense {written}")
        else:
            print_next(f"objectseeker detect {shlex.quote(self.source)} --defense {written} --certify --out found")


def _observe(
    source: str,
    defense: Defense,
    folder: Path,
    sample: int | None,
    seed: int,
) -> Run:
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
        return observe(
            data,
            defense,
            out=folder,
            limit=count,
            seed=order,
            on_progress=bar.update,
            on_warning=warn,
        )


def _frames(source: str, count: int) -> Iterator[Image]:
    """Return the requested number of frames, spread over the video."""
    from objectseeker.inference.frame_sources import FrameSelection, VideoFrame, open_video, read_frames

    video = open_video(source)
    stride = max((video.total or count) // count, 1)
    frames = read_frames(video, FrameSelection(stride=stride))
    return islice((frame.image for frame in frames if isinstance(frame, VideoFrame)), count)


def _tune_without_labels(
    request: _Request, threshold: float | None, spurious: float | None, latency: float | None, split: float
) -> str | None:
    """Print and write the result for a number of spurious boxes; return how its promise was broken."""
    from objectseeker import metrics
    from objectseeker.cli._tuning_tables import render_prices, save_prices

    for name, several in (("--passes", list(map(str, request.passes))), ("--masks", request.masks)):
        if len(several) > 1:
            raise ObjectSeekerError(f"one of them at a time: got {name} {f' {name} '.join(several)}")
    with StageProgress() as stages:
        tuning = metrics.tune(
            request.run,
            threshold=threshold,
            spurious=spurious,
            passes=request.passes[0] if request.passes else None,
            latency=latency,
            masks=request.masks[0] if request.masks else None,
            threat=request.threat,
            split=split,
            seed=request.seed,
            grid=metrics.RuleGrid(**request.fixed),
            on_progress=stages.update,
        )
    assert isinstance(tuning, metrics.Tuning)
    if request.out is not None:
        save_prices(request.out, tuning)
        if tuning.defense is not None:
            tuning.defense.save(request.out / "defense.json")
        _warn_without_plots()
    if request.as_json:
        print_json(tuning.to_dict())
    else:
        _print(render_prices(tuning))
        request.finish(tuning.defense, evaluated=(Path(request.source) / "run.json").is_file())
    return tuning.broken_promise


def _tune_by_labels(
    request: _Request,
    max_ap_loss: float | None,
    operating_point: str | None,
    tags: Path | None,
    slices: list[str] | None,
) -> str | None:
    """Print and write what was found for a price by labels; return how the promise was broken, if it was."""
    from objectseeker.cli._tuning_tables import render_tuning, save_tuning, tuning_dict
    from objectseeker.metrics import SearchSpace, SearchSpec
    from objectseeker.metrics.ap_search import tune_with_labels
    from objectseeker.metrics.image_set import default_process_count

    run, out = request.run, request.out
    point = parse_operating_point(operating_point)
    if "base_threshold" in point:
        raise ObjectSeekerError(f"tune searches at clean_recall or fppi: got --operating-point {operating_point}")
    if request.masks and not request.passes:
        raise ObjectSeekerError(f"--masks {request.masks[0]} chooses among the run's masks: give --passes, too")
    tagged, asked = tags_and_slices(run, tags, slices)
    if asked and request.passes:
        raise ObjectSeekerError(f"--by {asked[0]} is about one rule: omit --passes, or evaluate what it chose")
    limits: dict[str, Any] = {"threat": request.threat, "seed": request.seed, **point}
    limits |= {"max_ap_loss": 1.0 if max_ap_loss is None else max_ap_loss, "search_space": SearchSpace(**request.fixed)}
    if request.passes:
        floors = run.manifest.observation_settings
        search = SearchSpec(mask_floor=floors.mask_floor, base_floor=floors.base_floor, **limits)
        processes = default_process_count(len(run.indices))
        _tune_within_budget(run, search, request.passes, request.masks, processes, out, request.as_json)
        return None
    with progress("settings tried", 0) as bar:
        tuning = tune_with_labels(run, on_trial=bar.count, **limits)
    rule, defense = tuning.chosen[0], tuning.defense
    if rule.base_threshold < run.manifest.observation_settings.base_floor:
        warn(f"base_threshold {rule.base_threshold} is below the lowest score that the run stores of base boxes")
    rows = _sliced(run, tuning, tagged, asked) if asked else []
    if out is not None:
        save_tuning(out, tuning, rows)
        if defense is not None:
            defense.save(out / "defense.json")
        _warn_without_plots()
    if request.as_json:
        print_json(tuning_dict(tuning, rows))
    else:
        _print(render_tuning(tuning, rows))
        request.finish(defense, evaluated=True)
    return tuning.broken_promise


def _fixed_settings(settings: Sequence[str]) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    """Return the settings of the rule that --set fixes, and the settings that are about the detector."""
    fixed: dict[str, tuple[float, ...]] = {}
    others: list[str] = []
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in FIXABLE:
            if key not in DETECTOR_SETTINGS:
                known = ", ".join((*FIXABLE, *DETECTOR_SETTINGS))
                raise ObjectSeekerError(f"--set fixes {known}: got {setting[:80]!r}. Use KEY=VALUE.")
            others.append(setting)
            continue
        try:
            if not equals:
                raise ValueError
            fixed[key] = (float(value),)
        except ValueError:
            raise ObjectSeekerError(f"--set {key} must be a number: got {setting[:80]!r}. Use KEY=VALUE.") from None
    return fixed, others


def _sliced(run: Run, tuning: TuningResult, tags: ImageTags, requested: list[str]) -> list[SliceMetrics]:
    """The best setting slice by slice, on the images that were not searched, where they have its metrics."""
    from objectseeker.metrics.evaluation import evaluate_images
    from objectseeker.metrics.slices import measure_slices

    point = tuning.best.held_out_split.outcome.point
    if point is None:
        return []
    every = run.images()
    chosen = tuning.held_out_images(len(every))
    settings = replace(tuning.best.settings, rule=point.rule, clean_recall=None, fppi=None)
    images = [every[n] for n in chosen.tolist()]
    with progress("measuring slices", len(images)) as bar:
        found = evaluate_images(images, run.label_map, settings, intervals=False, on_image=bar.advance)
    return measure_slices(found.tally, tags.of(chosen), requested, settings.threat)


def _tune_within_budget(
    run: Run, search: SearchSpec, passes: list[int], masks: list[str], processes: int, out: Path | None, as_json: bool
) -> None:
    """The best recipe for every number of passes, and what was found as a table."""
    from objectseeker.cli._tuning_tables import render_recipes, save_recipes
    from objectseeker.core.recipes import parse_recipe
    from objectseeker.metrics.ap_search import chosen_by
    from objectseeker.metrics.recipe_search import search_recipes

    with StageProgress() as stages:
        found = search_recipes(
            run,
            search,
            passes,
            recipes=[parse_recipe(one) for one in masks],
            processes=processes,
            on_progress=stages.update,
        )
    defenses = {
        one.budget: replace(
            run.defense(*one.tuning.chosen), masks=one.candidate.recipe, tuned_on=chosen_by(run, found.search)
        )
        for one in found.chosen
        if run.has_detector
    }
    files = {}
    if out is not None:
        save_recipes(out, found)
        for budget, defense in defenses.items():
            files[budget] = out / ("defense.json" if len(set(passes)) == 1 else f"defense-{budget}.json")
            defense.save(files[budget])
        _warn_without_plots()
    if as_json:
        described = {str(budget): defense.to_public_dict() for budget, defense in defenses.items()}
        print_json(found.to_dict() | {"defenses": described})
        return
    _print(render_recipes(found))
    for budget, file in files.items():
        stdout_console.print(f"The defense for at most {budget} passes: {escape(str(file))}")
    how = "save it with --out and observe" if defenses else "observe with it"
    if files:
        how = f"observe again with --defense {next(iter(files.values()))}"
    observed = run.manifest.observation_settings.masks
    stdout_console.print(f"Estimated from the run's views, whose masks are {observed}; to certify it, {escape(how)}")


class StageProgress:
    """A bar for the stage that is under way."""

    def __init__(self) -> None:
        self._stack, self._what = ExitStack(), ""

    def __enter__(self) -> StageProgress:
        return self

    def update(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._stack.close()
            self._what, self._bar = what, self._stack.enter_context(progress(what, total))
        self._bar.update(done, total)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _print(parts: list[Any]) -> None:
    for part in parts:
        stdout_console.print(escape(part) if isinstance(part, str) else part)


def _warn_without_plots() -> None:
    from objectseeker.report import plots

    note = plots.unavailable_reason()
    if note is not None:
        warn(note)
