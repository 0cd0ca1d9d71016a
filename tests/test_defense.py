"""One defense, one file: saved, loaded, compared, rejected."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command import DETECTOR
from hypothesis import given
from hypothesis import strategies as st

from objectseeker import Bands, Defense, Halves, IouRule, ObjectSeekerError, Pairs, Rule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import BUILTIN_RULE, DEFAULT_RULE, FAST_RULE, SETTINGS, VIDEO_RULE, set_defense_value

FRACTION = st.floats(0, 1)


@given(
    FRACTION,
    FRACTION,
    st.one_of(st.none(), FRACTION),
    st.floats(0.01, 9),
    st.booleans(),
    st.one_of(st.none(), FRACTION),
)
def test_every_number_survives_the_file(
    base_threshold, mask_threshold, evidence_threshold, power, classwise, filter_iou
):
    evidence_threshold = None if evidence_threshold is None else min(evidence_threshold, mask_threshold)
    rule = Rule(
        base_threshold=base_threshold,
        mask_threshold=mask_threshold,
        evidence_threshold=evidence_threshold,
        evidence_power=power,
        classwise=classwise,
    )
    rule = rule if filter_iou is None else IouRule(ioa_rule=rule, filter_iou=filter_iou)
    defense = Defense(detector="builtin", rule=rule, masks=Halves(7) + Bands(0.013, spacing=0.3), fill=9)
    again = Defense.from_dict(json.loads(json.dumps(defense.to_dict())))
    assert again == defense
    assert again.sha256 == defense.sha256


@pytest.mark.parametrize("masks", [Halves(30), Pairs(4), Bands(0.02, 2.0), Halves(3) + Bands(0.01)])
def test_a_file_gives_the_same_defense_back(tmp_path, masks):
    defense = Defense(
        detector="onnx:models/own.onnx",
        rule=Rule(mask_threshold=0.3, evidence_threshold=0.1),
        masks=masks,
        mask_mode="crop",
        input_size=(640, 384),
        class_names=("a", "b"),
        fingerprint="own.onnx sha256:12",
    )
    defense.save(tmp_path / "deep" / "defense.json")
    loaded = Defense.load(tmp_path / "deep" / "defense.json")
    assert loaded.sha256 == defense.sha256
    assert replace(loaded, detector=defense.detector) == defense


def test_the_detectors_file_is_found_from_where_the_defense_lies(tmp_path, monkeypatch):
    (tmp_path / "release").mkdir()
    monkeypatch.chdir(tmp_path)
    Defense(detector="onnx:model.onnx", rule=Rule()).save("release/defense.json")
    assert "tmp" not in (tmp_path / "release" / "defense.json").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    spec = Defense.load("../release/defense.json").detector
    assert (tmp_path / "model.onnx").resolve() == (tmp_path / "elsewhere" / spec.removeprefix("onnx:")).resolve()


def test_everything_that_decides_the_output_is_in_the_checksum_and_nothing_else():
    defense = Defense(detector="onnx:a/model.onnx", rule=Rule())
    for changes in (
        {"rule": Rule(edge_factor=0.999)},
        {"masks": Halves(29)},
        {"fill": 0},
        {"mask_mode": "crop"},
        {"batch_size": 3},
        {"fingerprint": "x"},
        {"detector": "onnx:a/other.onnx"},
    ):
        assert replace(defense, **changes).sha256 != defense.sha256
    assert replace(defense, detector="onnx:b/model.onnx").sha256 == defense.sha256


def test_there_is_one_default_for_all_and_one_for_the_builtin_detector():
    assert Defense.for_detector("onnx:x.onnx").rule == Defense.for_detector("python:a:b").rule == DEFAULT_RULE
    assert Defense.for_detector("builtin").rule == BUILTIN_RULE
    for name, rule in {"builtin-fast": FAST_RULE, "builtin-video": VIDEO_RULE}.items():
        packaged = Defense.load(name)
        assert Defense.for_detector("builtin", masks=packaged.masks) == packaged
        assert packaged.rule == rule != BUILTIN_RULE
        assert Defense.for_detector("onnx:x.onnx", masks=packaged.masks).rule == DEFAULT_RULE
    scores = {"base_threshold": 0.2, "mask_threshold": 0.48, "evidence_threshold": 0.24}
    assert Rule(**scores, edge_factor=0.8, cluster_distance=0.3, filter_ioa=0.7) == BUILTIN_RULE
    general = Rule(base_threshold=0.5, mask_threshold=0.65, filter_ioa=0.75, edge_factor=0.85, cluster_distance=0.3)
    assert general == DEFAULT_RULE


def test_the_packages_own_defenses_are_loaded_by_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Defense.load("builtin") == Defense.for_detector("builtin")
    fast = Defense.load("builtin-fast")
    assert (fast.detector, fast.fingerprint) == ("builtin", None)
    for width, height in ((500, 375), (375, 500), (500, 334), (640, 480), (480, 480)):
        assert 1 + len(fast.masks.masks(width, height)) <= 40
    mine = Defense(detector="builtin", rule=Rule())
    mine.save("builtin-fast")
    assert Defense.load("builtin-fast") == mine
    (tmp_path / "builtin").mkdir()  # a folder is not a defense
    assert Defense.load("builtin") == Defense.for_detector("builtin")
    with pytest.raises(ObjectSeekerError, match="by name there are builtin, builtin-fast, builtin-video"):
        Defense.load("builtin-slow")


def test_another_detector_than_the_one_it_is_about_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mine_defended.py").write_text(DETECTOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    defense = Defense(detector="python:mine_defended:detect", rule=Rule(), masks=Halves(3))
    seeker = defense.build()
    bound = defense.with_fingerprint(seeker.detector.fingerprint)
    assert bound.build().masks == Halves(3)
    with pytest.raises(ObjectSeekerError, match="about the detector someone else, but python:mine_defended:detect is"):
        defense.with_fingerprint("someone else").build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c | {"format": 9}, "has format 9"),
        (lambda c: c | {"lines": 10}, "has an unknown key 'lines': write it with"),
        (lambda c: {k: v for k, v in c.items() if k != "rule"}, "lacks the key rule: write it with"),
        (lambda c: c | {"masks": "thirds:1"}, "cannot read the masks 'thirds:1'"),
        (lambda c: c | {"rule": c["rule"] | {"mask_threshold": 0.9}}, "was edited"),
        (lambda c: c | {"rule": c["rule"] | {"mask_threshold": 7}}, "mask_threshold must lie within"),
        (lambda c: c | {"rule": c["rule"] | {"mask": 7}}, "its rule has unknown settings: got mask"),
        (
            lambda c: c | {"rule": c["rule"] | {"kind": "best"}},
            "its rule has an unknown kind: got 'best'. Use evidence, iou",
        ),
        (lambda c: c | {"rule": 5}, "rule must be a group of settings: got 5: write it with"),
        (lambda c: c | {"rule": {"kind": []}}, r"its rule has an unknown kind: got \[\]"),
        (lambda c: c | {"format": True}, "has format True"),
        (lambda c: c | {"masks": "rolling:8:" * 5000 + "halves:3"}, "cannot read the masks"),
        (lambda c: c | {"masks": "halves:3+" * 5000 + "halves:3"}, "at most 16 recipes"),
        (lambda c: c | {"detector": "magic:x"}, "unknown detector 'magic:x'"),
        (lambda c: [c], "must be a group of settings: got"),
    ],
)
def test_a_file_that_is_no_defense_is_one_sentence(tmp_path, change, message):
    file = tmp_path / "defense.json"
    Defense(detector="builtin", rule=Rule()).save(file)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(ObjectSeekerError, match=message):
        Defense.load(file)


def test_a_file_without_a_checksum_is_taken_as_it_stands(tmp_path):
    file = tmp_path / "defense.json"
    Defense(detector="builtin", rule=Rule()).save(file)
    content = json.loads(file.read_text())
    del content["sha256"]
    content["rule"]["mask_threshold"] = 0.9
    file.write_text(json.dumps(content))
    assert Defense.load(file).rule.mask_threshold == 0.9


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ObjectSeekerError, match="cannot read the defense"):
        Defense.load(tmp_path / name)


def test_scores_that_do_not_follow_as_stated_are_refused():
    with pytest.raises(ObjectSeekerError, match="scores are not those of ThresholdSchedule"):
        Defense(
            detector="builtin", rule=Rule(mask_threshold=0.9), threshold_schedule=ThresholdSchedule(alpha=0.5, beta=0.1)
        )


@given(st.integers(0, 99), st.integers(0, 100), st.integers(0, 100))
def test_a_score_that_follows_is_what_is_shown_of_it(base, alpha, beta):
    mask_threshold, _ = ThresholdSchedule(alpha=alpha / 100, beta=beta / 100).thresholds_at(base / 100)
    assert len(str(mask_threshold)) <= len("0.1234")  # hundredths times hundredths, and no 0.24000000000000002
    assert mask_threshold == pytest.approx(max(alpha / 100, base / 100 + (1 - base / 100) * beta / 100), abs=1e-12)


@given(FRACTION, FRACTION, st.one_of(st.none(), FRACTION))
def test_the_curve_through_a_rule_stays_within_bounds(base_threshold, mask_threshold, evidence_threshold):
    evidence_threshold = None if evidence_threshold is None else min(evidence_threshold, mask_threshold)
    follow = ThresholdSchedule.from_rule(
        Rule(base_threshold=base_threshold, mask_threshold=mask_threshold, evidence_threshold=evidence_threshold)
    )
    for at in np.linspace(0, 1, 11):
        mask, low = follow.thresholds_at(float(at))
        assert at <= mask <= 1
        assert low is None or low <= mask


@pytest.mark.parametrize(
    "masks", [Bands(0.01, spacing=2), Bands(0.01, 4), Bands(1.0), Bands(np.float64(0.01)), Bands(0.01, spacing=1e20)]
)
def test_every_recipe_survives_its_file(tmp_path, masks):
    Defense(detector="builtin", rule=Rule(), masks=masks).save(tmp_path / "d.json")
    assert Defense.load(tmp_path / "d.json").masks == masks


def test_equal_defenses_have_one_checksum_whatever_their_numbers_are_typed_as():
    one = Defense(
        detector="builtin", rule=Rule(evidence_power=1, base_threshold=np.float32(0.5)), input_size=[416, 416]
    )
    other = Defense(detector="builtin", rule=Rule(evidence_power=1.0, classwise=np.bool_(True)), input_size=(416, 416))
    assert one == other
    assert one.sha256 == other.sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "ioa"}, "rule must be a group of settings: got 'ioa'"),
        ({"batch_size": 10**400}, "has the number 1000.*: whole numbers must fit 64 bits"),
        ({"fill": True}, "fill must be a whole number: got True"),
        ({"rule": Rule().to_dict() | {"classwise": 1}}, "classwise must be true or false: got 1"),
        ({"score_floor": "0.1"}, "score_floor must be a number"),
        ({"layout": 5}, "layout must be a string"),
        ({"class_names": "ab"}, "class_names must be a list or null: got 'ab'"),
        ({"input_size": [1, 2, 3]}, "input_size must be"),
        ({"fill": 1000}, "fill must be"),
    ],
)
def test_a_setting_of_another_type_is_one_sentence(tmp_path, changes, message):
    content = Defense(detector="builtin", rule=Rule()).to_dict() | changes
    (tmp_path / "d.json").write_text(json.dumps(content))
    with pytest.raises(ObjectSeekerError, match=message):
        Defense.load(tmp_path / "d.json")


@pytest.mark.parametrize(
    "name", ["mask_threshold", "base_threshold", "evidence_threshold", "filter_ioa", "edge_factor", "evidence_power"]
)
def test_a_score_is_a_number_and_no_text(name):
    with pytest.raises(ObjectSeekerError, match=f"{name} must be a number: got '0.1'"):
        Rule(**{name: "0.1"})
    with pytest.raises(ObjectSeekerError, match="classwise must be true or false: got 'false'"):
        Rule(classwise="false")


def test_deeply_nested_files_are_refused(tmp_path):
    (tmp_path / "d.json").write_text("[" * 100_000)
    with pytest.raises(ObjectSeekerError, match="is not a defense file"):
        Defense.load(tmp_path / "d.json")


def test_a_checksum_does_not_depend_on_what_lies_in_the_current_folder(tmp_path, monkeypatch):
    """Evidence with the bare name of a folder was rejected where such a folder was, and nowhere else."""
    monkeypatch.chdir(tmp_path)
    specs = [
        "transformers:./models/yolos",
        "transformers:/far/yolos",
        "transformers:yolos",
        "transformers:models/yolos",
    ]
    before = [Defense(detector=spec, rule=Rule()).sha256 for spec in specs]
    (tmp_path / "models" / "yolos").mkdir(parents=True)
    (tmp_path / "yolos").mkdir()
    assert [Defense(detector=spec, rule=Rule()).sha256 for spec in specs] == before
    assert before[0] == before[1]  # a folder, whatever its path
    assert len({*before}) == 3  # the others are names on the hub
    passed_on = Defense(detector=specs[1], rule=Rule()).to_public_dict()
    assert passed_on["detector"] == "transformers:./yolos"
    assert Defense.from_dict(passed_on).sha256 == before[1]


def test_a_transformers_folder_beside_the_file_stays_a_folder(tmp_path, monkeypatch):
    (tmp_path / "tf" / "detr").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    Defense(detector="transformers:tf/detr", rule=Rule()).save("tf/d.json")
    assert json.loads((tmp_path / "tf" / "d.json").read_text())["detector"] == "transformers:./detr"
    assert Defense.load("tf/d.json").detector == "transformers:./tf/detr"
    assert Defense.for_detector("transformers:tf/detr").detector == "transformers:./tf/detr"
    hub = [Defense(detector=f"transformers:{owner}/detr", rule=Rule()).sha256 for owner in ("one", "other")]
    assert hub[0] != hub[1]


def test_a_setting_changes_what_its_key_says():
    defense = Defense.for_detector("builtin", fingerprint="model sha256:1")
    schedule = defense.threshold_schedule
    moved = set_defense_value(defense, "base_threshold=0.5")
    assert moved.rule == schedule.rule(defense.rule, 0.5)
    assert (moved.threshold_schedule, moved.fingerprint) == (schedule, "model sha256:1")
    fixed = set_defense_value(defense, "mask_threshold=0.7")
    assert (fixed.rule, fixed.threshold_schedule) == (replace(defense.rule, mask_threshold=0.7), None)
    assert set_defense_value(fixed, "base_threshold=0.5").rule == replace(fixed.rule, base_threshold=0.5)
    assert set_defense_value(defense, "evidence_threshold=none").rule.evidence_threshold is None
    steeper = set_defense_value(defense, "alpha=0.6")
    assert (steeper.threshold_schedule, steeper.rule.mask_threshold) == (replace(schedule, alpha=0.6), 0.6)
    paper = set_defense_value(steeper, "evidence_beta=none")
    assert (paper.threshold_schedule.evidence_alpha, paper.rule.evidence_threshold) == (None, None)
    assert set_defense_value(paper, "evidence_alpha=0.3").threshold_schedule.evidence_beta == 0
    by_iou = set_defense_value(defense, "filter_iou=0.8")
    assert by_iou.rule == IouRule(ioa_rule=defense.rule, filter_iou=0.8)
    assert set_defense_value(by_iou, "edge_factor=1").rule.ioa_rule.edge_factor == 1
    assert set_defense_value(by_iou, "filter_iou=none") == defense
    paper = set_defense_value(by_iou, "rule=paper")
    assert paper.rule == ThresholdSchedule(alpha=0.8, beta=0.5).rule(Rule(), defense.rule.base_threshold)
    assert (paper.rule.filter_ioa, paper.rule.edge_factor, paper.rule.cluster_distance) == (0.6, 1, 0.1)
    assert set_defense_value(paper, "alpha=0.7").rule == ThresholdSchedule(alpha=0.7, beta=0.5).rule(
        Rule(), defense.rule.base_threshold
    )
    default = Defense.load("builtin-fast")
    assert set_defense_value(set_defense_value(default, "rule=paper"), "rule=evidence") == default
    assert not set_defense_value(defense, "classwise=false").rule.classwise
    assert set_defense_value(defense, "masks=pairs:4").masks == Pairs(4)
    assert set_defense_value(defense, "fill = 0").fill == 0
    resized = set_defense_value(defense, "input_size=[320, 256]")
    assert (resized.input_size, resized.fingerprint) == ((320, 256), None)  # another detector
    assert set_defense_value(defense, "class_names=cat, dog").class_names == ("cat", "dog")
    assert set_defense_value(defense, "detector=onnx:model.onnx").detector == "onnx:model.onnx"


@pytest.mark.parametrize(
    "setting",
    [
        *("", "mask_threshold", "size=3", "mask_threshold=1.5", "mask_threshold=high", "masks=3", "classwise=7"),
        *("fill=[1]", "alpha=x", "filter_iou=[]", "fingerprint=1", "input_size=big", "class_names=3"),
        *("base_threshold=none", "rule=", "rule=best", "rule=[1]"),
    ],
)
def test_an_unknown_setting_or_value_is_rejected(setting):
    with pytest.raises(ObjectSeekerError):
        set_defense_value(Defense.load("builtin"), setting)


def test_every_setting_of_the_file_can_be_set():
    content = Defense.for_detector("builtin").to_dict()
    keys = content.keys() - {"rule", "threshold_schedule", "format", "fingerprint", "sha256", "tuned_on"}
    keys |= content["rule"].keys() - {"kind"}
    assert keys | content["threshold_schedule"].keys() | {"filter_iou", "rule"} == set(SETTINGS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mask_threshold": 0.6', '"mask_threshold": true', "mask_threshold must be a number: got True"),
        ('"mask_threshold": 0.6', '"mask_threshold": 0.1, "mask_threshold": 0.6', "has the key 'mask_threshold' twice"),
        ('"mask_threshold": 0.6', '"mask_threshold": NaN', "has the number NaN"),
        ("halves:30", "halves:3_0", "cannot read the masks 'halves:3_0'"),
    ],
)
def test_json_that_other_readers_would_take_otherwise_is_rejected(tmp_path, old, new, message):
    file = tmp_path / "defense.json"
    Defense(detector="builtin", rule=Rule(base_threshold=0.4, mask_threshold=0.6)).save(file)
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))
    with pytest.raises(ObjectSeekerError, match=message):
        Defense.load(file)
