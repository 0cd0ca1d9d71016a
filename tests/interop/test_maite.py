"""MAITE: a defended detector as a Model, MAITE models and datasets where ours are taken, and a Metric."""

import json
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from command import run as command

from objectseeker import (
    Defense,
    Detections,
    Halves,
    ObjectSeeker,
    ObjectSeekerError,
    Patch,
    Rule,
    evaluate,
    gate,
    observe,
    open_run,
    tune,
)
from objectseeker.core.maite import MaiteDetector, as_numpy, from_maite_image
from objectseeker.detectors import load_detector
from objectseeker.interop import CertifiedRecall

RULE = Rule(base_threshold=0.3, mask_threshold=0.5)
BOXES = [(4, 6, 40, 44), (50, 10, 88, 40), (20, 30, 70, 58), (60, 4, 90, 56), (2, 2, 30, 58), (30, 5, 60, 50)]
LABELS = {3: "dark", 7: "bright"}  # not the detector's order, and not its only class
MODULE = """
import numpy as np

class Target:
    def __init__(self, boxes, labels, scores):
        self.boxes, self.labels, self.scores = boxes, labels, scores

class Model:
    metadata = {"id": "brightest", "index2label": {0: "bright"}}
    fingerprint = "the first"

    def __call__(self, batch):
        found = []
        for image in batch:
            assert image.shape[0] == 3 and image.dtype == np.uint8
            ys, xs = np.nonzero(image[0] > 200)
            box = [] if len(xs) < 5 else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
            found.append(Target(np.reshape(box, (-1, 4)), np.zeros(len(box), int), np.full(len(box), 0.9)))
        return found

class Dataset:
    metadata = {"id": "boxes", "index2label": {3: "dark", 7: "bright"}}
    boxes = BOXES

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        x1, y1, x2, y2 = self.boxes[index]
        image = np.full((3, 60, 90), 30 / 255, np.float32)
        image[:, y1:y2, x1:x2] = 1
        return image, Target(np.array([[x1, y1, x2, y2]], float), np.array([7]), np.ones(1)), {"id": f"no/{index}"}

model, dataset = Model(), Dataset()
""".replace("BOXES", str(BOXES))


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A MAITE model and dataset, as a module of a user has them."""
    (tmp_path / "maite_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(MODULE, names)
    yield SimpleNamespace(**names)
    sys.modules.pop("maite_parts", None)  # the next test has its own


def defended(theirs):
    return ObjectSeeker(load_detector(theirs.model), RULE, masks=Halves(4))


def test_a_defended_detector_is_a_model_of_the_released_package(theirs):
    maite = pytest.importorskip("maite", reason="needs the released maite package")
    from maite.protocols import object_detection as od
    from maite.tasks import evaluate as maite_evaluate
    from maite.tasks import predict

    seeker = defended(theirs)
    model = seeker.as_maite(index2label=LABELS, patches=Patch(location="anywhere"))
    metric = CertifiedRecall(model)
    assert maite.__version__
    for part, protocol in ((model, od.Model), (metric, od.Metric), (theirs.dataset, od.Dataset)):
        assert isinstance(part, protocol.__mro__[1])  # the generic protocol, which is checkable at run time
    batches, _ = predict(model=model, dataset=theirs.dataset, batch_size=4)
    targets = [target for batch in batches for target in batch]
    images = [from_maite_image(image) for image, _, _ in theirs.dataset]
    for target, boxes, image in zip(targets, seeker(images), images, strict=True):
        assert isinstance(target, od.ObjectDetectionTarget.__origin__)
        assert np.array_equal(target.boxes, boxes.xyxy)
        assert target.labels.tolist() == [7] * len(boxes)
        assert not target.recovered.any()
        again = seeker.certify(seeker.defend(image).observation, boxes, Patch(location="anywhere"))
        assert np.array_equal(target.certificates.certified, again.certified)

    if find_spec("beartype") is not None:  # MAITE's own check of everything that passes through its protocols
        from maite.spotcheck import spotcheck

        maite_evaluate = spotcheck(maite_evaluate, ai_problem="object_detection")
    measured, _, _ = maite_evaluate(model=model, dataset=theirs.dataset, metric=metric, batch_size=4)
    run = observe(theirs.dataset, theirs.model, out="run", masks="halves:4")
    ours = evaluate(run, Defense(detector=theirs.model, rule=RULE, masks=Halves(4)), intervals=False).to_dict()
    assert measured["objects"] == ours["objects"] == len(BOXES)
    for location, share in ours["defended"]["certified_recall"].items():
        assert measured[f"certified_recall_{location}"] == pytest.approx(share / 100)
    assert measured["certified_recall_far"] > 0
    assert measured["clean_recall"] == 1


def test_torchmetrics_measures_the_targets(theirs):
    pytest.importorskip("torchvision", reason="AP of torchmetrics needs torchvision")
    torchmetrics = pytest.importorskip("torchmetrics.detection", reason="needs torchmetrics")
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", reason="torchmetrics computes AP with torchvision")
    metric = torchmetrics.MeanAveragePrecision()
    model = defended(theirs).as_maite(index2label=LABELS)
    recall = CertifiedRecall(model)
    for image, target, _ in theirs.dataset:
        (found,) = model([torch.from_numpy(image)])
        truth = {"boxes": torch.tensor(target.boxes), "labels": torch.tensor(target.labels)}
        boxes = {name: torch.tensor(getattr(found, name)) for name in ("boxes", "labels", "scores")}
        metric.update([boxes], [truth])
        recall.update([found], [truth])  # the ground truth of torchmetrics, unchanged
    assert metric.compute()["map_50"] == 1
    assert recall.compute()["clean_recall"] == 1
    recall.reset()
    with pytest.raises(ObjectSeekerError):
        recall.compute()


def test_models_and_datasets_go_the_whole_way_on_the_command_line(theirs, tmp_path):
    command(
        tmp_path,
        "observe",
        "python:maite_parts:dataset",
        "-d",
        "python:maite_parts:model",
        "--masks",
        "halves:4",
        "--out",
        "run",
    )
    stored = open_run("run")
    assert [image.id for image in stored.images()] == [f"no/{index}" for index in range(len(BOXES))]
    in_python = observe(theirs.dataset, theirs.model, out="other", masks="halves:4")
    for one, other in zip(stored.images(), in_python.images(), strict=True):
        assert one.observation == other.observation
        assert one.ground_truth == other.ground_truth
    command(tmp_path, "tune", "run", "--max-ap-loss", 50, "--operating-point", "clean_recall=0.5", "--out", "tuned")
    assert tune(in_python, max_ap_loss=50, clean_recall=0.5).defense is not None
    found = json.loads(command(tmp_path, "evaluate", "run", "--defense", "tuned/defense.json", "--json").stdout)
    assert found["objects"] == len(BOXES)
    (tmp_path / "policy.toml").write_text(
        'format = 1\n[[require]]\nmetric = "clean_recall"\nat_least = "0 %"\n', encoding="utf-8"
    )
    command(
        tmp_path, "gate", "run", "--policy", "policy.toml", "--defense", "tuned/defense.json", "--allow-tuned-images"
    )
    assert gate("run", "policy.toml", defense="tuned/defense.json", allow_tuned_images=True).verdict == "pass"
    again = observe(
        "python:maite_parts:dataset", "python:maite_parts:model", out="run", masks="halves:4"
    )  # resumes: nothing changed
    assert again.complete


def test_objects_in_memory_go_the_whole_way_in_python(theirs, tmp_path):
    run = observe(theirs.dataset, theirs.model, out="run", masks="halves:4")
    tuned = tune(run, max_ap_loss=50, clean_recall=0.5)
    assert evaluate(run, tuned.defense, intervals=False).objects == len(BOXES)
    (tmp_path / "policy.toml").write_text('format = 1\n[[require]]\nmetric = "clean_recall"\nat_least = "0 %"\n')
    assert gate(run, "policy.toml", defense=tuned.defense, allow_tuned_images=True).verdict == "pass"
    assert tuned.defense.build().detector.names == ("bright",)
    again = open_run("run", detector=theirs.model)
    assert again.defense() == run.defense()
    with pytest.raises(ObjectSeekerError, match="does not state how its detector"):
        open_run("run").defense()
    type(theirs.model).fingerprint = "the second"
    with pytest.raises(ObjectSeekerError, match="its detector is the second, the run's the first"):
        open_run("run", detector=theirs.model)


def test_a_model_is_called_with_bytes_and_named_by_its_own_fingerprint(theirs):
    detector = load_detector(theirs.model)
    (found,) = detector([from_maite_image(theirs.dataset[0][0])])
    assert found == Detections([BOXES[0]], [0.9], [0])
    assert detector.names == ("bright",)
    assert detector.fingerprint == "the first"
    del type(theirs.model).fingerprint
    unnamed = load_detector(theirs.model)
    assert "it was passed in memory" in unnamed.unverified_reason


@pytest.mark.parametrize("scores", [[0.5, 2.0, 0.25, np.nan], [[0.5, 0.1], [2, 0], [0.25, 0], [np.nan, 0]]])
def test_boxes_that_are_none_are_dropped_one_by_one(scores):
    boxes = [[-5, 2, 20, 90], [1, 1, 5, 5], [8, 8, 8, 9], [1, 1, 5, 5]]
    model = SimpleNamespace(metadata={"id": "m", "index2label": {1: "b"}})
    detector = MaiteDetector(model)
    detector.model = lambda batch: [SimpleNamespace(boxes=boxes, labels=[1, 0, 0, 0], scores=scores)]
    assert detector.names == ("0", "b")
    assert detector([np.zeros((40, 10, 3), np.uint8)]) == [Detections([[0, 2, 10, 40]], [0.5], [1])]


def test_a_box_that_is_not_finite_is_dropped_and_the_others_stay():
    boxes = [[1, 1, 5, 5], [np.nan, 1, 5, 5], [1, 1, np.inf, 5], [2, 2, 6, 6], [3, 3, 3, 9], [2, 2, 12, 12]]
    scores, labels = [0.0, 0.5, 0.5, 1.0, 0.5, -0.5], [0, 0, 0, 2, 0, 0]
    model = SimpleNamespace(metadata={"id": "m", "index2label": {0: "a", 2: "c"}})
    detector = MaiteDetector(model)
    assert detector.names == ("a", "1", "c")
    detector.model = lambda batch: [SimpleNamespace(boxes=boxes, labels=labels, scores=scores)]
    assert detector([np.zeros((40, 10, 3), np.uint8)]) == [Detections([[1, 1, 5, 5], [2, 2, 6, 6]], [0, 1], [0, 2])]
    weak = [[0.05, 0.01], [0.0, 0.0]]  # scores by class
    detector.model = lambda batch: [SimpleNamespace(boxes=boxes[:4:3], labels=[0, 0], scores=weak)]
    assert detector([np.zeros((40, 10, 3), np.uint8)])[0].score.tolist() == [0.05, 0.0]
    detector.model = lambda batch: [SimpleNamespace(boxes=[], labels=[], scores=[])]
    assert detector([np.zeros((40, 10, 3), np.uint8)]) == [Detections.empty()]
    assert MaiteDetector(SimpleNamespace(metadata={"id": "m"})).names == ()


def test_what_is_on_a_device_is_copied_from_it():
    class OnDevice:
        def __init__(self, values):
            self.values = values

        def detach(self):
            return SimpleNamespace(cpu=lambda: np.array(self.values))

    assert as_numpy(OnDevice([1, 2])).tolist() == as_numpy([1, 2]).tolist() == [1, 2]
    assert as_numpy(OnDevice([1, 2])).dtype == np.int64


def test_a_model_has_the_classes_the_scale_and_the_patches_it_is_given(theirs):
    """The detector's class "bright" is the dataset's "lit", of label 7; white is 255 in its images."""
    model = defended(theirs).as_maite(
        index2label={3: "dark", 7: "lit"},
        class_map={"bright": "lit"},
        patches=[Patch(location="anywhere")],
        white=255.0,
    )
    assert model.metadata["index2label"] == {3: "dark", 7: "lit"}
    image, _, _ = theirs.dataset[0]
    for target in model([image * 255, image * 255]):
        assert target.labels.tolist() == [7]
        assert target.boxes.tolist() == [[float(v) for v in BOXES[0]]]
        assert target.scores.tolist() == [0.9]
        assert target.recovered.tolist() == [False]
        assert target.certificates.certified.shape == (1, 1)
        assert target.observation.base.label.tolist() == [0]
    with pytest.raises(ObjectSeekerError, match="knows none of the dataset's classes"):
        defended(theirs).as_maite(index2label={3: "dark", 7: "lit"})
    plain = defended(theirs).as_maite()
    assert (plain.labels, plain.white, plain.patches, plain.metadata["index2label"]) == ((0,), 1.0, (), {0: "bright"})
    (found,) = plain([image])
    assert (found.labels.tolist(), found.certificates) == ([0], None)
    assert defended(theirs).as_maite(patches=Patch()).patches == (Patch(),)


def test_boxes_of_classes_that_the_dataset_lacks_are_left_out_of_targets(theirs):
    """Two classes, of which the dataset has one: of the boxes that masking recovers, too."""

    def two(images):
        dark = [image.min() < 20 for image in images]
        box = [[4, 4, 40, 40], [50, 10, 88, 40]]
        return [Detections(box, [0.9, 0.8], [0, 1]) if not d else Detections.empty() for d in dark]

    two.names = ("elk", "bright")
    image = np.full((3, 60, 90), 200, np.uint8)
    model = ObjectSeeker(two, RULE, masks=Halves(1)).as_maite(index2label=LABELS)
    (target,) = model([image])
    assert (target.labels.tolist(), target.recovered.tolist()) == ([7], [False])
    image[:, 0, 0] = 0  # hides both from every view that shows it
    (target,) = model([image])
    assert (target.labels.tolist(), target.recovered.tolist()) == ([7], [True])
    assert target.boxes.tolist() == [[50, 10, 88, 40]]


def test_every_pixel_is_converted_on_its_own():
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    chw = image.transpose(2, 0, 1)
    for given, white in ((chw, 1), (chw / 255, 1), ((chw / 255).astype(np.float32), 1), (chw.astype(float), 255)):
        assert np.array_equal(from_maite_image(given, white=white), image)
    torch = pytest.importorskip("torch")
    assert np.array_equal(from_maite_image(torch.from_numpy(chw / 255)), image)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 5, 3)), r"shape \(3, H, W\) and numbers, RGB: got \(4, 5, 3\)"),
        (np.full((3, 4, 5), 200.0), r"within \[0, 1\]: got 200.0 to 200.0. Clip them, or say"),
        (np.full((3, 4, 5), np.nan), "within"),
        (np.full((3, 4, 5), 300), r"within \[0, 255\]"),
        (np.full((3, 4, 5), -1), "within"),
        (np.zeros((3, 0, 5)), "shape"),
    ],
)
def test_an_image_on_another_scale_is_refused(image, message):
    with pytest.raises(ObjectSeekerError, match=message):
        from_maite_image(image)


def test_what_cannot_be_used_is_refused(theirs, tmp_path):
    seeker = defended(theirs)
    with pytest.raises(ObjectSeekerError, match=r"without an observation\. Predict with the model"):
        CertifiedRecall(seeker).update([theirs.dataset[0][1]], [theirs.dataset[0][1]])
    with pytest.raises(ObjectSeekerError, match="label 7, which is not a label of the model"):
        CertifiedRecall(seeker).update(seeker.as_maite()([theirs.dataset[0][0]]), [theirs.dataset[0][1]])
    with pytest.raises(ObjectSeekerError, match="for each image: got 0 and 1"):
        CertifiedRecall(seeker).update([], [theirs.dataset[0][1]])
    with pytest.raises(ObjectSeekerError, match="knows none of the dataset's classes"):
        seeker.as_maite(index2label={0: "elk"})
    nameless = ObjectSeeker(lambda images: [Detections.empty() for _ in images], RULE)
    with pytest.raises(ObjectSeekerError, match="needs class names"):
        nameless.as_maite()
    two = lambda images: [Detections.empty() for _ in images]  # noqa: E731
    two.names = ("bright", "elk")
    agnostic = ObjectSeeker(two, RULE.with_settings(classwise=False))
    with pytest.raises(ObjectSeekerError, match=r"class-agnostic rule needs every class .*lacks 'elk'"):
        agnostic.as_maite(index2label=LABELS)
    for spec, message in (
        ("python:maite_parts:BOXES", "is not a MAITE dataset"),
        ("python:nothing:x", "importing nothing"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            observe(spec, "builtin", out="none")
