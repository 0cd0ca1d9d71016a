"""Drawing: the right pixels change, in the right color, and nothing leaves the image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import PIL.Image
import pytest

from objectseeker.core.boxes import Detections
from objectseeker.core.certification import Certificates
from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.drawing import (
    BASE,
    CERTIFIED,
    MAX_CAPTIONS,
    ORANGE,
    PARTLY,
    VULNERABLE,
    WHITE,
    BoxCertificate,
    Layer,
    LegendEntry,
    annotate,
    captions,
    class_color,
    draw,
    draw_detections,
    truth_layers,
    with_legend,
)

RED = (255, 0, 0)


def blank(width: int, height: int, value: int = 50) -> Image:
    return np.full((height, width, 3), value, np.uint8)


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float64).reshape(-1, 4)


def changed(image: Image, annotated: PIL.Image.Image) -> np.ndarray:
    return (np.asarray(annotated) != image).any(axis=2)


def extent(where: np.ndarray) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2, half-open, of the pixels set."""
    rows, columns = np.flatnonzero(where.any(axis=1)), np.flatnonzero(where.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def test_an_outline_lies_inside_the_half_open_box() -> None:
    image = blank(100, 80)
    pixels = np.asarray(annotate(image, [Layer(boxes((10, 20, 60, 50)), color=RED)]))
    expected = image.copy()
    expected[20:50, 10:60] = RED
    expected[21:49, 11:59] = 50
    assert np.array_equal(pixels, expected)
    assert (image == 50).all()  # the caller's image is left alone


def test_a_fractional_box_covers_every_pixel_it_touches() -> None:
    image = blank(100, 80)
    annotated = annotate(image, [Layer(boxes((10.4, 20.6, 59.2, 49.9)))])
    assert extent(changed(image, annotated)) == (10, 20, 60, 50)


def test_lines_grow_with_the_image_and_with_width() -> None:
    def thickness(size: int, width: float) -> int:
        image = blank(size, size)
        annotated = annotate(image, [Layer(boxes((0.1 * size, 0.1 * size, 0.9 * size, 0.9 * size)), width=width)])
        return int(changed(image, annotated)[size // 2, : size // 2].sum())

    assert [thickness(size, 1) for size in (100, 250, 400, 2000)] == [1, 2, 2, 10]
    assert [thickness(2000, width) for width in (0, 0.5, 2)] == [0, 5, 20]


def test_dashes_leave_gaps_and_solid_lines_do_not() -> None:
    image = blank(200, 200)
    solid = changed(image, annotate(image, [Layer(boxes((20, 30, 180, 170)))]))
    dashed = changed(image, annotate(image, [Layer(boxes((20, 30, 180, 170)), dashed=True)]))
    assert solid[30, 20:180].all()
    assert solid[30:170, 179].all()
    for edge in (dashed[30, 20:180], dashed[169, 20:180], dashed[30:170, 20], dashed[30:170, 179]):
        assert 0.4 < edge.mean() < 0.65
        assert np.abs(np.diff(edge.astype(int))).sum() > 20  # many dashes, not one long one
    assert (dashed <= solid).all()


def test_later_layers_lie_on_top() -> None:
    same = boxes((10, 10, 50, 50))
    annotated = annotate(blank(100, 100), [Layer(same, color=(0, 0, 255)), Layer(same, color=RED)])
    assert annotated.getpixel((10, 10)) == RED


def test_draw_gives_each_kind_of_box_its_look() -> None:
    image = blank(300, 300)
    base = Detections(boxes((20, 60, 120, 160)), [0.9], [0])
    recovered = Detections(boxes((160, 60, 280, 160)), [0.8], [1])
    pixels = np.asarray(draw_detections(image, base, ["cat", "dog"], recovered=recovered))
    assert (pixels[159, 20:120] == BASE).all()
    assert set(map(tuple, pixels[159, 160:280].tolist())) == {
        ORANGE,
        (50, 50, 50),
    }  # dashed, in the color of its class
    assert (pixels[45:60, 20:60] == BASE).all(axis=2).any()  # a caption above the base box
    only_base = np.asarray(draw_detections(image, base, ["cat"]))[:300]
    assert extent((only_base != image).any(axis=2))[2] <= 160


def test_certificates_are_told_by_color_and_label() -> None:
    image = blank(300, 300)
    three = Detections(boxes((20, 60, 90, 160), (110, 60, 180, 160), (200, 60, 280, 160)), [0.9] * 3, [0] * 3)
    sides = [
        BoxCertificate(["far", "close", "over", "anywhere"], unfabricated=True, certified_score=0.7),
        BoxCertificate(["far", "close"], unfabricated=False, certified_score=0.0),
        BoxCertificate([], unfabricated=False, certified_score=0.1),
    ]
    pixels = np.asarray(
        draw_detections(image, three[:2], ["cat"], recovered=three[2:], certificates=sides, against="a patch of 1%")
    )
    assert [tuple(pixels[100, x]) for x in (20, 110)] == [CERTIFIED, PARTLY]
    assert [tuple(pixels[100, x]) for x in (22, 112)] == [WHITE, (50, 50, 50)]  # inside the outline
    assert set(map(tuple, pixels[90:160, 200].tolist())) == {VULNERABLE, (50, 50, 50)}  # dashed
    legend = pixels[300:]
    assert {CERTIFIED, PARTLY, VULNERABLE} <= set(map(tuple, legend.reshape(-1, 3).tolist()))


def test_a_legend_lies_below_the_image_and_leaves_it_as_it_is() -> None:
    annotated = annotate(blank(300, 200), [])
    keys = [
        LegendEntry("person (3)", CERTIFIED),
        LegendEntry("a name that needs a line of its own", VULNERABLE),
        LegendEntry("a caveat", None),
    ]
    page = with_legend(annotated, keys)
    assert np.array_equal(np.asarray(page)[:200], np.asarray(annotated))
    single = with_legend(annotated, keys[:1])
    assert page.width == 300
    assert page.height > single.height > 200  # it wraps
    strip = np.asarray(single)[200:]
    assert (strip == CERTIFIED).all(axis=2).any()
    assert (strip.sum(axis=2) < 100).any()  # letters
    long = with_legend(annotate(blank(120, 90), []), [LegendEntry("an endless name " * 9, CERTIFIED)])
    assert (np.asarray(long)[90:, -1] == 255).all()  # cut within the strip
    for size in ((1, 500), (10, 10)):
        narrow = annotate(blank(*size), [])
        assert with_legend(narrow, keys) is narrow
    assert with_legend(annotated, []) is annotated


def test_classes_have_colors_of_their_own() -> None:
    assert len({class_color(label) for label in range(80)}) == 80
    assert class_color(-1) == class_color(-1)


def test_any_number_of_boxes_is_drawn_and_only_so_many_are_labeled() -> None:
    count = 3 * MAX_CAPTIONS
    many = Detections(np.tile([[5, 5, 90, 90]], (count, 1)), [0.5] * count, [0] * count)
    assert draw_detections(blank(100, 100), many[:2], ["cat"], recovered=many[2:]).width == 100


@pytest.mark.parametrize("value", [0, 255])
def test_ground_truth_shows_on_black_and_on_white(value: int) -> None:
    image = blank(300, 300, value)
    truth = Detections(boxes((20, 20, 200, 200)), [1], [0])
    assert changed(image, annotate(image, truth_layers(truth)))[100, 20:30].any()


def test_captions_name_and_score() -> None:
    found = Detections(np.tile([0, 0, 5, 5], (4, 1)), [0.876, 1, 0, 0.5], [1, 0, 7, -1])
    assert captions(found, ("cat", "dog")) == ["dog 0.88", "cat 1.00", "7 0.00", "-1 0.50"]


def test_a_caption_stands_above_its_box() -> None:
    image = blank(400, 300)
    pixels = np.asarray(annotate(image, [Layer(boxes((100, 100, 200, 200)), ["person 0.93"], width=0)]))
    plate = (pixels == BASE).all(axis=2)
    x1, y1, x2, y2 = extent((pixels != 50).any(axis=2))
    assert x1 == 100
    assert y2 == 100
    assert 10 <= y2 - y1 <= 25
    assert 40 <= x2 - x1 <= 150
    assert plate[y1, x1:x2].all()  # filled to its corners
    assert 0.05 < (pixels[y1:y2, x1:x2].sum(axis=2) < 100).mean() < 0.5  # dark text on it


@pytest.mark.parametrize("place", [(-20, -20, 30, 30), (380, 5, 400, 20), (390, 290, 400, 300), (0, 0, 400, 300)])
def test_a_caption_stays_whole_at_every_border(place: tuple[float, ...]) -> None:
    def plate(row: tuple[float, ...]) -> np.ndarray:
        pixels = np.asarray(annotate(blank(400, 300), [Layer(boxes(row), ["person 0.93"], width=0)]))
        x1, y1, x2, y2 = extent((pixels != 50).any(axis=2))
        return pixels[y1:y2, x1:x2]

    assert np.array_equal(plate(place), plate((100, 100, 200, 200)))


def test_a_caption_longer_than_the_image_is_shortened() -> None:
    image = blank(60, 60)
    pixels = np.asarray(annotate(image, [Layer(boxes((5, 30, 50, 50)), ["an endless name " * 9], width=0)]))
    where = (pixels != 50).any(axis=2)
    x1, _, x2, _ = extent(where)
    assert x2 - x1 >= 40
    assert (pixels[where.any(axis=1)][:, x2 - 1] == BASE).all()  # the plate ends with its margin, not within a letter


def test_a_caption_that_does_not_fit_is_left_out() -> None:
    for width, height in ((500, 8), (6, 500)):
        image = blank(width, height)
        assert not changed(image, annotate(image, [Layer(boxes((0, 0, 5, 5)), ["person 0.93"], width=0)])).any()


def test_captions_of_neighbors_do_not_cover_each_other() -> None:
    def text_pixels(*rows: tuple[float, ...]) -> int:
        layer = Layer(boxes(*rows), ["car 0.81"] * len(rows), width=0)
        return int((np.asarray(annotate(blank(400, 300), [layer])).sum(axis=2) < 100).sum())

    one = text_pixels((100, 100, 180, 180))
    assert text_pixels((100, 100, 180, 180), (110, 102, 190, 185), (105, 101, 170, 190)) == 3 * one


def test_in_a_crowd_every_caption_that_is_drawn_can_be_read() -> None:
    """Twenty boxes at one place: the largest have captions, the others go without rather than cover them."""
    image = blank(300, 200)
    colors = [(200, 10 * n, 0) for n in range(20)]
    layers = [
        Layer(boxes((100 + n / 4, 80, 160 - n / 4, 120)), ["person"], color=color, width=0)
        for n, color in enumerate(colors)
    ]
    drawn = np.asarray(annotate(image, layers[::-1]))
    alone = np.asarray(annotate(image, layers[:1]))
    plate = int((alone == colors[0]).all(axis=2).sum())
    seen = [int((drawn == color).all(axis=2).sum()) for color in colors]
    assert seen[0] >= 0.9 * plate
    assert all(count == 0 or count >= 0.75 * plate for count in seen)
    assert 0 in seen


def test_captions_lie_above_the_boxes_of_every_layer() -> None:
    first = Layer(boxes((100, 100, 200, 200)), ["person"])
    crossing = Layer(boxes((90, 80, 210, 95)), color=RED, width=9)
    alone = np.asarray(annotate(blank(400, 300), [Layer(first.boxes, ["person"], width=0)]))
    x1, y1, x2, y2 = extent((alone != 50).any(axis=2))
    both = np.asarray(annotate(blank(400, 300), [first, crossing]))
    assert np.array_equal(both[y1:y2, x1:x2], alone[y1:y2, x1:x2])


def test_nothing_to_draw() -> None:
    image = blank(30, 20)
    for layers in ([], [Layer(boxes())], [Layer(boxes(), [], dashed=True)]):
        assert np.array_equal(np.asarray(annotate(image, layers)), image)
    assert np.array_equal(np.asarray(draw_detections(image, Detections.empty(), [])), image)


def test_one_pixel_and_slivers() -> None:
    layer = Layer(boxes((0, 0, 1, 1)), ["person 0.93"], color=RED)
    assert np.asarray(annotate(blank(1, 1), [layer])).tolist() == [[list(RED)]]
    for width, height in ((1, 500), (500, 1), (3, 3)):
        annotated = annotate(blank(width, height), [Layer(boxes((-5, -5, 600, 600)), ["person 0.93"], dashed=True)])
        assert annotated.size == (width, height)


def test_huge_degenerate_and_outside_boxes() -> None:
    image = blank(100, 80)
    huge = changed(image, annotate(image, [Layer(boxes((-1e8, -1e8, 1e8, 1e8)))]))
    assert huge[0].all()
    assert huge[:, -1].all()
    assert not huge[40, 50]
    point = changed(image, annotate(image, [Layer(boxes((10, 10, 10, 10)))]))
    assert extent(point) == (10, 10, 11, 11)
    outside = boxes((100, 0, 120, 20), (-20, 0, 0, 20), (0, 80, 20, 90), (0, -9, 9, 0))
    assert not changed(image, annotate(image, [Layer(outside, ["a", "b", "c", "d"])])).any()


def test_what_is_not_an_image_is_rejected() -> None:
    with pytest.raises(ObjectSeekerError, match="H x W x 3 uint8"):
        annotate(np.zeros((4, 4)), [])  # type: ignore[arg-type]


def test_certificates_are_drawn_with_their_boxes():
    image = np.full((240, 320, 3), 90, np.uint8)
    boxes = Detections([[20, 20, 120, 200], [140, 20, 220, 200], [240, 20, 300, 200]], [0.9, 0.8, 0.7], [0, 1, 1])
    certified = np.array([[True, True, False], [True, False, False]])
    certificates = Certificates(
        certified=certified,
        vacuous=np.zeros_like(certified),
        safe=np.zeros((3, 0), bool),
        safe_lines=np.zeros((3, 4), int),
        largest_square=np.array([40, 12, 0]),
    )
    drawn = np.asarray(draw(image, boxes, certificates, names=["car", "bus"]))
    edges = [drawn[120, x].tolist() for x in (20, 140, 240)]
    assert edges == [list(color) for color in (CERTIFIED, PARTLY, VULNERABLE)]
    assert drawn.shape[0] > 240  # and a legend
    assert np.array_equal(drawn[100:180, 40:100], image[100:180, 40:100])
    vacuous = replace(certificates, vacuous=certified)
    assert np.asarray(draw(image, boxes, vacuous))[120, 20].tolist() == list(VULNERABLE)
    assert np.array_equal(draw(image, boxes, names=["car", "bus"]), draw_detections(image, boxes, ["car", "bus"]))
    with pytest.raises(ObjectSeekerError, match="one certificate for each of 2 boxes: got 3"):
        draw(image, boxes[:2], certificates)
