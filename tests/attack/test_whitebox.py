"""The differentiable image of a detector is the detector, up to rounding, and its gradients are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from objectseeker import Bands, Halves, Pairs
from objectseeker.attack.losses import LossTargets, boxes_to_plant, end_slices, hiding_loss, planting_loss
from objectseeker.attack.pipeline import draw_patches, paste
from objectseeker.attack.placement import removing_masks
from objectseeker.attack.whitebox import PatchRenderer, WhiteBox, fill_views, unaffected_views
from objectseeker.core.boxes import ioa
from objectseeker.core.pruning import cut_by_mask
from objectseeker.core.seeker import view_rectangles
from objectseeker.detectors import load_detector
from objectseeker.detectors.builtin import load_torch
from objectseeker.detectors.network.layouts import normalize, parse_layout
from objectseeker.detectors.network.preprocess import prepare
from objectseeker.detectors.torch_module import torch_detector


class Nothing(torch.nn.Module):  # type: ignore[name-defined]
    def forward(self, images):
        return images.new_zeros(len(images), 1, 4), images.mean((1, 2, 3))[:, None, None] * 0


def scenes(*sizes):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]


def white(layout="decoded", size=64):
    module = Nothing()
    return WhiteBox(predict=module, detector=torch_detector(module, layout=layout, input_size=size))


@pytest.mark.parametrize("fit", ["top-left", "center", "stretch"])
def test_patches_are_drawn_as_the_detector_sees_them(fit):
    box = white(f"decoded,fit={fit}")
    images = scenes((90, 60), (41, 77), (64, 64), (30, 20))
    renderer = PatchRenderer(box, images)
    rng = np.random.default_rng(1)
    for n, image in enumerate(images):
        height, width = image.shape[:2]
        for x, y, wide, tall in [(3, 5, 9, 7), (-4, -3, 9, 7), (width - 2, height - 3, 6, 7), (0, 0, 1, 1)]:
            patch = rng.integers(0, 256, (tall, wide, 3), dtype=np.uint8)
            padded = torch.zeros(1, 3, 10, 12)  # a batch is as large as its largest patch
            padded[0, :, :tall, :wide] = torch.from_numpy(patch).permute(2, 0, 1)
            corner, size = torch.tensor([[x, y]]), torch.tensor([[wide, tall]])
            drawn = (
                renderer.render(torch.tensor([n]), corner[:, None], size, padded[:, None])[0].permute(1, 2, 0).numpy()
            )
            expected = prepare(paste(image, patch, x, y), box.place((width, height)), pad=114).astype(float)
            assert np.abs(drawn - expected).max() < 1.01  # one gray level: sums in another order
            assert (np.abs(drawn - expected) > 0.5).mean() < 0.01


def test_of_two_patches_the_later_one_is_drawn_over_the_first():
    box = white()
    (image,) = scenes((90, 60))
    renderer = PatchRenderer(box, [image])
    patches = np.random.default_rng(2).integers(0, 256, (2, 12, 9, 3), dtype=np.uint8)
    for corners in [
        ((3, 5), (40, 20)),
        ((3, 5), (8, 10)),
        ((8, 10), (3, 5)),
        ((85, -3), (85, -3)),
        ((-4, 55), (0, 50)),
    ]:
        pixels = torch.from_numpy(patches).permute(0, 3, 1, 2)[None].float()
        drawn = renderer.render(torch.tensor([0]), torch.tensor([corners]), torch.tensor([[9, 12]]), pixels)
        expected = prepare(draw_patches(image, patches, corners), box.place((90, 60)), pad=114).astype(float)
        assert np.abs(drawn[0].permute(1, 2, 0).numpy() - expected).max() < 1.01


def test_the_gradient_is_that_of_the_resize():
    box = white()
    (image,) = scenes((90, 60))
    renderer = PatchRenderer(box, [image])
    patch = torch.full((1, 1, 3, 8, 8), 100.0, requires_grad=True)
    corner, size = torch.tensor([[[20, 30]]]), torch.tensor([[6, 8]])
    weight = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    drawn = renderer.render(torch.tensor([0]), corner, size, patch)
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
        assert float(gradient[0, 0, 1, pixel_y, pixel_x]) == pytest.approx(expected, rel=1e-4)
    assert float(gradient[..., 6:].abs().max()) == 0  # beyond its own width a patch does not exist


def test_views_are_filled_and_normalized_as_the_detector_does_it():
    layout = "decoded,channels=bgr,mean=10/20/30,std=2/3/4"
    seen = []
    box = WhiteBox(predict=lambda x: seen.append(x) or (x, x), detector=torch_detector(Nothing(), layout=layout))
    pixels = scenes((64, 64))[0]
    view = fill_views(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), torch.tensor([[[3, 0, 9, 64], [0, 0, 0, 0]]]), 114
    )
    box(view)
    filled = pixels.copy()
    filled[:, 3:9] = 114
    np.testing.assert_allclose(seen[0][0].numpy(), normalize(filled, parse_layout(layout)), rtol=1e-6)
    same = fill_views(view, torch.tensor([[[0, 0, 0, 0]]]), 7)
    assert torch.equal(same, view)


def goals(threshold=0.0, relabels=False, every_class=False, line=np.inf, **more):
    return LossTargets(
        box=torch.tensor([[10.0, 10.0, 20.0, 20.0]]),
        object_classes=torch.tensor([[True, False]]),
        score=torch.tensor([0.5]),
        every_class=torch.tensor([every_class]),
        relabels=torch.tensor([relabels]),
        lines=torch.tensor([[[line, np.inf], [np.inf, np.inf]]]),
        edge=torch.tensor([[1.0, 1.0]]),
        certification_threshold=threshold,
        **more,
    )


@pytest.mark.parametrize(
    ("box", "scores", "threshold", "shown"),
    [
        ((10, 10, 20, 20), (0.6, 0.1), 0.0, True),
        ((10, 10, 20, 20), (0.2, 0.1), 0.0, False),  # too weak
        ((10, 10, 20, 20), (0.6, 0.9), 0.0, False),  # another class is better
        ((20, 10, 30, 20), (0.9, 0.1), 0.0, False),  # next to it
        ((16, 10, 30, 20), (0.9, 0.1), 0.5, False),  # covers too little of it
        ((16, 10, 30, 20), (0.9, 0.1), 0.3, True),
    ],
)
def test_an_object_is_hidden_when_no_box_of_its_label_gives_it_away(box, scores, threshold, shown):
    boxes, values = torch.tensor([[box]]).float(), torch.tensor([[scores]])
    loss, seen = hiding_loss(boxes, values, goals(threshold))
    assert bool(seen) == shown
    assert (float(loss) > 0) == shown
    pushed, _ = hiding_loss(boxes, values, goals(threshold, relabels=True))
    assert float(pushed) >= float(loss)


def test_a_better_class_hides_an_object_only_where_the_best_class_counts():
    boxes, scores = torch.tensor([[(10, 10, 20, 20)]]).float(), torch.tensor([[(0.6, 0.9)]])

    _, seen = hiding_loss(boxes, scores, goals())
    loss, still_seen = hiding_loss(boxes, scores, goals(every_class=True))

    assert (bool(seen), bool(still_seen)) == (False, True)
    assert float(loss) > 0


def test_an_object_is_found_by_iou_where_the_rule_says_so():
    boxes, scores = torch.tensor([[(10, 10, 20, 30)]]).float(), torch.tensor([[(0.9, 0.1)]])
    assert [bool(hiding_loss(boxes, scores, goals(t, uses_iou=True))[1]) for t in (0.4, 0.5)] == [True, False]
    assert bool(hiding_loss(boxes, scores, goals(0.9))[1])


@pytest.mark.parametrize(("line", "shown"), [(np.inf, True), (22.0, True), (21.0, False), (15.0, False), (8.5, True)])
def test_a_box_that_its_mask_cuts_needs_a_higher_score(line, shown):
    boxes, scores = torch.tensor([[(10, 10, 20, 20)]]).float(), torch.tensor([[(0.6, 0.1)]])
    loss, seen = hiding_loss(boxes, scores, goals(line=line, edge_factor=0.5))
    assert bool(seen) == (float(loss) > 0) == shown
    strong = torch.tensor([[(1.0, 0.1)]])
    assert bool(hiding_loss(boxes, strong, goals(line=line, edge_factor=0.5))[1])
    assert (
        bool(hiding_loss(boxes, strong, goals(line=line, edge_factor=0.4))[1]) == shown
    )  # 0.5 / 0.4 is more than any score


@pytest.mark.parametrize("masks", [Halves(4), Bands(0.05), Pairs(2)], ids=str)
def test_lines_lie_where_the_rule_sees_them(masks):
    box = white()
    (image,) = scenes((90, 60))
    renderer, masks = PatchRenderer(box, [image]), masks.masks(90, 60)
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 60, (500, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 30, (500, 2))], axis=1)
    mask_of = rng.integers(0, len(masks), 500)
    lines, edge = renderer.mask_lines(0, masks)[mask_of], renderer.edge(0)
    network = renderer.to_network(0, boxes)
    goal = LossTargets(
        box=torch.zeros(500, 4),
        object_classes=None,
        score=torch.ones(500, dtype=torch.float64),
        every_class=None,
        relabels=None,
        lines=torch.from_numpy(lines),
        edge=torch.from_numpy(np.tile(edge, (500, 1))),
        edge_factor=0.5,
    )
    cut = goal.required_score(torch.from_numpy(network)[:, None])[:, 0].numpy() == 2
    assert (cut == cut_by_mask(boxes, mask_of, masks)).all()
    assert 50 < cut.sum() < 450


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
def test_the_white_box_sees_in_every_view_what_the_detector_sees(mask_mode):
    pytest.importorskip("onnx")
    detector = load_detector(
        "builtin", input_size=96, mask_mode=mask_mode, layout="decoded", score_floor=1e-6, batch_size=4
    )
    box = WhiteBox.from_detector(detector, predict=load_torch())
    image = np.random.default_rng(4).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    image[20:50, 20:70] = 200
    renderer, removed = PatchRenderer(box, [image]), view_rectangles(Pairs(1).masks(90, 60))
    views = renderer.view_plan(0, removed)
    assert (len({tuple(window) for window in views.window.tolist()}) > 1) == (mask_mode == "crop")
    inputs = fill_views(
        renderer.clean.round().expand(len(views), -1, -1, -1), torch.from_numpy(views.filled.copy()), 114
    )
    with torch.no_grad():
        boxes, scores = box.window_outputs(inputs, views.window)
    for found, of_view, score in zip(detector.detect_views(image, removed, 114), boxes, scores, strict=True):
        assert float(score.max()) == pytest.approx(found.score[0], abs=1e-3)
        rivals = score[:, found.label[0]] > found.score[0] - 1e-3
        raw = renderer.placements[0].to_raw(of_view[rivals].double().numpy())
        assert np.abs(raw - found.xyxy[0]).max(axis=1).min() < 0.5


@pytest.mark.parametrize("fit", ["top-left", "center", "stretch"])
@pytest.mark.parametrize("masks", [Halves(4), Bands(0.05), Pairs(2)], ids=str)
def test_what_a_patch_reaches_is_read_off_the_resize_and_doubt_fills_less(masks, fit):
    box = white(f"decoded,fit={fit}")
    (image,) = scenes((90, 60))
    renderer, masks = PatchRenderer(box, [image]), masks.masks(90, 60)
    removed = view_rectangles(masks)
    views = renderer.view_plan(0, removed)
    rng, size, leaked = np.random.default_rng(5), (11, 8), 0
    one_less, to_line = renderer.leak_rectangles(0, removed)
    for _ in range(25):
        corners = tuple((int(x), int(y)) for x, y in rng.integers((-5, -5), (85, 55), (2, 2)))
        patches = rng.integers(0, 256, (2, size[1], size[0], 3), dtype=np.uint8)
        clean, drawn = (
            prepare(i, renderer.placements[0], pad=114) for i in (image, draw_patches(image, patches, corners))
        )
        footprints = np.array([renderer.affected_rectangle(0, corner, size) for corner in corners])
        immune = unaffected_views(views, footprints)
        assert immune[1:][removing_masks(masks, np.array(corners), size).all(axis=0)].all()  # the margin holds
        for filled in (one_less, to_line):
            assert not (unaffected_views(type(views)(views.window, filled), footprints) & ~immune).any()
        for view in np.flatnonzero(immune):
            after = [_filled(pixels, views.filled[view]) for pixels in (clean, drawn)]
            assert (after[0] == after[1]).all()
            leaked += any((_filled(clean, f[view]) != _filled(drawn, f[view])).any() for f in (one_less, to_line))
    assert leaked  # where the mask is flush with the patch, and filled as if it had no margin


def _filled(pixels, rectangles):
    pixels = pixels.copy()
    for x1, y1, x2, y2 in rectangles:
        pixels[max(y1, 0) : max(y2, 0), max(x1, 0) : max(x2, 0)] = 114
    return pixels


def test_planting_wants_a_strong_box_at_the_place():
    wanted, valid = torch.tensor([[[30.0, 30.0, 40.0, 40.0]]]), torch.tensor([[True]])
    losses = []
    for box, score in [((30, 30, 40, 40), 0.9), ((30, 30, 40, 40), 0.2), ((60, 60, 70, 70), 0.9)]:
        loss, missing = planting_loss(
            torch.tensor([[box]]).float(), torch.tensor([[[score, 0.1]]]), goals(), wanted, valid
        )
        losses.append(float(loss))
        assert bool(missing) == (len(losses) > 1)
    assert losses[0] == 0 < min(losses[1:])


def test_slices_of_a_masked_box_are_at_its_four_ends():
    masked_box, box = np.array([0.0, 0, 10, 10]), np.array([8.0, 0, 14, 10])
    slices = end_slices(masked_box, 0.6)
    assert ioa(masked_box[None], slices)[0] == pytest.approx(0.6)
    assert ioa(box[None], slices)[0] == pytest.approx([0, 2 / 6, 0.2, 0.2])
    assert (slices[:, :2].min(axis=0) == 0).all()
    assert (slices[:, 2:].max(axis=0) == 10).all()


def test_boxes_to_plant_explain_what_the_patch_cannot_reach():
    from attack_pipelines import LARGEST, OBJECT, sound, target

    _, pipeline = sound()
    seen = target(pipeline)
    masks = seen.observation.masks
    gone = removing_masks(masks, np.array([[29, 29]]), (LARGEST, LARGEST))[0]
    assert not len(boxes_to_plant(pipeline, seen, gone))  # no slice of it leaves the object
    touching = np.array([OBJECT[0] - 40.0, OBJECT[1], OBJECT[0] + 8.0, OBJECT[3]])
    other = replace(seen, box=touching)  # an object the boxes only touch
    (planted,) = boxes_to_plant(pipeline, other, removing_masks(masks, np.array([[0, 0]]), (5, 5))[0])
    assert ioa(touching[None], planted[None])[0, 0] == 0
    assert ioa(np.array([OBJECT], float), planted[None])[0, 0] > pipeline.rule.filter_ioa


def test_only_detectors_that_show_gradients_are_white_boxes():
    class Wrapped:
        function = torch_detector(Nothing())

    class Foreign:
        predict = None

    assert WhiteBox.from_detector(lambda images: []) is None
    assert WhiteBox.from_detector(Foreign()) is None
    assert WhiteBox.from_detector(replace(Wrapped.function, predict=None)) is None
    assert WhiteBox.from_detector(Wrapped()).detector is Wrapped.function
