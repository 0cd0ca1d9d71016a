"""What detect leaves behind: names, ids, certificates, files, and that finished images stay finished."""

import contextlib
import csv
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Detections, Halves, ObjectSeeker, ObjectSeekerError, Patch, Rule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.datasets import open_dataset
from objectseeker.inference.images import (
    ImageDetection,
    ImageInputs,
    annotated_names,
    find_sources,
    is_dataset_spec,
)
from objectseeker.inference.journal import FILE, open_journal, pixels_sha256
from objectseeker.inference.results import (
    CERTIFICATE,
    STANDARD,
    Categories,
    DetectionTotals,
    ImageResult,
    detect_image,
)
from objectseeker.metrics import ThreatModel

DEFENSE = Defense(detector="python:a:b", rule=Rule(mask_threshold=0.7), masks=Halves(3))
NAMES = ("bright", "dim")


def see(images):
    """Finds the bright part of an image, and under masks a dim one next to it."""
    found = []
    for image in images:
        boxes, labels = [], []
        for label, value in enumerate((255, 180)):
            ys, xs = np.nonzero(image[..., 0] == value)
            if len(xs) > 4:
                boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
                labels.append(label)
        found.append(Detections(boxes, [0.9] * len(boxes), labels))
    return found


def make_image(seed: int, width: int = 48, height: int = 36) -> np.ndarray:
    image = np.full((height, width, 3), 30, np.uint8)
    image[6:16, 6 + seed : 20 + seed] = 255
    image[20:30, 24:36] = 180
    return image


def save(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(make_image(seed)).save(folder / name)
    return folder


class Counting(ObjectSeeker):
    """A defended detector that counts the images it is asked about, and fails on some."""

    def __init__(self, fails=()):
        super().__init__(see, Rule(), masks=Halves(3))
        object.__setattr__(self, "fails", list(fails))
        object.__setattr__(self, "asked", 0)

    def defend(self, image):
        object.__setattr__(self, "asked", self.asked + 1)
        for sha256, error in self.fails:
            if pixels_sha256(image) == sha256:
                raise error
        return super().defend(image)


def seeker(fails=()) -> Any:
    return Counting(fails)


def detection(sources, out, used=None, *, threat=None, defense=DEFENSE, categories=None) -> ImageDetection:
    """What the command runs, with files."""
    described = None if threat is None else threat.to_dict(defense.rule)
    return ImageDetection(
        seeker=used or seeker(),
        sources=sources,
        categories=categories or Categories.from_detector(NAMES),
        threat=threat,
        defense=defense,
        out=out,
        totals=DetectionTotals(out=out, threat=described, defense_sha256="sha"),
    )


def detect(folder: Path, out: Path, used: Any = None, *, threat=None, stop_after=None, defense=DEFENSE):
    """The results of a run; it stops after some images as if interrupted."""
    results = []
    with contextlib.closing(
        detection(find_sources([folder]), out, used, threat=threat, defense=defense).results()
    ) as run:
        for result in run:
            results.append(result)
            if len(results) == stop_after:
                break
    return results


def bytes_of(out: Path) -> dict:
    files = (file for file in out.rglob("*") if file.is_file() and file.name != FILE)
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# --- names ----------------------------------------------------------------------------------------------------------


def test_images_are_called_by_their_place_below_what_was_given(tmp_path):
    one = save(tmp_path / "home" / "images", "a.png", "sub/a.png")
    two = save(tmp_path / "images", "a.png")
    assert [source.name for source in find_sources([one])] == ["a.png", "sub/a.png"]
    assert [source.id for source in find_sources([one])] == [1, 2]
    names = [source.name for source in find_sources([one, two / "a.png", one / "a.png"])]
    assert names == ["images/a.png", "images/sub/a.png", "a.png"]  # each file once
    both = [source.name for source in find_sources([one, two])]
    assert both == ["home/images/a.png", "images/sub/a.png", f"{tmp_path.name}/images/a.png"]
    (tmp_path / "link.png").symlink_to(two / "a.png")
    assert find_sources([tmp_path / "link.png"])[0].name == "link.png"


def test_a_name_that_is_not_utf8_can_be_written(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/caf\xe9.png", "wb") as file:  # noqa: PTH123
        PIL.Image.fromarray(make_image(0)).save(file, "PNG")
    (one,) = detect(folder, tmp_path / "o")
    assert one.name == "caf\\udce9.png"
    assert [row["image"] for row in csv.DictReader((tmp_path / "o" / "boxes.csv").open())] == ["caf\\udce9.png"] * 2


def test_images_end_in_one_suffix_and_stay_apart():
    names = [
        "x.jpg",
        "x.png",
        "X.bmp",
        "sub/x.png",
        "7",
        "x.png.jpg",
        "../../out.png",
        "/etc/y.png",
        "n" * 300 + ".png",
    ]
    annotated = dict(zip(names, annotated_names(names), strict=True))
    assert annotated["x.jpg"] == "x.jpg"
    assert annotated["sub/x.png"] == "sub/x.jpg"
    assert annotated["7"] == "7.jpg"
    assert annotated["../../out.png"] == "out.jpg"  # never outside the folder
    assert annotated["/etc/y.png"] == "etc/y.jpg"
    assert len({name.casefold() for name in annotated.values()}) == len(names)
    assert all(len(part) < 240 for name in annotated.values() for part in name.split("/"))


def test_what_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "list:of", "a.png")
    specs = ("coco:a.json:b", "s3://bucket/f", "list:of", "C:", "images", "x" * 5000)
    assert [is_dataset_spec(spec) for spec in specs] == [True, True, False, False, False, False]


# --- what is written ------------------------------------------------------------------------------------------------


def test_certificates_are_those_of_the_very_defense(tmp_path):
    """Row by row, against `ObjectSeeker.certify` on what the detector saw."""
    folder, threat = save(tmp_path / "images", "a.png", "b.png"), ThreatModel(area=0.02, certification_threshold=0.1)
    detect(folder, tmp_path / "o", threat=threat)
    rows = json.loads((tmp_path / "o" / "detections.json").read_text())
    by_hand = ObjectSeeker(see, Rule(), masks=Halves(3))
    expected = []
    for seed in range(2):
        defended = by_hand.defend(make_image(seed))
        given = by_hand.certify(
            defended.observation,
            defended.detections,
            [Patch(0.02, location=where) for where in PATCH_LOCATIONS],
            certification_threshold=0.1,
        )
        patches = [Patch(0.02, location=where) for where in PATCH_LOCATIONS]
        made = by_hand.certify_not_fabricated(defended.observation, defended.detections, patches)
        scores = by_hand.certified_scores(defended.observation, defended.detections, patches[-1])
        for n in range(len(defended.detections)):
            verdicts = dict(zip(PATCH_LOCATIONS, given.certified[:, n].tolist(), strict=True))
            verdicts |= {"vacuous_far": bool(given.vacuous[0, n]), "largest_square": int(given.largest_square[n])}
            verdicts |= dict(zip(STANDARD, made.certified[:, n].tolist(), strict=True))
            verdicts |= {"largest_square_not_fabricated": int(made.largest_square[n]), "certified_score": scores[n]}
            expected.append(verdicts)
    assert [{name: row[name] for name in CERTIFICATE} for row in rows] == expected
    assert any(row["far"] for row in rows)
    assert not all(row["anywhere"] for row in rows)
    assert any(row["certified_not_fabricated_far"] for row in rows)
    assert not all(row["certified_not_fabricated_anywhere"] for row in rows)
    told = json.loads((tmp_path / "o" / "certificates.json").read_text())
    assert "already attacked" in told["about"]
    assert told["far"] == sum(row["far"] for row in rows)
    assert told["patch_area"] == 0.02
    table = list(csv.DictReader((tmp_path / "o" / "boxes.csv").open()))
    assert [row["far"] for row in table] == [str(row["far"]) for row in rows]


def test_csv_has_one_number_a_column_and_no_formulas(tmp_path):
    folder = save(tmp_path / "images", "=cmd().png", "a.png")
    detect(folder, tmp_path / "o")
    first, *_ = csv.DictReader((tmp_path / "o" / "boxes.csv").open())
    assert first["image"] == "'=cmd().png"
    assert [float(first[name]) for name in ("x1", "y1", "x2", "y2", "score")] == [6, 6, 20, 16, 0.9]


def test_pycocotools_takes_the_results_of_a_folder(tmp_path):
    coco = pytest.importorskip("pycocotools.coco")
    detect(save(tmp_path / "images", "a.png", "b.png"), tmp_path / "o")
    images = coco.COCO(str(tmp_path / "o" / "images.json"))
    loaded = images.loadRes(str(tmp_path / "o" / "detections.json"))
    assert len(loaded.getAnnIds(imgIds=[2], catIds=[1])) == 1
    assert images.loadCats([2])[0]["name"] == "dim"
    assert images.loadImgs([2])[0] == {"id": 2, "file_name": "b.png", "width": 48, "height": 36}


def coco_data(folder: Path, detector_names, class_map=None):
    """Ids 7 and 900, categories 21 and 3 in other words than the detector's."""
    save(folder / "images", "a.png", "b.png")
    images = [{"id": i, "file_name": f, "width": 48, "height": 36} for i, f in ((900, "a.png"), (7, "b.png"))]
    annotations = [{"id": 1, "image_id": 7, "category_id": 21, "bbox": [7, 6, 14, 10], "area": 140, "iscrowd": 0}]
    categories = [{"id": 21, "name": "lamp"}, {"id": 3, "name": "cat"}]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(content))
    data = open_dataset(f"coco:{folder / 'truth.json'}:{folder / 'images'}")
    inputs = ImageInputs.from_dataset(data)
    return inputs.sources, *inputs.categories(detector_names, class_map, class_agnostic=False)


def test_results_of_coco_data_have_its_own_ids(tmp_path):
    coco = pytest.importorskip("pycocotools.coco")
    sources, categories, warnings = coco_data(tmp_path, NAMES, {"bright": "lamp"})
    assert any("cat" in sentence for sentence in warnings)
    out = tmp_path / "o"
    totals = detection(sources, out, categories=categories).finish()
    rows = json.loads((out / "detections.json").read_text())
    assert [(row["image_id"], row["image"], row["category_id"], row["category_name"]) for row in rows] == [
        (900, "a.png", 21, "lamp"),
        (7, "b.png", 21, "lamp"),
    ]
    assert totals.skipped == {"dim": 2}
    for truth in (tmp_path / "truth.json", out / "images.json"):
        loaded = coco.COCO(str(truth)).loadRes(str(out / "detections.json"))
        assert len(loaded.getAnnIds(imgIds=[7], catIds=[21])) == 1
    evaluation = pytest.importorskip("pycocotools.cocoeval").COCOeval(
        truth := coco.COCO(str(tmp_path / "truth.json")), truth.loadRes(str(out / "detections.json")), "bbox"
    )
    evaluation.params.imgIds = [7]
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[1] == pytest.approx(1)


def test_a_detector_without_names_has_categories_by_number():
    categories = Categories.from_detector(())
    assert categories.find(4) == (5, "4")
    assert categories.to_coco_categories({4, 2}) == [{"id": 3, "name": "2"}, {"id": 5, "name": "4"}]


# --- stopping and resuming ------------------------------------------------------------------------------------------


def test_wherever_it_is_stopped_the_files_end_up_the_same(tmp_path):
    folder, threat = save(tmp_path / "images", "a.png", "b.png", "c.png"), ThreatModel()
    detect(folder, tmp_path / "whole", threat=threat)
    for stop in (1, 2, 3):
        out = tmp_path / f"stopped-{stop}"
        detect(folder, out, threat=threat, stop_after=stop)
        assert not (out / "detections.json").exists()
        used = seeker()
        detect(folder, out, used, threat=threat)
        assert used.asked == 3 - stop
        assert bytes_of(out) == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["torn", "flipped", "torn first line"])
def test_a_damaged_line_does_not_count(tmp_path, damage):
    folder, out = save(tmp_path / "images", "a.png", "b.png"), tmp_path / "o"
    detect(folder, out)
    before, record = bytes_of(out), out / FILE
    content = record.read_bytes()
    lines = content.splitlines(keepends=True)
    again = {"torn": 1, "flipped": 1, "torn first line": 2}[damage]
    if damage == "torn":
        record.write_bytes(b"".join(lines[:3]) + lines[3][:40])  # about, a, image of a, half of b
    elif damage == "flipped":
        record.write_bytes(content.replace(b"0.9", b"0.8", 1))  # a score that was not stored
    else:
        record.write_bytes(lines[0][:30])
    for asked in (again, 0):
        used = seeker()
        detect(folder, out, used)
        assert used.asked == asked
        assert bytes_of(out) == before


def test_an_image_that_was_replaced_is_processed_again(tmp_path, caplog, monkeypatch):
    """By another of the same size and date: what counts is what is in it."""
    folder, out = save(tmp_path / "images", "a.bmp", "b.bmp"), tmp_path / "o"
    detect(folder, out)
    old = (folder / "a.bmp").stat()
    PIL.Image.fromarray(make_image(5)).save(folder / "a.bmp")
    os.utime(folder / "a.bmp", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (folder / "a.bmp").stat().st_size == old.st_size
    used = seeker()
    with monkeypatch.context() as unverified:
        unverified.setattr("objectseeker.inference.images.unverified_reason", lambda detector: "it may be another")
        first, second = detect(folder, out, used)
    assert "it may be another" in first.error
    assert not second.error
    assert used.asked == 0
    caplog.clear()
    detect(folder, out, used)
    assert used.asked == 1
    assert [record.getMessage() for record in caplog.records if "processed again" in record.getMessage()] == [
        "a.bmp is not the image it was before: it is processed again"
    ]
    rows = json.loads((out / "detections.json").read_text())
    assert rows[0]["bbox"][0] == 11
    detect(folder, tmp_path / "fresh")
    assert bytes_of(out) == bytes_of(tmp_path / "fresh")  # the image is that of the new image, too


def test_a_image_that_is_missing_is_drawn_again(tmp_path):
    folder, out = save(tmp_path / "images", "a.png"), tmp_path / "o"
    detect(folder, out)
    (out / "annotated" / "a.jpg").unlink()
    used = seeker()
    detect(folder, out, used)
    assert used.asked == 0
    assert (out / "annotated" / "a.jpg").exists()


def test_results_of_another_defense_are_refused_and_the_difference_is_named(tmp_path):
    folder, out = save(tmp_path / "images", "a.png"), tmp_path / "o"
    detect(folder, out)
    with pytest.raises(ObjectSeekerError, match=r"another defense \(masks was halves:3, now halves:4\)"):
        detect(folder, out, defense=replace(DEFENSE, masks=Halves(4)))
    with pytest.raises(ObjectSeekerError, match=r"mask_threshold was 0\.7, now 0\.6"):
        detect(folder, out, defense=replace(DEFENSE, rule=Rule(mask_threshold=0.6)))
    with pytest.raises(ObjectSeekerError, match=r"with other certificates \(certified was none, now patch_area 0\.02"):
        detect(folder, out, threat=ThreatModel(area=0.02))
    (out / FILE).write_text("something else\n")
    with pytest.raises(ObjectSeekerError, match="damaged or from another version"):
        detect(folder, out)


def test_two_processes_do_not_write_one_folder(tmp_path):
    settings = {"defense": {}, "certified": None}
    with open_journal(tmp_path, settings), pytest.raises(ObjectSeekerError, match="another process"):  # noqa: SIM117
        with open_journal(tmp_path, settings):
            pass


def test_one_image_that_fails_does_not_stop_the_others(tmp_path):
    folder, out = save(tmp_path / "images", "a.png", "b.png", "c.png", "d.png"), tmp_path / "o"
    (folder / "b.png").write_text("not an image")
    fails = [(pixels_sha256(make_image(0)), RuntimeError("boom")), (pixels_sha256(make_image(2)), MemoryError())]
    looked = detect(folder, out, seeker(fails))
    assert ["boom" in looked[0].error, "b.png" in looked[1].error, "not enough memory" in looked[2].error] == [True] * 3
    assert {row["image"] for row in json.loads((out / "detections.json").read_text())} == {"d.png"}
    assert [image["id"] for image in json.loads((out / "images.json").read_text())["images"]] == [4]
    used = seeker()
    detect(folder, out, used)  # what failed is tried again, what is done is not
    assert used.asked == 2
    assert {row["image_id"] for row in json.loads((out / "detections.json").read_text())} == {1, 3, 4}


def test_an_image_longer_than_a_jpeg_can_be_is_drawn_smaller(tmp_path):
    folder, out = tmp_path / "images", tmp_path / "o"
    folder.mkdir()
    PIL.Image.fromarray(np.full((70_000, 1, 3), 255, np.uint8)).save(folder / "long.png")
    (one,) = detect(folder, out)
    assert not one.error
    assert PIL.Image.open(out / "annotated" / "long.jpg").height == 65_500


def test_a_image_that_cannot_be_written_leaves_the_boxes(tmp_path):
    folder, out = save(tmp_path / "images", "x.png", "y.png"), tmp_path / "o"
    (out / "annotated" / "x.jpg").mkdir(parents=True)
    run = detection(find_sources([folder]), out)
    totals = run.finish()
    assert list(totals.annotation_errors) == ["x.png"]
    assert "x.jpg" in totals.annotation_errors["x.png"]
    assert len(json.loads((out / "detections.json").read_text())) == 4


def test_a_full_disk_ends_it_with_a_sentence_and_keeps_what_is_finished(tmp_path):
    resource = pytest.importorskip("resource")
    folder, out = save(tmp_path / "images", "a.png", "b.png"), tmp_path / "o"
    detect(folder, out, stop_after=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((out / FILE).stat().st_size + 50, hard))  # room for half a line
    try:
        with pytest.raises(ObjectSeekerError, match=f"cannot write .*{FILE}: "):
            detect(folder, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    used = seeker()
    detect(folder, out, used)
    assert used.asked == 1
    detect(folder, tmp_path / "whole")
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_what_is_kept_is_kept_to_the_last_bit():
    image = make_image(1)
    found = detect_image(ObjectSeeker(see, Rule(), masks=Halves(3)), image, threat=ThreatModel())
    again = ImageResult.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.detections == found.detections
    assert (again.pixels_sha256, again.size, again.base_boxes, again.certificates) == (
        found.pixels_sha256, found.size, found.base_boxes, found.certificates,
    )  # fmt: skip
