"""Options that several commands share: groups of them, what is made of each group, and `--set`.

A command names a group as one parameter; `expand_groups` shows the command line its fields as single options.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from objectseeker import Defense, ObjectSeekerError, Patch
from objectseeker.cli._console import stderr_console, warn
from objectseeker.core.recipes import Recipe, has_windows, parse_recipe
from objectseeker.core.threats import parse_area
from objectseeker.defense import BUILTIN_DEFENSES, DETECTOR_SETTINGS, SCHEDULE_SETTINGS, set_defense_value
from objectseeker.detectors.network.class_names import MAX_CLASSES

if TYPE_CHECKING:
    from objectseeker.metrics import EvaluationSettings, ThreatModel
    from objectseeker.metrics.slices import ImageTags
    from objectseeker.runs.run import Run


# In the order in which `objectseeker defense show` prints them.
MEANINGS = {
    "detector": "SPEC of the detector",
    "layout": "family of an ONNX graph, if the graph does not say",
    "input_size": "side of the network input in pixels, or [width, height]",
    "class_names": "class names by label: A,B,... or @FILE, one name per line",
    "score_floor": "lowest score the detector returns",
    "mask_mode": "how pixels are removed: fill, crop, resize, or drop (tokens of a transformer)",
    "precision": "float32, float16 or bfloat16: on a GPU; on OpenVINO float32 or bfloat16",
    "batch_size": "views per forward pass",
    "masks": "mask recipe: halves:30, pairs:10, bands:1%, or a sum of them",
    "fill": "gray value of removed pixels",
    "rule": "paper (one masked box suffices) or evidence (several combine)",
    "base_threshold": "lowest score of a base box",
    "mask_threshold": "score at which one masked box suffices",
    "evidence_threshold": "score at which a masked box starts to count; none: the paper's rule",
    "evidence_power": "exponent of a masked box's evidence",
    "filter_ioa": "share of a masked box that a base box must cover to filter it",
    "filter_iou": "IoU that filters a masked box instead: the IoU rule (the paper: 0.8)",
    "edge_factor": "factor on the score of a box cut by its mask",
    "cluster_distance": "boxes whose IoA is at least 1 minus this form a cluster",
    "classwise": "prune and certify each class separately",
    "support_threshold": "score at which a masked box supports an output box: not fabricated",
    "support_fit": "how a supporting box fits the output box: iou, or ioa (most of it is inside)",
    "support_overlap": "IoU, or covered share, above which a masked box fits",
    "alpha": "schedule: lowest mask_threshold",
    "beta": "schedule: share of the way from base_threshold to 1",
    "evidence_alpha": "schedule: alpha of evidence_threshold",
    "evidence_beta": "schedule: beta of evidence_threshold",
}
VALUES = {
    "rule": ("paper", "evidence"),
    "mask_mode": ("fill", "crop", "resize", "drop"),
    "precision": ("float32", "float16", "bfloat16"),
    "classwise": ("true", "false"),
    "support_fit": ("iou", "ioa"),
    "masks": ("halves:30", "pairs:10", "bands:1%"),
}

KEY_OF_BASH = "_OBJECTSEEKER_KEY"  # of the setting whose value bash completes


def default_defense(spec: str, settings: Sequence[str] = ()) -> Defense:
    """Return the default defense of a detector, with settings changed; masks may select a packaged rule."""
    masks = [value for key, value in map(split_setting, settings) if key == "masks"]
    options: dict[str, Any] = {"masks": parse_recipe(masks[-1])} if masks else {}
    return change_settings(Defense.for_detector(spec, **options), settings)


def change_settings(defense: Defense, settings: Sequence[str]) -> Defense:
    """Apply KEY=VALUE settings in order; `class_names=@FILE` reads one class name per line."""
    for setting in settings:
        key, value = split_setting(setting)
        if key == "class_names" and value.startswith("@"):
            setting = f"class_names={json.dumps(read_names(Path(value[1:])))}"
        defense = set_defense_value(defense, setting)
    return defense


def setting_values(defense: Defense) -> dict[str, Any]:
    """Return the value of every setting; `rule` by the kind of rule."""
    rule = defense.rule.settings()
    named: dict[str, Any] = {
        "detector": defense.detector_name,
        "masks": str(defense.masks),
        "rule": "paper" if defense.rule.evidence_threshold is None else "evidence",
        "filter_iou": rule.get("filter_iou"),
    }
    named |= {name: getattr(defense.threshold_schedule, name, None) for name in SCHEDULE_SETTINGS}
    named |= {name: value for name, value in rule.items() if name not in named}
    return {key: named[key] if key in named else getattr(defense, key, None) for key in MEANINGS}


def read_names(file: Path) -> tuple[str, ...]:
    """Read class names, one per line; blank lines at the end do not count."""
    try:
        lines = file.read_text(encoding="utf-8").rstrip().splitlines()
    except OSError as error:
        raise ObjectSeekerError(f"cannot read the class names in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"{file} is not UTF-8 text: write one class name per line") from None
    names = tuple(line.strip() for line in lines)
    if not 0 < len(names) <= MAX_CLASSES:
        raise ObjectSeekerError(f"{file} has {len(names)} lines: write one class name per line, by label")
    previous: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name or name in previous:
            problem = f"repeats {name[:80]!r}" if name else "is empty"
            raise ObjectSeekerError(f"line {number} of {file} {problem}: write every class name once, by label")
        previous.add(name)
    return names


def join_words_of_bash() -> None:
    """Join KEY=VALUE again in the words that bash asks to complete: it splits a command line at every `=`.

    Of the word under the cursor bash completes what follows the equals sign, so the key is kept apart.
    """
    words = os.environ.get("COMP_WORDS", "").split("\n")
    current = os.environ.get("COMP_CWORD", "")
    if os.environ.get("_OBJECTSEEKER_COMPLETE") != "complete_bash" or "=" not in words or not current.isdecimal():
        return
    joined: list[str] = []
    for number, word in enumerate(words[: int(current) + 1]):
        if joined and (word == "=" or words[number - 1] == "="):
            joined[-1] += word
        else:
            joined.append(word)
    key, equals, value = joined[-1].partition("=")
    if equals:
        os.environ[KEY_OF_BASH], joined[-1] = key, value
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Complete the KEY= of a setting, with its meaning, then values that can be listed."""
    if (key := os.environ.get(KEY_OF_BASH)) is not None:
        return [(value, "") for value in VALUES.get(key, ()) if value.startswith(incomplete)]
    key, equals, _ = incomplete.partition("=")
    offered = (
        [(f"{key}={value}", "") for value in VALUES.get(key, ())]
        if equals
        else [(f"{name}=", meaning) for name, meaning in MEANINGS.items()]
    )
    return [(text, meaning) for text, meaning in offered if text.startswith(incomplete)]


def complete_defense(incomplete: str) -> list[str]:
    """Complete the name of a packaged defense, or the path of a JSON file."""
    folder, stem = Path(incomplete).parent, incomplete.rpartition("/")[2]
    prefix = incomplete[: len(incomplete) - len(stem)]
    try:
        entries = sorted(folder.iterdir() if not incomplete.endswith("/") else Path(incomplete).iterdir())
    except OSError:
        entries = []
    files = [f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries if _is_offered(entry)]
    return [name for name in (*BUILTIN_DEFENSES, *files) if name.startswith(incomplete)]


def _is_offered(path: Path) -> bool:
    return not path.name.startswith(".") and (path.suffix == ".json" or path.is_dir())


def split_setting(setting: str) -> tuple[str, str]:
    """Split KEY=VALUE; without an equals sign the value is empty."""
    key, _, value = setting.partition("=")
    return key.strip(), value.strip()


DATASET = "coco:FILE.json:IMAGES, voc:DIR:SPLIT, yolo:DIR, or a folder."

INPUT, DEFENSE, THREAT, OUTPUT, ADVANCED = "Input", "Defense", "Threat", "Output", "Advanced"


def option(panel: str | None, metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    """Return an option in a panel of --help; a flag has no metavar, and is named to have no --no-."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that observe wrote.")]
Json = Annotated[bool, option(OUTPUT, None, "Print JSON instead of tables.", "--json")]
PatchArea = Annotated[str, option(THREAT, "SHARE", "Share of the image. [1%]", show_default=False)]
CertificationThreshold = Annotated[float | None, option(THREAT, "X", "T, the overlap to exceed. [0]")]
DefenseName = Annotated[
    Path | None, option(DEFENSE, "FILE|NAME", "File or name. Default: the detector's.", autocompletion=complete_defense)
]
Settings = Annotated[
    list[str] | None,
    option(DEFENSE, "KEY=VALUE", "Change a setting; see defense show.", "--set", autocompletion=complete_setting),
]


def _as_options(defense: Path | None, settings: Sequence[str] | None) -> str:
    named = "" if defense is None else f" --defense {shlex.quote(str(defense))}"
    return named + "".join(f" --set {shlex.quote(setting)}" for setting in settings or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseOptions:
    """The defense, in one file or by name, with settings changed one by one."""

    defense: DefenseName = None
    detector: Annotated[str | None, option(DEFENSE, "SPEC", "Detector. Default: builtin.", "--detector", "-d")] = None
    settings: Settings = None

    def as_options(self) -> str:
        """Return the options that choose this defense in the next command."""
        return _as_options(self.defense, self.settings)

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
            key, value = split_setting(setting)
            if key != "masks":
                raise ObjectSeekerError(f"--cross-tune finds the rule itself: got --set {setting}. Set only masks.")
            chosen = parse_recipe(value)
        if self.defense is not None:
            raise ObjectSeekerError(f"--cross-tune finds the rule itself: got --defense {self.defense}. Omit it.")
        return chosen

    def as_options(self) -> str:
        """Return the options that choose this defense in the next command."""
        return _as_options(self.defense, self.settings)

    def build(self, run: Run) -> Defense:
        """Return the defense, bound to the detector and the masks of the run."""
        defense = run.defense() if self.defense is None else Defense.load(self.defense)
        return run.bind_defense(change_settings(defense, self.settings or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSizeOptions:
    """The size and the number of patches."""

    patch_area: PatchArea = "1%"
    patch_aspect: Annotated[float, option(THREAT, "X", "Width divided by height. [1]", show_default=False)] = 1.0
    patch_count: Annotated[int, option(THREAT, "N", "Patches at the same time. [1]", show_default=False)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatModelOptions(PatchSizeOptions):
    """The threat model of certificates: the patch at any location, and T."""

    certification_threshold: CertificationThreshold = None

    def threat_model(self) -> ThreatModel:
        from objectseeker.metrics import ThreatModel

        return ThreatModel(
            area=parse_area(self.patch_area),
            aspect=self.patch_aspect,
            count=self.patch_count,
            certification_threshold=self.certification_threshold,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOptions(PatchSizeOptions):
    """The threat model of an attack: one kind of patch at one kind of location."""

    patch_location: Annotated[
        str, option(THREAT, "LOCATION", "far, close, over, anywhere or outside. [over]", show_default=False)
    ] = "over"

    def patch(self) -> Patch:
        location: Any = self.patch_location  # Patch rejects unknown locations
        return Patch(parse_area(self.patch_area), self.patch_aspect, location, self.patch_count)


OperatingPoint = Annotated[
    str | None, option(DEFENSE, "KEY=VALUE", "At clean_recall=0.8, fppi=1 or base_threshold=0.3.")
]
TagsFile = Annotated[Path | None, option(None, "FILE", "Tags of images: CSV with a column image, or COCO.", "--tags")]
Slices = Annotated[
    list[str] | None, option(OUTPUT, "COLUMN[=VALUE]", "Slices: class, size, a column of --tags; repeatable.", "--by")
]
BaselineDefense = Annotated[Path | None, option(DEFENSE, "FILE", "Defense of the baseline.")]
Devices = Annotated[str | None, option(ADVANCED, "DEVICES", "cpu, openvino, cuda (all GPUs), or cuda:0,cuda:1.")]
Device = Annotated[str | None, option(ADVANCED, "DEVICE", "cpu, openvino, cuda or cuda:1.")]
ClassMap = Annotated[str | None, option(ADVANCED, "A=B,...", "Detector=dataset class; or a file.")]
AllowOutsidePaths = Annotated[bool, option(ADVANCED, None, "Allow images outside the folder.", "--allow-outside-paths")]
TrustDetector = Annotated[bool, option(ADVANCED, None, "Confirm it is the same one.", "--trust-detector")]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of each group in place of the group."""
    hints = get_type_hints(command, include_extras=True)
    shown: dict[str, tuple[Any, Any]] = {}
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if is_dataclass(hint) and isinstance(hint, type):
            groups[name] = hint
            of_group = get_type_hints(hint, include_extras=True)
            shown |= {field.name: (of_group[field.name], field.default) for field in fields(hint)}
        else:
            shown[name] = hint, parameter.default

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {name: hint for name, (hint, _) in shown.items()}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in shown.items()
        ]
    )
    return called


def parse_operating_point(text: str | None) -> dict[str, Any]:
    """Parse --operating-point: one of clean_recall, fppi and base_threshold, and its value."""
    from objectseeker.metrics.settings import OPERATING_POINT_KEYS

    if text is None:
        return {}
    key, value = split_setting(text)
    try:
        if key not in OPERATING_POINT_KEYS:
            raise ValueError
        return {key: float(value)}
    except ValueError:
        raise ObjectSeekerError(
            f"--operating-point must be KEY=VALUE with clean_recall, fppi, base_threshold: got {text[:80]!r}"
        ) from None


def defense_and_settings(
    run: Run, defense: RunDefenseOptions, threat: ThreatModelOptions, operating_point: str | None
) -> tuple[Defense, EvaluationSettings]:
    """Return the defense to measure on a run, the threat, and the operating point (default: its own)."""
    from objectseeker.metrics.evaluation import settings_for

    chosen = defense.build(run)
    warn_about_defense(run, chosen, threat.patch_count)
    return chosen, settings_for(run, chosen, threat=threat.threat_model(), **parse_operating_point(operating_point))


def tags_and_slices(run: Run, file: Path | None, slices: list[str] | None) -> tuple[ImageTags, list[str]]:
    """Return the tags of a run's images and the requested slices; without --by all of the file."""
    from objectseeker.metrics.slices import NO_TAGS, require_slices, tags_of_run

    tags = NO_TAGS if file is None else tags_of_run(file, run)
    if tags.missing:
        warn(f"{tags.missing} of {len(run.indices)} images have no row in {file}: they are in none of its slices")
    requested = slices or list(tags.columns)
    require_slices(requested, run.label_map.dataset_names, tags)
    return tags, requested


def read_class_map(text: str) -> dict[str, str]:
    """DETECTOR=DATASET,... or a file with one pair a line, as pairs of class names."""
    lines = text.split(",")
    if "=" not in text:
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ObjectSeekerError(
                f"a class map must be DETECTOR=DATASET,... or a file of such lines: got {text!r}"
            ) from None
    pairs = {}
    for line in filter(None, map(str.strip, lines)):
        detector, dataset = split_setting(line)
        if not (detector and dataset) or detector in pairs:
            raise ObjectSeekerError(f"a class map must pair every detector class once, as Pkw=car: got {line!r}")
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


def tune_command(defense: Defense, source: str | Path, settings: Sequence[str] | None = None) -> str:
    """Return the command that chooses a rule for a detector; `settings` are those of --set."""
    words = ["objectseeker", "tune", str(source)]
    if not (Path(source) / "run.json").is_file():
        words += ["--detector", defense.detector_name]
        for setting in settings or ():
            key, value = split_setting(setting)
            if key == "masks":
                words += ["--masks", value]
            elif key in DETECTOR_SETTINGS:
                words += ["--set", setting]
    return f"{shlex.join(words)} --out tuned"


def warn_about_defense(run: Run, defense: Defense, patches: int) -> None:
    """Say what speaks against measuring this defense on this run."""
    warn_unsuitable_masks(defense.masks, patches)
    warn_untuned(defense, run.folder)
    warn_tuned_images(run, defense)


def warn_untuned(defense: Defense, source: str | Path, settings: Sequence[str] | None = None) -> None:
    """Say with which command to find a rule for this detector, where it has the general default."""
    if defense.is_untuned:
        warn(
            "the rule is the general default, not chosen for this detector. Choose one from unlabeled images: "
            + tune_command(defense, source, settings)
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
