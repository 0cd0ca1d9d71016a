"""One defence, one file: saved, loaded, compared, refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command import DETECTOR
from hypothesis import given
from hypothesis import strategies as st

from objectseeker import Bands, Defence, Halves, IouRule, ObjectSeekerError, Pairs, Rule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import DEFAULT_RULE, EMBEDDED_RULE, FAST_RULE, VIDEO_RULE

FRACTION = st.floats(0, 1)


@given(
    FRACTION,
    FRACTION,
    st.one_of(st.none(), FRACTION),
    st.floats(0.01, 9),
    st.booleans(),
    st.one_of(st.none(), FRACTION),
)
def test_every_number_survives_the_file(base_score, mask_score, low_score, power, classwise, tau_iou):
    low_score = None if low_score is None else min(low_score, mask_score)
    rule = Rule(base_score=base_score, mask_score=mask_score, low_score=low_score, power=power, classwise=classwise)
    rule = rule if tau_iou is None else IouRule(ioa=rule, tau_iou=tau_iou)
    defence = Defence(detector="embedded", rule=rule, masks=Halves(7) + Bands(0.013, spacing=0.3), fill=9)
    again = Defence.of_json(json.loads(json.dumps(defence.to_json())))
    assert again == defence
    assert again.sha256 == defence.sha256


@pytest.mark.parametrize("masks", [Halves(30), Pairs(4), Bands(0.02, 2.0), Halves(3) + Bands(0.01)])
def test_a_file_gives_the_same_defence_back(tmp_path, masks):
    defence = Defence(
        detector="onnx:models/own.onnx",
        rule=Rule(mask_score=0.3, low_score=0.1),
        masks=masks,
        mask_by="crop",
        input_size=(640, 384),
        class_names=("a", "b"),
        identity="own.onnx sha256:12",
    )
    defence.save(tmp_path / "deep" / "defence.json")
    loaded = Defence.load(tmp_path / "deep" / "defence.json")
    assert loaded.sha256 == defence.sha256
    assert replace(loaded, detector=defence.detector) == defence


def test_the_detectors_file_is_found_from_where_the_defence_lies(tmp_path, monkeypatch):
    (tmp_path / "release").mkdir()
    monkeypatch.chdir(tmp_path)
    Defence(detector="onnx:model.onnx", rule=Rule()).save("release/defence.json")
    assert "tmp" not in (tmp_path / "release" / "defence.json").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    spec = Defence.load("../release/defence.json").detector
    assert (tmp_path / "model.onnx").resolve() == (tmp_path / "elsewhere" / spec.removeprefix("onnx:")).resolve()


def test_everything_that_decides_the_output_is_in_the_checksum_and_nothing_else():
    defence = Defence(detector="onnx:a/model.onnx", rule=Rule())
    for changes in (
        {"rule": Rule(edge_factor=0.999)},
        {"masks": Halves(29)},
        {"fill": 0},
        {"mask_by": "crop"},
        {"batch": 3},
        {"identity": "x"},
        {"detector": "onnx:a/other.onnx"},
    ):
        assert replace(defence, **changes).sha256 != defence.sha256
    assert replace(defence, detector="onnx:b/model.onnx").sha256 == defence.sha256


def test_there_is_one_default_for_all_and_one_for_the_embedded_detector():
    assert Defence.default("onnx:x.onnx").rule == Defence.default("python:a:b").rule == DEFAULT_RULE
    assert Defence.default("embedded").rule == EMBEDDED_RULE
    for name, rule in {"embedded-fast": FAST_RULE, "embedded-video": VIDEO_RULE}.items():
        packaged = Defence.load(name)
        assert Defence.default("embedded", masks=packaged.masks) == packaged
        assert packaged.rule == rule != EMBEDDED_RULE
        assert Defence.default("onnx:x.onnx", masks=packaged.masks).rule == DEFAULT_RULE
    scores = {"base_score": 0.2, "mask_score": 0.48, "low_score": 0.24}
    assert Rule(**scores, edge_factor=0.8, cluster_distance=0.3, filter_ioa=0.7) == EMBEDDED_RULE
    assert Rule(base_score=0.5, mask_score=0.625, low_score=0.575, edge_factor=0.7) == DEFAULT_RULE


def test_the_packages_own_defences_are_loaded_by_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Defence.load("embedded") == Defence.default("embedded")
    fast = Defence.load("embedded-fast")
    assert (fast.detector, fast.identity) == ("embedded", None)
    for width, height in ((500, 375), (375, 500), (500, 334), (640, 480), (480, 480)):
        assert 1 + len(fast.masks.masks(width, height)) <= 40
    mine = Defence(detector="embedded", rule=Rule())
    mine.save("embedded-fast")
    assert Defence.load("embedded-fast") == mine
    (tmp_path / "embedded").mkdir()  # a folder is no defence
    assert Defence.load("embedded") == Defence.default("embedded")
    with pytest.raises(ObjectSeekerError, match="by name there are embedded, embedded-fast, embedded-video"):
        Defence.load("embedded-slow")


def test_another_detector_than_the_one_it_is_about_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mine_defended.py").write_text(DETECTOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    defence = Defence(detector="python:mine_defended:detect", rule=Rule(), masks=Halves(3))
    seeker = defence.seeker()
    bound = defence.with_fingerprint(seeker.detector.identity)
    assert bound.seeker().masks == Halves(3)
    with pytest.raises(ObjectSeekerError, match="about the detector someone else, but python:mine_defended:detect is"):
        defence.with_fingerprint("someone else").seeker()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c | {"format": 9}, "has format 9"),
        (lambda c: c | {"lines": 10}, r"unknown entries \(lines\)"),
        (lambda c: {k: v for k, v in c.items() if k != "rule"}, "lacks detector, rule or masks"),
        (lambda c: c | {"masks": "thirds:1"}, "cannot read the masks 'thirds:1'"),
        (lambda c: c | {"rule": c["rule"] | {"mask_score": 0.9}}, "was edited"),
        (lambda c: c | {"rule": c["rule"] | {"mask_score": 7}}, "mask_score must lie within"),
        (lambda c: c | {"rule": c["rule"] | {"mask": 7}}, "cannot be read"),
        (lambda c: c | {"rule": 5}, "settings by name"),
        (lambda c: c | {"detector": "magic:x"}, "unknown detector 'magic:x'"),
        (lambda c: [c], "is not a defence file"),
    ],
)
def test_a_file_that_is_no_defence_is_one_sentence(tmp_path, change, message):
    file = tmp_path / "defence.json"
    Defence(detector="embedded", rule=Rule()).save(file)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(ObjectSeekerError, match=message):
        Defence.load(file)


def test_a_file_without_a_checksum_is_taken_as_it_stands(tmp_path):
    file = tmp_path / "defence.json"
    Defence(detector="embedded", rule=Rule()).save(file)
    content = json.loads(file.read_text())
    del content["sha256"]
    content["rule"]["mask_score"] = 0.9
    file.write_text(json.dumps(content))
    assert Defence.load(file).rule.mask_score == 0.9


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ObjectSeekerError, match="cannot read the defence"):
        Defence.load(tmp_path / name)


def test_scores_that_do_not_follow_as_stated_are_refused():
    with pytest.raises(ObjectSeekerError, match="scores are not those of ThresholdSchedule"):
        Defence(detector="embedded", rule=Rule(mask_score=0.9), follow=ThresholdSchedule(alpha=0.5, beta=0.1))


@given(st.integers(0, 99), st.integers(0, 100), st.integers(0, 100))
def test_a_score_that_follows_is_what_is_shown_of_it(base, alpha, beta):
    mask_score, _ = ThresholdSchedule(alpha=alpha / 100, beta=beta / 100).scores(base / 100)
    assert len(str(mask_score)) <= len("0.1234")  # hundredths times hundredths, and no 0.24000000000000002
    assert mask_score == pytest.approx(max(alpha / 100, base / 100 + (1 - base / 100) * beta / 100), abs=1e-12)


@given(FRACTION, FRACTION, st.one_of(st.none(), FRACTION))
def test_the_curve_through_a_rule_stays_within_bounds(base_score, mask_score, low_score):
    low_score = None if low_score is None else min(low_score, mask_score)
    follow = ThresholdSchedule.through(Rule(base_score=base_score, mask_score=mask_score, low_score=low_score))
    for at in np.linspace(0, 1, 11):
        mask, low = follow.scores(float(at))
        assert at <= mask <= 1
        assert low is None or low <= mask


@pytest.mark.parametrize(
    "masks", [Bands(0.01, spacing=2), Bands(0.01, 4), Bands(1.0), Bands(np.float64(0.01)), Bands(0.01, spacing=1e20)]
)
def test_every_recipe_survives_its_file(tmp_path, masks):
    Defence(detector="embedded", rule=Rule(), masks=masks).save(tmp_path / "d.json")
    assert Defence.load(tmp_path / "d.json").masks == masks


def test_equal_defences_have_one_checksum_whatever_their_numbers_are_typed_as():
    one = Defence(detector="embedded", rule=Rule(power=1, base_score=np.float32(0.5)), input_size=[416, 416])
    other = Defence(detector="embedded", rule=Rule(power=1.0, classwise=np.bool_(True)), input_size=(416, 416))
    assert one == other
    assert one.sha256 == other.sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "ioa"}, "settings by name"),
        ({"batch": 10**400}, "batch"),
        ({"score_floor": "0.1"}, "score_floor must be a number"),
        ({"layout": 5}, "layout must be a text"),
        ({"class_names": "ab"}, "class_names must be texts"),
        ({"input_size": [1, 2, 3]}, "input_size must be"),
        ({"fill": 1000}, "fill must be"),
    ],
)
def test_a_setting_of_another_type_is_one_sentence(tmp_path, changes, message):
    content = Defence(detector="embedded", rule=Rule()).to_json() | changes
    (tmp_path / "d.json").write_text(json.dumps(content))
    with pytest.raises(ObjectSeekerError, match=message):
        Defence.load(tmp_path / "d.json")


@pytest.mark.parametrize("name", ["mask_score", "base_score", "low_score", "filter_ioa", "edge_factor", "power"])
def test_a_score_is_a_number_and_no_text(name):
    with pytest.raises(ObjectSeekerError, match=f"{name} must be a number, got '0.1'"):
        Rule(**{name: "0.1"})
    with pytest.raises(ObjectSeekerError, match="classwise must be true or false, got 'false'"):
        Rule(classwise="false")


def test_deeply_nested_files_are_refused(tmp_path):
    (tmp_path / "d.json").write_text("[" * 100_000)
    with pytest.raises(ObjectSeekerError, match="is not a defence file"):
        Defence.load(tmp_path / "d.json")


def test_a_checksum_does_not_depend_on_what_lies_in_the_current_folder(tmp_path, monkeypatch):
    """Evidence with the bare name of a folder was refused where such a folder lay, and nowhere else."""
    monkeypatch.chdir(tmp_path)
    specs = [
        "transformers:./models/yolos",
        "transformers:/far/yolos",
        "transformers:yolos",
        "transformers:models/yolos",
    ]
    before = [Defence(detector=spec, rule=Rule()).sha256 for spec in specs]
    (tmp_path / "models" / "yolos").mkdir(parents=True)
    (tmp_path / "yolos").mkdir()
    assert [Defence(detector=spec, rule=Rule()).sha256 for spec in specs] == before
    assert before[0] == before[1]  # a folder, wherever it lies
    assert len({*before}) == 3  # the others are names on the hub
    passed_on = Defence(detector=specs[1], rule=Rule()).described()
    assert passed_on["detector"] == "transformers:./yolos"
    assert Defence.of_json(passed_on).sha256 == before[1]


def test_a_transformers_folder_beside_the_file_stays_a_folder(tmp_path, monkeypatch):
    (tmp_path / "tf" / "detr").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    Defence(detector="transformers:tf/detr", rule=Rule()).save("tf/d.json")
    assert json.loads((tmp_path / "tf" / "d.json").read_text())["detector"] == "transformers:./detr"
    assert Defence.load("tf/d.json").detector == "transformers:./tf/detr"
    assert Defence.default("transformers:tf/detr").detector == "transformers:./tf/detr"
    hub = [Defence(detector=f"transformers:{owner}/detr", rule=Rule()).sha256 for owner in ("one", "other")]
    assert hub[0] != hub[1]
