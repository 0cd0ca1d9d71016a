"""The report as a file: what is in it, and that nothing in it can break out."""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import evaluation_cases
import numpy as np
import PIL.Image
import pytest
from cases import pairs
from command import run as run_cli
from report_cases import (
    BASE_SCORE,
    EVIDENCE,
    IOU,
    PAPER,
    TWO_CATS,
    VOCABULARY,
    awkward,
    columns_of,
    data_of,
    details_of,
    hesitating,
    photographed,
    run_of,
    settings_of,
)

from objectseeker import Defence, Detections, Halves, ObjectSeekerError, Rule, halves
from objectseeker.core.bounds import MARGIN
from objectseeker.core.certification import escape_lines, provable
from objectseeker.core.evidence import weights
from objectseeker.core.follow import Follow
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import neighbours
from objectseeker.core.vocabulary import Vocabulary
from objectseeker.evaluation import Scene, Settings, Threat, evaluate
from objectseeker.results.report import write_report

NAMES = evaluation_cases.NAMES


def written(out: Path, images, settings=PAPER, vocabulary=VOCABULARY, **options) -> str:
    write_report(out / "report.html", images, vocabulary, settings, **options)
    return (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("threshold", [0.0, 0.4])
@pytest.mark.parametrize("name", ["paper", "evidence", "labels", "label_free", "iou"])
def test_the_lines_of_every_certificate_follow_from_the_page(tmp_path, name, threshold):
    run = run_of(name)
    column = columns_of(written(tmp_path, run.images, run.settings, run.vocabulary))
    t = 0
    for image in run.images:
        masks = image.observation.masks
        for lines in run.certify(image, [], threshold)[0].vulnerable:
            rows = slice(column["alone_first"][t], column["alone_first"][t + 1])
            safe = np.zeros((1, len(masks)), dtype=bool)
            safe[0, column["alone_mask"][rows][column["alone_share"][rows] > threshold + MARGIN]] = True
            assert (escape_lines(safe, masks)[0] == lines).all()
            t += 1
    assert t == len(column["target_label"]) == len(column["alone_first"]) - 1


def test_every_object_has_a_target_for_each_label_that_stands_for_it(tmp_path):
    images = [hesitating(image) for image in awkward()]
    column = columns_of(written(tmp_path, images, EVIDENCE, TWO_CATS))
    wanted = [{0: [0, 1], 1: [2]}[int(label)] for image in images for label in image.truth.label]
    first = column["target_first"].astype(int)
    assert [column["target_label"][a:b].tolist() for a, b in pairwise(first)] == wanted


def test_views_that_only_prove_together_come_with_their_weights_and_neighbours(tmp_path):
    images = awkward()
    column = columns_of(written(tmp_path, images, EVIDENCE))
    rule = EVIDENCE.rule
    n = rows = links = 0
    for image in images:
        seen = image.observation
        evidence = rule.evidence(rule.scores(seen))
        weight = weights(evidence)
        for proves in provable(rule, seen, image.truth, 0.0, "exact").T:
            members = np.flatnonzero(proves & (evidence > 0) & (evidence < 1))
            start, end = column["together_first"][n : n + 2].tolist()
            assert (column["together_mask"][start:end] == seen.mask_of[members]).all()
            assert (column["together_weight"][start:end] == weight[members]).all()
            bits = column["link_bits"][column["link_first"][n] : column["link_first"][n + 1]]
            width = -(-len(members) // 8)
            linked = np.unpackbits(bits.reshape(len(members), width), axis=1, bitorder="little")[:, : len(members)]
            boxes = seen.boxes.xyxy[members]
            assert (linked == neighbours(boxes, boxes, rule.cluster_distance - MARGIN)).all()
            n, rows, links = n + 1, rows + len(members), links + linked.sum()
    assert len(column["together_mask"]) == rows > 100
    assert 0 < links < sum(int(x) ** 2 for x in np.diff(column["together_first"].astype(int)))


@pytest.mark.parametrize(
    "asked", [{"clean_recall": 0.6}, {"base_score": 0.345678}, {}], ids=["clean recall", "base score", "own"]
)
@pytest.mark.parametrize("settings", [PAPER, IOU], ids=["ioa", "iou"])
def test_the_numbers_are_those_of_evaluate(tmp_path, settings, asked):
    images = evaluation_cases.noisy(1, 30)
    settings = replace(settings, **asked)
    found = data_of(written(tmp_path, images, settings))
    wanted = evaluate(images, VOCABULARY, settings)
    ours = wanted.ours
    assert found["undefended"] == {"ap50": wanted.undefended.ap50, "ap50_coco": wanted.undefended.ap50_coco}
    assert found["defended"] == {"ap50": ours.ap50, "clean_recall": ours.clean_recall}
    assert found["settings"]["base_score"] == repr(ours.base_score)
    assert found["settings"]["mask_score"] == repr(ours.mask_score)
    if "clean_recall" not in asked:
        assert ours.base_score == asked.get("base_score", BASE_SCORE)
    assert found["objects"] == wanted.objects
    assert [row["label"] for row in found["per_class"]] == wanted.classes
    for row in found["per_class"]:
        c = row["label"]
        assert row["undefended_ap50"] == wanted.undefended.curve.ap50[c]
        assert row["ap50"] == ours.curve.ap50[c]
        assert row["clean_recall"] == ours.recall(c)
    assert found["remarks"] == []


def test_a_usual_clean_recall_that_is_not_reached_gives_way_with_a_remark(tmp_path):
    images = [evaluation_cases.image([], [(5, 5, 30, 30, 0)]), *evaluation_cases.noisy(1, 9)]
    settings = replace(PAPER, clean_recall=1.0)
    with pytest.raises(ObjectSeekerError, match=r"clean recall 100 ?% is not reached, at most"):
        written(tmp_path, images, settings)
    page = written(tmp_path, images, replace(settings, clean_recall_is_default=True), remarks=["And this."])
    found = data_of(page)
    assert re.match("Clean recall 100 ?% is not reached", found["remarks"][0])
    assert found["remarks"][1:] == ["And this."]
    assert found["defended"]["clean_recall"] < 100
    written(tmp_path, images, replace(settings, clean_recall=0.1, clean_recall_is_default=True))
    assert data_of((tmp_path / "report.html").read_text())["remarks"] == []


def test_the_page_names_the_defence_in_full(tmp_path):
    third = 1 / 3
    follow = Follow(alpha=0.7 + 1e-13, beta=0.1, low_alpha=0.2, low_beta=third)
    rule = follow.rule(Rule(filter_ioa=2 * third, edge_factor=0.85, cluster_distance=0.1 + 1e-12), 0.123456789012345)
    defence = Defence(detector="python:mine:see", rule=rule, follow=follow, masks=Halves(6), fill=90, batch=4).bound_to(
        "python sha256:77"
    )
    settings = Settings(rule=rule, follow=follow, threat=Threat(bound="paper"))
    images = photographed(tmp_path, 3)
    found = data_of(written(tmp_path, images, settings, defence=defence))["settings"]
    assert found["defence"] == f"sha256:{defence.sha256}"
    assert "on the curve of" not in found
    wanted = {"detector": "python:mine:see", "detector identity": "python sha256:77", "masks": "halves:6", "fill": "90"}
    assert found.items() >= (wanted | {"batch": "4", "bound": "paper", "classwise": "True"}).items()
    for name in ("base_score", "mask_score", "low_score", "power", "filter_ioa", "edge_factor", "cluster_distance"):
        assert float(found[name]) == getattr(rule, name)
    assert not any("lines" in key for key in found)

    found = data_of(written(tmp_path, images, replace(settings, base_score=0.5), defence=defence))["settings"]
    deployed = replace(defence, rule=follow.rule(rule, 0.5))
    assert found["defence"] == f"sha256:{deployed.sha256}"
    assert found["on the curve of"] == f"sha256:{defence.sha256}"
    assert float(found["mask_score"]) == deployed.rule.mask_score


def test_a_defence_that_is_not_what_is_shown_is_refused(tmp_path):
    images = photographed(tmp_path, 2)
    defence = Defence(detector="python:mine:see", rule=PAPER.rule, masks=Halves(6))
    with pytest.raises(ObjectSeekerError, match="the settings are about Rule"):
        written(tmp_path, images, EVIDENCE, defence=defence)
    with pytest.raises(ObjectSeekerError, match="image 000 was observed under other masks than the defence's halves:5"):
        written(tmp_path, images, PAPER, defence=replace(defence, masks=Halves(5)))


def test_the_iou_variant_is_described(tmp_path):
    found = data_of(written(tmp_path, awkward(), IOU))
    assert found["settings"]["tau_iou"] == "0.8"
    assert found["settings"]["mask_score"] == repr(IOU.ioa.mask_score)
    assert found["controls"]["start"]["threshold"] == 0.5
    assert found["by_iou"]
    assert not found["evidence"]


@pytest.mark.parametrize("name", ["paper", "labels"])
def test_details_hold_base_boxes_and_what_only_masking_found(tmp_path, name):
    run = run_of(name)
    page = written(tmp_path, run.images, run.settings, run.vocabulary)
    recovered = 0
    labels = set()
    for number, image in enumerate(run.images):
        found = run.rule.prune(image.observation)
        details = details_of(page, number)
        drawn = details["base"] + details["recovered"]
        assert np.allclose(np.reshape([box[:4] for box in drawn], (-1, 4)), found.xyxy, atol=0.051)
        assert [box[5] for box in drawn] == found.label.tolist()
        assert len(details["base"]) == len(image.observation.base.at_least(run.rule.base_score))
        recovered += len(details["recovered"])
        labels |= set(found.label.tolist())
    assert recovered > 0
    assert labels == set(range(len(run.vocabulary.detector_names)))
    assert data_of(page)["detector_names"] == list(run.vocabulary.detector_names)
    assert data_of(page)["names"] == list(NAMES)


def test_photographs_are_recompressed_and_embedded(tmp_path):
    page = written(tmp_path, photographed(tmp_path, 3))
    for kind in ("thumbnail", "view"):
        found = re.findall(rf'<script type="text/plain" id="{kind}-(\d+)">(.*?)</script>', page)
        assert [number for number, _ in found] == ["0", "1", "2"]
        picture = PIL.Image.open(io.BytesIO(b64decode(found[1][1])))
        assert picture.format == "JPEG"
        assert picture.size == (100, 100)
        original = np.asarray(PIL.Image.open(tmp_path / "photo 1.png"), dtype=int)
        assert np.abs(np.asarray(picture, dtype=int) - original).mean() < 20


def test_photographs_beside_the_file(tmp_path):
    page = written(tmp_path, photographed(tmp_path, 3), photos="beside")
    assert "thumbnail-0" not in page
    assert data_of(page)["photos"] == "report-photos"
    names = {file.name for file in (tmp_path / "report-photos").iterdir()}
    assert names == {f"{kind}-{number}.jpg" for kind in ("thumbnail", "view") for number in range(3)}


def test_a_large_photograph_is_made_smaller(tmp_path):
    PIL.Image.new("RGB", (2000, 1000), "teal").save(tmp_path / "large.png")
    one = evaluation_cases.image([(1, 1, 30, 30, 0.9, 0)], [(1, 1, 30, 30, 0)])
    seen = Observation(2000, 1000, halves(2000, 1000, 1), one.observation.base, [Detections.empty()] * 4)
    page = written(tmp_path, [replace(one, observation=seen, path=tmp_path / "large.png")])
    (content,) = re.findall(r'id="view-0">(.*?)</script>', page)
    assert PIL.Image.open(io.BytesIO(b64decode(content))).size == (640, 320)


def test_a_missing_photograph_and_one_of_another_size_are_named(tmp_path):
    images = photographed(tmp_path, 4)
    images[1].path.unlink()
    PIL.Image.new("RGB", (50, 50)).save(images[2].path)
    missing = write_report(tmp_path / "report.html", images, VOCABULARY, PAPER)
    assert len(missing) == 2
    assert "photo 1.png" in missing[0]
    assert "50x50" in missing[1]
    page = (tmp_path / "report.html").read_text()
    assert data_of(page)["image_missing"] == [1, 2]
    assert re.findall(r'id="view-(\d)"', page) == ["0", "3"]


HOSTILE = "</script><script>window.hacked = 1</script><!-- \" ' & é 猫 \u2028"


class Scripts(HTMLParser):
    """The scripts of a page as a browser finds them: type and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[list[str]] = []
        self.tags: set[str] = set()
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._inside = tag == "script"
        if self._inside:
            self.found.append([dict(attrs).get("type", "script"), ""])

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.found[-1][1] += data


def test_no_name_breaks_out_of_the_page(tmp_path):
    images = [replace(image, id=HOSTILE) for image in photographed(tmp_path, 2)]
    plain = Scripts(written(tmp_path, photographed(tmp_path, 2)))
    page = written(
        tmp_path,
        images,
        vocabulary=Vocabulary.same((HOSTILE, "dog")),
        title=HOSTILE,
        provenance={HOSTILE: HOSTILE},
        remarks=[HOSTILE],
    )
    hostile = Scripts(page)
    assert [kind for kind, _ in hostile.found] == [kind for kind, _ in plain.found]
    assert hostile.tags == plain.tags
    (program,) = (text for kind, text in hostile.found if kind == "script")
    assert "hacked" not in program
    found = data_of(page)
    assert found["names"][0] == found["image_ids"][0] == found["title"] == found["provenance"][HOSTILE] == HOSTILE


def test_the_page_names_no_address(tmp_path):
    page = written(tmp_path, awkward())
    assert not re.search(r"https?:|url\((?!#)|@import| src=", page)
    assert "default-src 'none'" in page


def test_the_settings_given_are_stops_of_the_sliders(tmp_path):
    settings = replace(PAPER, threat=Threat(area=0.0123, aspect=1.7, threshold=0.33))
    found = data_of(written(tmp_path, awkward(), settings))["controls"]
    for key, value in (("areas", 0.0123), ("aspects", 1.7), ("thresholds", 0.33)):
        assert value in found[key]
        assert found[key] == sorted(found[key])
    assert found["areas"][0] == 0.001
    assert found["areas"][-1] == 1
    assert {0.01, 0.02, 0.05} < set(found["areas"])
    assert (found["aspects"][0], found["aspects"][-1]) == (1 / 16, 16)


def test_a_run_without_annotations_is_one_sentence(tmp_path):
    images = [
        replace(image, truth=Detections.empty(), ignore=np.zeros(0, bool), crowd=np.zeros(0, bool))
        for image in photographed(tmp_path, 3)
    ]
    with pytest.raises(ObjectSeekerError, match="none of the 3 images has an object that counts"):
        written(tmp_path, images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"photos": "cloud"}, "photos must be one of embed, beside, got 'cloud'"),
        ({"settings": replace(settings_of(Follow(alpha=1.0)), clean_recall=1.0)}, "clean recall 100 ?% is not"),
        ({"settings": replace(PAPER, threat=Threat(count=2))}, "against one patch, got 2 patches"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(tmp_path, options, message):
    images = [evaluation_cases.image([], [(5, 5, 30, 30, 0)]), *photographed(tmp_path, 2)]
    with pytest.raises(ObjectSeekerError, match=message):
        written(tmp_path, images, **options)
    assert not (tmp_path / "report.html").exists()


def test_pairs_of_masks_are_refused(tmp_path):
    (image,) = photographed(tmp_path, 1)
    masks = pairs(100, 100, 1)
    seen = Observation(100, 100, masks, image.observation.base, [Detections.empty()] * len(masks))
    with pytest.raises(ObjectSeekerError, match="half masks or bands, not pairs"):
        written(tmp_path, [replace(image, observation=seen)])


def test_progress_counts_every_image(tmp_path):
    seen = []
    written(tmp_path, photographed(tmp_path, 3), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_scene_order_is_kept(tmp_path):
    images = awkward()
    column = columns_of(written(tmp_path, images))
    scene = Scene.of(images, VOCABULARY)
    assert (column["box"].reshape(-1, 4) == scene.truth.detections.xyxy).all()
    assert (column["ignore"] == scene.ignore).all()


def test_report_on_the_command_line(tmp_path):
    """observe, then report: the page is written, says where it comes from, and bad input is one sentence."""
    detector = "from objectseeker import Detections\n"
    detector += "def see(images):\n    return [Detections([[5, 5, 60, 60]], [0.9], [0]) for _ in images]\n"
    (tmp_path / "mine.py").write_text(detector + "see.names = ('thing',)\n")
    (tmp_path / "photos").mkdir()
    PIL.Image.new("RGB", (90, 70), "olive").save(tmp_path / "photos" / "a.png")
    truth = {
        "images": [{"id": 7, "file_name": "a.png", "width": 90, "height": 70}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 1, "bbox": [5, 5, 55, 55], "iscrowd": 0}],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    run_cli(
        tmp_path, "observe", "coco:truth.json:photos", "-d", "python:mine:see", "--out", "run", "--masks", "halves:3"
    )
    answer = json.loads(run_cli(tmp_path, "report", "run", "--alpha", 0.5, "--beta", 0, "--json").stdout)
    assert answer == {"out": "report.html", "images": 1, "missing_photographs": []}
    found = data_of((tmp_path / "report.html").read_text())
    assert found["title"] == "objectseeker report: run"
    assert found["provenance"]["dataset"] == "coco:truth.json:photos"
    assert "numpy" in found["provenance"]["software"]
    assert found["settings"]["masks"] == "halves:3"
    assert found["settings"]["detector"] == "python:mine:see"
    assert found["settings"]["mask_score"] == "0.5"
    (tmp_path / "photos" / "a.png").unlink()
    done = run_cli(tmp_path, "report", "run", "--alpha", 0.5, "--beta", 0, "--photos", "beside", "--out", "o/r.html")
    assert "a.png" in done.stderr
    assert "Report: o/r.html" in done.stdout
    done = run_cli(tmp_path, "report", "run", "--photos", "cloud", code=2)
    assert done.stderr.splitlines()[-1] == "error: photos must be one of embed, beside, got 'cloud'"
