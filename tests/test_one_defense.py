"""Certificates are of what is deployed, the whole way through: from a run to a file to another process.

Each finding of the audit that made this a rule is a test here.
"""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from command import certificates, run

from objectseeker import Defense, Detections, Halves, IouRule, ObjectSeeker, Observation, Patch, Rule
from objectseeker.core.boxes import ioa, iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.threats import PatchPositions, parse_area
from objectseeker.demo.samples import samples
from objectseeker.files.images import load_image

# A real little detector: bright things are boxes, how sure it is depends on how much of a thing it sees, and it has two
# names for one thing, between which it hesitates. Bright red is a patch that blinds it wherever it sees enough of it.
DETECTOR = """
import numpy as np
from objectseeker import Detections

def detect(images):
    return [one(image) for image in images]

def one(image):
    if ((image[..., 0] > 250) & (image[..., 1] < 5)).sum() > 3:
        return Detections.empty()
    boxes, scores, labels = [], [], []
    for value, label in ((255, 0), (200, 1)):
        ys, xs = np.nonzero((image[..., 0] == value) & (image[..., 1] == value))
        if len(xs) < 12:
            continue
        boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        scores.append(round(min(0.3 + len(xs) / 700, 0.99), 6))
        labels.append(label if (int(image.sum()) // 255) % 3 or label else 2)
    return Detections(boxes, scores, labels)

detect.names = ("person", "car", "pedestrian")
"""

SIZE = (96, 72)
TRIALS = 12


def draw_images(folder: Path, count: int) -> None:
    """Images with a person and a car each, as COCO annotations in classes of their own."""
    rng = np.random.default_rng(3)
    (folder / "images").mkdir(parents=True)
    images, annotations = [], list[dict]()
    for number in range(count):
        image = np.full((SIZE[1], SIZE[0], 3), 40, np.uint8)
        for category, (value, left) in enumerate(((255, 4), (200, 50)), start=1):
            x, y = left + int(rng.integers(0, 12)), int(rng.integers(2, 35))
            w, h = (int(v) for v in rng.integers(18, 30, 2))
            image[y : y + h, x : x + w] = value
            box = [x, y, w, h]
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": category, "bbox": box, "iscrowd": 0}
            )
        PIL.Image.fromarray(image).save(folder / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": SIZE[0], "height": SIZE[1]})
    categories = [{"id": 1, "name": "pedestrian"}, {"id": 2, "name": "car"}]  # person and pedestrian both map to it
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("defense")
    (folder / "hesitant.py").write_text(DETECTOR)
    draw_images(folder, 16)
    return folder


def observe(workplace, out, *more):
    arguments = ["observe", "coco:truth.json:images", "-d", "python:hesitant:detect", "--out", out]
    if not (workplace / out / "run.json").exists():
        run(workplace, *arguments, *more)
    return workplace / out


def boxes_of(truth: dict, number: int):
    return [(a["id"], a["bbox"], a["category_id"]) for a in truth["annotations"] if a["image_id"] == number]


def found_in(rows, box, names, by_iou):
    """Is the object among the rows that detect wrote, by the notion of the rule?"""
    x, y, w, h = box
    g = np.array([[x, y, x + w, y + h]], float)
    for row in rows:
        bx, by, bw, bh = row["bbox"]
        b = np.array([[bx, by, bx + bw, by + bh]], float)
        covers = iou(g, b)[0, 0] > 0.5 if by_iou else ioa(g, b)[0, 0] > 0
        if covers and row["category_name"] in names:
            return True
    return False


def attacked_at_random(image, g, where, size, rng, color, patches=1):
    """The image with patches at allowed positions; None where none is allowed."""
    allowed = PatchPositions.of(g, image.shape[1], image.shape[0]).allowed(where, np.array([size]))[0]
    allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
    if not len(allowed):
        return None
    drawn = image.copy()
    for _ in range(patches):
        x1, y1, x2, y2 = allowed[rng.integers(len(allowed))]
        x, y = int(rng.integers(x1, x2 + 1)), int(rng.integers(y1, y2 + 1))
        drawn[max(y, 0) : max(y + size[1], 0), max(x, 0) : max(x + size[0], 0)] = color
    return drawn


@pytest.mark.parametrize(
    ("masks", "patches", "area", "rule"),
    [
        ("halves:8", 1, "2%", ()),
        ("pairs:5", 2, "0.1%", ()),
        ("bands:2%,spacing=0.5", 1, "2%", ()),
        ("halves:14", 1, "0.2%", ("--set", "filter_iou=0.8")),
    ],
)
def test_every_object_that_a_file_certifies_is_output_by_that_file_in_another_process(
    workplace, masks, patches, area, rule
):
    """tune, save, load elsewhere, detect on images attacked at allowed positions: certified objects are output."""
    name = masks.replace(":", "").replace("%", "").replace(",", "").replace("=", "").replace(".", "") + str(len(rule))
    out = observe(workplace, f"run-{name}", "--masks", masks)
    if rule:  # the IoU variant is not tuned: its file is written from Python
        tuned = workplace / f"tuned-{name}" / "defense.json"
        file = IouRule(ioa_rule=Rule(base_threshold=0.4, mask_threshold=0.45), filter_iou=0.8)
        with_rule = Defense(detector="python:hesitant:detect", rule=file, masks=Halves(14))
        with_rule.save(tuned)
    else:
        threat = ["--patch-count", patches, "--patch-area", area]
        limits = ["--operating-point", "clean_recall=0.6", "--max-ap-loss", 30]
        run(workplace, "tune", out.name, *limits, *threat, "--out", f"tuned-{name}")
        tuned = workplace / f"tuned-{name}" / "defense.json"
    relative = tuned.relative_to(workplace)
    threat = ["--patch-area", area, "--patch-count", patches]
    answer = certificates(workplace, out.name, "--defense", relative, *threat)
    bound = Defense.from_dict(answer["defense"])
    truth = json.loads((workplace / "truth.json").read_text())
    rng = np.random.default_rng(5)
    attacked = workplace / f"attacked-{name}"
    attacked.mkdir()
    wanted = {}
    size = Patch(parse_area(area)).size(*SIZE)
    for row in answer["objects"]:
        number = int(row["image"]) if str(row["image"]).isdigit() else int(Path(row["image"]).stem)
        image = np.asarray(PIL.Image.open(workplace / "images" / f"{number}.png"))
        _, box, category = boxes_of(truth, number)[row["object"]]
        g = np.array([[box[0], box[1], box[0] + box[2], box[1] + box[3]]], float)
        for where in ("far", "close", "over", "anywhere"):
            if not row[where] or len(wanted) > 240:
                continue
            for trial in range(3):
                color = (255, 0, 0) if trial else rng.integers(0, 256, 3)
                drawn = attacked_at_random(image, g, where, size, rng, color, patches)
                if drawn is None:  # no position is far from it
                    continue
                file = f"{number}-{row['object']}-{where}-{trial}.png"
                PIL.Image.fromarray(drawn).save(attacked / file)
                wanted[file] = box, ("person", "pedestrian") if category == 1 else ("car",)
    assert len(wanted) > 20  # something was certified
    run(workplace, "detect", attacked.name, "--defense", relative, "--out", f"found-{name}", "--no-annotate")
    rows = json.loads((workplace / f"found-{name}" / "detections.json").read_text())
    assert {row["defense_sha256"] for row in rows} <= {bound.sha256}
    assert Defense.load(workplace / f"found-{name}" / "defense.json").sha256 == bound.sha256
    by_image: dict = {}
    for row in rows:
        by_image.setdefault(row["image"], []).append(row)
    lost = [
        file for file, (box, names) in wanted.items() if not found_in(by_image.get(file, ()), box, names, bool(rule))
    ]
    assert not lost


def test_by_crop_certified_objects_are_output(tmp_path):
    """The built-in detector by crop, on an image that is attacked at the corners of what is allowed."""
    Defense.for_detector("builtin", masks=Halves(6), mask_mode="crop").save(tmp_path / "defense.json")
    seeker = Defense.load(tmp_path / "defense.json").build()
    sample = next(sample for sample in samples() if sample.name == "lunch")
    image = load_image(sample.path)
    height, width = image.shape[:2]
    (observation,) = seeker.observe([image])
    certified = seeker.certify(observation, sample.ground_truth, patch := Patch(0.001, location="over")).certified[0]
    assert certified.any()
    rng = np.random.default_rng(0)
    size = patch.size(width, height)
    for n in np.flatnonzero(certified)[:2]:
        allowed = PatchPositions.of(sample.ground_truth.xyxy[[n]], width, height).allowed("over", np.array([size]))[0][
            0
        ]
        for x, y in ((allowed[0], allowed[1]), (allowed[2], allowed[3]), allowed[:2] // 2 + allowed[2:] // 2):
            attacked = image.copy()
            region = attacked[max(y, 0) : max(y + size[1], 0), max(x, 0) : max(x + size[0], 0)]
            region[:] = rng.integers(0, 256, region.shape)
            (found,) = seeker([attacked])
            same = found[found.label == sample.ground_truth.label[n]]
            assert (ioa(sample.ground_truth.xyxy[[n]], same.xyxy) > 0).any()


def test_the_packages_cheap_defense_the_whole_way_by_its_name(tmp_path):
    """observe, certify and detect with --defense builtin-fast: what it certifies on an image is output."""
    folder = Path(str(resources.files("objectseeker.demo.samples")))
    fast = ["--defense", "builtin-fast"]
    run(tmp_path, "observe", f"coco:{folder / 'annotations.json'}:{folder}", *fast, "--limit", 1, "--out", "seen")
    answer = certificates(tmp_path, "seen", *fast)
    unsaid = certificates(tmp_path, "seen")
    assert unsaid == answer  # a run of its masks is about this defense, named again or not
    image = load_image(samples()[0].path)
    size, rng = Patch(0.01).size(image.shape[1], image.shape[0]), np.random.default_rng(0)
    wanted, attacked = {}, tmp_path / "attacked"
    attacked.mkdir()
    for row in answer["objects"]:
        x1, y1, x2, y2 = row["box"]
        for where in ("far", "close", "over"):
            if row[where] and len(wanted) < 12:
                noise = rng.integers(0, 256, 3)
                drawn = attacked_at_random(image, np.array([row["box"]]), where, size, rng, noise)
                file = f"{row['object']}-{where}.png"
                PIL.Image.fromarray(drawn).save(attacked / file)
                wanted[file] = [x1, y1, x2 - x1, y2 - y1], (row["class"],)
    assert len(wanted) >= 3
    run(tmp_path, "detect", "attacked", *fast, "--out", "found", "--no-annotate")
    rows = json.loads((tmp_path / "found" / "detections.json").read_text())
    assert {row["defense_sha256"] for row in rows} == {answer["defense"]["sha256"]}
    lost = [
        file
        for file, (box, names) in wanted.items()
        if not found_in([row for row in rows if row["image"] == file], box, names, by_iou=False)
    ]
    assert not lost
    rejected = run(tmp_path, "evaluate", "seen", "--defense", "builtin", code=2).stderr
    assert "its masks are halves:30, the run's bands:" in rejected


def test_the_packages_defense_for_video_the_whole_way_by_its_name(tmp_path):
    """observe, evaluate and detect with --defense builtin-video: a certified window reports its object."""
    sample, frames, rng = samples()[0], 8, np.random.default_rng(0)
    image, (x1, y1, x2, y2) = load_image(sample.path), sample.ground_truth.xyxy[0].round().astype(int).tolist()
    views = [image[80:400, 2 * t : 2 * t + 400] for t in range(frames)]  # a camera that turns
    places = [[x1 - 2 * t, y1 - 80, x2 - x1, y2 - y1] for t in range(frames)]
    save_frames(tmp_path / "clip" / "frames", views)
    content = {"fps": 10, "frames": [f"{t}.png" for t in range(frames)]}
    boxes = [[t, 1, "person", x, y, x + w, y + h] for t, (x, y, w, h) in enumerate(places)]
    (tmp_path / "clip" / "boxes.json").write_text(json.dumps(content | {"boxes": boxes}))
    video = ["--defense", "builtin-video"]
    run(tmp_path, "observe", "boxes:clip", *video, "--out", "seen")
    options = ["--window", frames, "--max-motion", 0, "--json"]
    answer = json.loads(run(tmp_path, "evaluate", "seen", *video, *options).stdout)
    assert json.loads(run(tmp_path, "evaluate", "seen", *options).stdout)["defense"] == answer["defense"]
    (track,) = answer["track_certificates"]["tracks"]
    assert track["windows"] == {"8": {"certified": 1, "all": 1}}
    width, height = Patch(0.01).size(400, 320)
    for turn, (x, y) in enumerate([(x1, y1 - 80), (x1 - 10, y1), (x2 - 20, y2 - 110)]):  # where the patch stays
        attacked = [view.copy() for view in views]
        for view in attacked:
            view[y : y + height, x : x + width] = rng.integers(0, 256, (height, width, 3))
        save_frames(tmp_path / f"attacked-{turn}", attacked)
        run(tmp_path, "detect", f"video:attacked-{turn}", *video, "--no-annotate", "--out", f"found-{turn}")
        lines = [json.loads(line) for line in (tmp_path / f"found-{turn}" / "frames.jsonl").read_text().splitlines()]
        assert {line["defense_sha256"] for line in lines} == {answer["defense"]["sha256"]}
        assert any(
            found_in(line["boxes"], place, ("person",), False) for line, place in zip(lines, places, strict=True)
        )


def save_frames(folder, frames):
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames):
        PIL.Image.fromarray(frame).save(folder / f"{number}.png")


# --- the findings, one by one ---------------------------------------------------------------------------------------


def test_boxes_of_two_detector_classes_do_not_add_up():
    """A detector that hesitates between two names of one class: weak boxes of both names prove nothing together."""
    vocabulary = LabelMap(("person", "pedestrian"), ("person",), np.array([0, 0]))
    g, masks, patch = [20, 20, 50, 50], Halves(4).masks(90, 60), Patch(0.01, location="far")
    masked = [Detections([g], [0.4], [m % 2]) for m in range(len(masks))]
    observation = Observation(90, 60, masks, Detections.empty(), masked)
    truth = Detections([g], [1], [0])
    rule = Rule(mask_threshold=0.8, evidence_threshold=0.3)

    def certified(one):
        rows, which = vocabulary.map_to_detector(truth)
        return vocabulary.any_label(one.certify(observation, rows, [patch]).certified, which, 1)[0, 0]

    one_name = [Detections(d.xyxy, d.score, [0]) for d in masked]
    relabeled = Observation(90, 60, masks, Detections.empty(), one_name)
    assert rule.certify(relabeled, truth, [patch]).certified[0, 0]  # what the store used to certify
    w, h = patch.size(90, 60)
    gone = (masks.removes(0, np.array([65]), w) | masks.removes(1, np.array([5]), h))[0]  # three of each name are left
    left = [seen if safe else Detections.empty() for seen, safe in zip(masked, gone, strict=True)]
    assert not len(rule.prune(Observation(90, 60, masks, Detections.empty(), left)))  # what is deployed outputs nothing
    assert not certified(rule)
    assert certified(Rule(mask_threshold=0.4, base_threshold=0.4))  # one box alone is enough under the paper's rule


@pytest.mark.parametrize("verb", ["evaluate", "report", "tune"])
def test_no_verb_takes_some_of_a_runs_lines(workplace, verb):
    out = observe(workplace, "run-lines", "--masks", "halves:6")
    done = subprocess.run(
        [sys.executable, "-m", "objectseeker.cli", verb, out.name, "--lines", "3"],
        cwd=workplace, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_a_file_of_other_masks_than_the_runs_is_refused(workplace):
    out = observe(workplace, "run-lines", "--masks", "halves:6")
    Defense.for_detector("python:hesitant:detect", masks=Halves(3)).save(workplace / "three.json")
    for verb in (["evaluate"], ["evaluate", "--objects", "o.csv"], ["report", "--out", "r.html"]):
        done = run(workplace, verb[0], out.name, *verb[1:], "--defense", "three.json", code=2)
        assert "halves:6" in done.stderr
        assert "halves:3" in done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_by_default_all_verbs_use_one_rule(workplace):
    out = observe(workplace, "run-default", "--masks", "halves:6")
    run(workplace, "detect", "images", "-d", "python:hesitant:detect", "--set", "masks=halves:6", "--out", "d")
    evaluated = json.loads(run(workplace, "evaluate", out.name, "--json").stdout)
    certified = certificates(workplace, out.name)
    shas = {evaluated["defense"]["sha256"], certified["defense"]["sha256"]}
    assert shas == {Defense.load(workplace / "d" / "defense.json").sha256}
    counted = [row for row in certified["objects"] if not row["ignored"]]
    for where in ("far", "close", "over"):
        share = 100 * sum(row[where] for row in counted) / len(counted)
        assert evaluated["defended"]["certified_recall"][where] == pytest.approx(share)


@pytest.mark.parametrize(("masks", "fill"), [("pairs:2", 114), ("halves:4", 0), ("bands:5%", 30)])
def test_whatever_can_be_observed_can_be_deployed(workplace, masks, fill):
    options = ["--set", f"masks={masks}", "--set", f"fill={fill}", "-d", "python:hesitant:detect"]
    run(workplace, "detect", "images/0.png", *options, "--out", f"o{fill}", "--no-annotate")
    defense = Defense.load(workplace / f"o{fill}" / "defense.json")
    assert (str(defense.masks), defense.fill) == (masks.replace("5%", "0.05"), fill)


def test_in_python_a_setting_is_typed_once():
    with pytest.raises(TypeError):
        ObjectSeeker(list, mask_threshold=0.95)
    seeker = ObjectSeeker(lambda images: [Detections.empty() for _ in images], Rule(mask_threshold=0.95))
    (observation,) = seeker.observe([np.zeros((20, 30, 3), np.uint8)])
    with pytest.raises(TypeError):
        seeker.certify(observation, Detections.empty(), Patch(), mask_threshold=0.3)


def test_a_file_for_another_detector_is_refused_by_every_verb(workplace):
    out = observe(workplace, "run-lines", "--masks", "halves:6")
    file = Defense.for_detector("python:hesitant:detect", masks=Halves(6)).with_fingerprint("another sha256:00")
    file.save(workplace / "other.json")
    run(workplace, "evaluate", out.name, "--defense", "other.json", code=2)
    done = run(workplace, "detect", "images", "--defense", "other.json", "--out", "never", code=2)
    assert "another sha256:00" in done.stderr
    assert not (workplace / "never" / "detections.json").exists()


def test_a_changed_setting_makes_another_defense_and_is_written_as_one(workplace):
    Defense.for_detector("python:hesitant:detect", masks=Halves(6)).save(workplace / "six.json")
    changed = ["--set", "mask_threshold=0.9", "--set", "masks=halves:3"]
    run(workplace, "detect", "images/0.png", "--defense", "six.json", *changed, "--out", "x", "--no-annotate")
    written = Defense.load(workplace / "x" / "defense.json")
    assert (written.rule.mask_threshold, str(written.masks)) == (0.9, "halves:3")
    assert written.sha256 != Defense.load(workplace / "six.json").sha256
    done = run(workplace, "detect", "images", "--defense", "six.json", "--set", "mask_treshold=1", "--out", "y", code=2)
    assert "not a setting of a defense: got 'mask_treshold=1'" in done.stderr


def test_tune_ends_with_a_file_that_detect_takes(workplace):
    out = observe(workplace, "run-default", "--masks", "halves:6")
    answer = json.loads(
        run(
            workplace,
            "tune",
            out.name,
            "--operating-point",
            "clean_recall=0.5",
            "--max-ap-loss",
            30,
            "--out",
            "tuned",
            "--json",
        ).stdout
    )
    defense = Defense.load(workplace / "tuned" / "defense.json")
    assert answer["defense"]["sha256"] == defense.sha256
    run(workplace, "detect", "images/1.png", "--defense", "tuned/defense.json", "--out", "by-tuned")
    evaluated = json.loads(run(workplace, "evaluate", out.name, "--defense", "tuned/defense.json", "--json").stdout)
    assert evaluated["defended"]["mask_threshold"] == defense.rule.mask_threshold  # bit for bit
    assert evaluated["defended"]["base_threshold"] == defense.rule.base_threshold
