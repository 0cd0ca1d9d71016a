"""A defense: a detector with everything that decides its output, as one object and one file.

The certified defense is the deployed one: `tune` writes a defense, every command takes one (`--defense FILE`), every
result names the one it was computed with, and a run rejects a defense whose detector, masks, fill or mask mode is not
the run's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from objectseeker import codec, detectors
from objectseeker.core.masks import DEFAULT_FILL, require_gray
from objectseeker.core.recipes import Halves, Recipe, parse_recipe, require_recipe
from objectseeker.core.rules import PruningRule, Rule, rule_from_dict, rule_setting_names
from objectseeker.core.rules.iou import with_filter_iou
from objectseeker.core.seeker import Detector, ObjectSeeker
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.detectors.network.class_names import MAX_CLASSES
from objectseeker.detectors.network.fingerprint import describe_difference, differs_only_in_cpu
from objectseeker.detectors.python import callable_name
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.files.atomic import save_text

FORMAT = 1
BATCH = 8  # views at a time, for a detector that does not make its own batches
MOST_VIEWS = 65_536  # of a batch; an image has fewer
FILE_KINDS = ("onnx", "ultralytics", "transformers")  # what follows the colon is, or may be, a file or folder

# For any detector without a tuned rule: one masked box decides. At a base threshold of 0.5 it certifies 11 to 16 points
# more of a detector's own boxes than the evidence rule below, for 0.1 to 0.2 spurious boxes per image more, also of
# detectors that it was not chosen on (docs/results/unlabeled.md).
DEFAULT_SCHEDULE = ThresholdSchedule(alpha=0.5, beta=0.3)
DEFAULT_RULE = DEFAULT_SCHEDULE.rule(Rule(filter_ioa=0.75, edge_factor=0.85, cluster_distance=0.3), 0.5)

# What `rule=evidence` is for such a detector: round values that lose about a point of AP at most on VOC and COCO.
EVIDENCE_SCHEDULE = ThresholdSchedule(alpha=0.35, beta=0.25, evidence_alpha=0.2, evidence_beta=0.15)
EVIDENCE_RULE = EVIDENCE_SCHEDULE.rule(Rule(edge_factor=0.7), 0.5)

# For the built-in detector: round values that certify much for at most a point of AP on VOC and COCO images that it was
# not trained on, with half masks, and with about 30 passes for squares of up to 1 % of the image
# (docs/reference/builtin-detector.md).
# Video: where a frame shows an eighth of the masks, one view must decide nearly alone, and may (docs/guides/video.md).
BUILTIN_SCHEDULE = ThresholdSchedule(alpha=0.4, beta=0.35, evidence_alpha=0.15, evidence_beta=0.05)
BUILTIN_RULE = BUILTIN_SCHEDULE.rule(Rule(edge_factor=0.8, cluster_distance=0.3, filter_ioa=0.7), 0.2)
FAST_SCHEDULE = ThresholdSchedule(alpha=0.35, beta=0.2, evidence_alpha=0.15, evidence_beta=0.0)
FAST_RULE = FAST_SCHEDULE.rule(Rule(edge_factor=0.9, cluster_distance=0.3, filter_ioa=0.7), 0.2)
FAST_MASKS = parse_recipe("bands:1%,spacing=2+bands:1%")
VIDEO_SCHEDULE = ThresholdSchedule(alpha=0.22, beta=0.1, evidence_alpha=0.15, evidence_beta=0.08)
VIDEO_RULE = VIDEO_SCHEDULE.rule(Rule(edge_factor=0.85), 0.2)
VIDEO_MASKS = parse_recipe("rolling:8:halves:30")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defense:
    """A detector, a mask recipe and a rule.

    `detector` is a SPEC, or a callable: a defense in memory, which cannot be saved. `layout`, `input_size`,
    `class_names`, `score_floor`, `mask_mode`, `precision` and `batch_size` are the options of `load_detector`; None is
    the detector's own default. `fingerprint` says which detector that was (weights, settings, device): a defense that
    has one rejects any other.

    `threshold_schedule` says how the scores of the rule follow base_threshold. Only the AP of the paper's protocol and
    operating points other than the rule's own need it; without it they follow on the curve through the rule's own
    scores.

    `tuned_on` remembers by hash which images chose the rule (`encode_images`): no verdict should rest on these.

    Example:
        >>> from objectseeker import Defense, Halves, Rule
        >>> defense = Defense(detector="onnx:model.onnx", rule=Rule(base_threshold=0.3), masks=Halves(10))
        >>> defense.save("defense.json")
        >>> Defense.load("defense.json") == defense
        True
    """

    detector: str | Detector
    rule: PruningRule
    masks: Recipe = field(default_factory=Halves)
    fill: int = DEFAULT_FILL
    batch_size: int | None = None
    layout: str | None = None
    input_size: int | tuple[int, int] | None = None
    class_names: tuple[str, ...] | None = None
    score_floor: float | None = None
    mask_mode: str | None = None
    precision: str | None = None
    fingerprint: str | None = None
    threshold_schedule: ThresholdSchedule | None = None
    tuned_on: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.detector, str):
            detectors.require_spec(self.detector)
        elif not callable(self.detector):
            raise ObjectSeekerError(f"detector must be a SPEC or a callable: got {self.detector!r}")
        if not isinstance(self.rule, PruningRule):
            raise ObjectSeekerError(f"rule must be a Rule, an IouRule or another PruningRule: got {self.rule!r}")
        require_recipe(self.masks)
        for name in ("layout", "mask_mode", "precision", "fingerprint", "tuned_on"):
            if not isinstance(getattr(self, name), str | None):
                raise ObjectSeekerError(f"{name} must be a string: got {getattr(self, name)!r}")
        # Stored as checked: equal defenses are then written alike, and have one checksum.
        checked: dict[str, object] = {"fill": require_gray(self.fill), "class_names": _names(self.class_names)}
        if self.batch_size is not None:
            checked["batch_size"] = require_count(self.batch_size, "batch_size")
            if self.batch_size > MOST_VIEWS:
                raise ObjectSeekerError(f"batch_size must be at most {MOST_VIEWS:,}: got {self.batch_size!r}")
        if self.score_floor is not None:
            checked["score_floor"] = require_fraction(self.score_floor, "score_floor")
        if self.input_size is not None:
            checked["input_size"] = _size(self.input_size)
        _decode_images(self.tuned_on)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if (
            self.threshold_schedule is not None
            and self.threshold_schedule.rule(self.rule, self.rule.base_threshold) != self.rule
        ):
            raise ObjectSeekerError(
                f"the rule's scores are not those of {self.threshold_schedule} at {self.rule.base_threshold!r}: "
                "set one of them"
            )

    @classmethod
    def for_detector(cls, detector: str | Detector, **options: Any) -> Defense:
        """Return the default defense of a detector: the built-in detector's own rule, else the general one.

        With the masks of `builtin-fast` or `builtin-video` it is theirs: a run observed with one is evaluated by it.
        """
        rule, schedule = DEFAULT_RULE, DEFAULT_SCHEDULE
        if isinstance(detector, str) and detectors.require_spec(detector)[0] == "builtin":
            rule, schedule = BUILTIN_RULE, BUILTIN_SCHEDULE
            if options.get("masks") == FAST_MASKS:
                rule, schedule = FAST_RULE, FAST_SCHEDULE
            elif options.get("masks") == VIDEO_MASKS:
                rule, schedule = VIDEO_RULE, VIDEO_SCHEDULE
        own: dict[str, Any] = {"rule": rule, "threshold_schedule": schedule}
        return cls(detector=resolve_local_spec(detector) if isinstance(detector, str) else detector, **own | options)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of `detectors.load_detector`, without the spec and the device."""
        return {name: getattr(self, name) for name in detectors.OPTIONS if getattr(self, name) is not None}

    @property
    def detector_name(self) -> str:
        """The SPEC, or the name of a callable, which no file can name."""
        return self.detector if isinstance(self.detector, str) else f"callable:{callable_name(self.detector)}"

    @property
    def resolved_schedule(self) -> ThresholdSchedule:
        """Return the thresholds by base threshold."""
        return self.threshold_schedule or ThresholdSchedule.from_rule(self.rule)

    @property
    def sha256(self) -> str:
        """Of everything that decides the output; where the detector's file lies does not."""
        decides = self.to_dict() | {"detector": spec_without_path(self.detector_name), "threshold_schedule": None}
        del decides["tuned_on"]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def is_untuned(self) -> bool:
        """Return whether the rule is the general default, not one chosen for this detector."""
        general = DEFAULT_SCHEDULE.rule(DEFAULT_RULE, self.rule.base_threshold)
        builtin = isinstance(self.detector, str) and self.detector.partition(":")[0] == "builtin"
        return not builtin and self.rule == general

    def count_tuned(self, hashes: Iterable[str]) -> int:
        """Return how many of the images with these file hashes chose the rule: an estimate for many."""
        chosen, images = _decode_images(self.tuned_on)
        if not chosen:
            return 0
        found = sum(entry in chosen for entry in map(_short_hash, set(hashes)))
        return round(found * images / len(chosen))

    def build(self, device: str | None = None, *, trust_detector: bool = False) -> ObjectSeeker:
        """Build the defended detector; reject a detector that is not the one of this defense.

        `trust_detector` confirms that it returns the same boxes on this CPU as on the one it was observed on, where
        that is the only difference.
        """
        detector = self.load_detector(device, trust_detector=trust_detector)
        return ObjectSeeker(detector, self.rule, masks=self.masks, fill=self.fill, batch_size=self.batch_size or BATCH)

    def load_detector(self, device: str | None = None, *, trust_detector: bool = False) -> detectors.LoadedDetector:
        """Load the detector without its defense; rejects a detector other than the one this defense is about."""
        detector = detectors.load_detector(self.detector, device=device, **self.options)
        self.require_detector(detector.fingerprint, trust_detector=trust_detector)
        return detector

    def require_detector(self, fingerprint: str, *, trust_detector: bool | None = None) -> None:
        """Reject a detector other than the one that this defense is about, if it names one.

        `trust_detector` accepts the same detector on another processor; None: that is not possible here.
        """
        expected = self.fingerprint
        other_cpu = expected is not None and expected != fingerprint and differs_only_in_cpu(expected, fingerprint)
        if expected in (None, fingerprint) or (other_cpu and trust_detector):
            return
        what = f"the detector {expected}, but {self.detector_name} is {fingerprint} here"
        advice = "observe and tune with this one"
        if expected is not None and other_cpu:
            what = f"{self.detector_name} on another processor: {describe_difference(expected, fingerprint)}"
            if trust_detector is not None:
                advice += ", or say --trust-detector (trust_detector=True) if you know that both give the same boxes"
        raise ObjectSeekerError(f"this defense is about {what}: certificates do not carry over; {advice}")

    def with_fingerprint(self, fingerprint: str) -> Defense:
        """This defense, about the one detector that has this fingerprint."""
        return replace(self, fingerprint=fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `from_dict` reads back to an equal defense."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values |= {"detector": self.detector_name, "rule": self.rule.to_dict()}
        return {"format": FORMAT, **{name: codec.to_plain(value) for name, value in values.items()}}

    def to_public_dict(self) -> dict[str, Any]:
        """Return the settings and their checksum without the path of the detector's file, to be shared."""
        return self.to_dict() | {"detector": spec_without_path(self.detector_name), "sha256": self.sha256}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the defense") -> Defense:
        """Read what `to_dict` or `to_public_dict` returned; errors name `source`.

        Raises:
            ObjectSeekerError: A key is unknown or missing, a value has another type, or the settings are not those of
                their checksum.
        """
        document = codec.from_plain(
            content, _DefenseFile, source, format=FORMAT, fix="write it with Defense.save or objectseeker tune"
        )
        values = {item.name: getattr(document, item.name) for item in fields(cls)}
        try:
            defense = cls(**values | {"rule": rule_from_dict(document.rule)})
        except ObjectSeekerError as error:
            raise ObjectSeekerError(f"{source} cannot be used: {error}") from None
        if document.sha256 not in (None, defense.sha256):
            raise ObjectSeekerError(
                f"{source} was edited: its settings are not those of its sha256; remove that line to make it "
                "another one"
            )
        return defense

    def save(self, path: str | Path) -> None:
        """Write the file. A detector's file is named relative to it, so both can move together."""
        if not isinstance(self.detector, str):
            raise ObjectSeekerError(
                f"a defense with a callable cannot be saved: got {self.detector_name}: put the callable into a module "
                "and name it as python:MODULE:FUNCTION"
            )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        placed = replace(self, detector=spec_relative_to(self.detector, path.parent))
        content = placed.to_dict() | {"sha256": placed.sha256}
        save_text(path, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Defense:
        """Load a defense from a file, or a built-in one by its name unless a file has that name.

        Rejects a file whose settings were edited without its checksum.
        """
        path = Path(path)
        if str(path) in BUILTIN_DEFENSES and not path.is_file():
            return BUILTIN_DEFENSES[str(path)]
        try:
            text = path.read_bytes()
        except OSError as error:
            known = f"; by name there are {', '.join(BUILTIN_DEFENSES)}" if isinstance(error, FileNotFoundError) else ""
            raise ObjectSeekerError(f"cannot read the defense {path}: {error.strerror}{known}") from None
        content = codec.parse_json(text, str(path), fix="it is not a defense file, write one with objectseeker tune")
        defense = cls.from_dict(content, str(path))
        return replace(defense, detector=spec_resolved_from(defense.detector_name, path.parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DefenseFile:
    """A defense file, without its format."""

    detector: str
    rule: dict[str, Any]  # by its kind
    masks: Recipe
    fill: int = DEFAULT_FILL
    batch_size: int | None = None
    layout: str | None = None
    input_size: int | tuple[int, int] | None = None
    class_names: tuple[str, ...] | None = None
    score_floor: float | None = None
    mask_mode: str | None = None
    precision: str | None = None
    fingerprint: str | None = None
    threshold_schedule: ThresholdSchedule | None = None
    tuned_on: str | None = None
    sha256: str | None = None


# The images that chose a defense, by the first HASH_BYTES of the hashes of their files: "IMAGES:BASE64". Of very many
# images only the MAX_HASHES smallest hashes are kept.
HASH_BYTES, MAX_HASHES = 6, 8192


def encode_images(hashes: Iterable[str]) -> str:
    """Encode which images chose a defense, from the hashes of their files."""
    every = sorted({_short_hash(file_hash) for file_hash in hashes})
    return f"{len(every)}:{base64.b64encode(b''.join(every[:MAX_HASHES])).decode()}"


def _short_hash(file_hash: str) -> bytes:
    return bytes.fromhex(file_hash)[:HASH_BYTES]


def _decode_images(text: str | None) -> tuple[frozenset[bytes], int]:
    """Return the short hashes, and of how many images they were taken."""
    if text is None:
        return frozenset(), 0
    count, _, encoded = text.partition(":")
    try:
        content, images = base64.b64decode(encoded, validate=True), int(count)
        parts = [content[start : start + HASH_BYTES] for start in range(0, len(content), HASH_BYTES)]
        if len(content) % HASH_BYTES or images < len(parts):
            raise ValueError
    except ValueError:
        raise ObjectSeekerError(f"tuned_on must be as tune writes it: got {text[:80]!r}") from None
    return frozenset(parts), images


def _names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ObjectSeekerError(f"class_names must be strings: got {str(names)[:80]!r}")
    if not 0 < len(names) <= MAX_CLASSES:
        raise ObjectSeekerError(
            f"class_names must name 1 to {MAX_CLASSES:,} classes: got {len(names)}: or leave them out"
        )
    return tuple(names)


def _size(size: Any) -> int | tuple[int, int]:
    if isinstance(size, tuple | list):
        if len(size) != 2:
            raise ObjectSeekerError(f"input_size must be a side or width and height: got {size!r}")
        return require_count(size[0], "input width"), require_count(size[1], "input height")
    return require_count(size, "input_size")


def _file_of(spec: str) -> tuple[str, str]:
    """Split a spec before the path of its file or folder; the path is empty if it has none."""
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        before, own, file = spec.partition(detectors.WEIGHTS)
        return f"{before}{own}", file
    hub = kind == "transformers" and not name.startswith((".", "/"))  # OWNER/NAME, not a folder
    return (f"{kind}:", name) if kind in FILE_KINDS and not hub else (spec, "")


def _moved(spec: str, move: Any) -> str:
    """Return the spec with the path of its file changed; a spec without a file is returned unchanged."""
    before, name = _file_of(spec)
    return _at(before, os.path.normpath(move(name))) if name else spec


def _at(before: str, name: str) -> str:
    """Join a spec; the path of a transformers folder begins with ./ where it could be a name on the hub."""
    hub_like = before == "transformers:" and not name.startswith((".", "/"))
    return f"{before}./{name}" if hub_like else f"{before}{name}"


def resolve_local_spec(spec: str) -> str:
    """Return a spec typed by a user with ./ before a local folder: only here does the disk decide."""
    kind, _, name = spec.partition(":")
    return _at(f"{kind}:", name) if kind == "transformers" and Path(name).is_dir() else spec


def spec_without_path(spec: str) -> str:
    """Return a spec to compare: runs and defenses may have been written in different places."""
    before, name = _file_of(spec)
    return _at(before, Path(name).name) if name else spec


def spec_relative_to(spec: str, folder: Path) -> str:
    """Return a spec whose path is relative to `folder`, so that both can move together."""
    return _moved(resolve_local_spec(spec), lambda file: os.path.relpath(file, folder))


def spec_resolved_from(spec: str, folder: Path) -> str:
    """The spec that `relative_to` gave, as seen from the current folder."""
    return _moved(spec, lambda file: str(folder / file))


SCHEDULE_SETTINGS = tuple(item.name for item in fields(ThresholdSchedule))
DETECTOR_SETTINGS = ("detector", *detectors.OPTIONS)
RULES = ("paper", "evidence")
SETTINGS = ("masks", "fill", "rule", *rule_setting_names(), *SCHEDULE_SETTINGS, *DETECTOR_SETTINGS)  # of --set


def set_defense_value(defense: Defense, setting: str) -> Defense:
    """Return a defense with one setting changed, as `--set KEY=VALUE` does.

    Keys are those of the defense file. `base_threshold` moves the mask thresholds along the threshold schedule;
    `mask_threshold` and `evidence_threshold` replace the schedule; alpha, beta, `evidence_alpha` and `evidence_beta`
    change it. `rule` replaces the rule and its schedule, but not base_threshold: `paper` is the paper's rule,
    `evidence` that of the detector and the masks. `filter_iou` selects the IoU rule. Values are numbers,
    true, false, none, lists as in JSON, or text.
    A defense with another detector or other detector options loses its fingerprint.

    Raises:
        ObjectSeekerError: The key or the value is unknown.

    Example:
        >>> set_defense_value(Defense.load("builtin"), "mask_threshold=0.7").rule.mask_threshold
        0.7
    """
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or key not in (*SETTINGS, *defense.rule.setting_names()):
        raise ObjectSeekerError(
            f"not a setting of a defense: got {setting[:80]!r}. Use KEY=VALUE, with a key that "
            "`objectseeker defense show builtin` lists."
        )
    try:
        value = None if text.lower() == "none" else json.loads(text)
    except (ValueError, RecursionError):
        value = text
    try:
        return _with_setting(defense, key, value)
    except TypeError:
        raise ObjectSeekerError(
            f"{key} cannot have this value: got {text!r}. Use a value as in a defense file."
        ) from None


def _with_setting(defense: Defense, key: str, value: Any) -> Defense:
    rule, schedule = defense.rule, defense.threshold_schedule
    if key == "masks":
        return replace(defense, masks=parse_recipe(str(value)))
    if key == "fill":
        return replace(defense, fill=value)
    if key == "rule":
        return _with_rule(defense, value)
    if key in DETECTOR_SETTINGS:
        if key == "detector":
            value = resolve_local_spec(str(value))
        elif key == "class_names" and isinstance(value, str):
            value = tuple(name.strip() for name in value.split(","))
        changed: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value, "fingerprint": None}
        return replace(defense, **changed)
    if key == "filter_iou":
        return replace(defense, rule=with_filter_iou(rule, value))
    if key in SCHEDULE_SETTINGS:
        values = asdict(defense.resolved_schedule) | {key: value}
        if key.startswith("evidence_"):  # both or none
            both = ("evidence_alpha", "evidence_beta")
            values |= {name: None if value is None else values[name] or 0.0 for name in both}
        schedule = ThresholdSchedule(**values)
        return replace(defense, rule=schedule.rule(rule, rule.base_threshold), threshold_schedule=schedule)
    if key == "base_threshold" and schedule is not None:
        return replace(defense, rule=schedule.rule(rule, value))
    if key in ("mask_threshold", "evidence_threshold"):
        schedule = None
    return replace(defense, rule=rule.with_settings(**{key: value}), threshold_schedule=schedule)


def _with_rule(defense: Defense, name: Any) -> Defense:
    if name not in RULES:
        raise ObjectSeekerError(f"unknown rule: got {name!r}. Use {' or '.join(RULES)}.")
    new: PruningRule = Rule()  # the paper's
    schedule = ThresholdSchedule()
    if name == "evidence":
        default = Defense.for_detector(defense.detector, masks=defense.masks)
        new, schedule = default.rule, default.resolved_schedule
        if new.evidence_threshold is None:
            new, schedule = EVIDENCE_RULE, EVIDENCE_SCHEDULE
    return replace(defense, rule=schedule.rule(new, defense.rule.base_threshold), threshold_schedule=schedule)


# What `Defense.load` and --defense take by name: the built-in detector's own defense, one of a quarter of its cost, and
# one of an eighth for frames.
BUILTIN_DEFENSES = {
    "builtin": Defense.for_detector("builtin"),
    "builtin-fast": Defense.for_detector("builtin", masks=FAST_MASKS),
    "builtin-video": Defense.for_detector("builtin", masks=VIDEO_MASKS),
}
