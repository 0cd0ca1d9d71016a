"""A run and a defense: a defense of something else is rejected, one that fits is bound."""

from dataclasses import replace

import pytest
from observe_job import LINES, MASKS, make_dataset, run_here
from store_cases import DETECTOR_NAMES, manifest, store
from store_cases import SETTINGS as STORED

from objectseeker import Bands, Defense, Detections, Halves, IouRule, ObjectSeekerError, Pairs, Rule
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.datasets import open_dataset
from objectseeker.defense import BUILTIN_RULE, BUILTIN_SCHEDULE, DEFAULT_RULE, DEFAULT_SCHEDULE
from objectseeker.runs import engines
from objectseeker.runs.engines import open_engine
from objectseeker.runs.observe import observe
from objectseeker.runs.run import open_run

SPEC = "python:ray_detectors:spotting"
IDENTITY = "toy sha256:00ff"
RULE = Rule(base_threshold=0.4, mask_threshold=0.6)


def observed(folder, spec=SPEC, options=None, **settings):
    dataset = open_dataset(make_dataset(folder / "images", 3))
    with open_engine(spec, options) as engine:
        return observe(dataset, engine, out=folder / "run", **{"masks": MASKS, **settings})


def stored(folder, **changes):
    store(folder, manifest(**changes))
    return open_run(folder)


def toy(**changes):
    """A defense that is the one of `stored`."""
    settings = {"masks": Halves(2), "fingerprint": IDENTITY, "class_names": DETECTOR_NAMES, **changes}
    return Defense(**{"detector": "onnx:somewhere/toy.onnx", "rule": RULE, **settings})


def test_the_defense_of_a_run_sees_what_the_run_holds(tmp_path):
    run = observed(tmp_path, fill=9, base_floor=0.0, mask_floor=0.0)
    defense = run.defense()
    fingerprint = run.manifest.detector_fingerprint
    assert defense == Defense.for_detector(SPEC, masks=Halves(LINES), fill=9, fingerprint=fingerprint)
    assert (defense.rule, defense.threshold_schedule) == (DEFAULT_RULE, DEFAULT_SCHEDULE)
    defense.save(tmp_path / "defense.json")
    loaded = Defense.load(tmp_path / "defense.json")
    assert run.bind_defense(loaded) == defense
    entries = open_dataset(run.manifest.dataset).images
    for image, entry in zip(run.images(), entries, strict=True):
        (seen,) = loaded.build().observe([entry.load()])
        assert seen == image.observation


def test_batches_are_the_callers_unless_the_detector_makes_its_own(tmp_path):
    run = observed(tmp_path, options={"batch_size": 5}, batch_size=4)
    assert run.manifest.detector_options == {}
    assert run.defense().batch_size == 4
    assert run.defense().build().batch_size == 4


def test_the_rule_of_a_runs_defense_may_be_any_other(tmp_path):
    run = stored(tmp_path)
    assert replace(run.defense(RULE), detector=toy().detector) == toy()
    assert run.defense(RULE).detector == f"onnx:{tmp_path / 'somewhere' / 'toy.onnx'}"  # as seen from the run
    assert run.defense(IouRule(ioa_rule=RULE)).rule == IouRule(ioa_rule=RULE)
    follow = ThresholdSchedule(alpha=0.3, beta=0.2)
    assert run.defense(follow.rule(RULE, 0.4), follow).threshold_schedule == follow
    assert run.defense(threshold_schedule=follow).rule == follow.rule(DEFAULT_RULE, DEFAULT_RULE.base_threshold)
    builtin = stored(tmp_path / "builtin", detector_spec="builtin", detector_options={}).defense()
    assert (builtin.rule, builtin.threshold_schedule) == (BUILTIN_RULE, BUILTIN_SCHEDULE)
    batched = stored(tmp_path / "batched", observation_settings=replace(STORED, batch_size=4))
    assert batched.defense().batch_size == 4
    own = replace(STORED, batch_size=None)
    own_batches = stored(
        tmp_path / "own", observation_settings=own, detector_options={"batch_size": 16, "mask_mode": "crop"}
    )
    assert (own_batches.defense().batch_size, own_batches.defense().mask_mode) == (16, "crop")


def test_a_detector_that_was_handed_over_has_no_defense(tmp_path):
    here = run_here(make_dataset(tmp_path / "images", 1), tmp_path / "run")
    assert here.defense().detector is here.detector  # until the process ends
    run = open_run(tmp_path / "run")
    with pytest.raises(
        ObjectSeekerError, match=r"does not state how its detector spots sha256:0123 is loaded.* named by its SPEC"
    ):
        run.defense()
    fitting = Defense(detector="builtin", rule=RULE, masks=Halves(LINES), fingerprint="spots sha256:0123")
    assert run.bind_defense(fitting) == fitting
    with pytest.raises(ObjectSeekerError, match="its detector is builtin, the run's spots sha256:0123"):
        run.bind_defense(replace(fitting, fingerprint=None))


def test_options_that_only_say_where_it_runs_are_not_the_detectors(tmp_path, monkeypatch):
    class Blind:
        names, fingerprint = ("thing",), "blind"

        def __call__(self, images):
            return [Detections.empty() for _ in images]

    monkeypatch.setattr(engines.detectors, "load_detector", lambda spec, **options: Blind())
    options = {"device": "cpu", "workers": 2, "input_size": (64, 32), "mask_mode": "crop", "layout": None}
    monkeypatch.chdir(tmp_path)
    run = observed(tmp_path, "onnx:weights/toy.onnx", options)
    assert run.manifest.detector_spec == "onnx:../weights/toy.onnx"  # as seen from the run
    monkeypatch.chdir("/")
    assert run.defense().detector == f"onnx:{tmp_path / 'weights' / 'toy.onnx'}"  # wherever a command is called
    assert run.manifest.detector_options == {"input_size": (64, 32), "mask_mode": "crop"}
    assert run.defense().options == {"input_size": (64, 32), "mask_mode": "crop"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fingerprint": "toy sha256:11"}, "its detector is toy sha256:11, the run's toy sha256:00ff"),
        ({"masks": Halves(10)}, "its masks are halves:10, the run's halves:2"),
        ({"masks": Pairs(2)}, "its masks are pairs:2, the run's halves:2"),
        ({"masks": Halves(2) + Bands(0.01)}, "its masks are halves:2+bands:0.01, the run's halves:2"),
        ({"fill": 0}, "its fill is 0, the run's 114"),
        ({"batch_size": 4}, "its batch size is 4, the run's 8"),
        ({"class_names": ("a", "b")}, "its class names are not the run's"),
        ({"class_names": None}, "its class names are not the run's"),
        (
            {"masks": Halves(10), "fill": 0, "fingerprint": "other"},
            "its detector is other, the run's toy sha256:00ff; its masks are halves:10, the run's halves:2; its fill "
            "is 0, the run's 114",
        ),
        (
            {"detector": "onnx:other.onnx", "fingerprint": None},
            "its detector is onnx:other.onnx, the run's onnx:somewhere/toy.onnx",
        ),
        ({"mask_mode": "crop", "fingerprint": None}, "its mask_mode is crop, the run's the detector's default"),
        ({"input_size": 640, "fingerprint": None}, "its input_size is 640, the run's the detector's default"),
    ],
)
def test_what_is_about_something_else_is_refused_and_every_difference_named(tmp_path, changes, named):
    with pytest.raises(ObjectSeekerError) as caught:
        stored(tmp_path / "run").bind_defense(toy(**changes))
    assert str(caught.value) == (
        f"the defense is not that of the run in {tmp_path / 'run'} ({named}): tune one on this run, or observe with "
        "that one"
    )


def test_another_way_of_masking_is_another_identity(tmp_path):
    run = stored(tmp_path, detector_fingerprint="toy (64x64 fill batch=8) sha256:00ff")
    with pytest.raises(ObjectSeekerError, match=r"its detector is toy \(64x64 crop .*, the run's toy \(64x64 fill "):
        run.bind_defense(toy(fingerprint="toy (64x64 crop batch=8) sha256:00ff", mask_mode="crop"))


def test_rules_that_look_below_what_is_stored_are_refused(tmp_path):
    run = stored(tmp_path, observation_settings=replace(STORED, base_floor=0.3, mask_floor=0.5))
    assert run.bind_defense(toy()) == toy()
    masked = r"masked boxes with scores of at least 0\.4 are used, but the run stores none below 0\.5: .* with a lower "
    low = replace(RULE, evidence_threshold=0.4)
    for rule in (replace(RULE, mask_threshold=0.4), low, IouRule(ioa_rule=low)):
        with pytest.raises(ObjectSeekerError, match=masked + "--mask-floor"):
            run.bind_defense(toy(rule=rule))
        with pytest.raises(ObjectSeekerError, match=masked + "--mask-floor"):
            run.defense(rule)
    with pytest.raises(
        ObjectSeekerError, match=r"base boxes with scores of at least 0\.2 .* none below 0\.3: .*--base-floor"
    ):
        run.bind_defense(toy(rule=replace(RULE, base_threshold=0.2)))


def test_one_without_an_identity_that_fits_is_bound(tmp_path):
    run = stored(tmp_path)
    for spec in ("onnx:somewhere/toy.onnx", "onnx:elsewhere/toy.onnx", "onnx:toy.onnx"):
        unbound = toy(detector=spec, fingerprint=None)
        assert run.bind_defense(unbound) == replace(unbound, fingerprint=IDENTITY)
    assert run.bind_defense(toy(batch_size=8, fingerprint=None)).fingerprint == IDENTITY  # 8 is what no batch means
    own = stored(
        tmp_path / "own",
        observation_settings=replace(STORED, batch_size=None),
        detector_options={"batch_size": 16, "mask_mode": "crop"},
    )
    crop = toy(batch_size=16, mask_mode="crop", class_names=None, fingerprint=None)
    assert own.bind_defense(crop).fingerprint == IDENTITY
    with pytest.raises(ObjectSeekerError, match="its batch size is the detector's default, the run's 16"):
        own.bind_defense(replace(crop, batch_size=None))
