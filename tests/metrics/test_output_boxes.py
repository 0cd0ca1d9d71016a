"""Output boxes: shares certified not fabricated and AP by certified score, against loops over images and boxes."""

import numpy as np
import pytest
from cases import generate

from objectseeker import Detections, Patch, Rule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PATCH_LOCATIONS, ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import metric
from objectseeker.metrics.evaluation import FABRICATION_ROWS, evaluate_images
from objectseeker.metrics.output_boxes import SUPPORT_FITS, SUPPORT_THRESHOLDS, BoxRows, tune_support
from objectseeker.metrics.settings import EvaluationSettings

RULE = Rule(base_threshold=0.3, mask_threshold=0.5, support_threshold=0.25, support_overlap=0.15)
THREAT = ThreatModel(area=0.02)
LIMIT = 0.005


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    made = []
    for seed in range(40):
        case = generate(seed, smallest=16, crowd=0.9, sure=0.9, lines=5)
        ignore = np.arange(len(case.ground_truth)) == seed % 7
        none = np.zeros(len(ignore), bool)
        made.append(
            ObservedImage(f"{seed}", tmp_path_factory.getbasetemp(), case.observation, case.ground_truth, ignore, none)
        )
    return made


SETTINGS = EvaluationSettings(
    rule=RULE,
    threshold_schedule=ThresholdSchedule.from_rule(RULE),
    threat=THREAT,
    base_threshold=RULE.base_threshold,
)


@pytest.fixture(scope="module")
def evaluation(images):
    return evaluate_images(images, LabelMap.from_names(("a", "b")), SETTINGS, fabrication=True)


def matched(boxes: Detections, image: ObservedImage, order: np.ndarray) -> list[int]:
    """1, 0 or -1 of each box: greedily in this order, each the free object of its class that it overlaps best."""
    free, outcome = set(range(len(image.ground_truth))), [0] * len(boxes)
    for n in order.tolist():
        choices = []
        for g in free:
            if image.ground_truth.label[g] != boxes.label[n]:
                continue
            a, b = boxes.xyxy[n], image.ground_truth.xyxy[g]
            side = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
            shared = side.prod() if (side > 0).all() else 0.0
            whole = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared
            if whole > 0 and shared / whole >= 0.5:
                choices.append((not image.ignore[g], shared / whole, g))
        if choices:
            counts, _, g = max(choices)
            free.discard(g)
            outcome[n] = 1 if counts else -1
    return outcome


def rows(images):
    """Every output box: image, class, outcome and score by either order, and the certificates."""
    made = []
    for number, image in enumerate(images):
        boxes = RULE.prune(image.observation)
        certified = RULE.certify_not_fabricated(image.observation, boxes, THREAT.patches()).certified
        scores = RULE.certified_scores(image.observation, boxes, Patch(0.02, location="anywhere"))
        untouched = int((image.observation.base.score >= RULE.base_threshold).sum())  # the others are recovered
        own = [score if n < untouched else 0.0 for n, score in enumerate(boxes.score.tolist())]
        ranks = np.array([(a + min(s, c)) / 2 for a, s, c in zip(own, boxes.score, scores, strict=True)])
        by_score, by_rank = np.argsort(-boxes.score, kind="stable"), np.lexsort((-boxes.score, -ranks))
        plain, ranked = (matched(boxes, image, order) for order in (by_score, by_rank))
        for n in range(len(boxes)):
            made.append((number, int(boxes.label[n]), plain[n], boxes.score[n], ranked[n], ranks[n], certified[:, n]))
    return made


def ap50(ranked, objects):
    """Precision at every rank, equal ranks together; at each recall the best precision at or after it; the area."""
    ranked = sorted((row for row in ranked if row[0] >= 0), key=lambda row: [-one for one in row[1:]])
    points, right = [], 0
    for n, (outcome, *_) in enumerate(ranked, 1):
        right += outcome
        if n == len(ranked) or ranked[n][1:] != ranked[n - 1][1:]:
            points.append((right / objects, right / n))
    area, before = 0.0, 0.0
    for n, (recall, _) in enumerate(points):
        area += (recall - before) * max(precision for _, precision in points[n:])
        before = recall
    return 100 * area


def test_shares_of_certified_boxes_equal_a_count_of_boxes(images, evaluation):
    boxes = rows(images)
    values = evaluation.to_dict()["defended"]
    for outcome, key in ((1, "certified_true_positives"), (0, "certified_false_positives")):
        mine = [row for row in boxes if row[2] == outcome]
        assert len(mine) > 10
        for p, location in enumerate(PATCH_LOCATIONS):
            assert values[key][location] == pytest.approx(100 * np.mean([row[6][p] for row in mine]))
    assert 0 < values["certified_true_positives"]["anywhere"] < 100
    assert any(row[2] == -1 for row in boxes)


def test_ap50_by_score_and_by_certified_score_equals_a_loop(images, evaluation):
    boxes = rows(images)
    expected = {"output_ap50": [], "ranked_ap50": []}
    for label in (0, 1):
        objects = int(evaluation.objects_per_class[label])
        for key, outcome, score in (("output_ap50", 2, 3), ("ranked_ap50", 4, 5)):
            expected[key].append(
                ap50([(row[outcome], row[score], row[3]) for row in boxes if row[1] == label], objects)
            )
    values = evaluation.to_dict()["defended"]
    for key, areas in expected.items():
        assert values[key] == pytest.approx(np.mean(areas))
    assert values["output_ap50"] != pytest.approx(values["ranked_ap50"])


def test_metrics_of_classes_and_images_are_those_of_their_boxes(images, evaluation):
    per_class = evaluation.to_dict()["per_class"]
    boxes = rows(images)
    for label, row in enumerate(per_class):
        mine = [box[6][3] for box in boxes if box[1] == label and box[2] == 1]
        assert row["certified_true_positives"]["anywhere"] == pytest.approx(100 * np.mean(mine))
    chosen = np.arange(5, 25)
    part = evaluation.tally.of_images(chosen)
    mine = [box[6][3] for box in boxes if 5 <= box[0] < 25 and box[2] == 1]
    share = metric.certified_true_positives(THREAT, "anywhere")
    assert share.value(part) == pytest.approx(100 * np.mean(mine))
    interval = evaluation.intervals["defended.certified_true_positives.anywhere"]
    assert interval.low < share.value(evaluation.tally) < interval.high


def test_what_nobody_requests_is_not_computed_and_nothing_else_depends_on_it(images, evaluation, monkeypatch):
    monkeypatch.setattr(Rule, "certify_not_fabricated", None)
    monkeypatch.setattr(Rule, "certified_scores", None)
    plain = evaluate_images(images, LabelMap.from_names(("a", "b")), SETTINGS)
    assert plain.tally.boxes is None
    names = {"certified_true_positives", "certified_false_positives", "output_ap50", "ranked_ap50"}

    def rest(content):
        if isinstance(content, list):
            return [rest(one) for one in content]
        if not isinstance(content, dict):
            return content
        return {key: rest(value) for key, value in content.items() if not names & set(key.split("."))}

    requested = evaluation.to_dict()
    assert names < set(requested["defended"])
    assert plain.to_dict() == rest(requested) != requested
    labels = [row[""] for row in evaluation.rows()]
    assert [row[""] for row in plain.rows()] == [one for one in labels if one not in FABRICATION_ROWS] != labels


def test_sums_keep_the_shares_and_lose_the_ranks(evaluation):
    summed = evaluation.tally.summed()
    assert isinstance(summed.boxes, BoxRows)
    for share in (metric.certified_true_positives, metric.certified_false_positives):
        one = share(THREAT, "far")
        assert one.value(summed) == pytest.approx(one.value(evaluation.tally))
    assert np.isnan(metric.output_ap50.value(summed))


def test_support_is_chosen_without_labels(images):
    """The choice certifies as many own boxes as any setting that certifies as few foreign ones, recomputed here."""
    observations = [image.observation for image in images]
    chosen = tune_support(observations, RULE, max_foreign=LIMIT, patch=Patch(0.02, location="anywhere"))
    shares = {}
    for fit, overlap in SUPPORT_FITS:
        for threshold in SUPPORT_THRESHOLDS:
            rule = RULE.with_settings(support_fit=fit, support_overlap=overlap, support_threshold=threshold)
            own, foreign = [], []
            for n, seen in enumerate(observations):
                before = observations[n - 1]
                moved = RULE.prune(before)
                scale = [seen.width / before.width, seen.height / before.height] * 2
                moved = Detections(moved.xyxy * np.array(scale), moved.score, moved.label)
                for boxes, kept in ((RULE.prune(seen), own), (moved, foreign)):
                    kept += (
                        rule.certify_not_fabricated(seen, boxes, Patch(0.02, location="anywhere")).certified[0].tolist()
                    )
            shares[rule] = np.mean(own), np.mean(foreign)
    assert chosen in shares
    own, foreign = shares[chosen]
    assert foreign <= LIMIT
    assert own == max(mine for mine, other in shares.values() if other <= LIMIT)
    assert any(other > LIMIT for _, other in shares.values())  # the limit excludes something
    strict = tune_support(observations, RULE, max_foreign=LIMIT, floor=0.35, patch=Patch(0.02, location="anywhere"))
    assert strict.support_threshold == 0.4
