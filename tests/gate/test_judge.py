"""The gate: figures are those of evaluate, and runs built to pass, fail, be undecided and regress do."""

import json
import re
from dataclasses import replace

import evaluation_cases
import numpy as np
import pytest
from evaluation_cases import NAMES, VOCABULARY

from objectseeker import Defense, Halves, IouRule, Patch, Rule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.detectors.check import CheckResult, DetectorCheck
from objectseeker.errors import ObjectSeekerError
from objectseeker.gate.judge import (
    METRICS,
    AttackResults,
    Release,
    apply_policy,
    metric_of,
    resolve_thresholds,
    tally_request,
)
from objectseeker.gate.policy import parse_policy
from objectseeker.gate.release import read_detector_check
from objectseeker.metrics import EvaluationSettings, ThreatModel, evaluate_images
from objectseeker.metrics.slices import ImageTags
from objectseeker.metrics.tally import tally_images

FOLLOW = ThresholdSchedule(alpha=0.4, beta=0.3)
SETTINGS = EvaluationSettings.from_schedule(FOLLOW, Rule(base_threshold=0.3))
DEFENSE = Defense(detector="builtin", rule=SETTINGS.rule, masks=Halves(6), fingerprint="toy", threshold_schedule=FOLLOW)


def policy_of(*requirements, start="bootstrap_samples = 200\nmax_boxes_per_image = 1"):
    text = "\n".join(["format = 1", start, *(f"[[require]]\n{one}" for one in requirements)])
    return resolve_thresholds(parse_policy(text), DEFENSE)


def measured(images, policy, attacks=(), settings=SETTINGS):
    request = replace(tally_request(policy, DEFENSE, attacks), settings=settings, rule=settings.rule)
    return tally_images(images, VOCABULARY, request)


def gate_of(images, *requirements, baseline=None, **others):
    policy = policy_of(*requirements)
    before = None if baseline is None else measured(baseline, policy)
    attacks = others.get("attacks", ())
    release = Release(defense=DEFENSE, measurements=measured(images, policy, attacks), baseline=before, **others)
    return apply_policy(policy, release, {})


def found_everywhere(count, share=1.0, lines=3):
    """Images of one cat each; a share of them is seen under every mask, the others only untouched."""
    box = (40, 40, 60, 60)
    every = []
    for number in range(count):
        seen = number < share * count
        masked = [[(*box, 0.9, 0)]] * (4 * lines if seen else 0)
        every.append(evaluation_cases.image([(*box, 0.9, 0)], [(*box, 0)], masked, lines=lines, number=number))
    return every


CERTIFIED = 'metric = "certified_recall"\nlocation = "{}"\npatch_area = "1%"\nat_least = "{}"'


@pytest.mark.parametrize("rule", [Rule(base_threshold=0.3), IouRule(ioa_rule=Rule(base_threshold=0.3))])
def test_figures_are_those_of_evaluate(rule):
    images = evaluation_cases.noisy(3, 6) + evaluation_cases.run(5, 6)
    images = [replace(one, id=str(number)) for number, one in enumerate(images)]
    settings = EvaluationSettings.from_schedule(FOLLOW, rule)
    policy = policy_of(
        *(CERTIFIED.format(where, "1 %") for where in PATCH_LOCATIONS),
        'metric = "clean_recall"\nat_least = "1 %"',
        'metric = "clean_ap50"\nat_least = "1 %"',
        'metric = "clean_ap50_loss"\nat_most = "1 point"',
        'metric = "false_alert_rate"\nat_most = "1 %"',
        'metric = "joint_certified_recall"\npatch_area = "1%"\nat_least = "1 %"',
        'metric = "certified_true_positives"\nlocation = "far"\npatch_area = "1%"\nat_least = "1 %"',
        'metric = "certified_false_positives"\nlocation = "anywhere"\npatch_area = "1%"\nat_most = "1 %"',
    )
    evaluated = evaluate_images(images, VOCABULARY, settings, fabrication=True)
    own = replace(DEFENSE, rule=settings.rule)
    policy = resolve_thresholds(
        replace(
            policy,
            requirements=tuple(replace(one, certification_threshold=None) for one in policy.requirements),
        ),
        own,
    )
    all_of = measured(images, policy, settings=settings)
    values = [metric_of(one).value(all_of) for one in policy.requirements]
    ours = evaluated.defended
    wanted = [*ours.certified_recall().values(), ours.clean_recall, ours.ap50]
    wanted += [evaluated.undefended.ap50 - ours.ap50, evaluated.false_alert_rate, ours.joint_certified_recall]
    sides = evaluated.to_dict()["defended"]
    wanted += [sides["certified_true_positives"]["far"], sides["certified_false_positives"]["anywhere"]]
    assert values == pytest.approx(wanted, abs=1e-9)
    right_and_wrong = [one.rule.prune(image.observation) for one in [settings] for image in images]
    literal = evaluation_cases.count_literally(list(zip(images, right_and_wrong, strict=True)))
    assert METRICS["fppi"].value(all_of) * len(images) == pytest.approx(sum(literal.wrong.values()))
    per_class = ours.certified_recall(1)["far"]
    dogs = all_of.of_classes([1])
    assert metric_of(policy.requirements[0]).value(dogs) == pytest.approx(per_class)


def test_parts_of_a_run_are_joined_as_one(monkeypatch):
    images = evaluation_cases.noisy(3, 5)
    policy = policy_of(CERTIFIED.format("far", "1 %"), 'metric = "clean_ap50"\nat_least = "1 %"')
    whole = measured(images, policy)
    monkeypatch.setattr("objectseeker.metrics.image_set.IMAGES_AT_A_TIME", 2)
    parts = measured(images, policy)
    for table in ("images", "objects"):
        one, other = (getattr(tally, table).columns() for tally in (whole, parts))
        assert one.keys() == other.keys()
        for name, column in one.items():
            assert np.array_equal(column, other[name])
    assert whole.objects.certified
    assert np.array_equal(whole.curve("defended").true_positives, parts.curve("defended").true_positives)


def test_a_sample_has_the_figure_of_its_images():
    """Weights are how often an image is there: the figure of a sample is that of a run with these images."""
    images = evaluation_cases.noisy(8, 6)
    policy = policy_of(
        CERTIFIED.format("over", "1 %"),
        'metric = "clean_ap50_loss"\nat_most = "1 point"',
        'metric = "clean_recall"\nat_least = "1 %"',
    )
    weights = np.array([[2.0, 0, 1, 1, 0, 2]])
    twice = [replace(images[n], id=str(place)) for place, n in enumerate([0, 0, 2, 3, 5, 5])]
    once, again = measured(images, policy), measured(twice, policy)
    for one in policy.requirements:
        assert metric_of(one).values(once, weights) == pytest.approx(metric_of(one).value(again))


@pytest.mark.parametrize(
    ("share", "limit", "outcome"), [(1.0, "80 %", "pass"), (0.5, "80 %", "fail"), (0.5, "45 %", "undecided")]
)
def test_runs_built_to_pass_fail_and_be_undecided(share, limit, outcome):
    gate = gate_of(found_everywhere(60, share), CERTIFIED.format("over", limit))
    (judgment,) = gate.results
    assert (judgment.outcome, gate.verdict) == (outcome, outcome)
    assert judgment.interval.value == 100 * share
    assert (judgment.images, judgment.objects) == (60, 60)
    assert (judgment.additional_images is not None) == (outcome == "undecided")
    assert len(judgment.failure_examples) == (0 if share == 1 else 6)
    if outcome == "undecided":
        assert f"about {judgment.additional_images:,} more images like these 60 would decide" in judgment.reason


def test_images_that_the_sample_may_lack_leave_a_requirement_undecided_with_what_would_decide_it():
    images = found_everywhere(200)
    wanted = [
        CERTIFIED.format("over", "80 %"),
        'metric = "clean_recall"\nat_least = "80 %"',
        'metric = "fppi"\nat_most = 1',
    ]
    policy = policy_of(*wanted, start="bootstrap_samples = 200")
    assert policy.max_boxes_per_image == 100
    release = Release(defense=DEFENSE, measurements=measured(images, policy))
    results = apply_policy(policy, release, {}).results
    assert [result.outcome for result in results] == ["undecided"] * 3
    share = 1 - 0.025 ** (1 / 200)
    of_objects = 100 * (1 - share) / (1 - share + 100 * share)
    assert [result.with_unseen for result in results] == pytest.approx([of_objects, of_objects, 100 * share], abs=1e-5)
    for result, one in zip(results, wanted, strict=True):
        (bound,) = re.findall(r"set max_boxes_per_image = (\d+)", result.reason)
        for boxes, outcome in ((int(bound), "pass"), (int(bound) + 1, "undecided")):
            changed = replace(policy, max_boxes_per_image=boxes)
            again = apply_policy(changed, release, {}).results[results.index(result)]
            assert again.outcome == outcome, (one, boxes)
    more = results[0].additional_images
    release = Release(defense=DEFENSE, measurements=measured(found_everywhere(200 + more), policy))
    assert apply_policy(policy, release, {}).results[0].outcome == "pass"


def test_a_sample_with_more_boxes_than_the_policy_allows_counts_its_own():
    images = found_everywhere(60)
    policy = policy_of(CERTIFIED.format("over", "80 %"))
    tally = measured(images, policy)
    crowded = replace(tally, objects=replace(tally.objects, image=np.zeros(60, np.int64)))
    (result,) = apply_policy(policy, Release(defense=DEFENSE, measurements=crowded), {}).results
    share = 1 - 0.025 ** (1 / 1)
    assert result.with_unseen == pytest.approx(100 * (1 - share) * 60 / ((1 - share) * 60 + share * 60), abs=1e-5)


def test_unseen_images_lower_clean_recall_as_much_as_any_division_of_their_objects_over_classes_could():
    images = [replace(one, id=str(n)) for n, one in enumerate(evaluation_cases.noisy(3, 8))]
    tally = measured(images, policy_of('metric = "clean_recall"\nat_least = "1 %"')).of_images_with_objects()
    objects, found = (tally.objects_per_class(holds).sum(axis=0) for holds in (None, tally.objects.found))
    objects, found = objects[objects > 0], found[objects > 0]
    assert len(objects) == 2
    share, boxes = 0.05, 40
    mean = (1 - share) * objects / len(tally.ids)
    divided = np.linspace(0, share * boxes, 2001)
    lost = [
        (100 * f / o * m / (m + x)) for f, o, m, x in zip(found, objects, mean, (divided, divided[::-1]), strict=True)
    ]
    worst = np.mean(lost, 0).min()
    bound = METRICS["clean_recall"].with_unseen(tally, share, boxes)
    assert bound <= worst + 1e-9
    assert bound == pytest.approx(worst, abs=1e-3)


def test_few_perfect_images_prove_little():
    gate = gate_of(found_everywhere(3), CERTIFIED.format("over", "80 %"))
    assert gate.verdict == "undecided"
    enough = CERTIFIED.format("over", "10 %")
    assert gate_of(found_everywhere(3), enough).verdict == "pass"
    assert gate_of(found_everywhere(3), enough + "\nmin_objects = 4").verdict == "undecided"
    assert gate_of(found_everywhere(3), enough + "\nmin_images = 4").results[0].additional_images == 1


def test_false_alerts_are_an_exact_share_of_images():
    stray = (5, 5, 25, 25)
    images = found_everywhere(40)
    images[7] = evaluation_cases.image(
        [(40, 40, 60, 60, 0.9, 0)], [(40, 40, 60, 60, 0)], [[(*stray, 0.9, 1)]] * 12, lines=3, number=7
    )
    gate = gate_of(images, 'metric = "false_alert_rate"\nat_most = "20 %"', 'metric = "fppi"\nat_most = 0.5')
    alerts, wrong = gate.results
    assert (alerts.interval.value, alerts.interval.method, alerts.outcome) == (2.5, "exact", "pass")
    assert alerts.interval.high == pytest.approx(13.158586, abs=1e-6)
    assert [one.image for one in alerts.failure_examples] == ["7"]
    assert (wrong.interval.value, wrong.interval.method) == (1 / 40, "bootstrap")


def test_a_regression_is_told_from_chance_image_by_image():
    same = 'metric = "certified_recall"\nlocation = "over"\npatch_area = "1%"\nmax_regression = "15 points"'
    before, worse = found_everywhere(30), found_everywhere(30, 0.5)
    assert gate_of(before, same).results[0].reason == "no baseline was given: add --baseline RUN"
    assert gate_of(before, same, baseline=before).verdict == "pass"
    lost = gate_of(worse, same, baseline=before)
    assert (lost.verdict, lost.results[0].interval.value) == ("fail", -50)
    assert gate_of(before, same, baseline=worse).verdict == "pass"
    assert gate_of(worse[:27], same, baseline=before).results[0].images == 27
    with pytest.raises(ObjectSeekerError, match="none of the run's images"):
        gate_of([replace(one, id=f"x{one.id}") for one in before], same, baseline=before)
    moved = [
        replace(before[0], ground_truth=worse[0].ground_truth[[]], ignore=np.zeros(0, bool), crowd=np.zeros(0, bool))
    ]
    with pytest.raises(ObjectSeekerError, match="other objects on the same images"):
        gate_of(before, same, baseline=moved + before[1:])


def test_the_worst_slice_is_named():
    images = found_everywhere(60, 0.75)
    tags = ImageTags({"weather": (*["sun"] * 45, *["rain"] * 14, "")})
    asked = CERTIFIED.format("over", "60 %")
    (judgment,) = gate_of(images, asked + '\nslice = "weather"', tags=tags).results
    assert (judgment.slice, judgment.outcome, judgment.interval.value) == ("weather=rain", "fail", 0)
    assert [(one.slice, one.images, one.outcome) for one in judgment.slices] == [
        ("weather=rain", 14, "fail"),
        ("weather=sun", 45, "pass"),
    ]
    (sun,) = gate_of(images, asked + '\nslice = "weather=sun"', tags=tags).results
    assert (sun.outcome, sun.slice, sun.slices) == ("pass", "weather=sun", ())
    with pytest.raises(ObjectSeekerError, match="give --tags FILE"):
        gate_of(images, asked + '\nslice = "weather"')


def test_slices_by_class_and_size_need_no_tags():
    images = evaluation_cases.noisy(4, 20)
    asked = CERTIFIED.format("far", "1 %")
    (by_class,) = gate_of(images, asked + '\nslice = "class"').results
    assert {one.slice for one in by_class.slices} == {"class=cat", "class=dog"}
    assert sum(one.objects for one in by_class.slices) == 20
    (by_size,) = gate_of(images, asked + '\nslice = "size"').results
    assert [one.slice for one in by_size.slices] == ["size=small", "size=medium", "size=large"]
    assert sum(one.objects for one in by_size.slices) == 20
    (dogs,) = gate_of(images, asked + '\nclasses = ["dog"]').results
    assert dogs.objects == next(one.objects for one in by_class.slices if one.slice == "class=dog")
    (none,) = gate_of(images, asked + "\nobject_size = [0.9, 1.0]").results
    assert (none.outcome, none.reason) == ("undecided", "there is nothing to measure it on")
    with pytest.raises(ObjectSeekerError, match=r"no class 'dgo': did you mean dog\?"):
        gate_of(images, asked + '\nclasses = ["dgo"]')


def row(n, *, survived=True, broken=False, certified=False, box=(40, 40, 60, 60)):
    return {
        "image": str(n),
        "object": 0,
        "class": NAMES[0],
        "box": list(map(float, box)),
        "certified": certified,
        "found_defended": True,
        "defended_survived": survived,
        "guarantee_broken": broken,
    }


ATTACK = 'metric = "recall_under_attack"\nlocation = "over"\npatch_area = "1%"\nat_least = "60 %"'


def attack_of(rows, location="over"):
    return AttackResults("attack-1.json", Patch(0.01, 1.0, location), 0.0, rows)


def test_recall_under_attack_is_that_of_the_attacked_objects():
    images = found_everywhere(40, 0.5)
    rows = [row(n, survived=n < 38) for n in range(40)]
    (judgment,) = gate_of(images, ATTACK, attacks=[attack_of(rows)]).results
    assert (judgment.outcome, judgment.interval.value, judgment.objects) == ("pass", 95, 40)
    assert [one.image for one in judgment.failure_examples] == ["38", "39"]
    (other,) = gate_of(images, ATTACK, attacks=[attack_of(rows, "far")]).results
    assert (other.outcome, other.interval.known) == ("undecided", False)
    twice = [attack_of(rows), attack_of([row(n, survived=n > 3) for n in range(40)])]
    (both,) = gate_of(images, ATTACK, attacks=twice).results
    assert (both.interval.value, both.objects) == (85, 40)
    (half,) = gate_of(images[:20], ATTACK, attacks=[attack_of(rows)]).results
    assert (half.interval.value, half.objects) == (100, 20)  # the others are not of this run
    (foreign,) = gate_of(images, ATTACK, attacks=[attack_of([row(n) for n in range(90, 99)])]).results
    assert (foreign.outcome, "none of the attacked objects" in foreign.reason) == ("undecided", True)
    (one,) = gate_of(images, ATTACK, attacks=[attack_of([row(0)])]).results  # without a warning of NumPy's
    assert (one.interval.value, one.objects) == (100, 1)
    none_left = [row(n, survived=False) for n in range(20, 40)]
    assert gate_of(images, ATTACK, attacks=[attack_of(none_left)]).verdict == "fail"


def test_an_attack_refutes_a_certificate_by_its_own_account_or_by_the_runs():
    images = found_everywhere(40, 0.5)
    easy = CERTIFIED.format("over", "1 %")
    sound = gate_of(images, easy, attacks=[attack_of([row(30, survived=False), row(3)])])
    assert sound.verdict == "pass"
    broken = gate_of(images, easy, attacks=[attack_of([row(30, survived=False, broken=True)])])
    assert (broken.verdict, broken.refuted) == ("refuted", ("attack-1.json: cat 0 of 30",))
    hidden = gate_of(images, easy, attacks=[attack_of([row(3, survived=False)])])
    assert hidden.verdict == "refuted"


FINDINGS = (CheckResult("deterministic", True, ""), CheckResult("another batch size", None, ""))
CHECK = DetectorCheck("toy", "halves:6", DEFENSE.fill, FINDINGS, None)


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({}, "pass", "every check passed for exactly this detector"),
        ({"detector": "other"}, "undecided", "about the detector other, not toy"),
        ({"masks": "halves:4"}, "undecided", "checked under halves:4"),
        ({"fill": 0}, "undecided", "fill 0"),
        ({"checks": (CheckResult("deterministic", False, ""),)}, "fail", "these checks failed: deterministic"),
    ],
)
def test_check_detector_must_have_passed_for_this_very_defense(tmp_path, changes, outcome, reason):
    check = replace(CHECK, **changes)
    (tmp_path / "check.json").write_text(json.dumps(check.to_dict()))
    assert read_detector_check(tmp_path / "check.json") == check
    (judgment,) = gate_of(found_everywhere(3), 'metric = "detector_check"', detector_check=check).results
    assert judgment.outcome == outcome
    assert reason in judgment.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passed": False}, "says passed = False, which does not follow from its checks"),
        ({"checks": []}, "does not follow from its checks"),
        ({"checks": [{"name": "deterministic", "passed": 0, "detail": ""}]}, "must be true or false or null: got 0"),
        ({"checks": [{"name": "deterministic", "passed": False, "detail": ""}]}, "does not follow"),
        ({"fill": True}, "fill must be a whole number: got True"),
        ({"masks": None}, "masks must be a string: got None"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_a_check_report_must_be_what_check_wrote(tmp_path, change, message):
    (tmp_path / "check.json").write_text(json.dumps(CHECK.to_dict() | change))
    with pytest.raises(ObjectSeekerError, match=message):
        read_detector_check(tmp_path / "check.json")


def test_without_a_check_report_it_is_undecided():
    (judgment,) = gate_of(found_everywhere(3), 'metric = "detector_check"').results
    assert (judgment.outcome, "add --detector-check FILE" in judgment.reason) == ("undecided", True)


def test_one_failure_fails_the_release_and_one_doubt_leaves_it_undecided():
    images = found_everywhere(60, 0.5)
    good, bad, doubt = (CERTIFIED.format("over", limit) for limit in ("10 %", "90 %", "45 %"))
    assert gate_of(images, good, bad, doubt).verdict == "fail"
    assert gate_of(images, good, doubt).verdict == "undecided"
    assert gate_of(images, good).verdict == "pass"


def test_objects_that_no_patch_is_far_from_are_counted():
    whole = (0, 0, 100, 100)
    images = [evaluation_cases.image([(*whole, 0.9, 0)], [(*whole, 0)], number=n) for n in range(5)]
    (judgment,) = gate_of(images, CERTIFIED.format("far", "1 %")).results
    assert (judgment.vacuous, judgment.interval.value) == (5, 100)


def test_equal_releases_have_equal_verdicts_to_the_last_digit():
    images = evaluation_cases.noisy(9, 8)
    asked = [CERTIFIED.format("close", "30 %"), 'metric = "clean_ap50_loss"\nat_most = "3 points"']
    first, second = (gate_of(images, *asked).to_dict() for _ in range(2))
    assert first == second
    assert ThreatModel(area=0.01) not in measured(images, policy_of(*asked)).objects.certified  # T is always a number
