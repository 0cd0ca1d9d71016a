"""Options that several commands share, written once: groups of them, and what is made of each group.

A command names a group as one parameter; `grouped` shows the command line its fields as single options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from objectseeker import Defense, ObjectSeekerError, Patch, Rule, detectors
from objectseeker.cli._console import notes, warn
from objectseeker.cli._settings import change_settings, complete_defense, complete_setting, default_defense, read_names
from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.core.recipes import Recipe, parse_recipe
from objectseeker.core.rules import PruningRule
from objectseeker.core.rules.iou import with_filter_iou
from objectseeker.core.threats import parse_area
from objectseeker.core.threshold_schedule import ThresholdSchedule

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings, ThreatModel
    from objectseeker.metrics.slices import ImageTags
    from objectseeker.runs.run import Run

OPERATING_POINT_KEYS = ("clean_recall", "fppi", "base_threshold")

DATASET = "coco:FILE.json:IMAGES, voc:DIR:SPLIT, kitti:DIR, yolo:DIR, mot:DIR, a folder, ..."

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that observe wrote.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of tables.", rich_help_panel="Output")
]
Lines = Annotated[int, typer.Option(help="Mask lines per axis; 4 masks each.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """Which detector, and how it sees masked views."""

    detector: Annotated[
        str | None, typer.Option("--detector", "-d", help=f"One of {', '.join(detectors.SPECS)}. Default: builtin.")
    ] = None
    layout: Annotated[
        str | None, typer.Option(help="RuleKind of an ONNX graph, where it cannot be told from the graph.")
    ] = None
    input_size: Annotated[int | None, typer.Option(help="Side of the network input in pixels, where it is free.")] = (
        None
    )
    batch_size: Annotated[int | None, typer.Option(help="Views per forward pass.")] = None
    mask_mode: Annotated[
        str | None,
        typer.Option(
            help="fill: paint removed pixels over. crop: cut them away, where the network takes any size. drop: leave "
            "out the tokens of a YOLOS or RF-DETR of transformers."
        ),
    ] = None
    precision: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16, on a GPU.")] = None
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Class names of an onnx, python or torchvision detector: a line each, by label."
        ),
    ] = None

    def given(self) -> tuple[str | None, dict[str, Any]]:
        """The spec, if one is given, and the options of `Defense` beside it."""
        options = _given(self)
        if "names" in options:
            options["class_names"] = read_names(options.pop("names"))
        return options.pop("detector", None), options


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskOptions:
    """Which masks, and what removed pixels become."""

    masks: Annotated[
        str | None,
        typer.Option(
            help="Mask recipe: halves:30, pairs:10, bands:1%, halves:10+bands:1%; of frames rolling:8:halves:30. "
            "Default: halves:30."
        ),
    ] = None
    fill: Annotated[int | None, typer.Option(help=f"Gray value of removed pixels. Default: {DEFAULT_FILL}.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """The rule: a defense file, or its settings one by one."""

    defense: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A defense that tune or Defense.save wrote, builtin-fast or builtin-video."),
    ] = None
    base_threshold: Annotated[float | None, typer.Option(help="Smallest score of a base box.")] = None
    mask_threshold: Annotated[float | None, typer.Option(help="Score at which one masked box decides alone.")] = None
    evidence_threshold: Annotated[float | None, typer.Option(help="Evidence rule: score from which views add up.")] = (
        None
    )
    alpha: Annotated[
        float | None, typer.Option(help="Instead of --mask-threshold: its lowest value, whatever the base_threshold.")
    ] = None
    beta: Annotated[
        float | None, typer.Option(help="mask_threshold = max(alpha, base_threshold + (1 - base_threshold) * beta).")
    ] = None
    evidence_alpha: Annotated[float | None, typer.Option(help="Evidence rule: alpha of evidence_threshold.")] = None
    evidence_beta: Annotated[float | None, typer.Option(help="Evidence rule: beta of evidence_threshold.")] = None
    evidence_power: Annotated[float | None, typer.Option(help="Evidence rule: exponent. Default: 1.")] = None
    filter_ioa: Annotated[
        float | None, typer.Option(help="Share of a masked box a base box must explain. Default: 0.6.")
    ] = None
    edge_factor: Annotated[
        float | None, typer.Option(help="Factor on scores of boxes cut by their line. Default: 1.")
    ] = None
    cluster_distance: Annotated[
        float | None, typer.Option(help="Boxes whose IoA is at least 1 minus this are one cluster. Default: 0.1.")
    ] = None
    classwise: Annotated[bool | None, typer.Option(help="Prune and certify label by label. Default: yes.")] = None
    filter_iou: Annotated[float | None, typer.Option(help="Use the IoU variant, with this IoU (the paper's: 0.8).")] = (
        None
    )


DefenseName = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|NAME",
        help="Defense file or packaged name. Default: that of the run or detector.",
        autocompletion=complete_defense,
        rich_help_panel="Defense",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; repeatable. See objectseeker defense show.",
        autocompletion=complete_setting,
        rich_help_panel="Defense",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseOptions:
    """The defense, in one file or by name, with settings changed one by one."""

    defense: DefenseName = None
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="SPEC",
            help="Detector, with its default defense. Default: builtin.",
            rich_help_panel="Defense",
        ),
    ] = None
    settings: Settings = None

    def build(self, run: Run | None = None) -> Defense:
        """Return the defense; with a run, by default the one for the run's detector and masks."""
        if self.detector is not None and (run is not None or self.defense is not None):
            owner = "run" if run is not None else "defense"
            raise ObjectSeekerError(f"--detector {self.detector}: the {owner} has its own detector. Omit the option.")
        settings = self.settings or ()
        if self.defense is not None:
            return change_settings(Defense.load(self.defense), settings)
        if run is not None:
            return change_settings(run.defense(), settings)
        return default_defense(self.detector or "builtin", settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDefenseOptions:
    """The defense of a run: a file or a name, with settings changed one by one."""

    defense: DefenseName = None
    settings: Settings = None

    def masks(self) -> Recipe | None:
        """Return the masks that --set names, where nothing else may be set: every run is tuned for."""
        chosen = None
        for setting in self.settings or ():
            key, _, value = setting.partition("=")
            if key.strip() != "masks":
                raise ObjectSeekerError(f"--cross-tune finds the rule itself: got --set {setting}. Set only masks.")
            chosen = parse_recipe(value.strip())
        if self.defense is not None:
            raise ObjectSeekerError(f"--cross-tune finds the rule itself: got --defense {self.defense}. Omit it.")
        return chosen

    def build(self, run: Run) -> Defense:
        """Return the defense, bound to the detector and the masks of the run."""
        defense = run.defense() if self.defense is None else Defense.load(self.defense)
        return run.bind_defense(change_settings(defense, self.settings or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatModelOptions:
    """The threat model of certificates: the patch, wherever it is, and T."""

    patch_area: Annotated[
        str, typer.Option(metavar="SHARE", help="Patch area: 1% or 0.01 of the image.", rich_help_panel="Threat")
    ] = "1%"
    patch_aspect: Annotated[
        float, typer.Option(help="Patch width divided by its height.", rich_help_panel="Threat")
    ] = 1.0
    patch_count: Annotated[
        int, typer.Option(help="Number of patches at the same time, 1 or 2.", rich_help_panel="Threat")
    ] = 1
    certification_threshold: Annotated[
        float | None,
        typer.Option(help="T: overlap with the object to exceed. Default: the rule's.", rich_help_panel="Threat"),
    ] = None

    def threat_model(self) -> ThreatModel:
        from objectseeker.metrics import ThreatModel

        return ThreatModel(
            area=parse_area(self.patch_area),
            aspect=self.patch_aspect,
            count=self.patch_count,
            certification_threshold=self.certification_threshold,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOptions:
    """The threat model of an attack: one kind of patch at one kind of location."""

    patch_area: Annotated[
        str, typer.Option(metavar="SHARE", help="Patch area: 1% or 0.01 of the image.", rich_help_panel="Threat")
    ] = "1%"
    patch_aspect: Annotated[
        float, typer.Option(help="Patch width divided by its height.", rich_help_panel="Threat")
    ] = 1.0
    patch_count: Annotated[
        int, typer.Option(help="Number of patches at the same time, 1 or 2.", rich_help_panel="Threat")
    ] = 1
    patch_location: Annotated[
        str, typer.Option(help="Location relative to the object: far, close, over, anywhere.", rich_help_panel="Threat")
    ] = "over"

    def patch(self) -> Patch:
        location: Any = self.patch_location  # Patch rejects unknown locations
        return Patch(parse_area(self.patch_area), self.patch_aspect, location, self.patch_count)


OperatingPoint = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Measure at clean_recall=0.8, fppi=1 or base_threshold=0.3. Default: the defense's own.",
    ),
]
TagsFile = Annotated[
    Path | None,
    typer.Option("--tags", metavar="FILE", help="Tags of images: CSV with columns image,..., or a COCO file."),
]
Slices = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COLUMN[=VALUE]",
        help="Slices: class, size or a column of --tags; repeatable. Names the worst.",
    ),
]
Processes = Annotated[
    int | None, typer.Option(help="How many processes share the images. Default: as many as there are cores.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.", rich_help_panel="Advanced")]
ClassMap = Annotated[
    str | None,
    typer.Option(
        metavar="DETECTOR=DATASET,...",
        help="Dataset class by detector class, if names differ; or a file of such lines.",
        rich_help_panel="Input",
    ),
]
AllowOutsidePaths = Annotated[
    bool,
    typer.Option(
        "--allow-outside-paths",
        help="Allow annotations to name images outside the folder.",
        rich_help_panel="Advanced",
    ),
]
TrustDetector = Annotated[
    bool,
    typer.Option(
        "--trust-detector",
        help="Confirm that the detector gives the same boxes on another CPU.",
        rich_help_panel="Advanced",
    ),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a group of options replaced by the fields of the group."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            of_group = get_type_hints(hint, include_extras=True)
            shown += [_parameter(field.name, of_group[field.name], _default(field)) for field in fields(hint)]
        else:
            shown.append(_parameter(parameter.name, hint, parameter.default))

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def defense_of(detector: DetectorOptions, masks: MaskOptions, rule: RuleOptions) -> Defense:
    """The defense that the options of a command describe."""
    if rule.defense is not None:
        refuse_beside(rule.defense, rule, detector, masks)
        return Defense.load(rule.defense)
    known = what_is_observed(detector, masks, None)
    chosen, follow = _rule_of(rule, known)
    return replace(known, rule=chosen, threshold_schedule=follow)


def defense_of_run(run: Run, rule: RuleOptions, *, point: bool = False) -> Defense:
    """The defense to apply to a run, bound to its detector and masks: a file's, or the options' rule on the run's own.

    With `point`, --base-threshold chooses an operating point on the curve of a file's rule, and is not refused beside
    it.
    """
    if rule.defense is not None:
        refuse_beside(rule.defense, replace(rule, base_threshold=None) if point else rule)
        return run.bind_defense(Defense.load(rule.defense))
    chosen, follow = _rule_of(rule, run.defense())
    defense = run.bind_defense(run.defense(chosen, follow))
    say(defense)
    return defense


def what_is_observed(detector: DetectorOptions, masks: MaskOptions, file: Path | None) -> Defense:
    """The detector and the masks to observe with, of a defense file or of the options; its rule plays no part."""
    if file is not None:
        refuse_beside(file, detector, masks)
        return Defense.load(file)
    spec, options = detector.given()
    spec = "builtin" if spec is None else spec
    return Defense.for_detector(
        spec, masks=_masks_of(masks), **options | ({} if masks.fill is None else {"fill": masks.fill})
    )


def parse_operating_point(text: str | None) -> dict[str, Any]:
    """Parse --operating-point: one of clean_recall, fppi and base_threshold, and its value."""
    if text is None:
        return {}
    key, equals, value = (part.strip() for part in text.partition("="))
    try:
        if key not in OPERATING_POINT_KEYS or not equals:
            raise ValueError
        return {key: float(value)}
    except ValueError:
        raise ObjectSeekerError(
            f"--operating-point is KEY=VALUE with {', '.join(OPERATING_POINT_KEYS)}: got {text[:80]!r}"
        ) from None


def defense_and_settings(
    run: Run, defense: RunDefenseOptions, threat: ThreatModelOptions, operating_point: str | None
) -> tuple[Defense, EvaluationSettings]:
    """Return the defense to measure on a run, and how: the threat, and the operating point (by default its own)."""
    from objectseeker.metrics.evaluation import settings_for

    chosen = defense.build(run)
    note_masks(chosen.masks, threat.patch_count)
    return chosen, settings_for(run, chosen, threat=threat.threat_model(), **parse_operating_point(operating_point))


def tags_and_slices(run: Run, file: Path | None, slices: list[str] | None) -> tuple[ImageTags, list[str]]:
    """The tags of a run's images and the slices asked for, each of which is there; a file alone asks for all of it."""
    from objectseeker.metrics.slices import NO_TAGS, require_slices, tags_of_run

    tags = NO_TAGS if file is None else tags_of_run(file, run)
    if tags.missing:
        warn(f"{tags.missing} of {len(run.parts)} images have no row in {file}: they are in none of its slices")
    asked = slices or list(tags.columns)
    require_slices(asked, run.vocabulary.dataset_names, tags)
    return tags, asked


def refuse_beside_run(folder: Path, *groups: Any) -> None:
    """A run has its detector and its masks: other ones cannot be named beside it."""
    given = [name for group in groups for name in _given(group)]
    if given:
        raise ObjectSeekerError(f"{folder} has its own detector and masks: leave out {_options(given)}")


def read_class_map(text: str) -> dict[str, str]:
    """DETECTOR=DATASET,... or a file with one pair a line, as pairs of class names."""
    lines = text.split(",")
    if "=" not in text:
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ObjectSeekerError(
                f"a class map is DETECTOR=DATASET,... or a file of such lines, got {text!r}"
            ) from None
    pairs = {}
    for line in filter(None, map(str.strip, lines)):
        detector, equals, dataset = (part.strip() for part in line.partition("="))
        if not (detector and equals and dataset) or detector in pairs:
            raise ObjectSeekerError(f"a class map pairs every detector class once, as Pkw=car, got {line!r}")
        pairs[detector] = dataset
    return pairs


def say(defense: Defense) -> None:
    """The settings in full, where they come from no file: what is printed can be typed again."""
    values = defense.rule.settings().items()
    shown = ", ".join(f"{name} {value!r}" for name, value in values if value is not None)
    notes.print(f"rule: {shown}; masks {defense.masks}, fill {defense.fill}")


def open_run(folder: Path) -> Run:
    """The run, with a word on what is missing from it."""
    from objectseeker.runs.run import open_run

    run = open_run(folder)
    if not run.complete:
        warn(f"{folder} is unfinished: {run.finished} of {len(run.manifest.images)} images are used")
    for image in run.broken:
        warn(f"left out: {image.reason}")
    if run.manifest.unmatched_classes:
        warn(f"classes left out because the detector does not know them: {', '.join(run.manifest.unmatched_classes)}")
    return run


def note_masks(masks: Recipe, patches: int) -> None:
    """Say so where masks are not made for the threat."""
    if patches == 2 and not str(masks).startswith("pairs"):
        warn(f"{masks} remove one patch each: two are certified where one mask removes both; use --masks pairs:10")


def _rule_of(rule: RuleOptions, known: Defense) -> tuple[PruningRule, ThresholdSchedule | None]:
    """The rule that the options give, else the one known for the detector; and how its scores follow base_threshold."""
    given = _given(rule)
    filter_iou = given.pop("filter_iou", None)
    curve = {name: given.pop(name) for name in ("alpha", "beta", "evidence_alpha", "evidence_beta") if name in given}
    scores = given.keys() & {"mask_threshold", "evidence_threshold"}
    if curve and scores:
        raise ObjectSeekerError(f"give {_options(scores)} or {_options(curve)}, not both: each fixes the other")
    follow: ThresholdSchedule | None
    chosen: PruningRule
    if curve:
        follow = ThresholdSchedule(**curve)
        chosen = follow.rule(Rule(**given), given.get("base_threshold", known.rule.base_threshold))
    elif scores:
        follow, chosen = None, Rule(**given)
    else:
        follow, base_threshold = known.resolved_schedule, given.pop("base_threshold", None)
        chosen = known.rule if base_threshold is None else follow.rule(known.rule, base_threshold)
        chosen = chosen.with_settings(**given)
    return with_filter_iou(chosen, filter_iou), follow


def _masks_of(masks: MaskOptions) -> Recipe:
    return parse_recipe(masks.masks or "halves:30")


def refuse_beside(file: Path | None, *groups: Any) -> None:
    """A defense file says it all: settings beside it are refused."""
    given = [name for group in groups for name in _given(group) if name != "defense"]
    if given:
        raise ObjectSeekerError(f"{file} says it all: leave out {_options(given)}, or the file")


def _given(group: Any) -> dict[str, Any]:
    return {field.name: getattr(group, field.name) for field in fields(group) if getattr(group, field.name) is not None}


def _options(names: Any) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
