"""Compare ONNX Runtime with OpenVINO: time per defended image, AP50 and certified recall, in one run.

    python scripts/compare_openvino.py voc:VOCdevkit:val --every 16
    python scripts/compare_openvino.py voc:VOCdevkit:val --every 16 --detector onnx:yolox_nano.onnx --masks halves:9

Every image is detected by each engine in turn, so that all share the machine alike. CPU time is that of all threads;
other processes change it less than the time on the clock.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from data_files import add_data_option, save_data

from objectseeker import Defense, open_dataset
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import parse_recipe
from objectseeker.core.seeker import detect_views
from objectseeker.datasets import match_classes
from objectseeker.defense import BUILTIN_DEFENSES
from objectseeker.detectors import load_detector
from objectseeker.metrics import EvaluationSettings, evaluate_images

ENGINES: dict[str, dict[str, str]] = {
    "onnxruntime float32": {},
    "openvino float32": {"device": "openvino"},
    "openvino bfloat16": {"device": "openvino", "precision": "bfloat16"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--every", type=int, default=1, help="use every n-th image")
    parser.add_argument("--detector", default="builtin")
    parser.add_argument("--masks", help="default: those of builtin-fast, or halves:9 for another detector")
    add_data_option(parser)
    arguments = parser.parse_args()
    defense = BUILTIN_DEFENSES["builtin-fast"]
    if arguments.detector != "builtin":
        defense = Defense.for_detector(arguments.detector, masks=parse_recipe(arguments.masks or "halves:9"))
    elif arguments.masks:
        defense = Defense.for_detector("builtin", masks=parse_recipe(arguments.masks))
    detectors = {name: load_detector(arguments.detector, **options) for name, options in ENGINES.items()}
    data, names = open_dataset(arguments.dataset), detectors["onnxruntime float32"].names
    label_map = LabelMap(names, data.names, match_classes(data.names, names).dataset_labels)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ENGINES}
    observed: dict[str, list[ObservedImage]] = {name: [] for name in ENGINES}
    order = list(ENGINES)
    for number, entry in enumerate(list(data.images)[:: arguments.every]):
        image = entry.load()
        height, width = image.shape[:2]
        masks = defense.masks.masks(width, height)
        known = np.isin(entry.ground_truth.label, label_map.dataset_labels)
        truth = entry.ground_truth[known], entry.ignore[known], entry.crowd[known]
        for name in order[number % len(order) :] + order[: number % len(order)]:
            begun = time.perf_counter(), time.process_time()
            base, *masked = detect_views(detectors[name], image, masks, value=defense.fill)
            seconds[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
            seen = Observation(width, height, masks, base, masked)
            observed[name].append(ObservedImage(entry.id, Path(), seen, *truth))
    settings = EvaluationSettings(rule=defense.rule, threshold_schedule=defense.resolved_schedule)
    print(f"{arguments.detector}, {defense.masks}, {len(observed[order[0]])} images")
    rows = []
    for name in order:
        result = evaluate_images(observed[name], label_map, settings, intervals=False)
        clock, cpu = 1000 * np.median(seconds[name], axis=0)
        recall = " ".join(f"{where} {share:.1f}" for where, share in result.defended.certified_recall().items())
        ap50 = f"AP50 {result.undefended.ap50:.1f} defended {result.defended.ap50:.1f}"
        print(f"{name:20} CPU {cpu:5.0f} ms, clock {clock:5.0f} ms per image; {ap50}; certified {recall}", flush=True)
        row = {"": name, "CPU per image": f"{cpu:.0f} ms", "defended AP50": f"{result.defended.ap50:.1f}"}
        rows.append(row | {"certified": recall})
    save_data(arguments.data, rows)
    print(f"{result.objects} objects")


if __name__ == "__main__":
    main()
