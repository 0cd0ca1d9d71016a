"""check: passes what is pure, and names what is broken."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

from objectseeker import Bands, Detections, Halves, Pairs
from objectseeker.detectors.check import _line_borders, check
from objectseeker.detectors.network.preprocess import place, prepare


def scene():
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    return image


def bright(image, scale=1.0):
    """Box of what is bright, scored by how bright its surroundings are: sees every pixel."""
    ys, xs = np.nonzero(image[..., 0] > 200)
    if len(xs) < 20:
        return Detections.empty()
    box = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) * scale
    return Detections([box], [0.5 + float(image.mean()) / 1000], [0])


def pure(images):
    return [bright(image) for image in images]


class Stateful:
    calls = 0

    def __call__(self, images):
        self.calls += 1
        return [bright(image, 1 - min(self.calls, 50) * 1e-6) for image in images]


class Remembers:
    """Deterministic on repeated input, but it carries the last batch's mean along."""

    last = 0.0

    def __call__(self, images):
        found = [bright(image) for image in images]
        shifted = [Detections(d.xyxy, d.score * (1 - self.last / 1e6), d.label) for d in found]
        previous, self.last = self.last, float(np.mean([i.mean() for i in images]))
        return shifted if previous else found


def batch_dependent(images):
    mean = np.mean([image.mean() for image in images])
    return [Detections(d.xyxy, d.score * (1 - mean / 1e6), d.label) for d in pure(images)]


def place_dependent(images):
    return [Detections(d.xyxy, d.score * (1 - slot / 1e9), d.label) for slot, d in enumerate(pure(images))]


def random(images):
    rng = np.random.default_rng()
    return [Detections(d.xyxy, d.score * rng.uniform(0.9, 1), d.label) for d in pure(images)]


def in_fractions(images):
    return [
        Detections(d.xyxy / np.array([i.shape[1], i.shape[0]] * 2), d.score, d.label)
        for i, d in zip(images, pure(images), strict=True)
    ]


def in_network_pixels(images):
    return [
        Detections(d.xyxy * np.array([60 / i.shape[1], 40 / i.shape[0]] * 2), d.score, d.label)
        for i, d in zip(images, pure(images), strict=True)
    ]


def as_xywh(images):
    return [
        Detections(
            np.column_stack([d.xyxy[:, :2], np.maximum(d.xyxy[:, 2:] - d.xyxy[:, :2], d.xyxy[:, :2])]), d.score, d.label
        )
        for d in pure(images)
    ]


class Resizing:
    """Masks after a resize to 50 x 33: soundly, or by rounding the line as if pixels did not blend."""

    def __init__(self, leaks):
        self.leaks = leaks

    def __call__(self, images):
        return pure(images)

    def detect_views(self, image, removed, value):
        placement = place((image.shape[1], image.shape[0]), (50, 33), "stretch")
        prepared = prepare(image, placement, pad=value)
        found = []
        for rectangles in removed:
            view = prepared.copy()
            for rectangle in rectangles:
                x1, y1, x2, y2 = placement.leaking_extent(rectangle)
                if self.leaks:
                    scale = np.array([50 / image.shape[1], 33 / image.shape[0]] * 2)
                    x1, y1, x2, y2 = np.round(rectangle * scale).astype(int)
                view[y1:y2, x1:x2] = value
            found.append(Detections([[0, 0, 1, 1]], [float(view.mean()) / 255], [0]))
        return found


class OpenView(Resizing):
    """Sound but for one view, which shows what it should not."""

    def __init__(self, view):
        super().__init__(leaks=False)
        self.view = view

    def detect_views(self, image, removed, value):
        masked, shown = (super(OpenView, self).detect_views(image, r, value) for r in (removed, np.zeros_like(removed)))
        return [shown[n] if n == self.view else boxes for n, boxes in enumerate(masked)]


def raises(images):
    raise RuntimeError("no such layer")


def failures(detector):
    return list(check(detector, scene(), masks=Halves(3)).failed)


def test_a_pure_detector_passes_everything():
    report = check(pure, scene(), masks=Halves(3))
    assert (report.passed, report.failed) == (True, ())
    assert sum(result.passed is True for result in report.checks) == 7
    assert [result.detail for result in report.checks if result.passed is None] == ["bit-identical"] * 3


@pytest.mark.parametrize(
    ("detector", "line"),
    [
        (random, "deterministic"),
        (Stateful(), "deterministic"),
        (Remembers(), "no memory of earlier images"),
        (batch_dependent, "independent of the other images in a batch"),
        (place_dependent, "independent of the position in a batch"),
        (in_fractions, "boxes are x1, y1, x2, y2 in raw pixels"),
        (in_network_pixels, "boxes are x1, y1, x2, y2 in raw pixels"),
        (as_xywh, "boxes are x1, y1, x2, y2 in raw pixels"),
        (Resizing(leaks=True), "ignores removed pixels"),
        (raises, "returns valid boxes"),
        (lambda images: [None] * len(images), "returns valid boxes"),
        (lambda images: [], "returns valid boxes"),
    ],
)
def test_what_is_broken_fails_at_its_line(detector, line):
    assert line in failures(detector)


def test_masking_after_a_resize_passes_with_the_support_margin():
    assert failures(Resizing(leaks=False)) == []


@pytest.mark.parametrize("masks", [Bands(0.02), Pairs(2), Halves(1) + Bands(0.05, spacing=0.5)])
def test_views_of_any_masks_are_checked(masks):
    sound, leaking = (
        next(r for r in check(detector, scene(), masks=masks).checks if r.name == "ignores removed pixels")
        for detector in (Resizing(leaks=False), Resizing(leaks=True))
    )
    assert sound.passed
    assert sound.detail.startswith(f"{len(masks.masks(90, 60))} masks, removed pixels rewritten in two ways each")
    assert leaking.passed is False


@pytest.mark.parametrize(
    ("masks", "view", "name"),
    [
        (Halves(2), 1, "the left side up to line 30"),
        (Halves(2), 8, "the bottom side up to line 40"),
        (Bands(0.02), 2, "columns 11 to 31"),
        (Bands(0.02), -1, "the bottom side up to line 44"),
        (Bands(0.02), -2, "rows 33 to 53"),
        (Pairs(1), 1, "the left side up to line 45"),
        (Pairs(1), -1, "the right side up to line 45 and the bottom side up to line 30"),
    ],
)
def test_the_view_that_leaks_is_named(masks, view, name):
    leak = OpenView(view % masks.forward_passes(90, 60))
    (result,) = (r for r in check(leak, scene(), masks=masks).checks if r.passed is False)
    assert result.detail.startswith(f"the view without {name}, after removed pixels changed: ")


def test_a_band_is_checked_at_both_of_its_lines():
    """Half masks have one line each; the other one of a band must not be forgotten."""
    masks = Bands(0.02).masks(90, 60)
    assert masks.removed[:2, 0].tolist() == [[0, 0, 21, 60], [11, 0, 32, 60]]
    assert _line_borders(masks, 0).tolist() == [[20, 0, 21, 60]]
    assert _line_borders(masks, 1).tolist() == [[11, 0, 12, 60], [31, 0, 32, 60]]
    last = int(np.flatnonzero(masks.along[:, 0])[-1])  # the half mask at the right border
    assert _line_borders(masks, last).tolist() == [[masks.rectangle[last, 2], 0, masks.rectangle[last, 2] + 1, 60]]


def test_a_batch_dependent_detector_also_leaks_removed_pixels():
    """The mates of a masked view show the pixels it does not: this is why batch-mates matter."""
    assert "ignores removed pixels" in failures(batch_dependent)


def test_an_image_with_nothing_in_it_is_said_to_check_less():
    dark = np.zeros((40, 40, 3), np.uint8)
    results = {r.name: r for r in check(pure, dark, masks=Halves(2)).checks}
    geometry = results["boxes are x1, y1, x2, y2 in raw pixels"]
    assert geometry.passed is None
    assert "not checked" in geometry.detail


def test_whoever_watches_is_told_every_check_and_every_run_of_it():
    class Bar:
        def __init__(self):
            self.runs = 0

        def advance(self):
            self.runs += 1

    bars = {}

    def watch(name, runs):
        bars[name] = runs, Bar()
        return nullcontext(bars[name][1])

    results = []
    report = check(pure, scene(), masks=Halves(2), batch_size=3, open_progress=watch, on_result=results.append)
    assert report.checks == tuple(results)
    assert [result.name for result in results][: len(bars)] == list(bars)
    assert "ignores removed pixels" in bars
    for name, (runs, bar) in bars.items():
        assert bar.runs == runs, name


def test_labels_without_a_name_are_a_finding():
    def unnamed(images):
        return [Detections(found.xyxy, found.score, found.label + 2) for found in pure(images)]

    unnamed.names = ("a", "b")
    first, *_ = check(unnamed, scene(), masks=Halves(1)).checks
    assert not first.passed
    assert first.detail == "labels 2 to 2, but its 2 names are for 0 to 1"


def test_the_cost_of_an_image_is_measured_with_the_masks_of_the_defense(monkeypatch):
    clock = iter(np.arange(0, 1000, 0.001))
    monkeypatch.setattr("objectseeker.detectors.check.time.perf_counter", lambda: float(next(clock)))

    report = check(pure, scene(), masks=Halves(1), deployed_masks=Halves(6), batch_size=1)

    assert report.cost is not None
    assert (report.cost.masks, report.cost.forward_passes) == ("halves:6", 25)
    assert report.cost.undefended_ms == pytest.approx(1.0)  # every call takes one tick of this clock
    assert report.cost.defended_ms == pytest.approx(25 / 13)  # 12 of 24 masks were timed, and the unmasked view
    assert str(report.cost) == (
        "an image of 90x60 takes 1 ms undefended and 1.92 ms defended with halves:6 (25 forward passes)"
    )
    assert str(report).splitlines()[-1] == f"cost  {report.cost}"


def test_a_report_is_plain_values():
    report = check(pure, scene(), masks=Halves(1))
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["passed"] is True
    assert plain["checks"][0]["name"] == "returns valid boxes"
    assert set(plain) == {"passed", "checks", "detector", "masks", "fill", "cost", "unverified_reason"}
    assert check(raises, scene(), masks=Halves(1)).to_dict()["cost"] is None
