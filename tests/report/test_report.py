"""The report as a file: what is in it, and that nothing in it can break out."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import resource
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import evaluation_cases
import numpy as np
import PIL.Image
import pytest
from command import run as run_cli
from command import write_dataset
from report_cases import (
    BASE_THRESHOLD,
    EVIDENCE,
    IOU,
    PAPER,
    TWO_CATS,
    VOCABULARY,
    Run,
    awkward,
    columns_of,
    data_of,
    details_of,
    hesitating,
    observed_images,
    run_of,
    settings_of,
    write_images,
)

from objectseeker import Defense, Detections, Halves, ObjectSeekerError, Rule
from objectseeker.core import boxes
from objectseeker.core.bounds import MARGIN
from objectseeker.core.certification import find_safe_lines
from objectseeker.core.evidence import certified_weights
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import are_neighbors
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, ImageSet, ThreatModel, evaluate_images
from objectseeker.report import ReportSource
from objectseeker.report import certificates as report_certificates
from objectseeker.text import redact_path

NAMES = evaluation_cases.NAMES


def written(out: Path, images, settings=PAPER, vocabulary=VOCABULARY, **options) -> str:
    write_images(out / "report.html", images, vocabulary, settings, **options)
    return (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("threshold", [0.0, 0.4])
@pytest.mark.parametrize("name", ["paper", "evidence", "labels", "class_agnostic", "iou"])
def test_the_lines_of_every_certificate_follow_from_the_page(tmp_path, name, threshold):
    run = run_of(name)
    column = columns_of(written(tmp_path, run.images, run.settings, run.label_map))
    t = 0
    for image in run.images:
        masks = image.observation.masks
        for lines in run.certify(image, [], threshold)[0].safe_lines:
            rows = slice(column["single_view_first"][t], column["single_view_first"][t + 1])
            safe = np.zeros((1, len(masks)), dtype=bool)
            safe[0, column["single_view_mask"][rows][column["single_view_share"][rows] > threshold + MARGIN]] = True
            assert (find_safe_lines(safe, masks)[0] == lines).all()
            t += 1
    assert t == len(column["target_label"]) == len(column["single_view_first"]) - 1


def test_every_object_has_a_target_for_each_label_that_stands_for_it(tmp_path):
    images = [hesitating(image) for image in awkward()]
    column = columns_of(written(tmp_path, images, EVIDENCE, TWO_CATS))
    wanted = [{0: [0, 1], 1: [2]}[int(label)] for image in images for label in image.ground_truth.label]
    first = column["target_first"].astype(int)
    assert [column["target_label"][a:b].tolist() for a, b in pairwise(first)] == wanted


def test_views_that_only_prove_multi_view_come_with_their_weights_and_neighbors(tmp_path):
    images = awkward()
    column = columns_of(written(tmp_path, images, EVIDENCE))
    rule = EVIDENCE.rule
    n = rows = links = 0
    for image in images:
        seen = image.observation
        evidence = rule.evidence(rule.discounted_scores(seen))
        weight = certified_weights(evidence)
        for proves in rule.proving_pairs(seen, image.ground_truth, 0.0, "exact").T:
            members = np.flatnonzero(proves & (evidence > 0) & (evidence < 1))
            start, end = column["multi_view_first"][n : n + 2].tolist()
            assert (column["multi_view_mask"][start:end] == seen.mask_index[members]).all()
            assert (column["multi_view_weight"][start:end] == weight[members]).all()
            bits = column["link_bits"][column["link_first"][n] : column["link_first"][n + 1]]
            width = -(-len(members) // 8)
            linked = np.unpackbits(bits.reshape(len(members), width), axis=1, bitorder="little")[:, : len(members)]
            boxes = seen.all_masked.xyxy[members]
            assert (linked == are_neighbors(boxes, boxes, rule.cluster_distance - MARGIN)).all()
            n, rows, links = n + 1, rows + len(members), links + linked.sum()
    assert len(column["multi_view_mask"]) == rows > 100
    assert 0 < links < sum(int(x) ** 2 for x in np.diff(column["multi_view_first"].astype(int)))


@pytest.mark.parametrize(
    "asked", [{"clean_recall": 0.6}, {"base_threshold": 0.345678}, {}], ids=["clean recall", "base score", "own"]
)
@pytest.mark.parametrize("settings", [PAPER, IOU], ids=["ioa", "iou"])
def test_the_numbers_are_those_of_evaluate(tmp_path, settings, asked):
    images = evaluation_cases.noisy(1, 30)
    settings = replace(settings, **asked)
    found = data_of(written(tmp_path, images, settings))
    wanted = evaluate_images(images, VOCABULARY, settings)
    ours = wanted.defended
    assert found["undefended"] == {"ap50": wanted.undefended.ap50, "ap50_coco": wanted.undefended.ap50_coco}
    assert found["defended"] == {"ap50": ours.ap50, "clean_recall": ours.clean_recall}
    assert found["settings"]["base_threshold"] == repr(ours.base_threshold)
    assert found["settings"]["mask_threshold"] == repr(ours.rule.mask_threshold)
    if "clean_recall" not in asked:
        assert ours.base_threshold == asked.get("base_threshold", BASE_THRESHOLD)
    assert found["objects"] == wanted.objects
    assert [row["label"] for row in found["per_class"]] == wanted.classes
    for row in found["per_class"]:
        c = row["label"]
        assert row["undefended_ap50"] == wanted.undefended.curve.ap50[c]
        assert row["ap50"] == ours.curve.ap50[c]
        assert row["clean_recall"] == ours.recall_per_class[c]
    assert found["caveats"] == []


def test_a_clean_recall_that_is_not_reached_is_refused(tmp_path):
    images = [evaluation_cases.image([], [(5, 5, 30, 30, 0)]), *evaluation_cases.noisy(1, 9)]
    with pytest.raises(ObjectSeekerError, match=r"clean recall 100 ?% is not reached, at most"):
        written(tmp_path, images, replace(PAPER, clean_recall=1.0))
    page = written(tmp_path, images, replace(PAPER, clean_recall=0.1), caveats=["And this."])
    assert data_of(page)["caveats"] == ["And this."]


def test_the_page_names_the_defense_in_full(tmp_path):
    third = 1 / 3
    follow = ThresholdSchedule(alpha=0.7 + 1e-13, beta=0.1, evidence_alpha=0.2, evidence_beta=third)
    rule = follow.rule(Rule(filter_ioa=2 * third, edge_factor=0.85, cluster_distance=0.1 + 1e-12), 0.123456789012345)
    defense = Defense(
        detector="python:mine:see", rule=rule, threshold_schedule=follow, masks=Halves(6), fill=90, batch_size=4
    ).with_fingerprint("python sha256:77")
    settings = EvaluationSettings(rule=rule, threshold_schedule=follow, threat=ThreatModel(bound="paper"))
    images = observed_images(tmp_path, 3)
    found = data_of(written(tmp_path, images, settings, defense=defense))["settings"]
    assert found["defense"] == f"sha256:{defense.sha256}"
    assert "on the curve of" not in found
    wanted = {
        "detector": "python:mine:see",
        "detector fingerprint": "python sha256:77",
        "masks": "halves:6",
        "fill": "90",
    }
    assert found.items() >= (wanted | {"batch_size": "4", "bound": "paper", "classwise": "True"}).items()
    for name in (
        "base_threshold",
        "mask_threshold",
        "evidence_threshold",
        "evidence_power",
        "filter_ioa",
        "edge_factor",
        "cluster_distance",
    ):
        assert float(found[name]) == getattr(rule, name)
    assert not any("lines" in key for key in found)

    found = data_of(written(tmp_path, images, replace(settings, base_threshold=0.5), defense=defense))["settings"]
    deployed = replace(defense, rule=follow.rule(rule, 0.5))
    assert found["defense"] == f"sha256:{deployed.sha256}"
    assert found["on the curve of"] == f"sha256:{defense.sha256}"
    assert float(found["mask_threshold"]) == deployed.rule.mask_threshold


def test_a_defense_that_is_not_what_is_shown_is_refused(tmp_path):
    images = observed_images(tmp_path, 2)
    defense = Defense(detector="python:mine:see", rule=PAPER.rule, masks=Halves(6))
    with pytest.raises(ObjectSeekerError, match="the settings have the rule Rule"):
        written(tmp_path, images, EVIDENCE, defense=defense)
    with pytest.raises(ObjectSeekerError, match="image 000 was observed under other masks than the defense's halves:5"):
        written(tmp_path, images, PAPER, defense=replace(defense, masks=Halves(5)))


def test_the_iou_variant_is_described(tmp_path):
    found = data_of(written(tmp_path, awkward(), IOU))
    assert found["settings"]["filter_iou"] == "0.8"
    assert found["settings"]["mask_threshold"] == repr(IOU.rule.mask_threshold)
    assert found["controls"]["start"]["threshold"] == 0.5
    assert found["by_iou"]
    assert not found["evidence"]


@pytest.mark.parametrize("name", ["paper", "labels"])
def test_details_hold_base_boxes_and_what_only_masking_found(tmp_path, name):
    run = run_of(name)
    page = written(tmp_path, run.images, run.settings, run.label_map)
    recovered = 0
    labels = set()
    for number, image in enumerate(run.images):
        found = run.rule.prune(image.observation)
        details = details_of(page, number)
        drawn = details["base"] + details["recovered"]
        assert np.allclose(np.reshape([box[:4] for box in drawn], (-1, 4)), found.xyxy, atol=0.051)
        assert [box[5] for box in drawn] == found.label.tolist()
        assert len(details["base"]) == len(image.observation.base.with_min_score(run.rule.base_threshold))
        recovered += len(details["recovered"])
        labels |= set(found.label.tolist())
    assert recovered > 0
    assert labels == set(range(len(run.label_map.detector_names)))
    assert data_of(page)["detector_names"] == list(run.label_map.detector_names)
    assert data_of(page)["names"] == list(NAMES)


def test_what_is_found_is_what_clean_recall_counts(tmp_path):
    """Bits and scores of every object, against the recall of the classes and a literal count of base boxes."""
    images = awkward(count=20)
    page = written(tmp_path, images, EVIDENCE)
    found, column = data_of(page), columns_of(page)
    counts = column["ignore"] == 0
    for row in found["per_class"]:
        mine = counts & (column["label"] == row["label"])
        assert 100 * float(((column["found"] & 2) > 0)[mine].mean()) == pytest.approx(row["clean_recall"])
    rule = EVIDENCE.rule
    base = [(image, image.observation.base.with_min_score(rule.base_threshold)) for image in images]
    right = evaluation_cases.count_literally(base).right
    undefended = (column["found"] & 1) > 0
    assert {c: int((undefended & counts & (column["label"] == c)).sum()) for c in right} == right
    assert (column["found"][counts] == 2).any()  # some only by masking
    outputs = np.concatenate([rule.prune(image.observation).score for image in images]).astype(np.float32)
    assert np.isin(column["score"][column["found"] >= 2], outputs).all()
    assert (column["score"][column["found"] == 0] == 0).all()


def test_it_opens_with_an_image_that_shows_most(tmp_path):
    """One object certified over, one only away from it, one not at all; a missing image is passed over."""
    over, away, never = (10, 10, 40, 40), (60, 10, 90, 40), (10, 60, 40, 90)
    masked = [[(*over, 0.9, 0), *([(*away, 0.9, 0)] if mask < 9 else [])] for mask in range(36)]
    dull = evaluation_cases.image([], [(*over, 0)], [[(*over, 0.9, 0)]] * 36, lines=9)
    effective_images = evaluation_cases.image([], [(*box, 0) for box in (over, away, never)], masked, lines=9)
    images = [dull, effective_images, dull, effective_images]
    images = [replace(image, id=str(n), path=tmp_path / f"{n}.png") for n, image in enumerate(images)]
    for image in images[2:]:
        PIL.Image.new("RGB", (100, 100)).save(image.path)
    assert data_of(written(tmp_path, images))["cover"] == 3
    for image in images[2:]:
        image.path.unlink()
    assert data_of(written(tmp_path, images))["cover"] == 1


def test_a_baseline_must_be_about_the_same_objects(tmp_path):
    images = observed_images(tmp_path, 3)
    moved = replace(
        images[0],
        ground_truth=Detections(
            images[0].ground_truth.xyxy + 1, images[0].ground_truth.score, images[0].ground_truth.label
        ),
    )
    other = LabelMap.from_names(("cat", "horse"))
    for baseline, message in (
        (ReportSource("b", images[1:], VOCABULARY, PAPER), "the baseline has no image 000"),
        (ReportSource("b", [moved, *images[1:]], VOCABULARY, PAPER), "another image 000, or other objects in it"),
        (ReportSource("b", images, other, PAPER), "other classes of objects"),
        (ReportSource("b", images, VOCABULARY, IOU), "the baseline's rule is a IouRule"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            written(tmp_path, images, baseline=baseline)
    page = written(tmp_path, images, baseline=ReportSource("b", images[::-1], VOCABULARY, PAPER))  # any order
    before = {name.removeprefix("baseline_"): text for name, text in columns_in(page).items() if "baseline_" in name}
    assert before.keys() >= {"single_view_mask", "multi_view_mask", "around"}
    assert all(columns_in(page)[name] == text for name, text in before.items())


def columns_in(page: str) -> dict[str, str]:
    return dict(re.findall(r'<script type="text/plain" id="column-(\w+)">(.*?)</script>', page))


def test_images_are_recompressed_and_builtin(tmp_path):
    page = written(tmp_path, observed_images(tmp_path, 3))
    for kind in ("thumbnail", "view"):
        found = re.findall(rf'<script type="text/plain" id="{kind}-(\d+)">(.*?)</script>', page)
        assert found[0][0] == str(data_of(page)["cover"])  # which comes before the script
        assert sorted(number for number, _ in found) == ["0", "1", "2"]
        embedded = PIL.Image.open(io.BytesIO(b64decode(dict(found)["1"])))
        assert embedded.format == "JPEG"
        assert embedded.size == (100, 100)
        original = np.asarray(PIL.Image.open(tmp_path / "image 1.png"), dtype=int)
        assert np.abs(np.asarray(embedded, dtype=int) - original).mean() < 20


def test_images_beside_the_file(tmp_path):
    page = written(tmp_path, observed_images(tmp_path, 3), embed_images=False)
    assert "thumbnail-0" not in page
    assert data_of(page)["image_folder"] == "report-images"
    names = {file.name for file in (tmp_path / "report-images").iterdir()}
    assert names == {f"{kind}-{number}.jpg" for kind in ("thumbnail", "view") for number in range(3)}


def test_a_large_image_is_made_smaller(tmp_path):
    PIL.Image.new("RGB", (2000, 1000), "teal").save(tmp_path / "large.png")
    one = evaluation_cases.image([(1, 1, 30, 30, 0.9, 0)], [(1, 1, 30, 30, 0)])
    seen = Observation(2000, 1000, Halves(1).masks(2000, 1000), one.observation.base, [Detections.empty()] * 4)
    page = written(tmp_path, [replace(one, observation=seen, path=tmp_path / "large.png")])
    (content,) = re.findall(r'id="view-0">(.*?)</script>', page)
    assert PIL.Image.open(io.BytesIO(b64decode(content))).size == (640, 320)


def test_a_missing_image_and_one_of_another_size_are_named(tmp_path):
    images = observed_images(tmp_path, 4)
    images[1].path.unlink()
    PIL.Image.new("RGB", (50, 50)).save(images[2].path)
    missing = write_images(tmp_path / "report.html", images, VOCABULARY, PAPER).missing_images
    assert len(missing) == 2
    assert "image 1.png" in missing[0]
    assert "50x50" in missing[1]
    page = (tmp_path / "report.html").read_text()
    assert data_of(page)["image_missing"] == [1, 2]
    assert re.findall(r'id="view-(\d)"', page) == ["0", "3"]


HOSTILE = (
    "</script><script>window.hacked = 1</script><!-- \" ' & é 猫 [/foo] \u2028\u202eevil\x1b[31m\n\udcff می\u200cروم"
)
SHOWN = HOSTILE.translate({0x2028: "\\u2028", 0x202E: "\\u202e", 0x1B: "\\x1b", 0x0A: "\\n", 0xDCFF: "\\udcff"})


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
    images = [replace(image, id=HOSTILE) for image in observed_images(tmp_path, 2)]
    plain = Scripts(written(tmp_path, observed_images(tmp_path, 2)))
    page = written(
        tmp_path,
        images,
        vocabulary=LabelMap.from_names((HOSTILE, "dog")),
        title=HOSTILE,
        provenance={HOSTILE: HOSTILE},
        caveats=[HOSTILE],
    )
    hostile = Scripts(page)
    assert [kind for kind, _ in hostile.found] == [kind for kind, _ in plain.found]
    assert hostile.tags == plain.tags
    (program,) = (text for kind, text in hostile.found if kind == "script")
    assert "hacked" not in program
    found = data_of(page)
    assert found["names"][0] == found["detector_names"][0] == found["title"] == found["provenance"][SHOWN] == SHOWN
    assert found["image_ids"] == [SHOWN, f"{SHOWN} (2)"]
    assert html.escape(SHOWN) in re.search("<title>(.*)</title>", page)[1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("coco:/home/alice/data/val.json:/home/alice/images", "coco:val.json:images"),
        ("coco:data/val.json:data/images", "coco:data/val.json:data/images"),
        ("coco:a.json:ftp://bob:p@ss@host/images", "coco:a.json:ftp://host/images"),
        ("ftp://bob:p/w@host/deep/images", "ftp://host/.../images"),
        ("https://bob@host:8080/deep/x.jpg?key=s3cret#top", "https://host/.../x.jpg"),
        ("list:s3://bucket/a/b/list.txt?X-Amz-Signature=s3cret", "list:s3://bucket/.../list.txt"),
        ("zip://b.png::file:///home/alice/c.zip", "zip://b.png::file:c.zip"),
        ("torchvision:net,weights=/home/alice/w.pt", "torchvision:net,weights=w.pt"),
        ("onnx:../../home/alice/m.onnx", "onnx:m.onnx"),
        ("onnx:~/m.onnx", "onnx:m.onnx"),
        (r"onnx:C:\Users\alice\m.onnx", "onnx:m.onnx"),
        (r"\\server\alice\x.png", "x.png"),
        ("/x.png", "x.png"),
        ("cam1/alley 1.jpg", "cam1/alley 1.jpg"),
        ("transformers:owner/name", "transformers:owner/name"),
        ("python:mine:see", "python:mine:see"),
    ],
)
def test_a_place_is_told_by_its_last_name(text, wanted):
    assert redact_path(text) == wanted


def test_the_file_can_be_passed_on(tmp_path):
    """No folder, user, password or key, whatever ids, paths, dataset, detector and images hold."""
    where = tmp_path / "alice"
    where.mkdir()
    images = observed_images(where, 4)
    exif = PIL.Image.Exif()
    exif[0x013B] = "alice"
    PIL.Image.open(images[3].path).save(where / "3.jpg", exif=exif)
    images[0] = replace(images[0], id=str(images[0].path))
    gone = tmp_path / "gone"
    images[1] = replace(images[1], id="ftp://alice:s3cret@host/deep/1.jpg", path=gone / "1.jpg")
    images[2] = replace(images[2], id="s3://bucket/2.jpg?key=s3cret", path=gone / "2.jpg")
    images[3] = replace(images[3], id="../alice/3.jpg", path=where / "3.jpg")
    defense = Defense(detector=f"onnx:{where}/m.onnx", rule=PAPER.rule, masks=Halves(6)).with_fingerprint(
        "net sha256:77"
    )
    page = written(tmp_path, images, defense=defense)
    found = data_of(page)
    assert found["image_ids"] == ["image 0.png", "ftp://host/.../1.jpg", "s3://bucket/2.jpg", "3.jpg"]
    assert found["image_files"] == ["image 0.png", "1.jpg", "2.jpg", "3.jpg"]
    assert found["settings"]["detector"] == "onnx:m.onnx"
    embedded_images = [b64decode(content) for content in re.findall(r'id="(?:view|thumbnail)-\d">(.*?)</script>', page)]
    for secret in ("alice", "s3cret", str(tmp_path), "gone"):
        assert secret not in page
        assert not any(secret.encode() in embedded for embedded in embedded_images)
    assert len(embedded_images) == 4


@pytest.mark.parametrize("embed_images", [True, False])
def test_a_full_disk_is_a_sentence_that_names_the_file(tmp_path, embed_images):
    """The system fails to make any file larger than a limit; what a full disk does, but only to this process."""
    images = observed_images(tmp_path, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(ObjectSeekerError) as caught:
            written(tmp_path, images, embed_images=embed_images)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file = tmp_path / ("report.html" if embed_images else "report-images/thumbnail-0.jpg")
    assert str(caught.value) == f"cannot write {file}: File too large"
    assert not (tmp_path / "report.html").exists()


def test_the_page_names_no_address(tmp_path):
    page = written(tmp_path, awkward())
    assert not re.search(r"https?:|url\((?!#)|@import| src=", page)
    assert "default-src 'none'" in page


def test_the_settings_given_are_stops_of_the_sliders(tmp_path):
    settings = replace(PAPER, threat=ThreatModel(area=0.0123, aspect=1.7, certification_threshold=0.33))
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
        replace(image, ground_truth=Detections.empty(), ignore=np.zeros(0, bool), crowd=np.zeros(0, bool))
        for image in observed_images(tmp_path, 3)
    ]
    with pytest.raises(ObjectSeekerError, match="none of the 3 images has an object that counts"):
        written(tmp_path, images)


# --- unlabeled images ------------------------------------------------------------------------------------------------


def test_without_labels_the_objects_are_what_is_output(tmp_path):
    run = run_of("unlabeled")
    page = run.report(tmp_path / "report.html").read_text()
    found, column = data_of(page), columns_of(page)
    outputs = [run.rule.prune(image.observation) for image in run.images]
    assert (column["box"].reshape(-1, 4) == np.concatenate([boxes.xyxy for boxes in outputs])).all()
    assert column["label"].tolist() == [label for boxes in outputs for label in boxes.label.tolist()]
    assert found["objects"] == len(column["label"]) > found["base_boxes"] > 0
    assert not found["labeled"]
    assert found.keys().isdisjoint({"undefended", "defended"})
    assert [row.keys() for row in found["per_class"]] == [{"label"}] * 2
    assert (
        "not recall: an image that is already attacked may hide objects that are not among its" in found["caveats"][0]
    )


def test_without_labels_another_operating_point_has_other_objects(tmp_path):
    run = run_of("unlabeled")
    high = replace(run, settings=replace(run.settings, base_threshold=0.8))
    found = data_of(high.report(tmp_path / "report.html").read_text())
    rule = high.settings.rule_at(0.8)
    assert found["objects"] == sum(len(rule.prune(image.observation)) for image in run.images)
    assert found["settings"]["base_threshold"] == "0.8"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(PAPER, clean_recall=0.5), "a point at clean recall 50 % cannot be found without annotations"),
        (
            replace(settings_of(ThresholdSchedule(alpha=1.0)), base_threshold=1.0),
            "outputs no box on any of the 2 images",
        ),
    ],
)
def test_what_cannot_be_shown_without_labels_is_one_sentence(tmp_path, settings, message):
    with pytest.raises(ObjectSeekerError, match=message):
        replace(run_of("unlabeled"), images=observed_images(tmp_path, 2), settings=settings).report(tmp_path / "r.html")


def test_a_detector_without_names_is_shown_by_its_labels(tmp_path):
    nameless = LabelMap((), (), np.arange(2**15))
    found = data_of(replace(run_of("unlabeled"), label_map=nameless).report(tmp_path / "report.html").read_text())
    assert found["names"] == ["0", "1"]


# --- as much as memory and a page can hold ----------------------------------------------------------------------------


def test_a_few_objects_at_a_time_give_the_same_page(tmp_path, monkeypatch):
    run = Run([hesitating(image) for image in awkward(count=6)], EVIDENCE, TWO_CATS)
    page = run.report(tmp_path / "report.html").read_text()
    monkeypatch.setattr(boxes, "MAX_CELLS", 300)
    assert run.report(tmp_path / "report.html").read_text() == page


@pytest.mark.parametrize(("name", "most"), [("MAX_MULTI_VIEW_BOXES", 40), ("MAX_MULTI_VIEW_BYTES", 6_000)])
def test_of_too_many_views_only_those_that_decide_single_view_are_kept(tmp_path, monkeypatch, name, most):
    """An attacker who draws many weak boxes makes a page show less of the object, and nothing of others."""
    run = Run(awkward(count=8), EVIDENCE)
    whole = columns_of(run.report(tmp_path / "report.html").read_text())
    monkeypatch.setattr(report_certificates, name, most)
    page = run.report(tmp_path / "report.html").read_text()
    found = columns_of(page)
    partly = found["target_truncated"].astype(bool)
    assert not whole["target_truncated"].any()
    assert 0 < partly.sum() < len(partly)
    rows, before = (np.diff(column["multi_view_first"].astype(int)) for column in (found, whole))
    assert (rows == np.where(partly, 0, before)).all()
    assert before[partly].min() > before[~partly].max()
    if name == "MAX_MULTI_VIEW_BOXES":
        assert (partly == (before > most)).all()
    else:
        assert sum(found[f"multi_view_{column}"].nbytes for column in ("mask", "share", "weight")) < most
    assert (found["single_view_share"] == whole["single_view_share"]).all()
    subject = "1 object has" if partly.sum() == 1 else f"{partly.sum()} objects have"
    caveat = data_of(page)["caveats"][0]
    assert caveat.startswith(f"{subject} more evidence from several views than a page can hold")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"settings": replace(settings_of(ThresholdSchedule(alpha=1.0)), clean_recall=1.0)},
            "clean recall 100 ?% is not",
        ),
        ({"settings": replace(PAPER, threat=ThreatModel(count=2))}, "against one patch: got 2"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(tmp_path, options, message):
    images = [evaluation_cases.image([], [(5, 5, 30, 30, 0)]), *observed_images(tmp_path, 2)]
    with pytest.raises(ObjectSeekerError, match=message):
        written(tmp_path, images, **options)
    assert not (tmp_path / "report.html").exists()


def test_progress_counts_every_image(tmp_path):
    seen = []
    written(tmp_path, observed_images(tmp_path, 3), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_scene_order_is_kept(tmp_path):
    images = awkward()
    column = columns_of(written(tmp_path, images))
    scene = ImageSet.from_images(images, VOCABULARY)
    assert (column["box"].reshape(-1, 4) == scene.ground_truth.detections.xyxy).all()
    assert (column["ignore"] == scene.ignore).all()


def test_report_on_the_command_line(tmp_path):
    """observe, then report: the page is written, says where it comes from, and bad input is one sentence."""
    detector = "from objectseeker import Detections\n"
    detector += "def see(images):\n    return [Detections([[5, 5, 60, 60]], [0.9], [0]) for _ in images]\n"
    (tmp_path / "mine.py").write_text(detector + "see.names = ('thing',)\n")
    (tmp_path / "images").mkdir()
    PIL.Image.new("RGB", (90, 70), "olive").save(tmp_path / "images" / "a.png")
    truth = {
        "images": [{"id": 7, "file_name": "a.png", "width": 90, "height": 70}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 1, "bbox": [5, 5, 55, 55], "iscrowd": 0}],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    run_cli(
        tmp_path, "observe", "coco:truth.json:images", "-d", "python:mine:see", "--out", "run", "--masks", "halves:3"
    )
    answer = json.loads(
        run_cli(
            tmp_path, "report", "run", "--set", "rule=paper", "--set", "alpha=0.5", "--set", "beta=0", "--json"
        ).stdout
    )
    assert answer == {"out": "report.html", "images": 1, "object_source": "annotation", "missing_images": []}
    found = data_of((tmp_path / "report.html").read_text())
    assert found["title"] == "objectseeker report: run"
    assert found["provenance"]["dataset"] == "coco:truth.json:images"
    assert "numpy" in found["provenance"]["software"]
    assert found["settings"]["masks"] == "halves:3"
    assert found["settings"]["detector"] == "python:mine:see"
    assert found["settings"]["mask_threshold"] == "0.5"
    (tmp_path / "images" / "a.png").unlink()
    done = run_cli(
        tmp_path,
        "report",
        "run",
        "--set",
        "rule=paper",
        "--set",
        "alpha=0.5",
        "--set",
        "beta=0",
        "--no-embed-images",
        "--out",
        "o/r.html",
    )
    assert "a.png" in done.stderr
    assert "Report: o/r.html" in done.stdout
    # Slices, another defense of the same run next to it, and an operating point.
    (tmp_path / "tags.csv").write_text("image,weather\n7,rain\n")
    Defense(detector="python:mine:see", rule=Rule(mask_threshold=0.95), masks=Halves(3)).save(tmp_path / "strict.json")
    compared = [
        "--baseline",
        "run",
        "--baseline-defense",
        "strict.json",
        "--tags",
        "tags.csv",
        "--operating-point",
        "fppi=1",
    ]
    run_cli(
        tmp_path,
        "report",
        "run",
        "--set",
        "rule=paper",
        "--set",
        "alpha=0.5",
        "--set",
        "beta=0",
        *compared,
        "--out",
        "both.html",
    )
    found = data_of((tmp_path / "both.html").read_text())
    assert found["tags"] == [{"name": "weather", "values": ["rain"], "of_image": [0]}]
    assert found["baseline"]["name"] == "run, strict.json"
    assert float(found["baseline"]["settings"]["mask_threshold"]) >= 0.95 > float(found["settings"]["mask_threshold"])
    assert "false positive" in found["settings"]["operating point"]
    done = run_cli(tmp_path, "report", "run", "--baseline-defense", "strict.json", code=2)
    assert done.stderr.splitlines()[-1] == "error: --baseline-defense strict.json needs a --baseline RUN: name it"


def test_data_without_labels_on_the_command_line(tmp_path):
    """A plain folder: certificates and report cover the boxes that are output, and state that."""
    write_dataset(tmp_path, [(20, 15, 40, 30)])
    run_cli(tmp_path, "observe", tmp_path / "images", "-d", "python:mine:detect", "--out", "run", "--masks", "halves:3")
    done = run_cli(
        tmp_path,
        "evaluate",
        "run",
        "--set",
        "rule=paper",
        "--set",
        "mask_threshold=0.5",
        "--objects",
        "boxes.csv",
    )
    assert "certified far: 1 of 1 output boxes" in done.stdout
    assert "no recall: an image that is already attacked may hide objects" in done.stderr
    (row,) = csv.DictReader((tmp_path / "boxes.csv").open())
    assert (row["object_source"], row["class"], row["x1"], row["score"]) == ("output", "bright", "20.0", "0.9")
    answer = json.loads(
        run_cli(tmp_path, "report", "run", "--set", "rule=paper", "--set", "mask_threshold=0.5", "--json").stdout
    )
    assert answer["object_source"] == "output"
    page = (tmp_path / "report.html").read_text()
    assert data_of(page)["objects"] == 1
    assert data_of(page)["provenance"]["dataset"] == "images"
    assert str(tmp_path) not in page
