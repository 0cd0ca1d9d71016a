"""From a detector and unlabeled images to a defense and certified detections: two commands, and in Python."""

import json
import shutil

import numpy as np
import PIL.Image
import pytest
from blobs_graph import NAMES, SIDE, write_graph
from command import DETECTOR, run

from objectseeker import (
    Defense,
    Detections,
    ObjectSeekerError,
    Patch,
    Rule,
    detect,
    gate,
    observe,
    open_run,
    tune,
)
from objectseeker.core.threats import ThreatModel
from objectseeker.metrics.output_boxes import tune_support
from objectseeker.metrics.tuning import split_by_share

IMAGES = 40
GRID = ("--set", "filter_ioa=0.6", "--set", "edge_factor=1", "--set", "cluster_distance=0.1")


def make_image(number: int) -> np.ndarray:
    """A gray image with one blob of a pure color, at another place in every image."""
    rng = np.random.default_rng(number)
    image = np.full((SIDE, SIDE, 3), 60, np.uint8)
    x, y = rng.integers(2, 30, 2)
    width, height = rng.integers(14, 24, 2)
    image[y : y + height, x : x + width] = 0
    image[y : y + height, x : x + width, number % 3] = 255
    return image


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an ONNX file, its class names, and unlabeled images."""
    folder = tmp_path_factory.mktemp("unlabeled")
    write_graph(folder / "blobs.onnx")
    (folder / "names.txt").write_text("\n".join(NAMES))
    (folder / "images").mkdir()
    for number in range(IMAGES):
        PIL.Image.fromarray(make_image(number)).save(folder / "images" / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def tuned(place):
    """What tune says and writes."""
    detector = ("--detector", "onnx:blobs.onnx", "--set", "class_names=@names.txt")
    return run(place, "tune", "images", *detector, *GRID, "--masks", "halves:5", "--out", "tuned")


def test_two_commands_lead_from_a_detector_to_certified_detections(place, tuned):
    assert "40 images x 21 views = 840 forward passes" in tuned.stderr
    assert "about" in tuned.stderr  # how long it takes, before it starts
    assert "base threshold 0.5: the usual one, since the images are unlabeled" in tuned.stdout
    following = "objectseeker detect images --defense tuned/defense.json --certify --out found"
    assert tuned.stdout.strip().endswith(following)
    names = {file.name for file in (place / "tuned").iterdir()}
    assert names >= {"defense.json", "frontier.csv", "tuning.json", "tuning.md", "run"}
    run(place, *following.split()[1:])
    found = json.loads((place / "found" / "detections.json").read_text())
    assert len(found) == IMAGES
    assert {box["category_name"] for box in found} == set(NAMES)
    assert sum(box["far"] for box in found) > 0.8 * IMAGES


def test_what_is_written_is_what_was_measured(place, tuned):
    content = json.loads((place / "tuned" / "tuning.json").read_text())
    defense = Defense.load(place / "tuned" / "defense.json")
    assert content["best"]["rule"] == defense.rule.to_dict()
    assert content["best"]["search_split"]["spurious_per_image"]["high"] <= 0.25
    assert content["broken_promise"] is None
    again = run(place, "tune", "tuned/run", "--threshold", 0.5, *GRID, "--json")
    assert json.loads(again.stdout)["best"] == content["best"]
    assert not defense.is_untuned
    assert Defense.for_detector("onnx:blobs.onnx").is_untuned


def test_fabrication_settings_are_chosen_too_and_used(place, tuned):
    """As recomputed from the run; verdicts against hiding are those of the rule without them."""
    content = json.loads((place / "tuned" / "tuning.json").read_text())
    defense = Defense.load(place / "tuned" / "defense.json")
    stored = open_run(place / "tuned" / "run")
    searched, held_out = split_by_share(IMAGES, 0.5, 0)
    seen = [image.observation for image in stored.images()]
    plain = Rule(**{name: value for name, value in defense.rule.settings().items() if not name.startswith("support_")})
    floor = stored.manifest.observation_settings.mask_floor
    assert defense.rule == tune_support([seen[n] for n in searched], plain, floor=floor)
    assert defense.rule != plain  # the search changed something
    patch, verdicts = Patch(0.01, location="anywhere"), []
    for observation in (seen[n] for n in held_out):
        boxes = observation.base.with_min_score(defense.rule.base_threshold)
        verdicts += defense.rule.certify_not_fabricated(observation, boxes, patch).certified[0].tolist()
        before, after = (rule.certify(observation, boxes, ThreatModel().patches()) for rule in (plain, defense.rule))
        assert np.array_equal(before.certified, after.certified)
    assert 0 < np.mean(verdicts) == pytest.approx(content["certified_not_fabricated"]["value"] / 100)
    assert "own boxes certified not fabricated" in (place / "tuned" / "tuning.md").read_text()
    run(place, "detect", "images", "--defense", "tuned/defense.json", "--certify", "--out", "sided")
    boxes = json.loads((place / "sided" / "detections.json").read_text())
    least = defense.rule.support_threshold
    assert [box["certified_not_fabricated_anywhere"] for box in boxes] == [
        box["certified_score"] >= least for box in boxes
    ]


def test_images_that_chose_a_defense_are_noticed_whatever_their_names(place, tuned):
    stored = open_run(place / "tuned" / "run")
    defense = Defense.load(place / "tuned" / "defense.json")
    assert stored.tuned_images(defense) == IMAGES // 2
    copies = place / "copies"
    copies.mkdir()
    for number in range(4):
        shutil.copy(place / "images" / f"{number:02d}.png", copies / f"other{number}.png")
    hashes = stored.file_hashes()
    expected = sum(defense.count_tuned([hashes[number]]) for number in range(4))
    assert observe(copies, defense, out=place / "copied").tuned_images(defense) == expected
    sampled = observe(place / "images", defense, out=place / "sampled", limit=10, seed=3)
    assert sampled.tuned_images(defense) == defense.count_tuned(sampled.file_hashes()) > 0
    grown = observe(place / "images", defense, out=place / "sampled", limit=20, seed=3)
    assert grown.tuned_images(defense) > sampled.tuned_images(defense)
    for number in range(IMAGES, IMAGES + 3):
        PIL.Image.fromarray(make_image(number)).save(copies / f"{number}.png")
    others = run(place, "observe", "copies", "--defense", "tuned/defense.json", "--exclude", "tuned/run", "--out", "n")
    assert "3 images observed" in others.stdout
    assert open_run(place / "n").tuned_images(defense) == 0
    run(place, "observe", "images", "--defense", "tuned/defense.json", "--exclude", "tuned/run", "--out", "x", code=2)


def annotate(place):
    """Annotations of all images, as a COCO file."""
    images, annotations = [], []
    for number in range(IMAGES):
        ys, xs = np.nonzero(make_image(number).max(axis=2) == 255)
        box = [int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1]
        images.append({"id": number, "file_name": f"{number:02d}.png", "width": SIDE, "height": SIDE})
        entry = {"id": number, "image_id": number, "category_id": number % 3, "bbox": box, "area": 1, "iscrowd": 0}
        annotations.append(entry)
    categories = [{"id": label, "name": name} for label, name in enumerate(NAMES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (place / "all.json").write_text(json.dumps(content))


def test_evaluate_gate_and_report_say_how_many_images_chose_the_defense(place, tuned):
    annotate(place)
    run(place, "observe", "coco:all.json:images", "--defense", "tuned/defense.json", "--out", "labeled")
    own = ("--defense", "tuned/defense.json")
    said = "20 of the 40 images chose this defense"
    done = run(place, "evaluate", "labeled", *own, "--json")
    assert said in done.stderr
    assert json.loads(done.stdout)["tuned_images"] == 20
    chosen, used = json.loads((place / "tuned" / "tuning.json").read_text()), json.loads(done.stdout)["settings"]
    for name in ("support_threshold", "support_fit", "support_overlap"):
        assert used[name] == chosen["best"]["rule"][name]
    (place / "policy.toml").write_text(run(place, "gate", "--example").stdout)
    rejected = run(place, "gate", "labeled", "--policy", "policy.toml", *own, code=2)
    assert said in rejected.stderr
    assert "--allow-tuned-images" in rejected.stderr
    with pytest.raises(ObjectSeekerError, match=said):
        gate(place / "labeled", place / "policy.toml", defense=place / "tuned" / "defense.json")
    allowed = gate(
        place / "labeled", place / "policy.toml", defense=place / "tuned/defense.json", allow_tuned_images=True
    )
    assert allowed.to_dict()["run"]["tuned_images"] == 20
    assert said in run(place, "report", "labeled", *own, "--out", "report.html").stderr
    assert said in (place / "report.html").read_text()
    best = run(place, "tune", "labeled", *GRID, "--json")
    assert "the best F1 by labels, 1.00" in json.loads(best.stdout)["threshold_reason"]


def test_an_untuned_defense_names_the_next_command(place, tuned):
    (place / "mine.py").write_text(DETECTOR)
    wanted = "Next: objectseeker tune images --detector python:mine:detect --masks halves:3 --out tuned\n"
    own = ("-d", "python:mine:detect", "--set", "masks=halves:3")
    assert run(place, "detect", "images", *own, "--out", "plain").stdout.endswith(wanted)
    checked = run(place, "check", "python:mine:detect", "images/00.png", "--set", "batch_size=2").stdout
    assert checked.endswith(
        "Next: objectseeker tune IMAGES --detector python:mine:detect --set batch_size=2 --out tuned\n"
    )
    assert "tune" not in run(place, "detect", "images/00.png", "--set", "masks=halves:1", "--out", "b").stdout


def test_what_cannot_be_reached_is_an_error_that_says_what_can(place, tuned):
    """And nothing is written."""
    few = run(place, "tune", "tuned/run", "--spurious", 0.01, *GRID, "--out", "nothing", code=2)
    assert "20 searched images cannot show a rule with at most 0.01 spurious boxes per image: the least" in few.stderr
    none = run(place, "tune", "tuned/run", "--threshold", 0.95, *GRID, "--out", "nothing", code=2)
    assert "finds no box of at least 0.95" in none.stderr
    assert not (place / "nothing").exists()
    assert "add --detector SPEC" in run(place, "tune", "images", code=2).stderr


def test_a_callable_and_arrays_in_python(tmp_path):
    def find(images):
        found = []
        for image in images:
            ys, xs = np.nonzero(image.max(axis=2) == 255)
            enough = len(xs) > 40
            box = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]] if enough else []
            found.append(Detections(box, [0.9] * enough, [0] * enough))
        return found

    result = tune((make_image(n) for n in range(IMAGES)), detector=find, masks="halves:5", threshold=0.5, spurious=0.3)
    assert result.best.held_out_split.spurious.value == 0
    assert result.best.held_out_split.certified["far"].value > 80
    (found,) = result.defense.build()([make_image(99)])
    assert len(found) == 1
    run_of = observe([make_image(n) for n in range(IMAGES)], find, out=tmp_path / "run", masks="halves:5")
    again = tune(run_of, threshold=0.5, spurious=0.3)
    assert again.best.to_dict() == result.best.to_dict()
    assert "tuned" in again._repr_html_()


def test_masks_within_a_budget_are_chosen_too(place, tuned):
    result = tune(open_run(place / "tuned" / "run"), passes=9, threshold=0.5)
    assert str(result.masks) == "halves:2"
    assert result.forward_passes == 9
    assert result.defense.masks == result.masks
    assert "observe again" in result.caveats[0]
    fast = tune(open_run(place / "tuned" / "run"), latency=10_000, threshold=0.5)
    assert str(fast.masks) in ("halves:5", "halves:2", "halves:1")


def test_a_folder_of_frames_is_a_video_without_pyav(place, tuned, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "av", None)
    done = detect(f"video:{place / 'images'}", place / "tuned" / "defense.json", out=place / "frames")
    done.finish()
    assert done.totals.to_dict()["frames"] == IMAGES


def test_detect_takes_some_of_the_images(place, tuned):
    defense, images = place / "tuned" / "defense.json", place / "images"
    assert len(list(detect(images, defense, limit=3))) == 3
    assert len(list(detect(images, defense, sample=5))) == 5
    assert len(list(detect(f"video:{images}", defense, limit=4, stride=2))) == 4
    with pytest.raises(ObjectSeekerError, match="sample draws images"):
        detect(f"video:{images}", defense, sample=4)


def test_settings_that_are_hardly_meant_draw_a_warning():
    assert Patch(area="1%") == Patch(0.01)
    with pytest.warns(UserWarning, match="the whole image"):
        Patch(area=1)
    with pytest.warns(UserWarning, match=r"mask_threshold 0\.3 is below base_threshold 0\.5"):
        Rule(base_threshold=0.5, mask_threshold=0.3)
