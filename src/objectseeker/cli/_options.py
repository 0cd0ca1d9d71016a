"""Options that several commands share, written once: groups of them, and what is made of each group.

A command names a group as one parameter; `expand_groups` shows the command line its fields as single options.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from objectseeker import Defense, ObjectSeekerError, Patch
from objectseeker.cli._console import stderr_console, warn
from objectseeker.cli._settings import change_settings, complete_defense, complete_setting, default_defense
from objectseeker.core.recipes import Recipe, has_windows, parse_recipe
from objectseeker.core.threats import parse_area

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings, ThreatModel
    from objectseeker.metrics.slices import ImageTags
    from objectseeker.runs.run import Run

DATASET = "coco:FILE.json:IMAGES, voc:DIR:SPLIT, yolo:DIR, or a folder."

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that observe wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel="Output")]
PatchArea = Annotated[
    str, typer.Option(metavar="SHARE", help="Share of the image. [1%]", show_default=False, rich_help_panel="Threat")
]
PatchAspect = Annotated[
    float, typer.Option(metavar="X", help="Width divided by height. [1]", show_default=False, rich_help_panel="Threat")
]
PatchCount = Annotated[
    int, typer.Option(metavar="N", help="Patches at the same time. [1]", show_default=False, rich_help_panel="Threat")
]
DefenseName = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|NAME",
        help="File or name. Default: the detector's.",
        autocompletion=complete_defense,
        rich_help_panel="Defense",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; see defense show.",
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
            help="Detector. Default: builtin.",
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
    """The threat model of certificates: the patch at any location, and T."""

    patch_area: PatchArea = "1%"
    patch_aspect: PatchAspect = 1.0
    patch_count: PatchCount = 1
    certification_threshold: Annotated[
        float | None,
        typer.Option(metavar="X", help="T, the overlap to exceed. [0]", rich_help_panel="Threat"),
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

    patch_area: PatchArea = "1%"
    patch_aspect: PatchAspect = 1.0
    patch_count: PatchCount = 1
    patch_location: Annotated[
        str,
        typer.Option(
            metavar="LOCATION",
            help="far, close, over, anywhere or outside. [over]",
            show_default=False,
            rich_help_panel="Threat",
        ),
    ] = "over"

    def patch(self) -> Patch:
        location: Any = self.patch_location  # Patch rejects unknown locations
        return Patch(parse_area(self.patch_area), self.patch_aspect, location, self.patch_count)


OperatingPoint = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="At clean_recall=0.8, fppi=1 or base_threshold=0.3.",
        rich_help_panel="Defense",
    ),
]
TagsFile = Annotated[
    Path | None,
    typer.Option("--tags", metavar="FILE", help="Tags of images: CSV with a column image, or COCO."),
]
Slices = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COLUMN[=VALUE]",
        help="Slices: class, size, a column of --tags; repeatable.",
        rich_help_panel="Output",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu, openvino, cuda or cuda:1.", rich_help_panel="Advanced")
]
ClassMap = Annotated[
    str | None,
    typer.Option(
        metavar="A=B,...",
        help="Detector=dataset class; or a file.",
        rich_help_panel="Advanced",
    ),
]
AllowOutsidePaths = Annotated[
    bool,
    typer.Option(
        "--allow-outside-paths",
        help="Allow images outside the folder.",
        rich_help_panel="Advanced",
    ),
]
TrustDetector = Annotated[
    bool,
    typer.Option(
        "--trust-detector",
        help="Confirm it is the same one.",
        rich_help_panel="Advanced",
    ),
]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
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


def parse_operating_point(text: str | None) -> dict[str, Any]:
    """Parse --operating-point: one of clean_recall, fppi and base_threshold, and its value."""
    from objectseeker.metrics.settings import OPERATING_POINT_KEYS

    if text is None:
        return {}
    key, equals, value = (part.strip() for part in text.partition("="))
    try:
        if key not in OPERATING_POINT_KEYS or not equals:
            raise ValueError
        return {key: float(value)}
    except ValueError:
        raise ObjectSeekerError(
            f"--operating-point is KEY=VALUE with clean_recall, fppi, base_threshold: got {text[:80]!r}"
        ) from None


def defense_and_settings(
    run: Run, defense: RunDefenseOptions, threat: ThreatModelOptions, operating_point: str | None
) -> tuple[Defense, EvaluationSettings]:
    """Return the defense to measure on a run, the threat, and the operating point (default: its own)."""
    from objectseeker.metrics.evaluation import settings_for

    chosen = defense.build(run)
    warn_unsuitable_masks(chosen.masks, threat.patch_count)
    warn_untuned(chosen, run.folder)
    warn_tuned_images(run, chosen)
    return chosen, settings_for(run, chosen, threat=threat.threat_model(), **parse_operating_point(operating_point))


def tags_and_slices(run: Run, file: Path | None, slices: list[str] | None) -> tuple[ImageTags, list[str]]:
    """Return the tags of a run's images and the requested slices; without --by all of the file."""
    from objectseeker.metrics.slices import NO_TAGS, require_slices, tags_of_run

    tags = NO_TAGS if file is None else tags_of_run(file, run)
    if tags.missing:
        warn(f"{tags.missing} of {len(run.indices)} images have no row in {file}: they are in none of its slices")
    asked = slices or list(tags.columns)
    require_slices(asked, run.label_map.dataset_names, tags)
    return tags, asked


def read_class_map(text: str) -> dict[str, str]:
    """DETECTOR=DATASET,... or a file with one pair a line, as pairs of class names."""
    lines = text.split(",")
    if "=" not in text:
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ObjectSeekerError(
                f"a class map is DETECTOR=DATASET,... or a file of such lines: got {text!r}"
            ) from None
    pairs = {}
    for line in filter(None, map(str.strip, lines)):
        detector, equals, dataset = (part.strip() for part in line.partition("="))
        if not (detector and equals and dataset) or detector in pairs:
            raise ObjectSeekerError(f"a class map pairs every detector class once, as Pkw=car: got {line!r}")
        pairs[detector] = dataset
    return pairs


def print_rule(defense: Defense) -> None:
    """Print the rule, its thresholds and the masks; `defense show` prints all settings."""
    values = {name: getattr(defense.rule, name) for name in ("base_threshold", "mask_threshold", "evidence_threshold")}
    shown = ", ".join(f"{name} {value!r}" for name, value in values.items() if value is not None)
    stderr_console.print(f"rule: {defense.rule.name}, {shown}; masks {defense.masks}")


def open_run(folder: Path) -> Run:
    """The run, with a word on what is missing from it."""
    from objectseeker.runs.run import open_run

    run = open_run(folder)
    if not run.complete:
        warn(f"{folder} is unfinished: {run.finished} of {len(run.manifest.images)} images are used")
    for image in run.broken:
        warn(f"skipped: {image.reason}")
    if run.manifest.unmatched_classes:
        warn(f"classes skipped because the detector does not know them: {', '.join(run.manifest.unmatched_classes)}")
    return run


def warn_untuned(defense: Defense, source: str | Path) -> None:
    """Say with which command to find a rule for this detector, where it has the general default."""
    if defense.is_untuned:
        run = (Path(source) / "run.json").is_file()
        spec = "" if run else f" --detector {shlex.quote(defense.detector_name)}"
        warn(
            "the rule is the general default, not chosen for this detector. Choose one from unlabeled images: "
            f"objectseeker tune {shlex.quote(str(source))}{spec} --out tuned"
        )


def warn_tuned_images(run: Run, defense: Defense) -> None:
    """Say how many images of a run chose the defense that is measured on them."""
    tuned = run.tuned_images(defense)
    if tuned:
        warn(
            f"{tuned} of the {len(run.indices)} images chose this defense, so it looks better here than it is: measure "
            f"it on images that observe --exclude {shlex.quote(str(run.folder))} leaves"
        )


def warn_unsuitable_masks(masks: Recipe, patches: int) -> None:
    """Say so where masks are not made for the threat."""
    if patches > 1 and "pairs" not in str(masks) and not has_windows(masks):
        warn(f"{masks} remove one patch each: for {patches}, masks such as pairs:10 certify more")
