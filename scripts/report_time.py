"""Measure the size of a large run's report, and how soon a browser can use it.

    python scripts/report_time.py --images 1000

Builds a synthetic run (the packaged images cut to VOC's sizes, two or three objects per image, a detector that sees
what a mask leaves of them), writes its report and opens it in Chromium. Needs Playwright and a Chromium of the system.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL.Image
from playwright.sync_api import Browser, sync_playwright

from objectseeker import Detections, Observation, Rule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, parse_recipe
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.demo.samples import samples
from objectseeker.metrics import EvaluationSettings
from objectseeker.report import ReportSource, write_page

SIZES = ((500, 375), (375, 500), (500, 333))
CLASSES = 20
FOLLOWS = {
    "paper": ThresholdSchedule(alpha=0.5, beta=0.3),
    "evidence": ThresholdSchedule(alpha=0.6, beta=0.3, evidence_alpha=0.3, evidence_beta=0.1),
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""


def synthetic(folder: Path, count: int, recipe: Recipe) -> list[ObservedImage]:
    rng = np.random.default_rng(0)
    originals = [PIL.Image.open(sample.path).convert("RGB") for sample in samples()]
    masks = {size: recipe.masks(*size) for size in SIZES}
    images = []
    for number in range(count):
        size = SIZES[rng.integers(len(SIZES))]
        path = folder / f"{number:06d}.jpg"
        _cut(originals[rng.integers(len(originals))], size, rng).save(path, quality=90)
        objects = [_box(rng, size) for _ in range(rng.integers(1, 6))]
        truth = Detections(objects, np.ones(len(objects)), rng.integers(CLASSES, size=len(objects)))
        strength = rng.uniform(0.2, 0.95, len(objects))
        views = [_seen(rng, truth, strength, removed) for removed in (None, *masks[size].removed[:, 0])]
        none = np.zeros(len(objects), dtype=bool)
        observation = Observation(*size, masks[size], views[0], views[1:])
        images.append(ObservedImage(path.stem, path, observation, truth, none, none))
    return images


def _cut(image: PIL.Image.Image, size: tuple[int, int], rng: np.random.Generator) -> PIL.Image.Image:
    """A part of an image, so that no two files are alike."""
    part = rng.uniform(0.6, 1.0)
    width, height = (int(part * length) for length in image.size)
    x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.crop((x, y, x + width, y + height)).resize(size)


def _box(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    extent = np.array(size) * rng.uniform(0.1, 0.8, 2)
    corner = rng.uniform(0, np.array(size) - extent)
    return np.concatenate([corner, corner + extent])


def _seen(rng: np.random.Generator, truth: Detections, strength: np.ndarray, removed: np.ndarray | None) -> Detections:
    """The larger side of each object that a mask leaves, if it is a third of it or more, a little off."""
    boxes, scores, labels = [], [], []
    for box, label, strong in zip(truth.xyxy, truth.label, strength, strict=True):
        rest = box if removed is None else max(_sides(box, removed), key=_area)
        left = _area(rest) / _area(box)
        if left < 1 / 3:
            continue
        rest = rest + rng.normal(0, 2, 4)
        boxes.append([*np.minimum(rest[:2], rest[2:]), *np.maximum(rest[:2], rest[2:])])
        scores.append(float(np.clip(strong * left**0.5 + rng.normal(0, 0.05), 0.01, 1)))
        labels.append(label)
    return Detections(np.reshape(boxes, (-1, 4)), scores, labels)


def _sides(box: np.ndarray, removed: np.ndarray) -> list[np.ndarray]:
    """What of a box lies left of, above, right of and below a removed rectangle."""
    sides = []
    for edge in range(4):
        side = box.copy()
        if edge < 2:
            side[edge + 2] = min(side[edge + 2], removed[edge])
        else:
            side[edge - 2] = max(side[edge - 2], removed[edge])
        sides.append(side)
    return sides


def _area(box: np.ndarray) -> float:
    return float(np.prod(np.maximum(box[2:] - box[:2], 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--masks", type=parse_recipe, default=parse_recipe("halves:30"))
    chosen = parser.parse_args()
    browser_file = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_file is None:
        parser.error("no Chromium found: install it with the system's packages")
    vocabulary = LabelMap.from_names(tuple(f"class {number}" for number in range(CLASSES)))
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        folder = Path(made)
        images = synthetic(folder, chosen.images, chosen.masks)
        seen = sum(len(image.observation.all_masked) for image in images) / len(images)
        print(
            f"{len(images)} images, {sum(len(i.ground_truth) for i in images)} objects, "
            f"{seen:.0f} masked boxes per image"
        )
        browser = playwright.chromium.launch(executable_path=browser_file, args=FLAGS)
        for rule, follow in FOLLOWS.items():
            settings = EvaluationSettings(rule=follow.rule(Rule(), 0.5), threshold_schedule=follow, clean_recall=0.5)
            for embed_images in (True, False):
                how = "embedded" if embed_images else "in a folder"
                out = folder / f"{rule}-{how}.html"
                begun = time.perf_counter()
                write_page(ReportSource(rule, images, vocabulary, settings), out, embed_images=embed_images)
                seconds = time.perf_counter() - begun
                in_folder = sum(file.stat().st_size for file in folder.glob(f"{out.stem}-images/*"))
                print(
                    f"{rule}, images {how}: written in {seconds:.1f} s, {out.stat().st_size / 1e6:.1f} MB"
                    + (f" and {in_folder / 1e6:.1f} MB of images" if in_folder else "")
                )
                print("   " + opened(browser, out))
        browser.close()


def opened(browser: Browser, file: Path) -> str:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(WATCH)
    page.goto(file.as_uri(), wait_until="commit")
    page.locator("body:not(.certifying) #recalls .card").first.wait_for()
    judged = page.evaluate("performance.now()")
    page.locator("#chart-state:empty").wait_for(state="attached")
    curve = page.evaluate("performance.now()")
    page.wait_for_load_state("domcontentloaded")
    found = page.evaluate(
        "({ interactive: objectseeker.interactive, longest: Math.max(0, ...longTasks),"
        " read: performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd })"
    )
    begun = time.perf_counter()
    page.goto(file.as_uri() + "#images")
    page.locator(".thumbnail image[href]").first.wait_for(state="attached")
    gallery = time.perf_counter() - begun
    slider = page.evaluate(
        """async () => {
          const begun = performance.now(), area = document.getElementById("area");
          area.value = +area.value + 1;
          area.dispatchEvent(new Event("input"));
          while (document.body.classList.contains("certifying")) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }"""
    )
    page.close()
    times = {
        "interactive": found["interactive"],
        "all verdicts shown": judged,
        "curve complete": curve,
        "whole file read": found["read"],
        "longest task": found["longest"],
        "gallery with thumbnails": 1000 * gallery,
        "verdicts after a slider": slider,
    }
    return ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in times.items())


if __name__ == "__main__":
    main()
