"""Evaluation a few images at a time: the same table, and nothing of an image is kept but a few bytes a box."""

import dataclasses
import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, image, run

from objectseeker import ObjectSeekerError
from objectseeker.core.label_map import LabelMap
from objectseeker.metrics import ImageSet, evaluate_images, image_set
from objectseeker.metrics.average_precision import ScoredBoxes, coco_ap50


@pytest.mark.parametrize(("settings", "together"), [(EVIDENCE, 1), (changed(PAPER, clean_recall=1.0), 5)])
def test_the_table_does_not_depend_on_how_many_images_are_looked_at_together(settings, together, monkeypatch):
    empty = image([], [], [[]] * 28, lines=7)
    images = [*run(21, 6, generous=1.0, lines=7), *[empty] * 6, *run(22, 6, generous=1.0, lines=7)]
    whole = evaluated(images, settings)
    monkeypatch.setattr(image_set, "IMAGES_AT_A_TIME", together)
    assert evaluated(images, settings) == whole


class Passing(Sequence):
    """Images that are made when requested, and that count how many of them are alive."""

    def __init__(self, make, count):
        self.make, self.count = make, count
        self.alive, self.most = weakref.WeakSet(), 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("images must be gone through in order")

    def __iter__(self):
        for number in range(self.count):
            made = Held(self.make(number))
            self.alive.add(made)
            self.most = max(self.most, len(self.alive))
            yield made
            del made


class Held:
    """An observed image that can be watched."""

    def __init__(self, made):
        for field in dataclasses.fields(made):
            setattr(self, field.name, getattr(made, field.name))


def test_no_more_images_are_kept_than_are_looked_at_together(monkeypatch):
    monkeypatch.setattr(image_set, "IMAGES_AT_A_TIME", 4)
    images = Passing(lambda number: run(number, 1, generous=1.0, lines=3)[0], 40)
    gc.collect()
    evaluate_images(images, VOCABULARY, PAPER)
    assert images.most <= 4 + 4 + 1  # those being looked at, and the next ones being read


def test_what_is_kept_for_coco_is_six_bytes_a_box_and_loses_nothing():
    images = run(3, 12, generous=1.0)
    scene = ImageSet.from_images(images, VOCABULARY)
    judged = ScoredBoxes.of(scene)
    assert judged.score.dtype == np.float64  # the scores made up there do not fit
    single = [
        dataclasses.replace(one, observation=dataclasses.replace(one.observation, base=rounded(one.observation.base)))
        for one in images
    ]
    judged = ScoredBoxes.of(ImageSet.from_images(single, VOCABULARY))
    assert (judged.score.dtype, judged.label.dtype) == (np.float32, np.int16)
    parts = [ScoredBoxes.of(ImageSet.from_part([one], VOCABULARY)) for one in single]
    joined = ScoredBoxes.join(parts).ap50(scene.objects_per_class)
    assert np.array_equal(joined, coco_ap50(ImageSet.from_images(single, VOCABULARY)), equal_nan=True)


def rounded(boxes):
    return type(boxes)(boxes.xyxy, boxes.score.astype(np.float32), boxes.label)


def test_blocks_of_images_without_objects_are_counted_like_any_other(monkeypatch):
    """Their boxes are all wrong; there is nothing to match them with."""
    monkeypatch.setattr(image_set, "IMAGES_AT_A_TIME", 2)
    bare = [image([(0, 0, 9, 9, 0.95, 0)], [], [[(50, 50, 60, 60, 0.99, 1)]] * 4)] * 4
    found = evaluate_images([*bare, image([(0, 0, 9, 9, 0.9, 0)], [(0, 0, 9, 9, 0)])], VOCABULARY, PAPER)
    assert (found.images, found.objects, found.defended.base_threshold) == (5, 1, 0.9)
    assert found.undefended.ap50 == pytest.approx(20)  # four false positives, one true
    assert found.undefended.ap50_coco == pytest.approx(20)
    assert found.defended.alerts == 4


def test_nothing_to_measure_is_said():
    bare = [image([(0, 0, 9, 9, 0.9, 1)], [], [[(50, 50, 60, 60, 0.9, 1)]] * 4)] * 3
    for vocabulary in (VOCABULARY, LabelMap((), (), np.arange(5))):  # a plain folder, with and without class names
        with pytest.raises(ObjectSeekerError, match="none of the 3 images has an object that counts"):
            evaluate_images(bare, vocabulary, PAPER)
    with pytest.raises(ObjectSeekerError, match="there are no images to evaluate"):
        evaluate_images([], VOCABULARY, PAPER)
    with pytest.raises(ObjectSeekerError, match="none of the 3 images has an object that counts"):
        evaluate_images([image([], [], [[]] * 28, lines=7)] * 3, VOCABULARY, PAPER)
