"""A new rule is one file: one that is defined here goes through observe, evaluate, tune, gate, report and attack."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Detections, Halves, ObjectSeekerError, Patch, Rule, gate, observe
from objectseeker.attack import AttackBudget, attack
from objectseeker.core.bounds import Bound, lower_bound
from objectseeker.core.boxes import Floats
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import is_filtered
from objectseeker.core.rules import IouRule, PruningRule, register_rule, registered_rules, rule_from_dict
from objectseeker.core.temporal import frame_positions
from objectseeker.defense import set_defense_value
from objectseeker.gate import verify
from objectseeker.metrics import EvaluationSettings, SearchSpec, ThreatModel, evaluate, tune_images
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.sweeps import by_threshold
from objectseeker.report import write_report


@register_rule
@dataclass(frozen=True, slots=True, kw_only=True)
class EveryBox(PruningRule):
    """Every masked box of at least `mask_threshold` that no base box filters is output unchanged.

    A usable masked box m is output or filtered by a base box that has more than `filter_ioa` of m. Both overlap each
    object by at least `lower_bound`: m itself shares all of m with it, the base box more than that share. QED.
    """

    kind: ClassVar[str] = "every-box"
    proof_settings: ClassVar[tuple[str, ...]] = ("filter_ioa", "classwise")
    candidate_settings: ClassVar[tuple[str, ...]] = ("filter_ioa", "classwise")

    base_threshold: float = 0.5
    mask_threshold: float = 0.7
    filter_ioa: float = 0.6
    classwise: bool = True

    @property
    def filter_threshold(self) -> float:
        return self.filter_ioa

    def prune(self, observation: Observation) -> Detections:
        base = observation.base.with_min_score(self.base_threshold)
        masked = observation.all_masked.with_min_score(self.mask_threshold)
        return Detections.concatenate([base, masked[~is_filtered(self, masked, base)]])

    def lower_bound(self, boxes: Floats, objects: Floats, bound: Bound) -> Floats:
        return lower_bound(boxes, objects, self.filter_ioa, bound)

    def describe(self) -> str:
        return "every masked box is output"


RULE = EveryBox(base_threshold=0.5, mask_threshold=0.6)
SAME = Rule(base_threshold=0.5, mask_threshold=0.6)  # the paper's rule: other boxes, the same certificates
DETECTOR = '''
import numpy as np
from objectseeker import Detections

def see(image):
    """A box around what is red; fewer red pixels, a lower score."""
    ys, xs = np.nonzero((image[..., 0] > 200) & (image[..., 2] < 100))
    if len(xs) < 9:
        return Detections.empty()
    box = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
    return Detections([box], [min(0.5 + len(xs) / 2000, 0.95)], [0])

def detect(images):
    return [see(image) for image in images]

detect.names = ("person",)
'''
POLICY = """
format = 1
[[require]]
metric = "certified_recall"
location = "far"
patch_area = "1%"
at_least = "1 %"
[[require]]
metric = "clean_recall"
at_least = "1 %"
"""


def dataset(folder, count=6):
    folder.mkdir()
    images, annotations = [], []
    for number in range(count):
        x, y = 5 + 8 * number, 4 + 5 * number
        pixels = np.full((60, 90, 3), 30, np.uint8)
        pixels[y : y + 24, x : x + 24] = (255, 30, 30)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        annotations.append({"image_id": number, "category_id": 0, "bbox": [x, y, 24, 24], "iscrowd": 0})
    categories = [{"id": 0, "name": "person"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(content))
    return f"coco:{folder / 'truth.json'}:{folder}"


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """The run, and its defense from a file."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy_rule_people.py").write_text(DETECTOR)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        Defense(detector="python:toy_rule_people:detect", rule=RULE, masks=Halves(6)).save(folder / "defense.json")
        defense = Defense.load(folder / "defense.json")
        yield observe(dataset(folder / "images"), defense, out=folder / "run"), defense
    sys.modules.pop("toy_rule_people", None)


def test_its_file_names_its_kind(observed):
    _, defense = observed
    assert defense.rule == RULE
    assert defense.to_dict()["rule"]["kind"] == "every-box"
    assert rule_from_dict(RULE.to_dict()) == RULE
    assert EveryBox in registered_rules()
    assert set_defense_value(defense, "filter_ioa=0.7").rule == EveryBox(
        base_threshold=0.5, mask_threshold=0.6, filter_ioa=0.7
    )
    assert set_defense_value(defense, "mask_threshold=0.8").rule.mask_threshold == 0.8
    for setting in ("cluster_distance=0.2", "filter_iou=0.8", "evidence_threshold=0.1"):
        with pytest.raises(ObjectSeekerError, match=r"the every-box rule has no|has no IoU variant"):
            set_defense_value(defense, setting)


def test_two_rules_of_one_kind_or_a_setting_without_a_default_are_rejected():
    def copy(**namespace):
        return dataclass(frozen=True, kw_only=True)(type("Copy", (EveryBox,), namespace))

    with pytest.raises(ObjectSeekerError, match="two rules have one kind: got 'every-box' of EveryBox and Copy"):
        register_rule(copy())

    class Bare(PruningRule):
        kind = "bare"
        base_threshold: float

    with pytest.raises(ObjectSeekerError, match=r"has no default: got Bare\.base_threshold"):
        register_rule(dataclass(frozen=True, kw_only=True)(Bare))
    assert {rule.kind for rule in registered_rules()} == {"evidence", "iou", "every-box"}


def test_it_certifies_what_the_papers_rule_does(observed):
    """One box is sufficient in both, and both filter alike: the proofs are the same."""
    run, _ = observed
    for image in run.images():
        for patches in (ThreatModel(area=0.05).patches(), Patch(0.01, count=2)):
            mine, theirs = (rule.certify(image.observation, image.ground_truth, patches) for rule in (RULE, SAME))
            for field in dataclasses.fields(mine):
                assert np.array_equal(getattr(mine, field.name), getattr(theirs, field.name))
        threat = Patch(0.05, location="anywhere")
        mine, theirs = (rule.certify_jointly(image.observation, image.ground_truth, threat) for rule in (RULE, SAME))
        assert (mine.count, mine.worst_position) == (theirs.count, theirs.worst_position)
        mine, theirs = (frame_positions(rule, image.observation, image.ground_truth, threat) for rule in (RULE, SAME))
        assert [one.certified for one in mine] == [one.certified for one in theirs]


def test_it_is_evaluated(observed):
    run, defense = observed
    found = evaluate(run, defense)
    theirs = evaluate(run, dataclasses.replace(defense, rule=SAME))
    assert found.defended.certified_recall() == theirs.defended.certified_recall()
    assert found.defended.certified_recall()["far"] > 0
    assert found.defended.joint_certified_recall == theirs.defended.joint_certified_recall
    literal = [image.id for image in run.images() if len(RULE.prune(image.observation)) > 1]
    assert found.defended.alerts == len(literal)
    content = found.to_dict()["settings"]
    assert (content["rule"], content["filter_ioa"]) == ("every-box", 0.6)
    settings = found.settings
    assert len(by_threshold(ImageSet.from_images(run.images(), run.label_map), settings)) > 1
    with pytest.raises(ObjectSeekerError, match="no IoU variant"):
        settings.iou_variant()


def test_it_is_tuned(observed):
    run, _ = observed
    floors = run.manifest.observation_settings
    search = SearchSpec(
        rule=EveryBox(),
        rule_kinds=("paper",),
        max_ap_loss=100,
        mask_floor=floors.mask_floor,
        base_floor=floors.base_floor,
    )
    best = tune_images(run.images(), run.label_map, search).best
    rule, schedule = best.rule, best.search_split.schedule
    assert isinstance(rule, EveryBox)
    defense = run.defense(rule, schedule)
    assert evaluate(run, defense).defended.certified_recall()["far"] > 0
    with pytest.raises(ObjectSeekerError, match="the every-box rule has no evidence_threshold"):
        dataclasses.replace(search, rule_kinds=("paper", "evidence"))


def test_it_is_gated(observed, tmp_path):
    run, defense = observed
    (tmp_path / "policy.toml").write_text(POLICY)
    bundle = tmp_path / "audit.zip"
    verdict = gate(run, tmp_path / "policy.toml", defense=defense, out=tmp_path / "gate", audit_bundle=bundle)
    assert verdict.verdict == "pass"
    assert verify(bundle).verdict == "pass"


def test_it_is_reported(observed, tmp_path):
    run, defense = observed
    write_report(run, defense, tmp_path / "report.html")
    assert "every masked box is output" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_is_attacked(observed, tmp_path):
    run, defense = observed
    budget = AttackBudget(steps=3, restarts=2, views_per_step=2)
    found = attack(run, defense, Patch(0.02), out=tmp_path, budget=budget, max_objects=2)
    assert len(found.objects) == 2
    assert found.broken_guarantees == 0


def test_settings_of_rules_of_any_kind():
    rules = (RULE, SAME, IouRule(ioa_rule=SAME, filter_iou=0.7), Rule(evidence_threshold=0.6))
    for rule in rules:
        assert rule_from_dict(rule.to_dict()) == rule
        assert rule.with_settings(**rule.settings()) == rule
        moved = rule.with_thresholds(0.2, 0.9, rule.evidence_threshold)
        assert (moved.base_threshold, moved.mask_threshold) == (0.2, 0.9)
        assert moved.hyperparameters() == rule.hyperparameters()
        assert EvaluationSettings.from_schedule(schedule_of(rule), rule).rule == rule
        with pytest.raises(ObjectSeekerError, match="has no setting of this name: got 'nonsense'"):
            rule.with_settings(nonsense=1)
    for bad in (5, {}, {"kind": "nonsense"}, {"kind": "iou", "nonsense": 1}):
        with pytest.raises(ObjectSeekerError, match="its rule"):
            rule_from_dict(bad)


def schedule_of(rule):
    return Defense(detector="builtin", rule=rule).resolved_schedule
