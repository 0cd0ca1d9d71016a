"""Settings of a defense on the command line: what they mean, `--set KEY=VALUE`, and shell completion."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from objectseeker import Defense, ObjectSeekerError
from objectseeker.core.recipes import parse_recipe
from objectseeker.defense import BUILTIN_DEFENSES, SCHEDULE_SETTINGS, set_defense_value
from objectseeker.detectors.network.class_names import MAX_CLASSES

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
    masks = [value for key, value in map(_split, settings) if key == "masks"]
    options: dict[str, Any] = {"masks": parse_recipe(masks[-1])} if masks else {}
    return change_settings(Defense.for_detector(spec, **options), settings)


def change_settings(defense: Defense, settings: Sequence[str]) -> Defense:
    """Apply KEY=VALUE settings in order; `class_names=@FILE` reads one class name per line."""
    for setting in settings:
        key, value = _split(setting)
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


def _split(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key.strip(), value.strip()
