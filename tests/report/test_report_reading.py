"""What a reader does with the report: the first screen, a finger on the patch, order and filters, zoom, files to keep.

The verdicts behind all of it are held against Python's in test_report_browser.py.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
from report_cases import DONE, PAPER, VOCABULARY, observed_images, settings_of, write_images

from objectseeker import Detections, Observation, Patch
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import ImageSet
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.slices import ImageTags
from objectseeker.report import ReportSource

COUNT = 40
STRICT = settings_of(ThresholdSchedule(alpha=0.85, beta=0.5))
TAGS = ImageTags({"weather": tuple("rain" if i % 8 else "=sun" for i in range(COUNT)), "cam": ("",) * COUNT})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Every fifth image has no base box: only masking finds its object; in every seventh nothing does."""
    seen = observed_images(tmp_path_factory.mktemp("images"), COUNT)
    for number, image in enumerate(seen):
        if number % 5 == 0 or number % 7 == 0:
            old = image.observation
            masked = [Detections.empty()] * len(old.masks) if number % 7 == 0 else old.masked
            blind = Observation(old.width, old.height, old.masks, Detections.empty(), masked)
            seen[number] = replace(image, observation=blind)
    return seen


@pytest.fixture(scope="module")
def report(images, tmp_path_factory):
    """Under the paper's rule, with slices, compared with a stricter rule on the same images."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_images(
        file, images, VOCABULARY, PAPER, tags=TAGS, baseline=ReportSource("the old one", images, VOCABULARY, STRICT)
    )
    return file


def certified(images, settings, where, area=0.01):
    proofs = build_proof_table(ImageSet.from_images(images, VOCABULARY), settings.rule, "exact")
    return certified_objects(proofs, settings.rule, [Patch(area, 1.0, where)])[0][0]


def position(page) -> list[int]:
    return page.evaluate("[objectseeker.view.x, objectseeker.view.y]")


def middle(page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def swipe(page, start: tuple[float, float], by: tuple[float, float], moves: int = 12) -> None:
    """One finger, as the screen of a phone reports it."""
    device = page.context.new_cdp_session(page)
    device.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": start[0], "y": start[1]}]})
    for move in range(1, moves + 1):
        at = {"x": start[0] + by[0] * move / moves, "y": start[1] + by[1] * move / moves}
        device.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [at]})
    device.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_the_first_screen_says_it_in_words_and_shows_a_image(opened, images, report):
    page = opened(report)
    held = int(certified(images, PAPER, "anywhere").sum())
    title = page.locator("#overview-title")
    assert title.inner_text() == (
        f"{held} of {COUNT} objects in {COUNT} images are certified against a square patch of 1 % of the image at any "
        "position."
    )
    for place in ("#overview-title", "#hero-stage #image-view", "#recalls .card >> nth=3"):
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] <= 900  # on the first screen
    assert page.locator("#pixels").get_attribute("href").startswith("data:image/jpeg")
    page.locator("#joint", has_text="at least").wait_for()
    assert f"at least {held} of {COUNT} objects" in page.locator("#joint").inner_text()  # one object an image
    before = position(page)
    x, y = middle(page, "#grip")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40)
    page.mouse.up()
    assert position(page) != before
    page.locator("#area").fill("0")
    page.locator(DONE).wait_for()
    assert "a square patch of 0.1 % of the image" in title.inner_text()
    meaning = page.locator("#attack-meaning")
    assert meaning.inner_text() == (
        "Over: the patch overlaps the object. T = 0: the box that is guaranteed to remain overlaps the object."
    )
    page.locator("input[value=far]").check()
    page.locator("#threshold").fill("8")
    assert meaning.inner_text() == (
        "Far: the patch is more than 10 % of the image away from the object. "
        "T = 0.4: the box that is guaranteed to remain covers more than 40 % of the object."
    )
    page.get_by_text("More on this image").click()
    page.locator("#image-stage #image-view").wait_for()


def test_a_few_images_are_shown_without_any_ap(opened, images, tmp_path):
    write_images(tmp_path / "report.html", images[:3], VOCABULARY, PAPER, shows_ap=False)
    page = opened(tmp_path / "report.html")
    assert "AP" not in page.locator("#part-overview").inner_text()
    assert page.locator("#cards .value").all_inner_texts() == ["3 images"]


def test_a_finger_drags_the_patch_and_scrolls_beside_it(opened, report):
    page = opened(report, "#image/1", width=390, height=700, has_touch=True, is_mobile=True)
    page.evaluate("window.canceled = 0; addEventListener('pointercancel', () => canceled++, true)")
    page.locator("#image-view").scroll_into_view_if_needed()
    scale = page.locator("#image-view").evaluate("svg => svg.getScreenCTM().a")
    x, y = position(page)
    down = 40 if y < 40 else -40
    swipe(page, middle(page, "#grip"), (0, down * scale))
    assert position(page) == [x, y + down]
    assert page.evaluate("canceled") == 0
    assert page.locator("#grip").bounding_box()["width"] >= 44
    scrolled = page.evaluate("scrollY")
    view, grip = page.locator("#image-view").bounding_box(), page.locator("#grip").bounding_box()
    aside = view["x"] + (5 if grip["x"] > view["x"] + 30 else view["width"] - 5)
    swipe(page, (aside, view["y"] + view["height"] / 2), (0, -120))
    page.wait_for_function("before => scrollY > before", arg=scrolled)
    assert position(page) == [x, y + down]
    # Zoomed in, a finger next to the patch moves the image.
    page.keyboard.press("+")
    page.locator("#image-view").scroll_into_view_if_needed()
    shown = page.locator("#image-view").get_attribute("viewBox")
    scrolled = page.evaluate("scrollY")
    view = page.locator("#image-view").bounding_box()
    swipe(page, (view["x"] + 20, view["y"] + 20), (50, 50))
    swipe(page, (view["x"] + view["width"] - 20, view["y"] + 20), (-50, 50))
    assert page.locator("#image-view").get_attribute("viewBox") != shown
    assert page.evaluate("scrollY") == scrolled


def listed(page) -> list[int]:
    return page.locator(".thumbnail").evaluate_all("cards => cards.map((card) => +card.dataset.image)")


def test_order_and_filters(opened, images, report):
    page = opened(report, "#images")
    side = [int(PAPER.rule.certify(i.observation, i.ground_truth, []).largest_square[0]) for i in images]
    score = page.evaluate("Array.from(objectseeker.certificates.score)")
    for order, key in (
        ("smallest", lambda i: (side[i], i)),
        ("largest", lambda i: (-side[i], i)),
        ("score", lambda i: (-score[i], i)),
    ):
        page.locator("#order").select_option(order)
        assert listed(page) == sorted(range(COUNT), key=key)
    page.locator("#order").select_option("")
    over = certified(images, PAPER, "over")
    nothing, masked = [i for i in range(COUNT) if i % 7 == 0], [i for i in range(COUNT) if i % 5 == 0 and i % 7]
    assert masked
    assert nothing
    found = [bool(bits & 2) for bits in page.evaluate("Array.from(objectseeker.certificates.found)")]
    page.locator("#filter-verdict").select_option("found-uncertified")
    wanted = [i for i in range(COUNT) if found[i] and not over[i]]
    assert listed(page) == wanted != []
    page.locator("#filter-verdict").select_option("")
    page.locator("#filter-found").select_option("recovered")
    assert set(listed(page)) <= set(masked)
    assert listed(page) == [i for i in masked if found[i]] != []
    page.locator("#filter-found").select_option("missed")
    assert set(listed(page)) >= set(nothing)
    page.get_by_role("button", name="Show all").click()
    page.locator("#filter-slice").select_option(label="weather==sun")
    assert listed(page) == list(range(0, COUNT, 8))


def test_slices_and_what_changed_since_the_baseline(opened, images, report):
    page = opened(report)
    rows = [row.split("\t") for row in page.locator("#slices-table tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows] == [["weather==sun", "5", "5"], ["weather=rain", "35", "35"]]
    rain = np.array([i % 8 != 0 for i in range(COUNT)])
    for row, mine in zip(rows, (~rain, rain), strict=True):
        assert row[3:7] == [f"{100 * certified(images, PAPER, where)[mine].mean():.1f}" for where in PATCH_LOCATIONS]
    share = 100 * certified(images, PAPER, "anywhere")[rain].mean()
    assert page.locator("#worst-slices li").all_inner_texts() == [
        f"worst weather: weather=rain, {share:.1f} % of 35 objects certified anywhere; "
        "1 with fewer than 30 objects skipped"
    ]
    # Gained and lost since the baseline.
    assert page.locator("#baseline-name").inner_text() == "the old one"
    rows = [row.split("\t") for row in page.locator("#changes-table tbody tr").all_inner_texts()]
    for row, where in zip(rows, PATCH_LOCATIONS, strict=False):
        now, then = certified(images, PAPER, where), certified(images, STRICT, where)
        gained, lost = int((now & ~then).sum()), int((then & ~now).sum())
        means = [f"{100 * one.mean():.1f}" for one in (then, now)]
        assert row == [f"certified {where}", *means, str(gained), str(lost)]
    now, then = certified(images, PAPER, "far"), certified(images, STRICT, "far")
    assert (now & ~then).any()
    page.locator("#changes-table tbody tr").first.locator("a").first.click()
    page.locator(DONE).wait_for()
    assert listed(page) == np.flatnonzero(now & ~then).tolist()
    page.locator(".thumbnail").first.click()
    page.locator("#objects button", has_text="gained since the baseline").wait_for()


def test_what_is_seen_can_be_kept(opened, images, report, tmp_path):
    """The filtered list as CSV, in which no name is a formula, and the image as PNG with the image in it."""
    page = opened(report, "#images")
    page.locator("#filter-verdict").select_option("certified")
    with page.expect_download() as kept:
        page.locator("#save-list").click()
    rows = list(csv.DictReader(io.StringIO(kept.value.path().read_text(encoding="utf-8"))))
    over = certified(images, PAPER, "over")
    assert [row["image"] for row in rows] == [image.id for image, held in zip(images, over, strict=True) if held]
    for row in rows:
        image = images[int(row["image"])]
        assert [float(row[name]) for name in ("x1", "y1", "x2", "y2")] == image.ground_truth.xyxy[0].tolist()
        proven = PAPER.rule.certify(
            image.observation, image.ground_truth, [Patch(0.01, 1.0, where) for where in PATCH_LOCATIONS]
        )
        assert [row[f"certified_{where}"] for where in PATCH_LOCATIONS] == [
            str(bool(one)).lower() for one in proven.certified[:, 0]
        ]
        assert int(row["largest_square"]) == proven.largest_square[0]
        assert (row["patch_area"], row["certification_threshold"]) == ("0.01", "0")
    assert page.evaluate("['=1+1', '-x', '-1.5', 'a\"b,c'].map(objectseeker.escapeCsvCell)") == [
        "'=1+1", "'-x", "-1.5", '"a""b,c"'
    ]  # fmt: skip
    page.locator(".thumbnail").nth(1).click()
    for layer in ("objects", "labels", "mask"):
        page.locator(f"[data-layer={layer}]").uncheck()
    with page.expect_download() as kept:
        page.locator("#save-image").click()
    saved = PIL.Image.open(kept.value.path()).convert("RGB")
    assert kept.value.suggested_filename == f"{images[int(rows[1]['image'])].id}.png"
    assert saved.size == (1600, 1600)
    corner = np.asarray(saved, dtype=int)[10:40, 10:40].mean(axis=(0, 1))
    original = np.asarray(PIL.Image.open(images[int(rows[1]["image"])].path), dtype=int)[1:2, 1:2].mean(axis=(0, 1))
    assert np.abs(corner - original).max() < 25


def test_zoom_labels_keys_and_a_link_to_one_object(opened, images, tmp_path):
    """Two objects in one image: a link leads to the second, brackets step through them, labels tell them apart."""
    boxes = [(5, 5, 45, 45), (55, 55, 95, 95)]
    seen = Detections(boxes, [0.9, 0.83], [0, 1])
    old = images[1].observation
    observation = Observation(100, 100, old.masks, seen, [seen] * len(old.masks))
    none = np.zeros(2, bool)
    one = replace(images[1], observation=observation, ground_truth=seen, ignore=none, crowd=none)
    write_images(tmp_path / "report.html", [one], VOCABULARY, PAPER)
    page = opened(tmp_path / "report.html", "#image/0/1")
    chosen = "objectseeker.view.object"
    assert page.evaluate(chosen) == 1
    assert page.locator("#layer-labels text").all_text_contents() == ["✓◆ dog 0.83", "✓◆ cat 0.90"]
    page.keyboard.press("[")
    assert (page.evaluate(chosen), page.evaluate("location.hash")) == (0, "#image/0/0")
    page.keyboard.press("]")
    assert (page.evaluate(chosen), page.evaluate("location.hash")) == (1, "#image/0/1")
    at = "({ a, d, e, f }) => [20 * a + e, 20 * d + f]"
    page.mouse.click(*page.evaluate(f"({at})(document.getElementById('image-view').getScreenCTM())"))
    assert page.evaluate("location.hash") == "#image/0/0"
    letter = "+getComputedStyle(document.querySelector('#layer-labels text')).fontSize.slice(0, -2)"
    size = page.evaluate(f"{letter} * document.getElementById('image-view').getScreenCTM().a")
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert page.locator("#image-view").get_attribute("viewBox").split()[2:] == ["25", "25"]
    assert page.evaluate(f"{letter} * document.getElementById('image-view').getScreenCTM().a") == pytest.approx(
        size, rel=0.01
    )
    patch, grip = page.locator("#patch rect").bounding_box(), page.locator("#grip").bounding_box()
    assert [patch[key] for key in ("x", "y")] == pytest.approx([grip[key] for key in ("x", "y")], abs=3)
    shown = page.locator("#image-view").get_attribute("viewBox")
    view = page.locator("#image-view").bounding_box()
    page.mouse.move(view["x"] + view["width"] / 2 + 150, view["y"] + view["height"] - 20)
    page.mouse.down()
    page.mouse.move(view["x"] + view["width"] / 2 + 100, view["y"] + 100)
    page.mouse.up()
    assert page.locator("#image-view").get_attribute("viewBox") != shown
    page.keyboard.press("0")
    assert page.locator("#image-view").get_attribute("viewBox") == "0 0 100 100"
    assert page.locator("#to-worst").is_disabled()  # nothing can be hidden
    assert page.locator("#joint-words").inner_text() == (
        "Joint certificate: 2 of 2 objects are guaranteed to remain under this patch at any position; "
        "one output box may cover several."
    )


def test_the_worst_place_is_drawn_and_the_patch_goes_there(opened, report):
    page = opened(report, "#image/7")  # nothing is seen of its object under any mask
    assert page.locator("#joint-words").inner_text() == (
        "Joint certificate: 0 of 1 object is guaranteed to remain under this patch at any position; "
        "one output box may cover several."
    )
    page.keyboard.press("w")
    x, y = position(page)
    drawn = page.locator("#layer-worst .worst")
    assert [float(drawn.get_attribute(name)) for name in ("x", "y", "width", "height")] == [x, y, 10, 10]
    page.get_by_label("worst-case patch position").uncheck()
    assert drawn.count() == 0


def test_nothing_is_drawn_as_uncertified_before_it_is_computed(opened, images, report):
    """A page that never gets to compute in the background: the image that is shown has its verdicts, the rest none."""
    frozen = "let time = 0; performance.now = () => (time += 1000); window.setTimeout = () => 0;"
    over = certified(images, PAPER, "over")
    (number, *_) = np.flatnonzero(over)
    page = opened(report, f"#image/{number}", init_script=frozen, wait=False)
    assert page.locator("#overview-title").text_content() == f"Certifying {COUNT} objects in {COUNT} images …"
    assert page.locator("#layer-objects .certified").count() == 1
    assert page.locator("#joint").text_content() == ""
    page.locator("#area").fill(page.locator("#area").get_attribute("max"))
    assert page.locator("#layer-objects .uncertified").count() == 1
    page.locator("#reset").click()
    assert page.locator("#layer-objects .certified").count() == 1
    assert page.evaluate("objectseeker.verdictOf(objectseeker.view.object)") == "certified"
    others = page.evaluate("[...objectseeker.certificates.image.keys()].filter((n) => n !== objectseeker.view.object)")
    assert {page.evaluate("n => objectseeker.verdictOf(n)", n) for n in others} == {"computing"}


def test_certified_and_proven_here_have_signs_of_their_own(opened, images, report):
    over = certified(images, PAPER, "over")
    page = opened(report, f"#image/{np.flatnonzero(~over)[1]}")
    legend = " ".join(page.locator("#legend").inner_text().split())
    for words in ("✓ certified", "✗ not certified", "◆ proven: guaranteed to be detected", "◇ not proven"):
        assert words in legend
    marks = page.locator("#objects button .mark")
    assert marks.first.inner_text().startswith("✗ over")
    proven = page.locator("#objects button").get_attribute("data-proven") == "true"
    assert marks.nth(1).inner_text().strip() == ("◆" if proven else "◇")
    label = page.locator("#layer-labels text").first.text_content()
    assert label.startswith("✗◆" if proven else "✗◇")
    assert page.locator("#legend dt").first.inner_text() == "Patch over, any such position"
