"""The differentiable picture of a detector is the detector, up to rounding, and its gradients are right."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from objectseeker.attack.objectives import Goals, boxes_to_plant, hide, least_revealing, plant  # noqa: E402
from objectseeker.attack.pipeline import paste  # noqa: E402
from objectseeker.attack.whitebox import Stage, WhiteBox, masked, white_box_of  # noqa: E402
from objectseeker.core.boxes import ioa  # noqa: E402
from objectseeker.detectors.network.layouts import normalise, parse  # noqa: E402
from objectseeker.detectors.network.preprocess import prepare  # noqa: E402
from objectseeker.detectors.torch_module import TorchDetector  # noqa: E402


class Nothing(torch.nn.Module):
    def forward(self, images):
        return images.new_zeros(len(images), 1, 4), images.mean((1, 2, 3))[:, None, None] * 0


def scenes(*sizes):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]


def white(layout="decoded", size=64):
    module = Nothing()
    return WhiteBox(predict=module, detector=TorchDetector(module, layout=layout, input_size=size))


@pytest.mark.parametrize("fit", ["top-left", "centred", "stretch"])
def test_patches_are_drawn_as_the_detector_sees_them(fit):
    box = white(f"decoded,fit={fit}")
    images = scenes((90, 60), (41, 77), (64, 64), (30, 20))
    stage = Stage(box, images)
    rng = np.random.default_rng(1)
    for n, image in enumerate(images):
        height, width = image.shape[:2]
        for x, y, wide, tall in [(3, 5, 9, 7), (-4, -3, 9, 7), (width - 2, height - 3, 6, 7), (0, 0, 1, 1)]:
            patch = rng.integers(0, 256, (tall, wide, 3), dtype=np.uint8)
            padded = torch.zeros(1, 3, 10, 12)  # a batch is as large as its largest patch
            padded[0, :, :tall, :wide] = torch.from_numpy(patch).permute(2, 0, 1)
            corner, size = torch.tensor([[x, y]]), torch.tensor([[wide, tall]])
            drawn = stage.render(torch.tensor([n]), corner, size, padded)[0].permute(1, 2, 0).numpy()
            expected = prepare(paste(image, patch, x, y), box.place((width, height)), pad=114).astype(float)
            assert np.abs(drawn - expected).max() < 1.01  # one grey level: sums in another order
            assert (np.abs(drawn - expected) > 0.5).mean() < 0.01


def test_the_gradient_is_that_of_the_resize():
    box = white()
    (image,) = scenes((90, 60))
    stage = Stage(box, [image])
    patch = torch.full((1, 3, 8, 8), 100.0, requires_grad=True)
    corner, size = torch.tensor([[20, 30]]), torch.tensor([[6, 8]])
    weight = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    drawn = stage.render(torch.tensor([0]), corner, size, patch)
    (gradient,) = torch.autograd.grad((drawn[0] * weight).sum(), patch)
    placement = box.place((90, 60))
    for pixel_y, pixel_x in [(0, 0), (3, 5), (7, 2)]:  # an impulse through the tables of the detector itself
        impulse = np.zeros((60, 90, 3), np.float32)
        impulse[30 + pixel_y, 20 + pixel_x, 1] = 1.0
        rows = np.zeros((placement.y.resampling.resized, 90, 3), np.float32)
        for tap, w in zip(placement.y.resampling.tap.T, placement.y.resampling.weight.T, strict=True):
            rows += impulse[tap] * w[:, None, None]
        both = np.zeros((placement.x.resampling.resized, rows.shape[0], 3), np.float32)
        for tap, w in zip(placement.x.resampling.tap.T, placement.x.resampling.weight.T, strict=True):
            both += rows.transpose(1, 0, 2)[tap] * w[:, None, None]
        expected = float((both[..., 1].T * weight[1, : both.shape[1], : both.shape[0]].numpy()).sum())
        assert float(gradient[0, 1, pixel_y, pixel_x]) == pytest.approx(expected, rel=1e-4)
    assert float(gradient[..., 6:].abs().max()) == 0  # beyond its own width a patch does not exist


def test_views_are_filled_and_normalised_as_the_detector_does_it():
    layout = "decoded,channels=bgr,mean=10/20/30,std=2/3/4"
    seen = []
    box = WhiteBox(predict=lambda x: seen.append(x) or (x, x), detector=TorchDetector(Nothing(), layout=layout))
    pixels = scenes((64, 64))[0]
    view = masked(torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), torch.tensor([[3, 0, 9, 64]]), 114)
    box(view)
    filled = pixels.copy()
    filled[:, 3:9] = 114
    np.testing.assert_allclose(seen[0][0].numpy(), normalise(filled, parse(layout)), rtol=1e-6)
    same = masked(view, torch.tensor([[0, 0, 0, 0]]), 7)
    assert torch.equal(same, view)


def goals(threshold=0.0, relabel=False, every_class=False):
    one = torch.tensor([[10.0, 10.0, 20.0, 20.0]])
    flags = torch.tensor([every_class]), torch.tensor([relabel])
    return Goals(one, torch.tensor([[True, False]]), torch.tensor([0.5]), *flags, threshold)


@pytest.mark.parametrize(
    ("box", "scores", "threshold", "shown"),
    [
        ((10, 10, 20, 20), (0.6, 0.1), 0.0, True),
        ((10, 10, 20, 20), (0.2, 0.1), 0.0, False),  # too weak
        ((10, 10, 20, 20), (0.6, 0.9), 0.0, False),  # another class is better
        ((20, 10, 30, 20), (0.9, 0.1), 0.0, False),  # beside it
        ((16, 10, 30, 20), (0.9, 0.1), 0.5, False),  # covers too little of it
        ((16, 10, 30, 20), (0.9, 0.1), 0.3, True),
    ],
)
def test_an_object_is_hidden_when_no_box_of_its_label_gives_it_away(box, scores, threshold, shown):
    boxes, values = torch.tensor([[box]]).float(), torch.tensor([[scores]])
    loss, seen = hide(boxes, values, goals(threshold))
    assert bool(seen) == shown
    assert (float(loss) > 0) == shown
    pushed, _ = hide(boxes, values, goals(threshold, relabel=True))
    assert float(pushed) >= float(loss)


def test_a_better_class_hides_an_object_only_where_the_best_class_counts():
    boxes, scores = torch.tensor([[(10, 10, 20, 20)]]).float(), torch.tensor([[(0.6, 0.9)]])

    _, seen = hide(boxes, scores, goals())
    loss, still_seen = hide(boxes, scores, goals(every_class=True))

    assert (bool(seen), bool(still_seen)) == (False, True)
    assert float(loss) > 0


def test_planting_wants_a_strong_box_at_the_place():
    wanted, valid = torch.tensor([[[30.0, 30.0, 40.0, 40.0]]]), torch.tensor([[True]])
    losses = []
    for box, score in [((30, 30, 40, 40), 0.9), ((30, 30, 40, 40), 0.2), ((60, 60, 70, 70), 0.9)]:
        loss, missing = plant(torch.tensor([[box]]).float(), torch.tensor([[[score, 0.1]]]), goals(), wanted, valid)
        losses.append(float(loss))
        assert bool(missing) == (len(losses) > 1)
    assert losses[0] == 0 < min(losses[1:])


def test_the_slice_that_explains_a_masked_box_reveals_least():
    masked_box, box = np.array([0.0, 0, 10, 10]), np.array([8.0, 0, 14, 10])
    made = least_revealing(masked_box, box, 0.6)
    assert ioa(masked_box[None], made[None])[0, 0] == pytest.approx(0.6)
    assert ioa(box[None], made[None])[0, 0] == 0


def test_boxes_to_plant_explain_what_the_patch_cannot_reach():
    from attack_pipelines import LARGEST, OBJECT, sound, target

    _, pipeline = sound()
    seen = target(pipeline)
    assert not len(boxes_to_plant(pipeline, seen, (29, 29), (LARGEST, LARGEST)))  # no slice of it leaves the object
    beside = np.array([OBJECT[0] - 40.0, OBJECT[1], OBJECT[0] + 8.0, OBJECT[3]])
    other = type(seen)(seen.name, 0, seen.image, seen.observation, beside, 0)  # an object the boxes only touch
    (planted,) = boxes_to_plant(pipeline, other, (0, 0), (5, 5))
    assert ioa(beside[None], planted[None])[0, 0] == 0
    assert ioa(np.array([OBJECT], float), planted[None])[0, 0] > pipeline.rule.filter_ioa


def test_only_detectors_that_show_gradients_are_white_boxes():
    class Open(TorchDetector):
        def predict(self, images):
            return images, images

    class Wrapped:
        function = Open(Nothing())

    class Foreign:
        predict = None

    assert white_box_of(lambda images: []) is None
    assert white_box_of(Foreign()) is None
    assert white_box_of(Wrapped()).detector is Wrapped.function
