"""The report in a browser: every verdict is Python's, every control works, nothing is fetched.

Needs Playwright (in the test extra) and a Chromium of the system; Playwright's own download is not used.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import evaluation_cases
import numpy as np
import pytest
from report_cases import (
    DONE,
    EVIDENCE,
    IOU,
    LABEL_FREE,
    PAPER,
    TWO_CATS,
    VOCABULARY,
    Run,
    awkward,
    observed_images,
    output_on,
    run_of,
    write_images,
)

from objectseeker import Bands, Defense, Detections, Halves, Observation, Patch, Rule
from objectseeker.core.boxes import area as area_of
from objectseeker.core.certification import ObjectProof
from objectseeker.core.evidence import build_stars
from objectseeker.core.label_map import LabelMap
from objectseeker.core.rules import IouRule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.metrics.certified import build_proof_table, certified_objects, joint_certificates
from objectseeker.text import percent

api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")

NAMES = evaluation_cases.NAMES
COUNT = 60  # more images than the page makes cards for at once


@pytest.fixture(scope="module")
def paper_report(tmp_path_factory):
    """A run of images under the paper's rule: the file, and the images it shows."""
    folder = tmp_path_factory.mktemp("images")
    images = observed_images(folder, COUNT)
    images[2].path.unlink()
    write_images(folder / "report.html", images, VOCABULARY, PAPER)
    return folder / "report.html", images


# --- the same verdicts ---------------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        "paper",
        "evidence",
        "bands_paper",
        "bands",
        "sum",
        "windows",
        "windows_paper",
        "labels",
        "class_agnostic",
        "iou",
        "unlabeled",
    ],
)
def certificates(request, tmp_path_factory):
    """Awkward images and larger ones under one rule, masks and labels: the file, and what it is about."""
    run = run_of(request.param)
    return run.report(tmp_path_factory.mktemp("certificates") / "report.html"), run


GRID = [
    (area, aspect, where)
    for area in (0.001, 0.02, 0.08, 0.3, 1.0)
    for aspect in (1 / 16, 1.0, 3.0)
    for where in PATCH_LOCATIONS
]


def all_verdicts(page, threshold: float):
    """What the page says of every object: certified and vacuous over GRID, and the largest square."""
    found = page.evaluate(
        "([grid, T]) => grid.map(([area, aspect, where]) => objectseeker.verdicts(area, aspect, where, T))",
        [GRID, threshold],
    )
    square = page.evaluate(
        "T => { const c = objectseeker.certificates;"
        " return Array.from({ length: c.count }, (_, n) => c.largestSquare(n, T)); }",
        threshold,
    )
    return *(np.array([one[key] for one in found]) for key in ("certified", "vacuous")), np.array(square)


def pythons_verdicts(run: Run, threshold: float):
    """The same by `certify`: of each object, whatever one of the detector's labels for it proves."""
    patches = [Patch(*threat) for threat in GRID]
    certified, vacuous, square = list[np.ndarray](), list[np.ndarray](), []
    for image in run.images:
        found, owner = run.certify(image, patches, threshold)
        for verdicts, of_targets in ((certified, found.certified), (vacuous, found.vacuous)):
            verdicts.append(run.label_map.any_label(of_targets, owner, len(image.ground_truth)))
        largest = np.zeros(len(image.ground_truth), np.int64)
        np.maximum.at(largest, owner, found.largest_square)
        square.append(largest)
    return np.concatenate(certified, axis=1), np.concatenate(vacuous, axis=1), np.concatenate(square)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.55])
def test_every_verdict_is_pythons(opened, certificates, threshold):
    file, run = certificates
    page = opened(file)
    mine, theirs = all_verdicts(page, threshold), pythons_verdicts(run, threshold)
    for ours, wanted in zip(mine, theirs, strict=True):
        assert ours.shape == wanted.shape
        assert (ours == wanted).all(), np.argwhere(ours != wanted)[:5]
    for wanted in theirs[:2]:
        assert 0 < wanted.sum() < wanted.size
    if threshold == 0:
        check_what_remains(page, run)
        # A clear box lies apart from what its mask removes: no square is safe both left and right of it.
        assert theirs[2].any() != isinstance(run.rule, IouRule)
        # Under the evidence rule enough is certified by combined views that none certifies alone.
        assert (together(run, theirs[0]) > 50) == (getattr(run.rule, "evidence_threshold", None) is not None)


def together(run: Run, certified) -> int:
    """How many verdicts would be lost if views did not add up."""
    if isinstance(run.rule, IouRule):
        return 0
    alone = replace(run, settings=replace(PAPER, rule=run.rule.with_settings(evidence_threshold=None)))
    return int((certified & ~pythons_verdicts(alone, 0.0)[0]).sum())


@pytest.mark.parametrize("size", [(3, 2), (1, 1), (9, 14)])
def test_every_position_is_judged_as_python_does(opened, certificates, size):
    """What dragging says, and the region that is drawn, against the core: every position of every awkward image."""
    file, run = certificates
    page = opened(file)
    images = [image for image in run.images if image.observation.width <= 30][:25]
    assert images == run.images[: len(images)]
    found = page.evaluate(
        """([count, w, h]) => {
          const c = objectseeker.certificates;
          return Array.from({ length: count }, (_, t) => {
            const { width, height } = c.masksOf[c.object[t]];
            const open = c.unproven(t, [w, h], 0);
            let proven = "";
            for (let y = 1 - h; y < height; y++) {
              for (let x = 1 - w; x < width; x++) {
                const proof = c.proofAt(t, x, y, [w, h], 0);
                const drawn = open.filter(([x1, y1, x2, y2]) => x1 <= x && x <= x2 && y1 <= y && y <= y2).length;
                if (drawn !== (proof === null ? 1 : 0)) throw new Error(`target ${t} at ${x}, ${y}`);
                proven += proof === null ? "0" : proof.kind === "single_view" ? "1" : "2";
              }
            }
            return proven;
          });
        }""",
        [sum(len(run.certify(image, [], 0.0)[1]) for image in images), *size],
    )
    kinds = set()
    t = 0
    for image in images:
        for proof in proofs_of(run, image):
            width, height = image.observation.width, image.observation.height
            positions = [(x, y) for y in range(1 - size[1], height) for x in range(1 - size[0], width)]
            assert len(found[t]) == len(positions)
            kinds |= set(found[t])
            for (x, y), mine in list(zip(positions, found[t], strict=True))[:: 1 + len(positions) // 40]:
                here = np.array([[x, y, x, y]])
                assert (mine != "0") == proof.certifies(here, size)
                assert (mine == "1") == ObjectProof(proof.masks, proof.safe).certifies(here, size)
            t += 1
    assert t == len(found)
    assert kinds == ({"0", "1", "2"} if getattr(run.rule, "evidence_threshold", None) is not None else {"0", "1"})


def check_what_remains(page, run: Run) -> None:
    """The number of every image's joint certificate, and that the place the page draws leaves no more than that."""
    asked = [(area, aspect, threshold) for area, aspect in ((0.01, 1.0), (0.08, 3.0)) for threshold in (0.0, 0.4)]
    found = page.evaluate(
        """(asked) => {
          const { data, certificates: c, jointCertificate } = objectseeker;
          const first = c.object_first;
          return asked.map(([area, aspect, T]) => data.image_ids.map((_, i) => {
            const { count, worst } = jointCertificate(i, area, aspect, T);
            const here = [];
            for (let n = first[i]; n < first[i + 1]; n++) {
              const size = c.sizeFor(n, { area, aspect });
              const at = worst && c.targets[n].some((t) => c.proofAt(t, ...worst, size, T) !== null);
              if (!c.ignore[n] && (worst === null || at)) here.push(n);
            }
            return [count, here.length];
          }));
        }""",
        asked,
    )
    vocabulary = run.label_map if run.is_labeled else LabelMap.from_names(run.label_map.detector_names)
    scene = ImageSet.from_part(run.images, vocabulary)
    proofs = build_proof_table(scene, run.rule, "exact")
    more = 0
    for (area, aspect, threshold), images in zip(asked, found, strict=True):
        patch = Patch(area, aspect, "anywhere")
        (found,) = joint_certificates(proofs, run.rule, [patch], certification_threshold=threshold)
        wanted = [one.count for one in found]
        assert images == [[count, count] for count in wanted]
        more += sum(wanted) - int(
            certified_objects(proofs, run.rule, [patch], certification_threshold=threshold)[0].sum()
        )
    assert more > 0 or isinstance(run.rule, IouRule)


def fabrication_verdicts(page, threshold: float):
    """What the page says of every output box under Fabricate: over GRID, and the largest square."""
    return [
        np.array(one)
        for one in page.evaluate(
            """([grid, T]) => {
              const { verdicts, fabrication: by } = objectseeker;
              const found = grid.map(([area, aspect, where]) => verdicts(area, aspect, where, T, by));
              const square = Array.from({ length: by.count }, (_, n) => by.largestSquare(n, T));
              return [found.map((one) => one.certified), found.map((one) => one.vacuous), square];
            }""",
            [GRID, threshold],
        )
    ]


@pytest.mark.parametrize("threshold", [0.0, 0.95])
def test_every_fabrication_verdict_is_pythons(opened, certificates, threshold):
    """Over GRID, with T at both ends of its slider: T does not decide whether a patch can have made a box."""
    file, run = certificates
    patches = [Patch(*threat) for threat in GRID]
    outputs = [run.rule.prune(image.observation) for image in run.images]
    found = [
        run.rule.certify_not_fabricated(image.observation, boxes, patches)
        for image, boxes in zip(run.images, outputs, strict=True)
    ]
    theirs = (
        np.concatenate([one.certified for one in found], axis=1),
        np.concatenate([one.vacuous for one in found], axis=1),
        np.concatenate([one.largest_square for one in found]),
    )
    page = opened(file)
    for ours, wanted in zip(fabrication_verdicts(page, threshold), theirs, strict=True):
        assert ours.shape == wanted.shape
        assert (ours == wanted).all(), np.argwhere(ours != wanted)[:5]
    assert (theirs[0] & ~theirs[1]).sum() > 0
    assert theirs[0].sum() < theirs[0].size


def test_every_position_has_the_support_that_python_finds(opened, certificates):
    """What dragging says under Fabricate, at positions of every small image, and the most boxes that one patch made."""
    file, run = certificates
    size = (3, 2)
    page = opened(file)
    found = page.evaluate(
        """([w, h]) => {
          const by = objectseeker.fabrication;
          return Array.from({ length: by.count }, (_, n) => {
            const { width, height } = by.masksOf[n];
            let supported = "";
            for (let y = 1 - h; width <= 30 && y < height; y++) {
              for (let x = 1 - w; x < width; x++)
                supported += by.targets[n].some((t) => by.proofAt(t, x, y, [w, h], 0.95) !== null) ? "1" : "0";
            }
            return supported;
          });
        }""",
        list(size),
    )
    n, compared = 0, set()
    for image in run.images:
        seen = image.observation
        for proofs in run.rule.support_proofs(seen, run.rule.prune(seen)):
            if seen.width <= 30:
                positions = [(x, y) for y in range(1 - size[1], seen.height) for x in range(1 - size[0], seen.width)]
                assert len(found[n]) == len(positions)
                for (x, y), mine in list(zip(positions, found[n], strict=True))[:: 1 + len(positions) // 40]:
                    here = np.array([[x, y, x, y]])
                    assert (mine == "1") == any(proof.certifies(here, size) for proof in proofs)
                    compared.add(mine)
            n += 1
    assert n == len(found)
    assert compared == {"0", "1"}


def proofs_of(run: Run, image):
    """What proves each target at T = 0, by the functions of the core."""
    rule, seen = run.rule, image.observation
    targets, _ = run.label_map.map_to_detector(image.ground_truth, classwise=rule.classwise)
    safe = run.certify(image, [], 0.0)[0].safe
    if isinstance(rule, IouRule):
        assert rule.proving_pairs(seen, targets, 0.0, "exact").any(axis=0).tolist() == safe.any(axis=1).tolist()
        return [ObjectProof(seen.masks, one) for one in safe]
    evidence = rule.evidence(rule.discounted_scores(seen))
    proves = rule.proving_pairs(seen, targets, 0.0, "exact")
    proofs = []
    for n, one in enumerate(safe):
        members = np.flatnonzero(proves[:, n] & (evidence > 0))
        stars = build_stars(seen, members, evidence[members], rule.cluster_distance)
        proofs.append(ObjectProof(seen.masks, one, None if rule.evidence_threshold is None else stars))
    return proofs


def test_the_target_shown_certifies_the_object_if_one_does(opened, tmp_path_factory):
    """Of several labels the one with the largest certified square is drawn, among those that agree with the verdict."""
    run = run_of("labels")
    out = tmp_path_factory.mktemp("labels") / "report.html"
    write_images(out, run.images, run.label_map, run.settings)
    area, aspect, where = 0.02, 1.0, "far"
    shown = opened(out).evaluate(
        """([area, aspect, where]) => {
          const c = objectseeker.certificates;
          return Array.from({ length: c.count }, (_, n) => {
            const t = c.shownTarget(n, where, c.sizeFor(n, { area, aspect }), 0);
            return [t, c.target_label[t]];
          });
        }""",
        [area, aspect, where],
    )
    n = first = several = 0
    for image in run.images:
        found, owner = run.certify(image, [Patch(area, aspect, where)], 0.0)
        targets, _ = run.label_map.map_to_detector(image.ground_truth)
        for number in range(len(image.ground_truth)):
            mine = np.flatnonzero(owner == number)
            ranked = sorted(mine.tolist(), key=lambda t: (not found.certified[0, t], -found.largest_square[t], t))
            visible = len(mine) and shown[n][0] >= 0
            assert not visible or shown[n] == [first + ranked[0], int(targets.label[ranked[0]])]
            several += len(set(found.certified[0, mine].tolist())) > 1
            n += 1
        first += len(owner)
    assert several > 0


def test_a_box_too_weak_to_count_still_links_its_neighbors(opened, tmp_path):
    """A star whose center has evidence that is rounded down to nothing, below 2^-40: page and Python both keep it."""
    follow = ThresholdSchedule(alpha=0.9, beta=0.0, evidence_alpha=0.1, evidence_beta=0.0)
    settings = EvaluationSettings(
        rule=follow.rule(Rule(evidence_power=60.0, cluster_distance=0.3), 0.05), threshold_schedule=follow
    )
    weak = 0.1 + 0.8 * 2 ** (-41 / 60)
    strong = 0.1 + 0.8 * 0.6 ** (1 / 60)
    whole, left, right = (20, 20, 80, 80), (20, 20, 62, 80), (38, 20, 80, 80)
    # Two boxes that are not neighbors, each under half of the masks, and one that is a neighbor of both under all.
    masked = [[(*(left, right)[mask % 2], strong, 0), (*whole, weak, 0)] for mask in range(36)]
    image = evaluation_cases.image([(*whole, 0.9, 0)], [(*whole, 0)], masked, lines=9)
    evidence = settings.rule.evidence(np.array([weak, strong]))
    assert 0 < evidence[0] < 2**-40
    assert 0.5 < evidence[1] < 1
    run = Run([image], settings)
    write_images(tmp_path / "report.html", run.images, run.label_map, settings)
    mine, theirs = all_verdicts(opened(tmp_path / "report.html"), 0.0), pythons_verdicts(run, 0.0)
    for ours, wanted in zip(mine, theirs, strict=True):
        assert (ours == wanted).all()
    without = replace(image, observation=without_boxes(image.observation, weak))
    assert pythons_verdicts(Run([without], settings), 0.0)[2][0] < theirs[2][0]


def without_boxes(seen: Observation, score: float) -> Observation:
    return Observation(
        seen.width, seen.height, seen.masks, seen.base, [boxes[boxes.score != score] for boxes in seen.masked]
    )


# --- the page ------------------------------------------------------------------------------------------------------


def recall(images, where, area=0.01, aspect=1.0, threshold=0.0) -> str:
    """Certified recall as the page should show it."""
    proofs = build_proof_table(ImageSet.from_images(images, VOCABULARY), PAPER.rule, "exact")
    certified, _ = certified_objects(
        proofs, PAPER.rule, [Patch(area, aspect, where)], certification_threshold=threshold
    )
    return f"{100 * certified.mean():.1f} %"


def shown(page, where: str) -> str:
    page.locator(DONE).wait_for()
    return page.locator(f"#recalls [data-location={where}] .value").inner_text()


def slide(page, name: str, stops: str, value: float) -> None:
    """Move a slider to one of its stops."""
    at = page.evaluate("([stops, value]) => objectseeker.data.controls[stops].indexOf(value)", [stops, value])
    assert at >= 0
    page.locator(f"#{name}").fill(str(at))
    page.locator(DONE).wait_for()


def test_it_opens_with_the_overview(opened, paper_report):
    file, images = paper_report
    page = opened(file)
    assert page.locator("#part-overview").is_visible()
    assert page.locator("#cards .value").all_inner_texts()[3] == f"{COUNT} images"
    for where in PATCH_LOCATIONS:
        assert shown(page, where) == recall(images, where)
    page.locator("#chart-state:empty").wait_for(state="attached")
    assert page.locator("#chart path.series").count() == len(PATCH_LOCATIONS)
    assert page.locator("#classes tbody tr").count() == 2
    assert "mask_threshold" in page.locator("#settings").inner_text()


def test_figures_are_rounded_as_evaluate_rounds_them(opened, paper_report):
    """53 of 80 is 66.25 %: halfway, where Python takes the even digit."""
    page = opened(paper_report[0])
    values = [100 * (count / objects) for objects in range(1, 130) for count in range(objects + 1)]
    for digits in (1, 2):
        found = page.evaluate("([values, n]) => values.map((v) => objectseeker.percent(v, n))", [values, digits])
        assert found == [f"{value:.{digits}f}" for value in values]
    assert page.evaluate("objectseeker.percent(66.25)") == percent(66.25) == "66.2"


def test_sliders_recompute_the_certificates(opened, paper_report):
    file, images = paper_report
    page = opened(file)
    before = shown(page, "over")
    slide(page, "area", "areas", 0.25)
    assert shown(page, "over") == recall(images, "over", area=0.25) != before
    slide(page, "aspect", "aspects", 4.0)
    assert shown(page, "close") == recall(images, "close", area=0.25, aspect=4.0)
    slide(page, "threshold", "thresholds", 0.4)
    assert shown(page, "over") == recall(images, "over", 0.25, 4.0, 0.4)
    assert page.locator("#attack-words").inner_text() == "25 % of the image, 4 : 1, wide, over, T = 0.4"
    page.locator("#area").focus()
    page.keyboard.press("ArrowLeft")
    assert shown(page, "over") == recall(images, "over", 0.2, 4.0, 0.4)
    page.get_by_role("button", name="Reset").click()
    assert shown(page, "over") == before


def test_the_curve_holds_pythons_numbers_and_chooses_a_size(opened, paper_report):
    file, images = paper_report
    page = opened(file)
    page.locator("#chart-state:empty").wait_for(state="attached")
    page.locator("details.plain summary").click()
    rows = page.locator("#chart-table tbody tr").all_inner_texts()
    by_area = {row.split()[0]: row.split()[2:] for row in rows}
    for text, area in (("0.1", 0.001), ("1", 0.01), ("10", 0.1), ("100", 1.0)):
        assert [f"{value} %" for value in by_area[text]] == [recall(images, where, area) for where in PATCH_LOCATIONS]
    chart = page.locator("#chart svg")
    box = chart.bounding_box()
    chart.click(position={"x": box["width"] - 100, "y": 40})  # the right end of the axis
    assert shown(page, "over") == recall(images, "over", area=1.0)


def test_filters_find_the_images(opened, paper_report):
    file, images = paper_report
    page = opened(file, "#images")
    assert page.locator("#gallery-count").inner_text() == f"{COUNT} objects in {COUNT} images"
    dogs = sum(int((image.ground_truth.label == 1).sum()) for image in images)
    page.locator("#filter-class").select_option("dog")
    assert page.locator("#gallery-count").inner_text() == f"{dogs} objects in {dogs} images of {COUNT}"
    page.get_by_role("button", name="Show all").click()
    page.locator("input[value=close]").check()
    page.locator(DONE).wait_for()
    page.locator("#filter-verdict").select_option("uncertified")
    certified = float(recall(images, "close").split()[0])
    open_objects = COUNT - round(certified * COUNT / 100)
    assert 0 < open_objects < COUNT
    assert page.locator("#gallery-count").inner_text().startswith(f"{open_objects} object")
    page.locator("#filter-verdict").select_option("")
    sizes = [float(area_of(image.ground_truth.xyxy)[0]) / 1e4 for image in images]
    page.locator("#filter-size").select_option("3")  # 5 to 10 %
    assert page.locator("#gallery-count").inner_text().startswith(f"{sum(0.05 < size <= 0.1 for size in sizes)} object")
    page.locator("#filter-size").select_option("")
    squares = [int(PAPER.rule.certify(i.observation, i.ground_truth, []).largest_square[0]) for i in images]
    page.locator("#filter-square").select_option("0")  # up to 0.1 %
    wanted = sum((side + 1) ** 2 / 1e4 <= 0.001 for side in squares)
    assert 0 < wanted < COUNT
    assert page.locator("#gallery-count").inner_text().startswith(f"{wanted} object")
    assert page.locator(".thumbnail").count() == wanted
    page.locator("#filter-class").select_option("cat")
    page.locator("#filter-size").select_option("6")
    assert page.locator("#gallery-count").inner_text() == f"0 objects in 0 images of {COUNT}"


def test_cards_and_thumbnails_are_made_as_they_are_needed(opened, paper_report):
    page = opened(paper_report[0], "#images", height=400)
    assert 0 < page.locator(".thumbnail").count() < COUNT
    with_image = page.locator(".thumbnail image[href^='data:image/jpeg']")
    with_image.first.wait_for(state="attached")
    assert with_image.count() < COUNT
    page.locator("footer").scroll_into_view_if_needed()
    page.locator(".thumbnail").nth(COUNT - 1).wait_for()
    assert "image missing" in page.locator(".thumbnail").nth(2).inner_text()


def test_a_tall_screen_gets_all_the_cards_it_can_show(opened, paper_report):
    page = opened(paper_report[0], "#images", width=1000, height=6000)
    page.locator(".thumbnail").nth(COUNT - 1).wait_for()
    page.locator("#filter-class").select_option("dog")
    page.get_by_role("button", name="Show all").click()
    page.locator(".thumbnail").nth(COUNT - 1).wait_for()


def position(page) -> list[int]:
    return page.evaluate("[objectseeker.view.x, objectseeker.view.y]")


def drag_to(page, x: float, y: float) -> None:
    """Drag the patch so that its top-left corner is at (x, y), in two moves."""
    scale = page.locator("#image-view").evaluate("svg => svg.getScreenCTM().a")
    box = page.locator("#patch rect").bounding_box()
    from_x, from_y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    by = [(to - now) * scale for to, now in zip((x, y), position(page), strict=True)]
    page.mouse.move(from_x, from_y)
    page.mouse.down()
    page.mouse.move(from_x + by[0] / 2, from_y + by[1] / 2)
    page.mouse.move(from_x + by[0], from_y + by[1])
    page.mouse.up()


def test_dragging_the_patch_says_what_it_could_hide(opened, tmp_path):
    """Just inside and just outside the four lines of an object, of which each is one safe mask."""
    left, top, right, bottom = 30, 40, 60, 70
    thing = (25, 25, 75, 75, 0.9, 0)
    safe = {left // 10 - 1, 9 + top // 10 - 1, 18 + right // 10 - 1, 27 + bottom // 10 - 1}
    masked = [[thing] if mask in safe else [] for mask in range(36)]
    image = evaluation_cases.image([thing], [(25, 25, 75, 75, 0)], masked, lines=9)
    file = tmp_path / "report.html"
    write_images(file, [image], VOCABULARY, PAPER)
    certificates = PAPER.rule.certify(image.observation, image.ground_truth, [])
    assert certificates.safe_lines.tolist() == [[left, top, right, bottom]]
    page = opened(file, "#image/0")
    slide(page, "area", "areas", 0.04)
    side = 20
    inside = ((left + right - side) // 2, (top + bottom - side) // 2)
    for (x, y), wanted in (
        ((left - side, inside[1]), "left of"),
        ((left - side + 1, inside[1]), None),
        ((inside[0], top - side), "above"),
        (inside, None),
        ((right, inside[1]), "right of"),
        ((inside[0], bottom), "below"),
        ((right - 1, bottom - 1), None),
    ):
        drag_to(page, x, y)
        assert position(page) == [x, y]
        button = page.locator("#objects button")
        words = button.inner_text()
        assert button.get_attribute("data-proven") == ("false" if wanted is None else "true")
        assert ("not proven at this position" in words) == (wanted is None)
        for drawn in ("#layer-mask .removed", "#layer-proving .proving"):
            assert page.locator(drawn).count() == (0 if wanted is None else 1)
        if wanted is not None:
            said, line = re.search(r"everything (.+) [xy] = (\d+)", words).groups()
            gone = {"left of": x + side <= int(line), "above": y + side <= int(line)}
            gone |= {"right of": x >= int(line), "below": y >= int(line)}
            assert gone[said]


def test_the_patch_that_could_have_made_a_box_is_named(opened, tmp_path):
    """One view supports the box. Each question has its own signs, and the words follow the patch and the question."""
    made = (25, 25, 75, 75, 0.9, 1)
    kept = (2, 2, 20, 20, 0.9, 0)
    masked = [[made, kept] if mask == 2 else [kept] for mask in range(36)]  # removes all left of x = 30
    image = evaluation_cases.image([made, kept], [(2, 2, 20, 20, 0)], masked, lines=9)
    write_images(tmp_path / "report.html", [image], VOCABULARY, PAPER)
    page = opened(tmp_path / "report.html", "#image/0")
    slide(page, "area", "areas", 0.04)
    page.locator("input[value=anywhere]").check()
    page.locator(DONE).wait_for()
    assert page.locator("#objects button").count() == 1
    signs = set(page.locator("#legend .mark").evaluate_all("all => all.map((one) => one.innerText[0])"))
    page.get_by_label("Fabricate", exact=True).check()
    assert page.locator("#question-words").inner_text() == "Could this patch have made this box?"
    others = set(page.locator("#legend .mark").evaluate_all("all => all.map((one) => one.innerText[0])"))
    assert len(signs) == len(others) == 4
    assert not signs & others
    buttons = page.locator("#objects button")
    assert buttons.count() == 2
    certified = PAPER.rule.certify_not_fabricated(
        image.observation, PAPER.rule.prune(image.observation), Patch(0.04, 1.0, "anywhere")
    ).certified[0]
    assert certified.tolist() == [False, True]
    for n, sure in enumerate(certified.tolist()):
        style = "not-fabricated" if sure else "maybe-fabricated"
        assert buttons.nth(n).locator(f".mark.{style}").count() == 1
        assert page.locator(f"#layer-objects .box.{style}").count() == 1
    page.evaluate("scrollTo(0, 0)")
    for x, words, said in (
        (10, "supported by the view that removes everything left of x = 30", "made none of the 2 boxes"),
        (11, "this patch could have made this box", "could have made 1 of 2 boxes"),
    ):
        drag_to(page, x, 40)
        assert position(page) == [x, 40]
        assert words in buttons.first.inner_text()
        assert said in page.locator("#patch-words").inner_text()
        assert page.locator("#layer-proving .proving").count() == (x == 10)
    assert "made at most 1 of 2 boxes" in page.locator("#joint-words").inner_text()
    page.get_by_label("Hide", exact=True).check()
    assert page.locator("#objects button").count() == 1


def test_bands_leave_several_rectangles_and_are_drawn_as_bands(opened, tmp_path):
    """Two bands of each axis are safe: between and around them lie nine rectangles of positions without a proof."""
    masks = Bands(0.04).masks(100, 100)  # of 39 pixels, every 20
    assert masks.removed[[1, 3, 6, 8], 0].tolist() == [
        [20, 0, 59, 100],
        [60, 0, 99, 100],
        [0, 20, 100, 59],
        [0, 60, 100, 99],
    ]
    thing = (25, 25, 75, 75, 0.9, 0)
    masked = [evaluation_cases.boxes([thing] if mask in (1, 3, 6, 8) else []) for mask in range(len(masks))]
    image = evaluation_cases.image([thing], [(25, 25, 75, 75, 0)])
    image = replace(image, observation=Observation(100, 100, masks, image.observation.base, masked))
    write_images(tmp_path / "report.html", [image], VOCABULARY, PAPER)
    page = opened(tmp_path / "report.html", "#image/0")
    slide(page, "area", "areas", 0.04)
    page.locator("input[value=anywhere]").check()
    # A patch of 20 starts from -19 to 99; the bands remove the starts from 20 to 39 and from 60 to 79.
    between = [(-19, 20), (40, 60), (80, 100)]
    wanted = {(x, y, u - x, v - y) for x, u in between for y, v in between}
    for style in ("positions", "escape"):
        drawn = page.locator(f"#layer-positions .{style}").evaluate_all(
            "all => all.map((one) => ['x', 'y', 'width', 'height'].map((name) => +one.getAttribute(name)))"
        )
        assert {(x - 9.5, y - 9.5, width, height) for x, y, width, height in drawn} == wanted
    button = page.locator("#objects button")
    for (x, y), words, strip in (
        ((20, 0), "removes everything from x = 20 to 59", [20, 0, 39, 100]),
        ((41, 79), "removes everything from y = 60 to 99", [0, 60, 100, 39]),
        ((40, 80), "not proven", None),
    ):
        drag_to(page, x, y)
        assert position(page) == [x, y]
        assert words in button.inner_text()
        removed = page.locator("#layer-mask .removed")
        assert removed.count() == (strip is not None)
        assert page.locator("#layer-mask .removed-line").count() == (0 if strip is None else 2)
        if strip is not None:
            assert [float(removed.get_attribute(name)) for name in ("x", "y", "width", "height")] == strip
    assert "safe lines" not in page.locator("#chosen").inner_text()


def test_boxes_have_the_detectors_names_and_objects_the_data_sets(opened, tmp_path):
    """A detector that sees a kitten under left masks and a cat under right ones proves the object as neither."""
    thing = (25, 25, 75, 75)
    masked = [[(*thing, 0.9, mask // 18)] for mask in range(36)]  # left and top masks first
    image = evaluation_cases.image([(*thing, 0.9, 1)], [(*thing, 0)], masked, lines=9)
    write_images(tmp_path / "report.html", [image], TWO_CATS, PAPER)
    page = opened(tmp_path / "report.html", "#image/0")
    page.locator("input[value=anywhere]").check()
    page.locator(DONE).wait_for()
    assert page.locator("#objects button .mark").first.inner_text() == "✗ anywhere: not certified"
    page.get_by_label("base boxes (undefended detector)").check()
    assert page.locator("#layer-base title").text_content() == "\u2068kitten\u2069 0.9"
    chosen = page.locator("#chosen").inner_text()
    assert "Chosen: cat" in chosen
    assert "cat, one of 2 that map to this class" in chosen
    with_one_label = replace(
        image,
        observation=Observation(
            100,
            100,
            image.observation.masks,
            image.observation.base,
            [Detections(boxes.xyxy, boxes.score, np.ones(len(boxes), int)) for boxes in image.observation.masked],
        ),
    )
    write_images(tmp_path / "report.html", [with_one_label], TWO_CATS, PAPER)
    page.reload()
    page.locator("input[value=anywhere]").check()
    page.locator(DONE).wait_for()
    assert page.locator("#objects button .mark").first.inner_text() == "✓ anywhere: certified"
    assert "kitten, one of 2 that map to this class" in page.locator("#chosen").inner_text()


def test_words_follow_the_rule(opened, tmp_path):
    for settings, words, label in (
        (
            PAPER,
            "outputs a box of the object's class that covers more than T of the object.",
            "Certification threshold T (IoA)",
        ),
        (LABEL_FREE, "outputs a box that covers more than T of the object.", "Certification threshold T (IoA)"),
        (
            IOU,
            "outputs a box of the object's class whose IoU with the object exceeds T.",
            "Certification threshold T (IoU)",
        ),
    ):
        write_images(tmp_path / "report.html", observed_images(tmp_path, 1), VOCABULARY, settings)
        page = opened(tmp_path / "report.html", "#meaning")
        assert words in " ".join(page.locator("#part-meaning").inner_text().split())
        assert page.locator("label:has(#threshold)").inner_text().startswith(label)


def test_the_hatched_positions_are_the_vulnerable_rectangle(opened, paper_report):
    file, images = paper_report
    page = opened(file, "#image/5")
    image = images[5]
    page.locator("input[value=anywhere]").check()
    lines = PAPER.rule.certify(image.observation, image.ground_truth, []).safe_lines[0].tolist()
    hatched = page.locator("#layer-positions .positions")
    assert hatched.count() == 1
    x, y, width, height = (float(hatched.get_attribute(name)) for name in ("x", "y", "width", "height"))
    # Top-left corners run from line - side + 1 to line - 1; centers lie 5 further for a patch of 10 x 10.
    first = [max(lines[0] - 9, -9), max(lines[1] - 9, -9)]
    last = [min(lines[2], 100) - 1, min(lines[3], 100) - 1]
    assert [x, y] == [first[0] + 4.5, first[1] + 4.5]
    assert [width, height] == [last[0] - first[0] + 1, last[1] - first[1] + 1]


def test_the_keyboard_is_enough(opened, paper_report):
    page = opened(paper_report[0], "#images")
    card = page.locator(".thumbnail").nth(4)
    card.focus()
    page.keyboard.press("Enter")
    page.locator("#part-image").wait_for()
    page.locator("#grip").focus()
    x, y = position(page)
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Shift+ArrowLeft", "ArrowUp", "Shift+ArrowDown"):
        page.keyboard.press(key)
    assert position(page) == [x - 8, y + 10]
    assert f"at ({x - 8}, {y + 10})" in page.locator("#patch-words").inner_text()
    page.keyboard.press("PageDown")
    api.expect(page.locator("#image-title")).to_have_text(re.compile("^" + "005"))
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    api.expect(page.locator("#image-title")).to_have_text(re.compile("^" + "003"))
    page.keyboard.press("Escape")
    page.locator("#part-images").wait_for()


def test_previous_and_next_stay_within_the_filter(opened, paper_report):
    file, images = paper_report
    page = opened(file, "#images")
    page.locator("#filter-class").select_option("dog")
    dogs = [image.id for image in images if image.ground_truth.label[0] == 1]
    page.locator(".thumbnail").first.click()
    api.expect(page.locator("#image-title")).to_have_text(re.compile("^" + dogs[0]))
    assert page.locator("#previous").is_disabled()
    page.locator("#next").click()
    page.wait_for_url(f"**#image/{int(dogs[1])}")
    api.expect(page.locator("#image-title")).to_have_text(re.compile("^" + dogs[1]))


def test_a_missing_image_is_said(opened, paper_report):
    page = opened(paper_report[0], "#image/2")
    assert "could not be read" in page.locator("#no-image").inner_text()
    assert page.locator("#pixels").get_attribute("href") is None
    assert page.locator("#layer-objects .box").count() == 1
    page.goto(paper_report[0].as_uri() + "#image/3")
    assert page.locator("#pixels").get_attribute("href").startswith("data:image/jpeg")
    assert page.locator("#no-image").is_hidden()


def test_layers_can_be_switched(opened, paper_report):
    page = opened(paper_report[0], "#image/0")
    assert page.locator("#layer-base rect").count() == 0
    page.get_by_label("base boxes (undefended detector)").check()
    assert page.locator("#layer-base rect").count() == 1
    page.get_by_label("objects", exact=True).uncheck()
    assert page.locator("#layer-objects rect").count() == 0


def test_images_beside_the_file_are_found(opened, tmp_path):
    write_images(tmp_path / "a b.html", observed_images(tmp_path, 2), VOCABULARY, PAPER, embed_images=False)
    page = opened(tmp_path / "a b.html")
    other = 1 - page.evaluate("objectseeker.data.cover")
    with page.expect_response(lambda response: f"view-{other}.jpg" in response.url) as answer:
        page.goto((tmp_path / "a b.html").as_uri() + f"#image/{other}")
    assert answer.value.ok


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(opened, paper_report, width):
    page = opened(paper_report[0], width=width, height=800)
    for part in ("overview", "images", "image/3", "meaning"):
        page.goto(paper_report[0].as_uri() + f"#{part}")
        page.locator(f"#part-{part.split('/')[0]}").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, part


def test_light_and_dark(opened, paper_report):
    page = opened(paper_report[0], color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(paper)
    assert dark != light == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) == dark


def test_names_stay_text(opened, tmp_path):
    """Markup, quotes, brackets, control codes and characters that turn the direction of writing, wherever names go."""
    hostile = "</script><img src=x onerror='window.hacked=1'>\"& [/foo] \u202egpj.exe\u2066\x1b[31m\n\udcff שלום"
    shown = "</script><img src=x onerror='window.hacked=1'>\"& [/foo] \\u202egpj.exe\\u2066\\x1b[31m\\n\\udcff שלום"
    images = [replace(image, id=hostile, path=Path(hostile)) for image in observed_images(tmp_path, 3)]
    out = tmp_path / "report.html"
    vocabulary = LabelMap((hostile, "dog", hostile), (hostile, "dog"), np.array([0, 1, 0]))
    told = {"caveats": [hostile], "provenance": {hostile: hostile}}
    defense = Defense(detector=f"python:{hostile}:see", rule=PAPER.rule, masks=Halves(6), class_names=(hostile,))
    write_images(out, images, vocabulary, PAPER, title=hostile, defense=defense, embed_images=False, **told)
    page = opened(out)
    page.evaluate("document.addEventListener('securitypolicyviolation', () => { window.hacked = 2; })")
    assert page.title() == page.locator("h1").inner_text() == shown
    for place in ("#classes", "#caveats", "#settings", "#provenance"):
        assert shown in page.locator(place).inner_text()
    page.evaluate("location.hash = 'images'")
    assert shown in page.locator(".thumbnail .words").first.inner_text()
    assert shown in page.locator("#filter-class").inner_text()
    number = next(n for n, image in enumerate(images) if image.observation.base.label[0] == 0)
    page.evaluate("n => { location.hash = `image/${n}`; }", number)
    page.get_by_label("base boxes (undefended detector)").check()
    assert page.locator("#layer-base title").text_content().startswith(f"\u2068{shown}\u2069 0.")
    for place in ("#image-title", "#objects", "#chosen"):
        assert page.locator(f"{place} bdi").first.inner_text() == shown
    max_unseen_share = r"/[\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]/u"
    found = page.evaluate(f"[...document.body.innerText].filter((letter) => {max_unseen_share}.test(letter))")
    assert set(found) <= {"\n", "\t"}
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


# --- unlabeled images ------------------------------------------------------------------------------------------------


def test_without_labels_nothing_is_called_recall(opened, tmp_path):
    images = [output_on(image, PAPER.rule) for image in observed_images(tmp_path, 3)]
    run = Run(images, PAPER, is_labeled=False)
    page = opened(run.report(tmp_path / "report.html"))
    boxes = sum(len(image.ground_truth) for image in images)
    assert "not recall: an image that is already attacked may hide" in page.locator("#caveats-above").inner_text()
    assert page.locator("#cards .value").all_inner_texts() == [str(boxes), "3 images"]
    assert page.locator("#recalls .card").first.inner_text().count(f"of {boxes} boxes") == 1
    for place in ("h3", "figcaption", "th", "label", "#cards", "#recalls"):
        words = " ".join(page.locator(f"{place}:visible").all_inner_texts())
        assert words
        assert "AP" not in words
        assert "recall" not in words.lower()
    assert page.locator("#classes th").all_inner_texts()[1] == "output boxes"
    assert "recall" not in page.locator("#chart svg").get_attribute("aria-label")
    page.evaluate("location.hash = 'images'")
    assert page.locator("#gallery-count").inner_text() == f"{boxes} boxes in 3 images"
    page.evaluate("location.hash = 'image/0'")
    assert (
        "Objects that an attack has already hidden in this image are not among them"
        in page.locator(".viewer .side").inner_text()
    )
    assert page.locator("#layer-objects .box").count() == len(images[0].ground_truth)
    page.evaluate("location.hash = 'meaning'")
    assert "already attacked may hide objects" in page.locator("#part-meaning").inner_text()
    assert "Certified recall" not in page.locator("#part-meaning").inner_text()


def test_of_too_many_views_the_page_certifies_less_and_says_so(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("objectseeker.report.certificates.MAX_MULTI_VIEW_BOXES", 20)
    run = Run(awkward(count=8), EVIDENCE)
    page = opened(run.report(tmp_path / "report.html"), "#image/0")
    mine, theirs = all_verdicts(page, 0.0), pythons_verdicts(run, 0.0)
    partly = np.array(page.evaluate("Array.from(objectseeker.certificates.target_truncated)"), bool)
    for ours, wanted in (mine[0], theirs[0]), (mine[2], theirs[2]):
        assert (ours[..., ~partly] == wanted[..., ~partly]).all()
        assert (ours[..., partly] <= wanted[..., partly]).all()
        assert (ours[..., partly] < wanted[..., partly]).any()
    n = int(np.flatnonzero(partly)[0])
    page.evaluate("n => { location.hash = 'image/' + objectseeker.certificates.image[n]; }", n)
    page.locator(f"[data-object='{n}']").click()
    assert "more than this page can hold" in page.locator("#chosen").inner_text()
